//! The attacks, as a table: what each tries, and what counts as held.
//!
//! A probe is a small guest program under `probes/`. It ends with a line `HELD what was seen` or
//! `BROKE what was seen`; where only the host can tell, a judge decides. This file must not know
//! how they are run.

use std::time::Duration;

use cloche_model::{ByteSize, CpuShare, Language, NetworkPolicy, RunLimits, SandboxProfile};

use crate::verdict::{self, Judge};

/// What an attack is aimed at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeGroup {
    /// Files, processes and users of the host.
    HostBoundary,
    /// System calls and kernel interfaces.
    KernelSurface,
    /// Memory, processor time, disk, processes and other things that are limited.
    Resources,
    /// What one run leaves for another.
    BetweenRuns,
    /// Networks other than its own.
    Network,
}

impl ProbeGroup {
    /// As people read it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::HostBoundary => "host boundary",
            Self::KernelSurface => "kernel surface",
            Self::Resources => "resources",
            Self::BetweenRuns => "between runs",
            Self::Network => "network",
        }
    }
}

/// How many runs it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeScenario {
    /// One.
    Once,
    /// One plants something and stays, another looks for it.
    Pair,
    /// The same, and a third looks when the first is gone.
    PairThenAfter,
    /// One, and meanwhile a neighbour must be served.
    Beside,
}

/// One attack.
#[derive(Clone, Copy)]
pub struct Probe {
    /// Its name, and that of its program in `probes/`.
    pub name: &'static str,
    /// What it is aimed at.
    pub group: ProbeGroup,
    /// What is seen where the wall holds.
    pub expect: &'static str,
    /// The language of its program.
    pub language: Language,
    /// Its program.
    pub code: &'static str,
    /// The limits of its runs.
    pub limits: fn() -> RunLimits,
    /// How many runs it takes.
    pub scenario: ProbeScenario,
    /// Decides whether the wall held.
    pub judge: Judge,
    /// Whether it needs the host to itself: it uses much, or what is left behind is counted.
    pub alone: bool,
    /// The sandbox it is played in.
    pub profile: SandboxProfile,
    /// The network of that sandbox.
    pub network: fn() -> NetworkPolicy,
}

macro_rules! probe {
    ($group:ident, $name:literal, $expect:literal) => {
        probe!($group, $name, Python, ".py", $expect)
    };
    ($group:ident, $name:literal, $language:ident, $extension:literal, $expect:literal) => {
        Probe {
            name: $name,
            group: ProbeGroup::$group,
            expect: $expect,
            language: Language::$language,
            code: include_str!(concat!("../probes/", $name, $extension)),
            limits: ordinary_limits,
            scenario: ProbeScenario::Once,
            judge: verdict::probe_says,
            alone: false,
            profile: SandboxProfile::Standard,
            network: || NetworkPolicy::Blocked,
        }
    };
}

impl Probe {
    const fn with_limits(self, limits: fn() -> RunLimits) -> Self {
        Self { limits, ..self }
    }

    const fn with_scenario(self, play: ProbeScenario) -> Self {
        Self { scenario: play, ..self }
    }

    const fn with_strict_profile(self) -> Self {
        Self { profile: SandboxProfile::Strict, ..self }
    }

    const fn with_network(self, network: fn() -> NetworkPolicy) -> Self {
        Self { network, ..self }
    }

    const fn judged_by(self, judge: Judge) -> Self {
        Self { judge, ..self }
    }

    const fn alone_with_judge(self, judge: Judge) -> Self {
        Self { judge, alone: true, ..self }
    }
}

/// An allowlist of names that can never be resolved.
fn allowlist() -> NetworkPolicy {
    let rules = ["allowed.invalid", "*.below.invalid:443"];
    NetworkPolicy::from_texts("allowlist", &rules).unwrap_or_default()
}

/// The module that the Python probes import.
pub const PRELUDE: &str = include_str!("../probes/probe.py");

fn ordinary_limits() -> RunLimits {
    RunLimits {
        timeout: Duration::from_secs(10),
        memory: ByteSize::mib(256),
        disk: ByteSize::mib(64),
        output: ByteSize::mib(1),
        ..RunLimits::default()
    }
}

fn half_a_minute() -> RunLimits {
    RunLimits { timeout: Duration::from_secs(30), ..ordinary_limits() }
}

/// With time for a slow substrate to read much.
fn little_memory() -> RunLimits {
    let (memory, disk) = (ByteSize::mib(128), ByteSize::mib(512));
    RunLimits { memory, disk, timeout: Duration::from_secs(60), ..ordinary_limits() }
}

fn hardly_any_memory() -> RunLimits {
    RunLimits { memory: ByteSize::mib(64), ..ordinary_limits() }
}

fn little_disk() -> RunLimits {
    RunLimits { disk: ByteSize::mib(32), ..ordinary_limits() }
}

