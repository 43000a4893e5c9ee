//! Measures the memory of parked cells: parks a few of each language and reads their processes.
//!
//! It uses proportional memory (PSS): shared memory is divided among the processes that share it,
//! so the sum over all is what the host uses.

use std::{
    fs,
    time::{Duration, Instant},
};

use cloche_executor::{Executor, ExecutorConfig, PoolSettings};
use cloche_model::{Language, RunSpec};
use serde::Serialize;

/// How many cells of a language are parked for the measurement.
const CELLS: usize = 4;
/// How long parking may take.
const PARK_TIMEOUT: Duration = Duration::from_secs(20);

/// The parked cells of a language.
#[derive(Serialize)]
pub(super) struct ParkedCells {
    pub(super) language: Language,
    /// The number of parked cells.
    pub(super) cells: usize,
    /// The proportional memory of one cell in KiB, pid 1 included. `None` if it cannot be read.
    pub(super) pss_kib: Option<u64>,
}

/// Parks cells of each language found, one language after the other.
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
        while !executor.is_warm() && began.elapsed() < PARK_TIMEOUT {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let cells = executor.read_metrics().buckets.iter().map(|bucket| bucket.parked).sum();
        if cells > 0 {
            let pss_kib = proportional_memory().map(|all| all / cells as u64);
            all.push(ParkedCells { language: *language, cells, pss_kib });
        }
        executor.stop().await;
    }
    all
}

/// The memory of every process in a cell below this one, in KiB. Cells are in the innermost pid
/// namespaces: a spawner is in ours, a template in one below, and its forks in another one below
/// that.
fn proportional_memory() -> Option<u64> {
    let all = list_descendants(std::process::id());
    let deepest = all.iter().map(|pid| pid_namespace_depth(*pid)).max()?;
    all.into_iter().filter(|pid| pid_namespace_depth(*pid) == deepest).map(read_pss).sum()
}

/// The number of pid namespaces that a process is in.
fn pid_namespace_depth(pid: u32) -> usize {
    read_status_field(pid, "NSpid:").map_or(0, |line| line.split_whitespace().count())
}

fn read_status_field(pid: u32, name: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned))
}

/// The PSS of a process. Zero for a process that shares all of its parent's memory, as pid 1 of a
/// forked cell does.
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

/// All descendants of a process.
fn list_descendants(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = threads.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let children = children.collect::<Vec<_>>().join(" ");
    let children = children.split_whitespace().filter_map(|child| child.parse().ok());
    children.flat_map(|child| [vec![child], list_descendants(child)].concat()).collect()
}
