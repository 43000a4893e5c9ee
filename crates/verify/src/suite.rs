//! Runs in: `cloche verify` (server side). Runs the probes on this host, cold and warm, and reports.

use std::{error::Error, sync::Arc, time::Instant};

use cloche_executor::{BrokerClient, Executor, ExecutorConfig, ExecutorStartError, PoolSettings};
use cloche_model::{Language, SandboxShape};
use tokio::task::JoinSet;

use crate::{
    decoys::HostDecoys,
    probes::{PROBES, Probe},
    report::{CellOrigin, ProbeRow, VerifyReport, to_inert_text},
    runner::{ProbeFinding, ProbeRunner},
};

/// How many probes run at once, of those that need not be alone.
const AT_ONCE: usize = 3;

/// The probes with these names, or all of them.
pub fn choose_probes(only: &[String]) -> Result<Vec<&'static Probe>, String> {
    if let Some(unknown) = only.iter().find(|name| !PROBES.iter().any(|probe| probe.name == **name))
    {
        return Err(format!("there is no probe {unknown:?}"));
    }
    let wanted = |probe: &&Probe| only.is_empty() || only.iter().any(|name| name == probe.name);
    Ok(PROBES.iter().filter(wanted).collect())
}

/// Runs these probes in cold cells and then in warm ones. Those of networks need a broker.
pub async fn run_probes(
    chosen: &[&'static Probe],
    broker: Option<BrokerClient>,
) -> Result<VerifyReport, Box<dyn Error>> {
    let started = Instant::now();
    let (cold, missing) = start_runner(None, broker.clone()).await?;
    // The first run warms caches, and tells of a host without the language of the probes.
    if let ProbeFinding::NotHere(why) | ProbeFinding::NotStarted(why) =
        cold.run_and_judge(&PROBES[0]).await
    {
        return Err(why.into());
    }
    let (alone, together): (Vec<_>, Vec<_>) = chosen.iter().copied().partition(|probe| probe.alone);
    let mut rows = run_concurrently(&cold, CellOrigin::Cold, together.clone()).await;
    for probe in alone {
        rows.push(to_row(probe, CellOrigin::Cold, cold.run_and_judge(probe).await));
    }
    stop_runner(cold).await;
    let (warm, _) = start_runner(Some(PoolSettings::default()), broker).await?;
    let forked = together.into_iter().filter(|probe| probe.language == Language::Python).collect();
    rows.extend(run_concurrently(&warm, CellOrigin::Warm, forked).await);
    stop_runner(warm).await;
    let place = |row: &ProbeRow| PROBES.iter().position(|probe| probe.name == row.probe);
    rows.sort_by_key(|row| (row.cell, place(row)));
    let held = rows.iter().filter(|row| row.held).count();
    let broke = rows.len() - held;
    Ok(VerifyReport {
        probes: rows,
        held,
        broke,
        missing,
        seconds: started.elapsed().as_secs_f64(),
    })
}

/// Sets the stage, also where walls are missing: what that costs is what the probes tell.
async fn start_runner(
    pool: Option<PoolSettings>,
    broker: Option<BrokerClient>,
) -> Result<(Arc<ProbeRunner>, Vec<(String, String)>), Box<dyn Error>> {
    let config = ExecutorConfig { pool, broker, ..ExecutorConfig::with_program("/proc/self/exe") };
    let (executor, missing) = match Executor::start(config.clone()).await {
        Err(ExecutorStartError::Missing(missing)) => {
            let allow_missing = missing.iter().map(|(wall, _)| wall.clone()).collect();
            (Executor::start(ExecutorConfig { allow_missing, ..config }).await?, missing)
        }
        started => (started?, Vec::new()),
    };
    let (decoys, shape) = (HostDecoys::create()?, SandboxShape::default());
    Ok((Arc::new(ProbeRunner { executor, decoys, shape }), missing))
}

async fn stop_runner(stage: Arc<ProbeRunner>) {
    if let Some(stage) = Arc::into_inner(stage) {
        stage.executor.stop().await;
    }
}

async fn run_concurrently(
    stage: &Arc<ProbeRunner>,
    cell: CellOrigin,
    probes: Vec<&'static Probe>,
) -> Vec<ProbeRow> {
    let (mut left, mut running, mut rows) = (probes.into_iter(), JoinSet::new(), Vec::new());
    loop {
        while running.len() < AT_ONCE {
            let Some(probe) = left.next() else { break };
            let stage = Arc::clone(stage);
            running.spawn(async move {
                if cell == CellOrigin::Warm {
                    stage.warm_up(probe).await;
                }
                to_row(probe, cell, stage.run_and_judge(probe).await)
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

fn to_row(probe: &Probe, cell: CellOrigin, finding: ProbeFinding) -> ProbeRow {
    let (held, got) = match finding {
        ProbeFinding::Decided(verdict) => (verdict.held, verdict.got),
        ProbeFinding::NotHere(why) => (true, why),
        ProbeFinding::NotStarted(why) => (false, format!("no sandbox: {why}")),
    };
    ProbeRow {
        probe: probe.name,
        group: probe.group.name(),
        cell,
        expected: probe.expect,
        got: to_inert_text(&got),
        held,
    }
}
