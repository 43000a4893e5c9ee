//! The resource limits of every process in a box, as a table with reasons.

use crate::{encode::OwnedStep, step::Step};

struct Rlimit {
    name: &'static str,
    which: u32,
    soft: u64,
    hard: u64,
}

/// `core` is 1, not 0: a piped core_pattern ignores 0 and runs its handler on the host for any
/// other value, but the kernel takes exactly 1 to mean "never" there.
const LIMITS: [Rlimit; 6] = [
    Rlimit { name: "rlimit:core", which: 4, soft: 1, hard: 1 },
    // Enough for event loops; a descriptor pins kernel memory.
    Rlimit { name: "rlimit:open-files", which: 7, soft: 1024, hard: 4096 },
    // Queued signals and POSIX timers come out of the same purse.
    Rlimit { name: "rlimit:signals", which: 11, soft: 1024, hard: 1024 },
    // Pinned memory cannot be reclaimed; this much holds a key.
    Rlimit { name: "rlimit:locked-memory", which: 8, soft: 64 << 10, hard: 64 << 10 },
    // POSIX queues live in kernel memory, and all boxes together have the spawner's share of it.
    Rlimit { name: "rlimit:message-queues", which: 12, soft: 0, hard: 0 },
    // No real-time scheduling: it would starve the neighbours past any quota.
    Rlimit { name: "rlimit:realtime", which: 14, soft: 0, hard: 0 },
];

/// Processes per user, the second-best wall where there is no pids cgroup.
const PROCESSES: Rlimit = Rlimit { name: "rlimit:processes", which: 6, soft: 256, hard: 256 };

/// The limits as steps.
pub(crate) fn steps(count_processes: bool) -> Vec<(String, OwnedStep)> {
    let processes = count_processes.then_some(&PROCESSES);
    let limits = LIMITS.iter().chain(processes);
    limits
        .map(|limit| {
            let Rlimit { name, which, soft, hard } = *limit;
            (name.to_owned(), Step::Limit { which, soft, hard })
        })
        .collect()
}
