//! Warm runs under load: throughput, bursts, the memory of parked cells, and a soak.

use std::{
    io,
    time::{Duration, Instant},
};

use cloche_executor::{Executor, PoolSettings};
use cloche_model::Language;
use tokio::task::JoinSet;

use super::{JOBS, start_with_pool, time_bare_run, time_warm_run, wait_until_warm, warm_language};
use crate::{
    BenchResult,
    figures::{LatencyFigures, print_promise},
    leftovers::{LeftoverCounts, parked_memory},
    print_line,
};

/// The number of runs in a burst.
const BURST: usize = 100;
/// How often a burst is repeated.
const BURSTS: usize = 7;
/// The number of parked cells in the memory measurement.
const PARKED: usize = 200;

/// Runs per second, bare and warm, at the best of a few concurrencies.
pub(super) async fn measure_throughput(rounds: usize) -> BenchResult<()> {
    let executor = start_with_pool(PoolSettings::default()).await?;
    print_line("\n| a second | 1 at once | 2 | 4 | 8 | best |\n|---|---|---|---|---|---|");
    for (language, code, argv, _) in JOBS {
        warm_language(&executor, language).await;
        let runs = if language == Language::Node { rounds } else { rounds * 4 };
        let mut rates = [[0.0; 4]; 2];
        for (at, width) in [1, 2, 4, 8].into_iter().enumerate() {
            rates[0][at] = measure_bare_rate(argv, runs / 2, width).await?;
            // Cells parked in the meantime are used up first: the sustained rate is that of making
            // cells.
            let parked: usize =
                executor.read_metrics().buckets.iter().map(|bucket| bucket.parked).sum();
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

/// A hundred runs at once, several times, with bare runs in between: the first burst of a new
/// executor, and a second one.
pub(super) async fn measure_bursts() -> BenchResult<()> {
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

pub(super) async fn measure_warm_rate(
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

/// The memory of a parked cell, and whether two hundred can be parked.
pub(super) async fn measure_memory() -> BenchResult<()> {
    let executor =
        start_with_pool(PoolSettings { floor: PARKED, ceiling: PARKED, ..PoolSettings::default() })
            .await?;
    warm_language(&executor, Language::Python).await;
    let buckets = executor.read_metrics().buckets;
    let parked: usize = buckets.iter().map(|bucket| bucket.parked).sum();
    let pss = parked_memory();
    let each = pss as f64 / parked.max(1) as f64 / 1024.0;
    print_line(&format!(
        "\n{parked} python cells parked, {each:.2} MiB of PSS each, pid 1 included"
    ));
    time_warm_run(&executor, Language::Python, "print(1)").await?;
    executor.stop().await;
    Ok(())
}

/// Many runs, eight at once: memory, descriptors, mounts and cgroups must not grow.
pub(super) async fn measure_soak(runs: usize) -> BenchResult<()> {
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
