//! The course of the cold start benchmark: warm up, take turns, then a thousand runs in a row and
//! eight at once.

use std::{
    error::Error,
    time::{Duration, Instant},
};

use cloche_executor::{Executor, ExecutorConfig, RunError, RunIo};
use cloche_model::{Language, RunSpec};
use tokio::task::JoinSet;

use crate::{
    BenchArguments,
    contestants::{self, Contestant},
    figures::{self, LatencyFigures},
    leftovers::LeftoverCounts,
    print_line,
};

/// The number of warm-up runs, which fill caches and wake up processors.
const WARM_UP: usize = 5;
const IN_A_ROW: usize = 1000;
const AT_ONCE: usize = 8;

/// Measures everything that was requested.
pub(crate) async fn measure_cold_starts(arguments: &BenchArguments) -> Result<(), Box<dyn Error>> {
    let executor = Executor::start(ExecutorConfig::with_program(std::env::current_exe()?)).await?;
    let wanted = |name: &str| {
        arguments.only.is_empty() || arguments.only.iter().any(|part| name.contains(part.as_str()))
    };
    let load = || std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    print_line(&format!("load average before: {}", load().trim()));
    let mut all = contestants::list_contestants(&executor)?;
    all.retain(|contestant| wanted(&contestant.name));
    let present = warm_up_contestants(all).await;
    if !present.is_empty() {
        let figures = take_turns(&present, arguments.rounds).await?;
        figures::print_table(&figures);
        figures::print_promises(&figures);
    }
    drop(present);
    if wanted("leftovers") {
        measure_leftovers(&executor).await?;
    }
    executor.stop().await;
    print_line(&format!("\nload average after: {}", load().trim()));
    Ok(())
}

/// Warms up, and reports which contestants cannot run on this host and why.
async fn warm_up_contestants(all: Vec<Contestant>) -> Vec<Contestant> {
    let mut present = Vec::new();
    for contestant in all {
        let mut runs = Ok(Duration::ZERO);
        for round in 0..WARM_UP {
            runs = contestant.time_one_run(round).await;
        }
        match runs {
            Ok(_) => present.push(contestant),
            Err(error) => print_line(&format!("skipped: {}: {error}", contestant.name)),
        }
    }
    present
}

async fn take_turns(
    all: &[Contestant],
    rounds: usize,
) -> Result<Vec<LatencyFigures>, Box<dyn Error>> {
    let mut times: Vec<Vec<Duration>> = vec![Vec::with_capacity(rounds); all.len()];
    for round in 0..rounds {
        for (contestant, times) in all.iter().zip(&mut times) {
            times.push(contestant.time_one_run(WARM_UP + round).await?);
        }
    }
    let named = all.iter().map(|contestant| contestant.name.clone()).zip(times);
    Ok(named.map(|(name, times)| LatencyFigures::new(name, times)).collect())
}

/// A thousand runs in a row, then as many eight at once. Counts what they leave behind.
async fn measure_leftovers(executor: &Executor) -> Result<(), Box<dyn Error>> {
    run_print_one(executor).await?;
    executor.wait_for_teardown().await;
    let before = LeftoverCounts::count_now();
    let all_began = Instant::now();
    let mut times = Vec::with_capacity(IN_A_ROW);
    for _ in 0..IN_A_ROW {
        let began = Instant::now();
        run_print_one(executor).await?;
        times.push(began.elapsed());
    }
    let in_a_row = all_began.elapsed();
    let began = Instant::now();
    let mut at_once = Vec::with_capacity(IN_A_ROW);
    let mut tasks = JoinSet::new();
    for _ in 0..AT_ONCE {
        let executor = executor.clone();
        tasks.spawn(async move { time_many_runs(&executor).await });
    }
    while let Some(times) = tasks.join_next().await {
        at_once.extend(times?.map_err(|error| error.to_string())?);
    }
    let took = began.elapsed();
    executor.wait_for_teardown().await;
    let rate = |took: Duration| IN_A_ROW as f64 / took.as_secs_f64();
    print_line(&format!("\n{IN_A_ROW} python runs in a row: {:.0} a second", rate(in_a_row)));
    print_line(&format!("{IN_A_ROW} python runs, {AT_ONCE} at once: {:.0} a second", rate(took)));
    let figures = [("cloche cold in a row", times), ("cloche cold at once", at_once)];
    let figures = figures.map(|(name, times)| LatencyFigures::new(name.to_owned(), times));
    figures::print_table(&figures);
    figures::print_tails(&figures);
    if before.print_growth(LeftoverCounts::count_now()) {
        return Ok(());
    }
    Err("runs left something behind".into())
}

async fn run_print_one(executor: &Executor) -> Result<(), RunError> {
    let spec = RunSpec::new(Language::Python, "print(1)");
    executor.run(spec, RunIo::default()).await.map(drop)
}

async fn time_many_runs(executor: &Executor) -> Result<Vec<Duration>, RunError> {
    let mut times = Vec::with_capacity(IN_A_ROW / AT_ONCE);
    for _ in 0..IN_A_ROW / AT_ONCE {
        let began = Instant::now();
        run_print_one(executor).await?;
        times.push(began.elapsed());
    }
    Ok(times)
}
