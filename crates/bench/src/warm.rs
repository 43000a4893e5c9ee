//! Warm runs beside bare processes: latency, on-demand forks, throughput, a burst, memory, a soak.

use std::{
    error::Error,
    io,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use cloche_executor::{Executor, ExecutorConfig, PoolSettings, RunIo};
use cloche_model::{Language, RunEnding, RunSpec};
use tokio::task::JoinSet;

use crate::{
    BenchArguments,
    figures::{self, LatencyFigures, print_promise},
    leftovers::{LeftoverCounts, parked_memory},
    print_line,
};

/// A language, its smallest program, and the same as a bare command.
const JOBS: [(Language, &str, &[&str], f64); 3] = [
    (Language::Python, "print(1)", &["/usr/bin/python3", "-c", "print(1)"], 0.08),
    (Language::Node, "console.log(1)", &["/usr/bin/node", "-e", "console.log(1)"], 0.1),
    (Language::Bash, "echo 1", &["/bin/bash", "-c", "echo 1"], 1.5),
];
/// Between two runs of a contestant, so that the pool is refilled as it would be at rest.
const PAUSE: Duration = Duration::from_millis(15);
const BURST: usize = 100;
/// How often that is tried.
const BURSTS: usize = 7;
const PARKED: usize = 200;

type BenchResult<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Everything about warm runs that was asked for.
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

/// One run, asked for by a task as a server's are, and not by the thread that drives the runtime.
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

/// That the program printed its one line and ended well.
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

/// Bare and warm in turn; then the same with no parked cell, forked when asked for.
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

/// A large library that was imported ahead, where this host has it.
async fn measure_preload(rounds: usize) -> BenchResult<()> {
    let argv = ["/usr/bin/python3", "-c", "import pandas; print(1)"];
    if let Err(error) = time_bare_run(&argv) {
        print_line(&format!("\nleft out: preload: there is no pandas here: {error}"));
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

/// The processor time that the cell of a run takes, made ahead and made on demand: it says less about
/// other work on the machine than a clock does.
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

/// Runs a second, bare and warm, at the best of a few concurrencies.
async fn measure_throughput(rounds: usize) -> BenchResult<()> {
    let executor = start_with_pool(PoolSettings::default()).await?;
    print_line("\n| a second | 1 at once | 2 | 4 | 8 | best |\n|---|---|---|---|---|---|");
    for (language, code, argv, _) in JOBS {
        warm_language(&executor, language).await;
        let runs = if language == Language::Node { rounds } else { rounds * 4 };
        let mut rates = [[0.0; 4]; 2];
        for (at, width) in [1, 2, 4, 8].into_iter().enumerate() {
            rates[0][at] = measure_bare_rate(argv, runs / 2, width).await?;
            // Those that were parked meanwhile are not counted: sustained is what cells are made at.
            let parked: usize =
                executor.read_metrics().buckets.iter().map(|shelf| shelf.parked).sum();
            measure_warm_rate(&executor, language, code, parked, width).await?;
            rates[1][at] = measure_warm_rate(&executor, language, code, runs, width).await?;
        }
        let best = |rates: [f64; 4]| rates.into_iter().fold(0.0, f64::max);
        for (name, rates) in [("bare", rates[0]), ("warm", rates[1])] {
            let each = rates.map(|rate| format!("{rate:.0}")).join(" | ");
            print_line(&format!("| {name} {language} | {each} | {:.0} |", best(rates)));
        }
        let times = best(rates[1]) / best(rates[0]);
        print_line(&format!("| {language}: warm : bare | | | | | {times:.2} |"));
    }
    executor.stop().await;
    Ok(())
}

/// A hundred runs at once, several times, and bare ones in between: those that come when nothing of
/// the kind has come before, and those that come again.
async fn measure_bursts() -> BenchResult<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    let (mut first, mut again, mut bare_times) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..BURSTS {
        let executor = start_with_pool(PoolSettings::default()).await?;
        warm_language(&executor, Language::Python).await;
        for taken in [&mut first, &mut again] {
            wait_until_warm(&executor).await;
            bare_times
                .extend((0..5).map(|_| time_bare_run(JOBS[0].2)).collect::<io::Result<Vec<_>>>()?);
            tokio::time::sleep(Duration::from_millis(500)).await;
            let began = Instant::now();
            measure_warm_rate(&executor, Language::Python, "print(1)", BURST, BURST).await?;
            taken.push(began.elapsed());
        }
        executor.stop().await;
    }
    let p50 = |times| LatencyFigures::new(String::new(), times).percentile(50);
    let (first, again, bare) = (p50(first), p50(again), p50(bare_times));
    print_line(&format!(
        "\n{BURST} python runs at once, all answered: {first:.0} ms, again {again:.0} ms"
    ));
    print_line("\n| promise | at most | measured | kept |\n|---|---|---|---|");
    for (name, took) in [("first burst", first), ("burst", again)] {
        let share = took * cores / (BURST as f64 * bare);
        print_promise(&format!("{name} : 100 x bare / cores"), 0.25, share);
    }
    Ok(())
}

async fn measure_warm_rate(
    executor: &Executor,
    language: Language,
    code: &'static str,
    runs: usize,
    width: usize,
) -> BenchResult<f64> {
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..width {
        let executor = executor.clone();
        tasks.spawn(async move {
            for _ in 0..runs.div_ceil(width) {
                time_warm_run(&executor, language, code).await?;
            }
            BenchResult::Ok(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok((runs.div_ceil(width) * width) as f64 / began.elapsed().as_secs_f64())
}

async fn measure_bare_rate(
    argv: &'static [&'static str],
    runs: usize,
    width: usize,
) -> BenchResult<f64> {
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..width {
        tasks.spawn_blocking(move || {
            (0..runs.div_ceil(width)).try_for_each(|_| time_bare_run(argv).map(drop))
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok((runs.div_ceil(width) * width) as f64 / began.elapsed().as_secs_f64())
}

/// What a parked cell costs, and whether two hundred can be parked.
async fn measure_memory() -> BenchResult<()> {
    let executor =
        start_with_pool(PoolSettings { floor: PARKED, ceiling: PARKED, ..PoolSettings::default() })
            .await?;
    warm_language(&executor, Language::Python).await;
    let levels = executor.read_metrics().buckets;
    let parked: usize = levels.iter().map(|shelf| shelf.parked).sum();
    let pss = parked_memory();
    let each = pss as f64 / parked.max(1) as f64 / 1024.0;
    print_line(&format!(
        "\n{parked} python cells parked, {each:.2} MiB of PSS each, pid 1 included"
    ));
    time_warm_run(&executor, Language::Python, "print(1)").await?;
    executor.stop().await;
    Ok(())
}

/// Many runs, one after the other and eight at once: memory, descriptors, mounts and cgroups must
/// not grow.
async fn measure_soak(runs: usize) -> BenchResult<()> {
    let executor = start_with_pool(PoolSettings::default()).await?;
    warm_language(&executor, Language::Python).await;
    measure_warm_rate(&executor, Language::Python, "print(1)", 400, 8).await?;
    tokio::time::sleep(Duration::from_secs(8)).await;
    let before = (LeftoverCounts::count_now(), own_memory_kib());
    let rate = measure_warm_rate(&executor, Language::Python, "print(1)", runs, 8).await?;
    tokio::time::sleep(Duration::from_secs(8)).await;
    let after = (LeftoverCounts::count_now(), own_memory_kib());
    print_line(&format!("\n{runs} warm python runs, 8 at once: {rate:.0} a second"));
    print_line(&format!("memory of this process: {} KiB before, {} KiB after", before.1, after.1));
    before.0.print_growth(after.0);
    executor.stop().await;
    Ok(())
}

/// The resident memory of this process, in KiB.
fn own_memory_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
