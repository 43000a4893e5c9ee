//! What a parked cell costs in memory: parks a few of each language and looks at their processes.
//!
//! Proportional memory (PSS): what is shared counts for everyone who shares it a part, so that the
//! sum over all is what the host has less.

use std::{
    fs,
    time::{Duration, Instant},
};

use cloche_executor::{Executor, ExecutorConfig, PoolSettings};
use cloche_model::{Language, RunSpec};
use serde::Serialize;

/// How many cells of a language are parked to be looked at.
const CELLS: usize = 4;
/// How long they may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// The parked cells of a language.
#[derive(Serialize)]
pub(super) struct ParkedCells {
    pub(super) language: Language,
    /// How many were parked at once.
    pub(super) cells: usize,
    /// The proportional memory of one, pid 1 included, in KiB; none where it cannot be read.
    pub(super) pss_kib: Option<u64>,
}

/// Parks cells of each language that is there, one language after the other.
pub(super) async fn measure_parked_cells(
    config: &ExecutorConfig,
    languages: &[Language],
) -> Vec<ParkedCells> {
    let mut all = Vec::new();
    for language in languages {
        let pool = PoolSettings { floor: CELLS, ceiling: CELLS, ..PoolSettings::default() };
        let config = ExecutorConfig { pool: Some(pool), ..config.clone() };
        let Ok(executor) = Executor::start(config).await else { continue };
        let spec = RunSpec::new(*language, "");
        executor.prewarm_pool(*language, &spec.limits, &spec.sandbox);
        let began = Instant::now();
        while !executor.is_warm() && began.elapsed() < PATIENCE {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let cells = executor.read_metrics().buckets.iter().map(|shelf| shelf.parked).sum();
        if cells > 0 {
            let pss_kib = proportional_memory().map(|all| all / cells as u64);
            all.push(ParkedCells { language: *language, cells, pss_kib });
        }
        executor.stop().await;
    }
    all
}

/// The memory of every process in a cell below this one, in KiB. Cells are in the innermost pid
/// namespaces: a spawner is in ours, a template in one, what it has forked in another one below.
fn proportional_memory() -> Option<u64> {
    let all = list_descendants(std::process::id());
    let deepest = all.iter().map(|pid| pid_namespace_depth(*pid)).max()?;
    all.into_iter().filter(|pid| pid_namespace_depth(*pid) == deepest).map(read_pss).sum()
}

/// In how many pid namespaces a process is.
fn pid_namespace_depth(pid: u32) -> usize {
    read_status_field(pid, "NSpid:").map_or(0, |line| line.split_whitespace().count())
}

fn read_status_field(pid: u32, name: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned))
}

/// Nothing for a process that has its parent's memory, all of it and no copy: pid 1 of a cell that
/// comes from a template.
fn read_pss(pid: u32) -> Option<u64> {
    let rollup = |pid: u32| fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok();
    let parent = read_status_field(pid, "PPid:").and_then(|parent| parent.trim().parse().ok());
    let rollup = match (rollup(pid)?, parent.and_then(rollup)) {
        (own, Some(parents)) if own == parents => return Some(0),
        (own, _) => own,
    };
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Every process below this one.
fn list_descendants(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = threads.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let children = children.collect::<Vec<_>>().join(" ");
    let children = children.split_whitespace().filter_map(|child| child.parse().ok());
    children.flat_map(|child| [vec![child], list_descendants(child)].concat()).collect()
}
