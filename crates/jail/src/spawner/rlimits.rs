//! Runs in: spawner (root), `cloche doctor`.
//!
//! The resource limits of every process in a cell, as a table with reasons.

use crate::protocol::{encode::OwnedStep, step::Step};

struct Rlimit {
    name: &'static str,
    which: u32,
    soft: u64,
    hard: u64,
}

/// `core` is 1, not 0: with a piped core_pattern the kernel ignores the limit 0 and runs the
/// handler on the host; only for exactly 1 it makes no dump there.
const LIMITS: [Rlimit; 5] = [
    Rlimit { name: "rlimit:core", which: 4, soft: 1, hard: 1 },
    // Queued signals and POSIX timers count against the same limit.
    Rlimit { name: "rlimit:signals", which: 11, soft: 1024, hard: 1024 },
    // Locked memory cannot be reclaimed; this is enough for a key.
    Rlimit { name: "rlimit:locked-memory", which: 8, soft: 64 << 10, hard: 64 << 10 },
    // POSIX queues are kernel memory, and all cells count against the spawner's limit.
    Rlimit { name: "rlimit:message-queues", which: 12, soft: 0, hard: 0 },
    // No real-time scheduling: it would starve other cells despite their quotas.
    Rlimit { name: "rlimit:realtime", which: 14, soft: 0, hard: 0 },
];

/// The limits of one guest, by its configuration. They apply to each process of a cell, and the
/// number of processes to the cell's user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestRlimits {
    /// Processes and threads of the cell's user.
    pub processes: u64,
    /// Seconds of processor time of one process. At the limit it gets SIGXCPU, a second later
    /// SIGKILL.
    pub cpu_seconds: u64,
    /// Bytes of one file.
    pub file_bytes: u64,
    /// Bytes of private writable memory of one process, touched or not. `None` where a memory
    /// cgroup counts what is touched.
    pub data_bytes: Option<u64>,
}

/// Open files of a process on a large host: enough for event loops.
const OPEN_FILES: u64 = 4096;
/// The usual soft limit, which programs expect.
const USUAL_OPEN_FILES: u64 = 1024;

/// The most files that one process may have open, by the limit of the host: a cell of 256 processes
/// gets at most a twentieth of it, and each process at least what programs expect.
#[must_use]
pub const fn most_open_files(of_the_host: u64) -> u64 {
    const CELL_SHARE: u64 = 20;
    const PROCESSES_OF_A_CELL: u64 = 256;
    match of_the_host / CELL_SHARE / PROCESSES_OF_A_CELL {
        few if few < USUAL_OPEN_FILES => USUAL_OPEN_FILES,
        many if many > OPEN_FILES => OPEN_FILES,
        some => some,
    }
}

/// The limits of a guest in the names of an OCI bundle: name, soft and hard.
#[must_use]
pub fn bundle_limits(
    limits: &GuestRlimits,
    files_of_the_host: u64,
) -> Vec<(&'static str, u64, u64)> {
    let name = |which: u32| match which {
        0 => "RLIMIT_CPU",
        1 => "RLIMIT_FSIZE",
        2 => "RLIMIT_DATA",
        4 => "RLIMIT_CORE",
        6 => "RLIMIT_NPROC",
        7 => "RLIMIT_NOFILE",
        8 => "RLIMIT_MEMLOCK",
        11 => "RLIMIT_SIGPENDING",
        12 => "RLIMIT_MSGQUEUE",
        _ => "RLIMIT_RTPRIO",
    };
    let all = common_limits(files_of_the_host).into_iter().chain(guest_limits(limits));
    all.map(|limit| (name(limit.which), limit.soft, limit.hard)).collect()
}

/// The limits that do not depend on the configuration of a cell, as steps.
pub(crate) fn common_steps(files_of_the_host: u64) -> Vec<(String, OwnedStep)> {
    common_limits(files_of_the_host).iter().map(Rlimit::to_step).collect()
}

/// The limits of one guest, as steps.
pub(crate) fn guest_steps(limits: &GuestRlimits) -> Vec<(String, OwnedStep)> {
    guest_limits(limits).iter().map(Rlimit::to_step).collect()
}

fn common_limits(files_of_the_host: u64) -> Vec<Rlimit> {
    let hard = most_open_files(files_of_the_host);
    let name = "rlimit:open-files";
    let open_files = Rlimit { name, which: 7, soft: USUAL_OPEN_FILES, hard };
    LIMITS.into_iter().chain([open_files]).collect()
}

fn guest_limits(limits: &GuestRlimits) -> Vec<Rlimit> {
    let GuestRlimits { processes, cpu_seconds, file_bytes, data_bytes } = *limits;
    let equal = |name, which, most| Rlimit { name, which, soft: most, hard: most };
    let cpu = Rlimit { hard: cpu_seconds.saturating_add(1), ..equal("rlimit:cpu", 0, cpu_seconds) };
    let data = data_bytes.map(|bytes| equal("rlimit:data", 2, bytes));
    [equal("rlimit:processes", 6, processes), cpu, equal("rlimit:file-size", 1, file_bytes)]
        .into_iter()
        .chain(data)
        .collect()
}

impl Rlimit {
    fn to_step(&self) -> (String, OwnedStep) {
        let Self { name, which, soft, hard } = *self;
        (name.to_owned(), Step::Limit { which, soft, hard })
    }
}
