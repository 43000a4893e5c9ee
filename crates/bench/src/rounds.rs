//! The course of a benchmark: warm up, take turns, then a thousand in a row and eight at once.

use std::{
    error::Error,
    time::{Duration, Instant},
};

use cloche_executor::{Config, Executor, RunError, RunIo};
use cloche_model::{Language, RunSpec};
use tokio::task::JoinSet;

use crate::{
    Arguments,
    contestants::{self, Contestant},
    figures::{self, Figures},
    leftovers::Count,
    say,
};

/// Runs before anything is measured: files get into the cache, processors wake up.
const WARM_UP: usize = 5;
const IN_A_ROW: usize = 1000;
const AT_ONCE: usize = 8;

/// Measures everything that was asked for.
pub(crate) async fn all(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let executor = Executor::start(Config::with_program(std::env::current_exe()?)).await?;
    let wanted = |name: &str| {
        arguments.only.is_empty() || arguments.only.iter().any(|part| name.contains(part.as_str()))
    };
    let load = || std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    say(&format!("load average before: {}", load().trim()));
    let mut all = contestants::all(&executor)?;
    all.retain(|contestant| wanted(&contestant.name));
    let present = only_those_that_run(all).await;
    if !present.is_empty() {
        let figures = take_turns(&present, arguments.rounds).await?;
        figures::table(&figures);
        figures::promises(&figures);
    }
    drop(present);
    if wanted("leftovers") {
        leave_nothing(&executor).await?;
    }
    executor.stop().await;
    say(&format!("\nload average after: {}", load().trim()));
    Ok(())
}

/// Warms up, and says who cannot take part on this host and why.
async fn only_those_that_run(all: Vec<Contestant>) -> Vec<Contestant> {
    let mut present = Vec::new();
    for contestant in all {
        let mut runs = Ok(Duration::ZERO);
        for round in 0..WARM_UP {
            runs = contestant.once(round).await;
        }
        match runs {
            Ok(_) => present.push(contestant),
            Err(error) => say(&format!("left out: {}: {error}", contestant.name)),
        }
    }
    present
}

async fn take_turns(all: &[Contestant], rounds: usize) -> Result<Vec<Figures>, Box<dyn Error>> {
    let mut times: Vec<Vec<Duration>> = vec![Vec::with_capacity(rounds); all.len()];
    for round in 0..rounds {
        for (contestant, times) in all.iter().zip(&mut times) {
            times.push(contestant.once(WARM_UP + round).await?);
        }
    }
    let named = all.iter().map(|contestant| contestant.name.clone()).zip(times);
    Ok(named.map(|(name, times)| Figures::new(name, times)).collect())
}

/// A thousand runs in a row, then as many eight at once; counts what is left.
async fn leave_nothing(executor: &Executor) -> Result<(), Box<dyn Error>> {
    run(executor).await?;
    executor.settle().await;
    let before = Count::take();
    let began = Instant::now();
    let mut times = Vec::with_capacity(IN_A_ROW);
    for _ in 0..IN_A_ROW {
        let asked = Instant::now();
        run(executor).await?;
        times.push(asked.elapsed());
    }
    let in_a_row = began.elapsed();
    let began = Instant::now();
    let mut at_once = Vec::with_capacity(IN_A_ROW);
    let mut tasks = JoinSet::new();
    for _ in 0..AT_ONCE {
        let executor = executor.clone();
        tasks.spawn(async move { many(&executor).await });
    }
    while let Some(times) = tasks.join_next().await {
        at_once.extend(times?.map_err(|error| error.to_string())?);
    }
    let took = began.elapsed();
    executor.settle().await;
    let rate = |took: Duration| IN_A_ROW as f64 / took.as_secs_f64();
    say(&format!("\n{IN_A_ROW} python runs in a row: {:.0} a second", rate(in_a_row)));
    say(&format!("{IN_A_ROW} python runs, {AT_ONCE} at once: {:.0} a second", rate(took)));
    let figures = [("cloche cold in a row", times), ("cloche cold at once", at_once)];
    let figures = figures.map(|(name, times)| Figures::new(name.to_owned(), times));
    figures::table(&figures);
    figures::tails(&figures);
    if before.compare(Count::take()) {
        return Ok(());
    }
    Err("something is left behind".into())
}

async fn run(executor: &Executor) -> Result<(), RunError> {
    let spec = RunSpec::new(Language::Python, "print(1)");
    executor.run(spec, RunIo::default()).await.map(drop)
}

async fn many(executor: &Executor) -> Result<Vec<Duration>, RunError> {
    let mut times = Vec::with_capacity(IN_A_ROW / AT_ONCE);
    for _ in 0..IN_A_ROW / AT_ONCE {
        let asked = Instant::now();
        run(executor).await?;
        times.push(asked.elapsed());
    }
    Ok(times)
}
