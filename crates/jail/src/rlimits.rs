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
const LIMITS: [Rlimit; 5] = [
    Rlimit { name: "rlimit:core", which: 4, soft: 1, hard: 1 },
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

/// Open files of a process, without the host's limit: enough for event loops.
const OPEN_FILES: u64 = 4096;
/// What programs expect to have.
const USUAL_OPEN_FILES: u64 = 1024;

/// The most files that one process may have open on a host that has this many: a cell of 256
/// processes should get no more than a twentieth of them, and each process what programs expect.
#[must_use]
pub const fn most_open_files(of_the_host: u64) -> u64 {
    const CELL_S_PART: u64 = 20;
    const PROCESSES_OF_A_CELL: u64 = 256;
    match of_the_host / CELL_S_PART / PROCESSES_OF_A_CELL {
        few if few < USUAL_OPEN_FILES => USUAL_OPEN_FILES,
        many if many > OPEN_FILES => OPEN_FILES,
        some => some,
    }
}

/// The limits as steps.
pub(crate) fn limit_steps(
    count_processes: bool,
    files_of_the_host: u64,
) -> Vec<(String, OwnedStep)> {
    let processes = count_processes.then_some(&PROCESSES);
    let hard = most_open_files(files_of_the_host);
    let name = "rlimit:open-files";
    let open_files = Rlimit { name, which: 7, soft: USUAL_OPEN_FILES, hard };
    let limits = LIMITS.iter().chain([&open_files]).chain(processes);
    limits
        .map(|limit| {
            let Rlimit { name, which, soft, hard } = *limit;
            (name.to_owned(), Step::Limit { which, soft, hard })
        })
        .collect()
}