fn few_processes() -> RunLimits {
    RunLimits { pids: 32, ..ordinary_limits() }
}

/// A substrate whose start needs much processor time has to come to the end too.
fn little_processor() -> RunLimits {
    let cpus = CpuShare::from_millicores(100);
    RunLimits { cpus, timeout: Duration::from_secs(60), ..ordinary_limits() }
}

fn one_second() -> RunLimits {
    RunLimits { timeout: Duration::from_secs(1), pids: 64, ..ordinary_limits() }
}

/// Every attack.
pub const PROBES: &[Probe] = &[
    probe!(HostBoundary, "host-files", "files and sockets of the host are not there"),
    probe!(HostBoundary, "path-tricks", "no name leads out of the root"),
    probe!(HostBoundary, "pid-one", "memory, descriptors and binary of pid 1 are out of reach")
        .alone_with_judge(verdict::binary_unchanged),
    probe!(
        HostBoundary,
        "pid-one-names",
        "command line and name of pid 1 tell nothing of the host"
    ),
    probe!(HostBoundary, "descriptors", "only 0, 1 and 2 are open"),
    probe!(HostBoundary, "kernel-settings", "EROFS or EACCES for every setting of the host"),
    probe!(HostBoundary, "masks", "what tells of the host under /proc is covered"),
    probe!(HostBoundary, "mounting", "mount, umount, pivot_root and the like get EPERM"),
    probe!(HostBoundary, "mount-flags", "read-only, nosuid, nodev where they belong"),
    probe!(HostBoundary, "devices", "no device of the host's, none to be made"),
    probe!(HostBoundary, "setuid", "a set-user-ID program leaves the uid unchanged"),
    probe!(HostBoundary, "file-capabilities", "a file capability gives nothing"),
    probe!(HostBoundary, "core-dump", "a crash leaves nothing and starts nothing"),
    probe!(HostBoundary, "writable-places", "writes only in home, /tmp, /dev/shm and /run/secrets"),
    probe!(
        HostBoundary,
        "special-files",
        "odd files and links are cleaned up, the host's untouched"
    )
    .alone_with_judge(verdict::decoys_unchanged),
    probe!(HostBoundary, "names", "the host's name is not shown, the own one is fixed"),
    probe!(HostBoundary, "terminals", "own terminals only, few of them, no typing into others"),
    probe!(KernelSurface, "new-namespaces", "unshare, clone and clone3 are refused"),
    probe!(KernelSurface, "privileges", "no capability, NoNewPrivs 1, Seccomp 2, uid 1000"),
    probe!(KernelSurface, "host-uid", "on the host it is neither root nor its neighbour")
        .with_scenario(ProbeScenario::Pair),
    probe!(KernelSurface, "kernel-calls", "EPERM or ENOSYS for each"),
    probe!(KernelSurface, "other-processes", "no process can be read, written or traced"),
    probe!(KernelSurface, "foreign-calls", "i386 and x32 calls are killed or ENOSYS"),
    probe!(KernelSurface, "sockets", "only TCP, UDP, local sockets and route netlink"),
    probe!(KernelSurface, "processes", "it sees and reaches its own processes only"),
    probe!(KernelSurface, "kill-everyone", "kill(-1) reaches only its own processes")
        .alone_with_judge(verdict::host_unharmed),
    probe!(KernelSurface, "memory-program", "a program made in memory has the same walls"),
    probe!(KernelSurface, "landlock", "EACCES for its own files under /proc"),
    probe!(KernelSurface, "cgroup-view", "its cgroup is the root, no file of it to write"),
    probe!(KernelSurface, "strict-calls", "each group that the strict profile removes is refused")
        .with_strict_profile(),
    probe!(KernelSurface, "from-node", Node, ".js", "the same refusals from Node.js"),
    probe!(KernelSurface, "from-bash", Bash, ".sh", "the same refusals from a shell"),
    probe!(Resources, "fork-bomb", Bash, ".sh", "ends at the deadline, a neighbour is served")
        .with_limits(one_second)
        .with_scenario(ProbeScenario::Beside)
        .alone_with_judge(verdict::stopped_at_deadline),
    probe!(Resources, "process-limit", "EAGAIN at the limit").with_limits(few_processes),
    probe!(Resources, "threads", "threads end at the limit").with_limits(few_processes),
    probe!(Resources, "memory-anonymous", "out of memory")
        .with_limits(little_memory)
        .alone_with_judge(verdict::ran_out_of_memory),
    probe!(Resources, "memory-tmpfs", "out of memory")
        .with_limits(little_memory)
        .alone_with_judge(verdict::ran_out_of_memory),
    probe!(Resources, "memory-memfd", "out of memory")
        .with_limits(little_memory)
        .alone_with_judge(verdict::ran_out_of_memory),
    probe!(Resources, "memory-segment", "out of memory")
        .with_limits(little_memory)
        .alone_with_judge(verdict::ran_out_of_memory),
    probe!(Resources, "memory-page-cache", "cache stays within the limit")
        .with_limits(little_memory)
        .alone_with_judge(verdict::within_memory),
    probe!(Resources, "cpu-quota", "sixteen processes share the quota")
        .with_limits(little_processor)
        .alone_with_judge(verdict::probe_says),
    probe!(Resources, "disk-full", "ENOSPC at the limit, over all places together")
        .with_limits(little_disk),
    probe!(Resources, "disk-inodes", "ENOSPC at the limit")
        .with_limits(little_disk)
        .alone_with_judge(verdict::host_unharmed),
    probe!(Resources, "resource-limits", "CPU seconds, file size and processes are limited"),
    probe!(Resources, "sparse-file", "no space used, ENOSPC when filled").with_limits(little_disk),
    probe!(Resources, "output-flood", "1 MiB kept, the rest counted, our memory and time flat")
        .alone_with_judge(verdict::flood_dropped),
    probe!(Resources, "held-output", "the reply comes when the program is over")
        .alone_with_judge(verdict::replied_promptly),
    probe!(Resources, "stubborn", "dead at the deadline")
        .with_limits(one_second)
        .alone_with_judge(verdict::stopped_at_deadline),
    probe!(Resources, "open-files", "EMFILE at the limit, which stays"),
    probe!(Resources, "socket-queues", "ENOBUFS before their queues hold much")
        .with_limits(hardly_any_memory),
    probe!(Resources, "record-locks", "its end, reported as out of memory, after a few thousand")
        .judged_by(verdict::said_and_ran_out),
    probe!(Resources, "woken-pid-one", "stops and starts cost pid 1 little, or are charged"),
    probe!(Resources, "watches", "inotify instances are capped, neighbours get theirs")
        .with_scenario(ProbeScenario::Pair)
        .alone_with_judge(verdict::probe_says),
    probe!(Resources, "watch-count", "watches of inotify are capped"),
    probe!(Resources, "timers", "EAGAIN at the limit"),
    probe!(Resources, "locked-memory", "a mebibyte cannot be pinned"),
    probe!(Resources, "message-queues", "EMFILE at the limit"),
    probe!(Resources, "realtime", "EPERM"),
    probe!(BetweenRuns, "own-namespaces", "no namespace in common")
        .with_scenario(ProbeScenario::Pair),
    probe!(BetweenRuns, "siblings", "no memory of other cells in a copy of the template"),
    probe!(BetweenRuns, "left-files", "no file of another run")
        .with_scenario(ProbeScenario::PairThenAfter),
    probe!(BetweenRuns, "system-v", "no shared memory, semaphore or queue")
        .with_scenario(ProbeScenario::PairThenAfter),
    probe!(BetweenRuns, "named-queues", "no message queue")
        .with_scenario(ProbeScenario::PairThenAfter),
    probe!(BetweenRuns, "local-sockets", "no socket, abstract or not")
        .with_scenario(ProbeScenario::Pair),
    probe!(BetweenRuns, "network-traces", "no trace of another run's packets")
        .with_scenario(ProbeScenario::PairThenAfter),
    probe!(BetweenRuns, "terminal-names", "no terminal of another run")
        .with_scenario(ProbeScenario::Pair),
    probe!(BetweenRuns, "locks", "a lock on a file of the image is not seen")
        .with_scenario(ProbeScenario::Pair),
    probe!(BetweenRuns, "watching", "no other cell's use of the image can be watched")
        .with_scenario(ProbeScenario::Pair),
    probe!(BetweenRuns, "randomness", "nothing random repeats").with_scenario(ProbeScenario::Pair),
    probe!(BetweenRuns, "daemon", "no process, mount or cgroup is left")
        .alone_with_judge(verdict::nothing_left),
    probe!(BetweenRuns, "environment", "only what the run was given"),
    probe!(Network, "network-out", "nothing leaves"),
    probe!(Network, "network-own", "its own loopback and no other"),
    probe!(Network, "network-floor", "unrestricted: no private, metadata or host address")
        .with_network(|| NetworkPolicy::Unrestricted)
        .with_limits(half_a_minute),
    probe!(Network, "network-list", "allowlist: nothing that no rule covers")
        .with_network(allowlist)
        .with_limits(half_a_minute),
    probe!(Network, "network-device", "no raw packets, no change of the device")
        .with_network(|| NetworkPolicy::Unrestricted),
    probe!(Network, "network-neighbours", "no way to another cell with a network")
        .with_network(|| NetworkPolicy::Unrestricted)
        .with_limits(half_a_minute)
        .with_scenario(ProbeScenario::Pair),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_probe_has_its_own_name_and_says_what_it_expects() {
        let mut names: Vec<_> = PROBES.iter().map(|probe| probe.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PROBES.len());
        assert!(PROBES.iter().all(|probe| !probe.expect.is_empty()));
    }
}
