//! Runs in: `cloche doctor`.
//!
//! Checks whether the host's limits are large enough for what its cells may use together: open
//! files, processes, TCP and UDP queues. Each limit that is too small gives a sentence with advice.
//! Reads settings of the host, and changes none.

use std::fs;

use cloche_jail::rlimits::most_open_files;
use cloche_model::RunLimits;

/// One cell may take at most one in this many of the host's open files.
const SHARE_OF_FILES: u64 = 20;
/// With cgroup v1 the queues of a cell's sockets get one in this many bytes of its memory.
const SHARE_OF_MEMORY: u64 = 4;
const PAGE: u64 = 4096;

/// The limits of a host that all cells share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HostLimits {
    files: u64,
    pids: u64,
    threads: u64,
    /// In pages.
    tcp: u64,
    udp: u64,
}

impl HostLimits {
    fn read() -> Option<Self> {
        let number = |path: &str| last_number(&fs::read_to_string(path).ok()?);
        Some(Self {
            files: number("/proc/sys/fs/file-max")?,
            pids: number("/proc/sys/kernel/pid_max")?,
            threads: number("/proc/sys/kernel/threads-max")?,
            tcp: number("/proc/sys/net/ipv4/tcp_mem")?,
            udp: number("/proc/sys/net/ipv4/udp_mem")?,
        })
    }

    /// A sentence for each limit that is too small for this many cells with these limits.
    fn warnings(self, cells: u64, limits: &RunLimits) -> Vec<String> {
        let mut warnings = Vec::new();
        let pids = u64::from(limits.pids);
        let files = most_open_files(self.files).saturating_mul(pids);
        if files > self.files / SHARE_OF_FILES {
            warnings.push(format!(
                "one cell of {pids} processes can open {files} files, and this host has {}; every \
                 open file is charged to its cell's memory, so a limit of the host protects \
                 nothing: `sysctl fs.file-max=9223372036854775807`",
                self.files
            ));
        }
        let all_pids = pids.saturating_mul(cells);
        for (name, most) in [("pid_max", self.pids), ("threads-max", self.threads)] {
            if all_pids > most / 2 {
                warnings.push(format!(
                    "{cells} cells of {pids} processes are {all_pids}, and kernel.{name} is {most}: \
                     `sysctl kernel.{name}={}`",
                    all_pids.saturating_mul(2)
                ));
            }
        }
        let pages = (limits.memory.bytes() / SHARE_OF_MEMORY / PAGE).saturating_mul(cells);
        for (name, most) in [("tcp_mem", self.tcp), ("udp_mem", self.udp)] {
            if pages > most {
                warnings.push(format!(
                    "the sockets of {cells} cells can queue {pages} pages, and net.ipv4.{name} ends \
                     at {most}, for all of the host: one cell's queues can stop another's; fewer \
                     cells, less memory for each, or a larger net.ipv4.{name}"
                ));
            }
        }
        warnings
    }
}

fn last_number(text: &str) -> Option<u64> {
    text.split_whitespace().last()?.parse().ok()
}

/// How many cells with these limits fit into the memory of this host.
fn cells_in_memory(limits: &RunLimits) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(((kib << 10) / limits.memory.bytes().max(1)).max(1))
}

/// Warnings about limits that are too small, by default for as many cells as fit into memory.
pub(super) fn capacity_warnings(cells: Option<u64>) -> Vec<String> {
    let limits = RunLimits::default();
    let (Some(host), Some(cells)) =
        (HostLimits::read(), cells.or_else(|| cells_in_memory(&limits)))
    else {
        return vec!["the host's limits for files and processes could not be read".to_owned()];
    };
    host.warnings(cells, &limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AMPLE: HostLimits = HostLimits {
        files: i64::MAX as u64,
        pids: 4 << 20,
        threads: 4 << 20,
        tcp: 1 << 40,
        udp: 1 << 40,
    };

    fn warned(host: HostLimits, cells: u64) -> Vec<String> {
        host.warnings(cells, &RunLimits::default())
    }

    #[test]
    fn each_limit_that_is_too_small_gives_one_warning() {
        assert_eq!(warned(AMPLE, 100), Vec::<String>::new());
        let host = HostLimits { files: 2_465_620, ..AMPLE };
        assert!(warned(host, 1)[0].contains("262144 files"), "{:?}", warned(host, 1));
        let host = HostLimits { pids: 32768, tcp: 575_664, ..AMPLE };
        let warnings = warned(host, 100);
        assert!(warnings[0].contains("kernel.pid_max=51200"), "{warnings:?}");
        assert!(warnings[1].contains("net.ipv4.tcp_mem"), "{warnings:?}");
        assert_eq!(warnings.len(), 2);
    }
}
