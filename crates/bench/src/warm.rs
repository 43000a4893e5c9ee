//! Warm runs beside bare processes: latency, on-demand forks, cost and preloaded modules.
//!
//! `load` has throughput, bursts, memory and the soak.

mod load;

use std::{
    io,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use cloche_executor::{Executor, ExecutorConfig, PoolSettings, RunIo};
use cloche_model::{Language, RunEnding, RunSpec};

use self::load::{
    measure_bursts, measure_memory, measure_soak, measure_throughput, measure_warm_rate,
};
use crate::{
    BenchArguments, BenchResult,
    figures::{self, LatencyFigures, print_promise},
    print_line,
};

/// A language, its smallest program, the same program as a bare command, and the promised ratio.
const JOBS: [(Language, &str, &[&str], f64); 3] = [
    (Language::Python, "print(1)", &["/usr/bin/python3", "-c", "print(1)"], 0.08),
    (Language::Node, "console.log(1)", &["/usr/bin/node", "-e", "console.log(1)"], 0.1),
    (Language::Bash, "echo 1", &["/bin/bash", "-c", "echo 1"], 1.5),
];
/// The pause between two runs of a contestant, in which the pool is refilled as in an idle server.
const PAUSE: Duration = Duration::from_millis(15);

/// Measures everything about warm runs that was requested.
pub(crate) async fn measure_warm_runs(arguments: &BenchArguments) -> BenchResult<()> {
    let wanted = |name: &str| {
        arguments.only.is_empty() || arguments.only.iter().any(|part| name.contains(part.as_str()))
    };
    if wanted("warm-latency") {
        measure_latency(arguments.rounds).await?;
    }
    if wanted("warm-loaded") {
        print_line("\nThe same with one core kept busy:");
        let busy = BusyCore::start()?;
        measure_latency(arguments.rounds).await?;
        drop(busy);
    }
    if wanted("warm-cost") {
        measure_cost(arguments.rounds).await?;
    }
    if wanted("warm-preload") {
        measure_preload(arguments.rounds.min(60)).await?;
    }
    if wanted("warm-throughput") {
        measure_throughput(arguments.rounds).await?;
    }
    if wanted("warm-burst") {
        measure_bursts().await?;
    }
    if wanted("warm-memory") {
        measure_memory().await?;
    }
    if wanted("warm-soak") {
        measure_soak(arguments.soak).await?;
    }
    Ok(())
}

async fn start_with_pool(settings: PoolSettings) -> BenchResult<Executor> {
    let config = ExecutorConfig {
        pool: Some(settings),
        ..ExecutorConfig::with_program(std::env::current_exe()?)
    };
    Ok(Executor::start(config).await?)
}

async fn warm_language(executor: &Executor, language: Language) {
    let spec = RunSpec::new(language, "");
    executor.prewarm_pool(language, &spec.limits, &spec.sandbox);
    wait_until_warm(executor).await;
}

async fn wait_until_warm(executor: &Executor) {
    let began = Instant::now();
    while !executor.is_warm() && began.elapsed() < Duration::from_secs(30) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A process that keeps one core busy until this is dropped.
struct BusyCore(Child);

impl BusyCore {
    fn start() -> io::Result<Self> {
        let program = ["-c", "while :; do :; done"];
        Command::new("/bin/sh").args(program).stdin(Stdio::null()).spawn().map(Self)
    }
}

impl Drop for BusyCore {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Times one run, started by a task as in a server, not by the thread that drives the runtime.
async fn time_warm_run(
    executor: &Executor,
    language: Language,
    code: &str,
) -> BenchResult<Duration> {
    Ok(run_timed(executor, RunSpec::new(language, code)).await?.0)
}

async fn run_timed(
    executor: &Executor,
    spec: RunSpec,
) -> BenchResult<(Duration, cloche_model::RunOutcome)> {
    let (executor, language) = (executor.clone(), spec.language);
    let task = tokio::spawn(async move {
        let began = Instant::now();
        let outcome = executor.run(spec, RunIo::default()).await;
        (began.elapsed(), outcome)
    });
    let (took, outcome) = task.await?;
    let outcome = outcome?;
    expect_printed_one(language, &outcome)?;
    Ok((took, outcome))
}

/// Checks that the program printed its one line and succeeded.
fn expect_printed_one(language: Language, outcome: &cloche_model::RunOutcome) -> BenchResult<()> {
    if outcome.ending == RunEnding::Exited(0) && outcome.stdout.bytes == b"1\n" {
        return Ok(());
    }
    Err(format!("{language}: {outcome:?}").into())
}

fn time_bare_run(argv: &[&str]) -> io::Result<Duration> {
    let began = Instant::now();
    let output =
        Command::new(argv[0]).args(&argv[1..]).env_clear().stdin(Stdio::null()).output()?;
    let took = began.elapsed();
    if output.stdout != b"1\n" {
        return Err(io::Error::other(format!("{argv:?} printed {:?}", output.stdout)));
    }
    Ok(took)
}

/// Bare and warm in turn; then without parked cells, forked on demand.
async fn measure_latency(rounds: usize) -> BenchResult<()> {
    let pooled = start_with_pool(PoolSettings::default()).await?;
    let empty =
        start_with_pool(PoolSettings { floor: 0, ceiling: 0, ..PoolSettings::default() }).await?;
    warm_language(&empty, Language::Python).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut all = Vec::new();
    for (language, code, argv, _) in JOBS {
        warm_language(&pooled, language).await;
        let (mut bare_times, mut warm_times, mut forked) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            bare_times.push(time_bare_run(argv)?);
            tokio::time::sleep(PAUSE).await;
            warm_times.push(time_warm_run(&pooled, language, code).await?);
            tokio::time::sleep(PAUSE).await;
            if language == Language::Python {
                forked.push(time_warm_run(&empty, language, code).await?);
                tokio::time::sleep(PAUSE).await;
            }
        }
        all.push(LatencyFigures::new(format!("bare {language}"), bare_times));
        all.push(LatencyFigures::new(format!("warm {language}"), warm_times));
        if !forked.is_empty() {
            all.push(LatencyFigures::new("forked on demand python".to_owned(), forked));
        }
    }
    figures::print_table(&all);
    let at = |name: &str, percent| {
        let found = all.iter().find(|figures| figures.name == name);
        found.map_or(f64::NAN, |figures| figures.percentile(percent))
    };
    print_line("\n| promise | at most | measured | kept |\n|---|---|---|---|");
    for (language, _, _, most) in JOBS {
        let [warm, bare] = ["warm", "bare"].map(|kind| at(&format!("{kind} {language}"), 50));
        print_promise(&format!("warm {language} : bare, p50"), most, warm / bare);
    }
    let bare_python = at("bare python", 50);
    print_promise("warm python p99 : bare p50", 0.3, at("warm python", 99) / bare_python);
    print_promise(
        "forked on demand : bare, p50",
        0.25,
        at("forked on demand python", 50) / bare_python,
    );
    for (name, executor) in [("pooled", &pooled), ("empty", &empty)] {
        let now = executor.read_metrics();
        let (hits, forks, cold) = (now.pool_hits, now.on_demand_forks, now.cold_starts);
        print_line(&format!("\n{name}: {hits} hits, {forks} forks on demand, {cold} cold starts"));
    }
    pooled.stop().await;
    empty.stop().await;
    Ok(())
}

/// A large library that is imported in advance, if this host has it.
async fn measure_preload(rounds: usize) -> BenchResult<()> {
    let argv = ["/usr/bin/python3", "-c", "import pandas; print(1)"];
    if let Err(error) = time_bare_run(&argv) {
        print_line(&format!("\nskipped: preload: pandas is not installed: {error}"));
        return Ok(());
    }
    let executor = start_with_pool(PoolSettings::default()).await?;
    let mut spec = RunSpec::new(Language::Python, "import pandas; print(1)");
    spec.sandbox.preload = vec!["pandas".to_owned()];
    executor.prewarm_pool(Language::Python, &spec.limits, &spec.sandbox);
    wait_until_warm(&executor).await;
    let (mut bare_times, mut warm_times) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        bare_times.push(time_bare_run(&argv)?);
        wait_until_warm(&executor).await;
        tokio::time::sleep(PAUSE).await;
        warm_times.push(run_timed(&executor, spec.clone()).await?.0);
    }
    let bare = LatencyFigures::new("bare import pandas".to_owned(), bare_times);
    let warm = LatencyFigures::new("warm import pandas".to_owned(), warm_times);
    let share = warm.percentile(50) / bare.percentile(50);
    figures::print_table(&[bare, warm]);
    print_line("\n| promise | at most | measured | kept |\n|---|---|---|---|");
    print_promise("warm import pandas : bare, p50", 0.05, share);
    let now = executor.read_metrics();
    print_line(&format!("\n{} hits, {} forks on demand", now.pool_hits, now.on_demand_forks));
    executor.stop().await;
    Ok(())
}

/// The processor time of a run's cell, made in advance and made on demand. It depends less on other
/// work of the machine than wall time does.
async fn measure_cost(rounds: usize) -> BenchResult<()> {
    let none = PoolSettings { floor: 0, ceiling: 0, ..PoolSettings::default() };
    print_line(
        "\n| cells | runs | p50 ms | processor ms, p50 | a second, 4 at once |\n|---|---|---|---|---|",
    );
    for (name, settings) in [("parked", PoolSettings::default()), ("forked on demand", none)] {
        let executor = start_with_pool(settings).await?;
        warm_language(&executor, Language::Python).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        let (mut took, mut used) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let spec = RunSpec::new(Language::Python, "print(1)");
            let (time, outcome) = run_timed(&executor, spec).await?;
            took.push(time);
            used.push(outcome.usage.cpu);
            tokio::time::sleep(PAUSE).await;
        }
        let rate =
            measure_warm_rate(&executor, Language::Python, "print(1)", rounds * 8, 4).await?;
        let [took, used] =
            [took, used].map(|all| LatencyFigures::new(String::new(), all).percentile(50));
        print_line(&format!("| {name} python | {rounds} | {took:.2} | {used:.2} | {rate:.0} |"));
        executor.stop().await;
    }
    Ok(())
}
