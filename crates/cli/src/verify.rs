//! `cloche verify`: attacks the sandbox on this very host and prints what held.
//!
//! Exit codes: 0 when every probe held, 1 when one broke, 2 when it could not be tried.

use std::{
    io::{self, Write},
    process::ExitCode,
    sync::Arc,
    time::Instant,
};

use clap::Args;
use cloche_executor::{Config, Executor, PoolSettings, StartError};
use cloche_model::Language;
use tokio::task::JoinSet;

mod bait;
mod host;
mod judge;
mod play;
mod probes;
mod report;

use bait::Bait;
use play::{Finding, Stage, with_causes};
use probes::{PROBES, Probe};
use report::{Cell, Report, Row, inert};

/// How many probes run at once, of those that need not be alone.
const AT_ONCE: usize = 3;

/// What `cloche verify` takes.
#[derive(Args)]
pub(crate) struct VerifyArguments {
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Only the probes with these names.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
}

/// Runs the probes.
#[expect(clippy::print_stderr, reason = "this is the terminal's edge")]
pub(crate) fn main(arguments: &VerifyArguments) -> ExitCode {
    match verify(arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("cloche verify: {}", inert(&with_causes(error.as_ref())));
            ExitCode::from(2)
        }
    }
}

fn verify(arguments: &VerifyArguments) -> Result<bool, Box<dyn std::error::Error>> {
    let chosen = choose(&arguments.only)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(attack(&chosen))?;
    let mut out = io::stdout().lock();
    match arguments.json {
        true => report.json(&mut out)?,
        false => report.table(&mut out)?,
    }
    out.flush()?;
    Ok(report.broke == 0)
}

fn choose(only: &[String]) -> Result<Vec<&'static Probe>, String> {
    if let Some(unknown) = only.iter().find(|name| !PROBES.iter().any(|probe| probe.name == **name))
    {
        return Err(format!("there is no probe {unknown:?}"));
    }
    let wanted = |probe: &&Probe| only.is_empty() || only.iter().any(|name| name == probe.name);
    Ok(PROBES.iter().filter(wanted).collect())
}

async fn attack(chosen: &[&'static Probe]) -> Result<Report, Box<dyn std::error::Error>> {
    let started = Instant::now();
    let (cold, missing) = stage(None).await?;
    // The first run warms caches, and tells of a host without the language of the probes.
    if let Finding::NotHere(why) | Finding::NotStarted(why) = cold.find(&PROBES[0]).await {
        return Err(why.into());
    }
    let (alone, together): (Vec<_>, Vec<_>) = chosen.iter().copied().partition(|probe| probe.alone);
    let mut rows = at_once(&cold, Cell::Cold, together.clone()).await;
    for probe in alone {
        rows.push(row(probe, Cell::Cold, cold.find(probe).await));
    }
    end(cold).await;
    let (warm, _) = stage(Some(PoolSettings::default())).await?;
    let forked = together.into_iter().filter(|probe| probe.language == Language::Python).collect();
    rows.extend(at_once(&warm, Cell::Warm, forked).await);
    end(warm).await;
    let place = |row: &Row| PROBES.iter().position(|probe| probe.name == row.probe);
    rows.sort_by_key(|row| (row.cell, place(row)));
    let held = rows.iter().filter(|row| row.held).count();
    let broke = rows.len() - held;
    Ok(Report { probes: rows, held, broke, missing, seconds: started.elapsed().as_secs_f64() })
}

/// Sets the stage, also where walls are missing: what that costs is what the probes tell.
async fn stage(
    pool: Option<PoolSettings>,
) -> Result<(Arc<Stage>, Vec<(String, String)>), Box<dyn std::error::Error>> {
    let config = Config { pool, ..Config::with_program("/proc/self/exe") };
    let (executor, missing) = match Executor::start(config.clone()).await {
        Err(StartError::Missing(missing)) => {
            let allow_missing = missing.iter().map(|(wall, _)| wall.clone()).collect();
            (Executor::start(Config { allow_missing, ..config }).await?, missing)
        }
        started => (started?, Vec::new()),
    };
    Ok((Arc::new(Stage { executor, bait: Bait::lay()? }), missing))
}

async fn end(stage: Arc<Stage>) {
    if let Some(stage) = Arc::into_inner(stage) {
        stage.executor.stop().await;
    }
}

async fn at_once(stage: &Arc<Stage>, cell: Cell, probes: Vec<&'static Probe>) -> Vec<Row> {
    let (mut left, mut running, mut rows) = (probes.into_iter(), JoinSet::new(), Vec::new());
    loop {
        while running.len() < AT_ONCE {
            let Some(probe) = left.next() else { break };
            let stage = Arc::clone(stage);
            running.spawn(async move {
                if cell == Cell::Warm {
                    stage.warm_up(probe).await;
                }
                row(probe, cell, stage.find(probe).await)
            });
        }
        match running.join_next().await {
            Some(Ok(row)) => rows.push(row),
            // A probe whose task failed has no row, and is missed in the count.
            Some(Err(_)) => {}
            None => return rows,
        }
    }
}

fn row(probe: &Probe, cell: Cell, finding: Finding) -> Row {
    let (held, got) = match finding {
        Finding::Decided(verdict) => (verdict.held, verdict.got),
        Finding::NotHere(why) => (true, why),
        Finding::NotStarted(why) => (false, format!("no sandbox: {why}")),
    };
    Row {
        probe: probe.name,
        group: probe.group.name(),
        cell,
        expected: probe.expect,
        got: inert(&got),
        held,
    }
}
