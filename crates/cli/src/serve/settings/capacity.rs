//! Runs in: server (no capabilities). The capacity of the host for cells: `[capacity]` of the file,
//! and defaults from the host.

use std::{fs, time::Duration};

use cloche_engine::{AdmissionConfig, HostShare, PlanWeights};
use cloche_model::ByteSize;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{SettingsError, parse_size};

/// CPU overcommitment: cores promised per real core, because most programs wait most of the time.
const CPU_OVERCOMMIT: f64 = 16.0;
/// Memory reserved for the server and the spawner.
const OWN_MEMORY: u64 = 512 << 20;
/// At most one in this many bytes of the memory is reserved, however large the reserve would be.
const LEAST_PROMISED: u64 = 4;

/// The section of the file.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(in crate::serve) struct CapacityFile {
    /// Memory for cells before overcommitment.
    #[schemars(extend("x-default" = "the host's, less 512 MiB and `pool.memory`"))]
    memory: Option<String>,
    /// How often the memory is promised.
    #[schemars(extend("default" = 1.0))]
    memory_overcommit: Option<f64>,
    /// Cores for cells before overcommitment.
    #[schemars(extend("x-default" = "the host's"))]
    cpus: Option<f64>,
    /// How often a core is promised: most programs wait most of the time.
    #[schemars(extend("default" = 16.0))]
    cpu_overcommit: Option<f64>,
    /// Processes and threads of all cells.
    #[schemars(extend("x-default" = "half of what the host allows"))]
    pids: Option<u64>,
    /// The most running cells, whatever they need.
    #[schemars(extend("x-default" = "no limit"))]
    cells: Option<u64>,
    /// The share of the host that one team may have, 0 to 1.
    #[schemars(extend("default" = 0.75))]
    team_share: Option<f64>,
    /// The most executions of one team that may wait for a place.
    #[schemars(extend("default" = 128))]
    queued_per_team: Option<usize>,
    /// The most executions that may wait for a place.
    #[schemars(extend("default" = 1024))]
    queued: Option<usize>,
    /// Seconds that an execution may wait for a place.
    #[schemars(extend("default" = 30))]
    queue_seconds: Option<u64>,
    /// The most cells of one team that compete for processors on equal terms.
    #[schemars(extend("x-default" = "half of the cores"))]
    cells_in_front: Option<u64>,
    /// Concurrent uploads, imports and exports.
    #[schemars(extend("default" = 32))]
    transfers: Option<u64>,
    /// Turns of a team in each round of the queue, by plan.
    weights: WeightsFile,
}

/// Turns of a team in each round, by plan.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct WeightsFile {
    /// Turns of a team on the plan free.
    #[schemars(extend("default" = 1))]
    free: Option<u32>,
    /// Turns of a team on the plan pro.
    #[schemars(extend("default" = 2))]
    pro: Option<u32>,
    /// Turns of a team on the plan enterprise.
    #[schemars(extend("default" = 4))]
    enterprise: Option<u32>,
}

impl CapacityFile {
    /// The admission settings. `pool` is the memory of parked cells. Without a pool, cells run
    /// elsewhere, and the capacity of this host is no limit.
    pub(super) fn to_admission_config(
        &self,
        pool: Option<ByteSize>,
    ) -> Result<AdmissionConfig, SettingsError> {
        let mut admission = AdmissionConfig::default();
        let host = pool.map_or(HostShare::UNLIMITED, host_share);
        let runs = &mut admission.runs;
        runs.capacity = self.host_capacity(host)?;
        runs.queued_per_team = self.queued_per_team.unwrap_or(runs.queued_per_team);
        runs.queued = self.queued.unwrap_or(runs.queued);
        runs.longest_wait = self.queue_seconds.map_or(runs.longest_wait, Duration::from_secs);
        if let Some(share) = self.team_share {
            if !(0.0..=1.0).contains(&share) {
                return Err(SettingsError::Capacity("team_share", share));
            }
            runs.team_share_milli = to_whole(share * 1000.0);
        }
        let transfers = &mut admission.transfers.capacity.places;
        *transfers = self.transfers.unwrap_or(*transfers);
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
        // So one team's cells in front never occupy more than half of the cores.
        admission.cells_in_front = self.cells_in_front.unwrap_or((cores / 2).max(1));
        let usual = PlanWeights::default();
        admission.weights = PlanWeights {
            free: self.weights.free.unwrap_or(usual.free),
            pro: self.weights.pro.unwrap_or(usual.pro),
            enterprise: self.weights.enterprise.unwrap_or(usual.enterprise),
        };
        Ok(admission)
    }

