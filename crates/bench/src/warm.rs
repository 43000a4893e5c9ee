//! Warm runs beside bare processes: latency, on-demand forks, throughput, a burst, memory, a soak.

use std::{
    error::Error,
    io,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use cloche_executor::{Config, Executor, PoolSettings, RunIo};
use cloche_model::{Ending, Language, RunSpec};
use tokio::task::JoinSet;

use crate::{
    Arguments,
    figures::{self, Figures, promise},
    leftovers::{Count, parked_memory},
    say,
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

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Everything about warm runs that was asked for.
pub(crate) async fn all(arguments: &Arguments) -> Outcome<()> {
    let wanted = |name: &str| {
        arguments.only.is_empty() || arguments.only.iter().any(|part| name.contains(part.as_str()))
    };
    if wanted("warm-latency") {
        latency(arguments.rounds).await?;
    }
    if wanted("warm-loaded") {
        say("\nThe same with one core kept busy:");
        let busy = Busy::start()?;
        latency(arguments.rounds).await?;
        drop(busy);
    }
    if wanted("warm-cost") {
        cost(arguments.rounds).await?;
    }
    if wanted("warm-preload") {
        preload(arguments.rounds.min(60)).await?;
    }
    if wanted("warm-throughput") {
        throughput(arguments.rounds).await?;
    }
    if wanted("warm-burst") {
        burst().await?;
    }
    if wanted("warm-memory") {
        memory().await?;
    }
    if wanted("warm-soak") {
        soak(arguments.soak).await?;
    }
    Ok(())
}

async fn start(settings: PoolSettings) -> Outcome<Executor> {
    let config = Config { pool: Some(settings), ..Config::with_program(std::env::current_exe()?) };
    Ok(Executor::start(config).await?)
}

async fn warm(executor: &Executor, language: Language) {
    let spec = RunSpec::new(language, "");
    executor.prepare(language, &spec.limits, &spec.sandbox);
    until_warm(executor).await;
}

async fn until_warm(executor: &Executor) {
    let began = Instant::now();
    while !executor.is_warm() && began.elapsed() < Duration::from_secs(30) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A process that keeps one core busy until this is dropped.
struct Busy(Child);

impl Busy {
    fn start() -> io::Result<Self> {
        let program = ["-c", "while :; do :; done"];
        Command::new("/bin/sh").args(program).stdin(Stdio::null()).spawn().map(Self)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One run, asked for by a task as a server's are, and not by the thread that drives the runtime.
async fn once(executor: &Executor, language: Language, code: &str) -> Outcome<Duration> {
    Ok(timed(executor, RunSpec::new(language, code)).await?.0)
}

async fn timed(executor: &Executor, spec: RunSpec) -> Outcome<(Duration, cloche_model::Outcome)> {
    let (executor, language) = (executor.clone(), spec.language);
    let task = tokio::spawn(async move {
        let began = Instant::now();
        let outcome = executor.run(spec, RunIo::default()).await;
        (began.elapsed(), outcome)
    });
    let (took, outcome) = task.await?;
    let outcome = outcome?;
    expect_one(language, &outcome)?;
    Ok((took, outcome))
}

/// That the program printed its one line and ended well.
fn expect_one(language: Language, outcome: &cloche_model::Outcome) -> Outcome<()> {
    if outcome.ending == Ending::Exited(0) && outcome.stdout.bytes == b"1\n" {
        return Ok(());
    }
    Err(format!("{language}: {outcome:?}").into())
}

fn bare(argv: &[&str]) -> io::Result<Duration> {
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
async fn latency(rounds: usize) -> Outcome<()> {
    let pooled = start(PoolSettings::default()).await?;
    let empty = start(PoolSettings { floor: 0, ceiling: 0, ..PoolSettings::default() }).await?;
    warm(&empty, Language::Python).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut all = Vec::new();
    for (language, code, argv, _) in JOBS {
        warm(&pooled, language).await;
        let (mut bare_times, mut warm_times, mut forked) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            bare_times.push(bare(argv)?);
            tokio::time::sleep(PAUSE).await;
            warm_times.push(once(&pooled, language, code).await?);
            tokio::time::sleep(PAUSE).await;
            if language == Language::Python {
                forked.push(once(&empty, language, code).await?);
                tokio::time::sleep(PAUSE).await;
            }
        }
        all.push(Figures::new(format!("bare {language}"), bare_times));
        all.push(Figures::new(format!("warm {language}"), warm_times));
        if !forked.is_empty() {
            all.push(Figures::new("forked on demand python".to_owned(), forked));
        }
    }
    figures::table(&all);
    let at = |name: &str, percent| {
        let found = all.iter().find(|figures| figures.name == name);
        found.map_or(f64::NAN, |figures| figures.percentile(percent))
    };
    say("\n| promise | at most | measured | kept |\n|---|---|---|---|");
    for (language, _, _, most) in JOBS {
        let [warm, bare] = ["warm", "bare"].map(|kind| at(&format!("{kind} {language}"), 50));
        promise(&format!("warm {language} : bare, p50"), most, warm / bare);
    }
    let bare_python = at("bare python", 50);
    promise("warm python p99 : bare p50", 0.3, at("warm python", 99) / bare_python);
    promise("forked on demand : bare, p50", 0.25, at("forked on demand python", 50) / bare_python);
    for (name, executor) in [("pooled", &pooled), ("empty", &empty)] {
        let now = executor.snapshot();
        let (hits, forks, cold) = (now.pool_hits, now.on_demand_forks, now.cold_starts);
        say(&format!("\n{name}: {hits} hits, {forks} forks on demand, {cold} cold starts"));
    }
    pooled.stop().await;
    empty.stop().await;
    Ok(())
}

/// A large library that was imported ahead, where this host has it.
async fn preload(rounds: usize) -> Outcome<()> {
    let argv = ["/usr/bin/python3", "-c", "import pandas; print(1)"];
    if let Err(error) = bare(&argv) {
        say(&format!("\nleft out: preload: there is no pandas here: {error}"));
        return Ok(());
    }
    let executor = start(PoolSettings::default()).await?;
    let mut spec = RunSpec::new(Language::Python, "import pandas; print(1)");
    spec.sandbox.preload = vec!["pandas".to_owned()];
    executor.prepare(Language::Python, &spec.limits, &spec.sandbox);
    until_warm(&executor).await;
    let (mut bare_times, mut warm_times) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        bare_times.push(bare(&argv)?);
        until_warm(&executor).await;
        tokio::time::sleep(PAUSE).await;
        warm_times.push(timed(&executor, spec.clone()).await?.0);
    }
    let bare = Figures::new("bare import pandas".to_owned(), bare_times);
    let warm = Figures::new("warm import pandas".to_owned(), warm_times);
    let share = warm.percentile(50) / bare.percentile(50);
    figures::table(&[bare, warm]);
    say("\n| promise | at most | measured | kept |\n|---|---|---|---|");
    promise("warm import pandas : bare, p50", 0.05, share);
    let now = executor.snapshot();
    say(&format!("\n{} hits, {} forks on demand", now.pool_hits, now.on_demand_forks));
    executor.stop().await;
    Ok(())
}

/// The processor time that the cell of a run takes, made ahead and made on demand: it says less about
/// other work on the machine than a clock does.
async fn cost(rounds: usize) -> Outcome<()> {
    let none = PoolSettings { floor: 0, ceiling: 0, ..PoolSettings::default() };
    say(
        "\n| cells | runs | p50 ms | processor ms, p50 | a second, 4 at once |\n|---|---|---|---|---|",
    );
    for (name, settings) in [("parked", PoolSettings::default()), ("forked on demand", none)] {
        let executor = start(settings).await?;
        warm(&executor, Language::Python).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        let (mut took, mut used) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let spec = RunSpec::new(Language::Python, "print(1)");
            let (time, outcome) = timed(&executor, spec).await?;
            took.push(time);
            used.push(outcome.usage.cpu);
            tokio::time::sleep(PAUSE).await;
        }
        let rate = warm_rate(&executor, Language::Python, "print(1)", rounds * 8, 4).await?;
        let [took, used] = [took, used].map(|all| Figures::new(String::new(), all).percentile(50));
        say(&format!("| {name} python | {rounds} | {took:.2} | {used:.2} | {rate:.0} |"));
        executor.stop().await;
    }
    Ok(())
}

/// Runs a second, bare and warm, at the best of a few concurrencies.
async fn throughput(rounds: usize) -> Outcome<()> {
    let executor = start(PoolSettings::default()).await?;
    say("\n| a second | 1 at once | 2 | 4 | 8 | best |\n|---|---|---|---|---|---|");
    for (language, code, argv, _) in JOBS {
        warm(&executor, language).await;
        let runs = if language == Language::Node { rounds } else { rounds * 4 };
        let mut rates = [[0.0; 4]; 2];
        for (at, width) in [1, 2, 4, 8].into_iter().enumerate() {
            rates[0][at] = bare_rate(argv, runs / 2, width).await?;
            // Those that were parked meanwhile are not counted: sustained is what cells are made at.
            let parked: usize = executor.snapshot().shelves.iter().map(|shelf| shelf.parked).sum();
            warm_rate(&executor, language, code, parked, width).await?;
            rates[1][at] = warm_rate(&executor, language, code, runs, width).await?;
        }
        let best = |rates: [f64; 4]| rates.into_iter().fold(0.0, f64::max);
        for (name, rates) in [("bare", rates[0]), ("warm", rates[1])] {
            let each = rates.map(|rate| format!("{rate:.0}")).join(" | ");
            say(&format!("| {name} {language} | {each} | {:.0} |", best(rates)));
        }
        let times = best(rates[1]) / best(rates[0]);
        say(&format!("| {language}: warm : bare | | | | | {times:.2} |"));
    }
    executor.stop().await;
    Ok(())
}

/// A hundred runs at once, several times, and bare ones in between: those that come when nothing of
/// the kind has come before, and those that come again.
async fn burst() -> Outcome<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    let (mut first, mut again, mut bare_times) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..BURSTS {
        let executor = start(PoolSettings::default()).await?;
        warm(&executor, Language::Python).await;
        for taken in [&mut first, &mut again] {
            until_warm(&executor).await;
            bare_times.extend((0..5).map(|_| bare(JOBS[0].2)).collect::<io::Result<Vec<_>>>()?);
            tokio::time::sleep(Duration::from_millis(500)).await;
            let began = Instant::now();
            warm_rate(&executor, Language::Python, "print(1)", BURST, BURST).await?;
            taken.push(began.elapsed());
        }
        executor.stop().await;
    }
    let p50 = |times| Figures::new(String::new(), times).percentile(50);
    let (first, again, bare) = (p50(first), p50(again), p50(bare_times));
    say(&format!(
        "\n{BURST} python runs at once, all answered: {first:.0} ms, again {again:.0} ms"
    ));
    say("\n| promise | at most | measured | kept |\n|---|---|---|---|");
    for (name, took) in [("first burst", first), ("burst", again)] {
        let share = took * cores / (BURST as f64 * bare);
        promise(&format!("{name} : 100 x bare / cores"), 0.25, share);
    }
    Ok(())
}

async fn warm_rate(
    executor: &Executor,
    language: Language,
    code: &'static str,
    runs: usize,
    width: usize,
) -> Outcome<f64> {
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..width {
        let executor = executor.clone();
        tasks.spawn(async move {
            for _ in 0..runs.div_ceil(width) {
                once(&executor, language, code).await?;
            }
            Outcome::Ok(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok((runs.div_ceil(width) * width) as f64 / began.elapsed().as_secs_f64())
}

async fn bare_rate(argv: &'static [&'static str], runs: usize, width: usize) -> Outcome<f64> {
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..width {
        tasks.spawn_blocking(move || {
            (0..runs.div_ceil(width)).try_for_each(|_| bare(argv).map(drop))
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok((runs.div_ceil(width) * width) as f64 / began.elapsed().as_secs_f64())
}

/// What a parked cell costs, and whether two hundred can be parked.
async fn memory() -> Outcome<()> {
    let executor =
        start(PoolSettings { floor: PARKED, ceiling: PARKED, ..PoolSettings::default() }).await?;
    warm(&executor, Language::Python).await;
    let levels = executor.snapshot().shelves;
    let parked: usize = levels.iter().map(|shelf| shelf.parked).sum();
    let pss = parked_memory();
    let each = pss as f64 / parked.max(1) as f64 / 1024.0;
    say(&format!("\n{parked} python cells parked, {each:.2} MiB of PSS each, pid 1 included"));
    once(&executor, Language::Python, "print(1)").await?;
    executor.stop().await;
    Ok(())
}

/// Many runs, one after the other and eight at once: memory, descriptors, mounts and cgroups must
/// not grow.
async fn soak(runs: usize) -> Outcome<()> {
    let executor = start(PoolSettings::default()).await?;
    warm(&executor, Language::Python).await;
    warm_rate(&executor, Language::Python, "print(1)", 400, 8).await?;
    tokio::time::sleep(Duration::from_secs(8)).await;
    let before = (Count::take(), own_memory());
    let rate = warm_rate(&executor, Language::Python, "print(1)", runs, 8).await?;
    tokio::time::sleep(Duration::from_secs(8)).await;
    let after = (Count::take(), own_memory());
    say(&format!("\n{runs} warm python runs, 8 at once: {rate:.0} a second"));
    say(&format!("memory of this process: {} KiB before, {} KiB after", before.1, after.1));
    before.0.compare(after.0);
    executor.stop().await;
    Ok(())
}

/// The resident memory of this process, in KiB.
fn own_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