    fn host_capacity(&self, host: HostShare) -> Result<HostShare, SettingsError> {
        let memory = parse_size("capacity.memory", &self.memory)?.map(ByteSize::bytes);
        let cores = self.cpus.map(|cpus| check_positive("cpus", cpus)).transpose()?;
        let cpu_milli = cores.map(|cpus| to_whole(cpus * 1000.0));
        let times = |name, factor: Option<f64>, usual: f64, amount: u64| {
            let factor = check_positive(name, factor.unwrap_or(usual))?;
            let times = if amount == u64::MAX { amount } else { to_whole(amount as f64 * factor) };
            Ok::<u64, SettingsError>(times)
        };
        let (memory, cpu_milli) =
            (memory.unwrap_or(host.memory), cpu_milli.unwrap_or(host.cpu_milli));
        Ok(HostShare {
            memory: times("memory_overcommit", self.memory_overcommit, 1.0, memory)?,
            cpu_milli: times("cpu_overcommit", self.cpu_overcommit, CPU_OVERCOMMIT, cpu_milli)?,
            pids: self.pids.unwrap_or(host.pids).max(1),
            places: self.cells.unwrap_or(host.places).max(1),
        })
    }
}

/// The capacity of the sidecar's host for the cells of jobs.
pub(crate) fn sidecar_capacity(pool: ByteSize) -> Result<HostShare, SettingsError> {
    CapacityFile::default().host_capacity(host_share(pool))
}

fn check_positive(name: &'static str, value: f64) -> Result<f64, SettingsError> {
    if value.is_finite() && value > 0.0 {
        return Ok(value);
    }
    Err(SettingsError::Capacity(name, value))
}

/// Converts to an integer. The cast saturates, and negative values were refused before.
fn to_whole(amount: f64) -> u64 {
    amount as u64
}

/// The capacity of this host for running cells, before overcommitment.
fn host_share(pool: ByteSize) -> HostShare {
    let total = meminfo_total(&read_or_empty("/proc/meminfo"));
    let reserve = OWN_MEMORY.saturating_add(pool.bytes());
    let memory = total.map_or(u64::MAX, |total| {
        total.saturating_sub(reserve).max(total - total / LEAST_PROMISED)
    });
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let pids = ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"]
        .into_iter()
        .filter_map(|path| read_or_empty(path).trim().parse::<u64>().ok())
        .min();
    // Half of them, because the host has other processes, and those come in bursts.
    let pids = pids.map_or(u64::MAX, |pids| pids / 2);
    HostShare { memory, cpu_milli: cores * 1000, pids, places: u64::MAX }
}

fn read_or_empty(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// `MemTotal` in bytes.
fn meminfo_total(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(text: &str, pool: Option<ByteSize>) -> Result<AdmissionConfig, SettingsError> {
        toml::from_str::<CapacityFile>(text).unwrap().to_admission_config(pool)
    }

    #[test]
    fn a_server_without_local_cells_has_no_capacity_limit() {
        let admission = admission("", None).unwrap();
        assert_eq!(admission.runs.capacity, HostShare::UNLIMITED);
    }

    #[test]
    fn capacity_defaults_come_from_the_host_and_reserve_memory_for_the_server() {
        let total = meminfo_total(&read_or_empty("/proc/meminfo")).unwrap();
        let capacity = admission("", Some(ByteSize::gib(2))).unwrap().runs.capacity;
        assert!(capacity.memory < total && capacity.memory >= total / 2, "{capacity:?}");
        assert!(capacity.cpu_milli >= 16_000 && capacity.pids > 1, "{capacity:?}");
    }

    #[test]
    fn capacity_settings_override_the_host_defaults() {
        let text = "memory = \"4GiB\"\nmemory_overcommit = 1.5\ncpus = 2\ncpu_overcommit = 3\n\
            pids = 100\ncells = 2\nteam_share = 1.0\nqueued_per_team = 3\nqueue_seconds = 7\n\
            [weights]\nfree = 5\n";
        let admission = admission(text, Some(ByteSize::gib(2))).unwrap();
        let expected = HostShare { memory: 6 << 30, cpu_milli: 6000, pids: 100, places: 2 };
        assert_eq!(admission.runs.capacity, expected);
        assert_eq!(admission.runs.team_share_milli, 1000);
        assert_eq!(admission.weights.free, 5);
        assert_eq!(admission.runs.longest_wait, Duration::from_secs(7));
    }

    #[test]
    fn a_factor_or_share_out_of_range_is_refused_by_name() {
        for text in
            ["team_share = 1.5", "cpu_overcommit = 0", "memory_overcommit = -1", "cpus = nan"]
        {
            let error = admission(text, None).unwrap_err().to_string();
            assert!(error.contains(text.split(' ').next().unwrap()), "{error}");
        }
    }
}
