//! Which probes cannot apply to a substrate, as a table with reasons.

use cloche_model::{OciRuntime, SandboxProfile, Substrate};

use crate::probes::Probe;

/// A probe that cannot apply, the runtimes it is about, and why.
type Exemption = (&'static str, &'static [OciRuntime], &'static str);

const ALL: &[OciRuntime] = &[OciRuntime::Crun, OciRuntime::Runc, OciRuntime::Runsc];
/// Those whose guests use the kernel of the host.
const KERNELS: &[OciRuntime] = &[OciRuntime::Crun, OciRuntime::Runc];
const CRUN: &[OciRuntime] = &[OciRuntime::Crun];
const RUNSC: &[OciRuntime] = &[OciRuntime::Runsc];

const PID_ONE: &str = "the program is pid 1 of its cell, so what it reaches is its own";
const KERNEL: &str = "the kernel that answers is gVisor's own, inside the sandbox; it has no such \
                      wall or file, or another error, and the host's kernel is not asked";

/// The probes of walls that a runtime does not build, and those that judge what is different by
/// design. `docs/SPECIFICATION.md` says what this means for a sandbox.
const EXEMPTIONS: &[Exemption] = &[
    ("pid-one", ALL, PID_ONE),
    ("pid-one-names", ALL, PID_ONE),
    ("from-node", ALL, PID_ONE),
    ("landlock", ALL, "a runtime installs no Landlock rules"),
    (
        "kernel-settings",
        ALL,
        "it opens files of its own under /proc to write, which only Landlock refuses; the kernel refuses the writes",
    ),
    ("mount-flags", ALL, "a runtime chooses the flags of its masks and of its device nodes"),
    ("devices", CRUN, "crun makes the link /dev/core, to a masked file"),
    ("devices", RUNSC, KERNEL),
    ("masks", CRUN, "crun mounts the masks below /proc/sys twice"),
    (
        "socket-queues",
        KERNELS,
        "a runtime has no watcher that counts sockets; the profile strict has none to count",
    ),
    ("socket-queues", RUNSC, KERNEL),
    ("host-files", RUNSC, KERNEL),
    ("descriptors", RUNSC, KERNEL),
    ("masks", RUNSC, KERNEL),
    ("mounting", RUNSC, KERNEL),
    ("file-capabilities", RUNSC, KERNEL),
    ("terminals", RUNSC, KERNEL),
    ("new-namespaces", RUNSC, KERNEL),
    ("privileges", RUNSC, KERNEL),
    ("host-uid", RUNSC, KERNEL),
    ("kernel-calls", RUNSC, KERNEL),
    ("other-processes", RUNSC, KERNEL),
    ("foreign-calls", RUNSC, KERNEL),
    ("sockets", RUNSC, KERNEL),
    ("memory-program", RUNSC, KERNEL),
    ("cgroup-view", RUNSC, KERNEL),
    ("from-bash", RUNSC, KERNEL),
    ("record-locks", RUNSC, KERNEL),
    ("watches", RUNSC, KERNEL),
    ("watch-count", RUNSC, KERNEL),
    ("timers", RUNSC, KERNEL),
    ("message-queues", RUNSC, KERNEL),
    ("realtime", RUNSC, KERNEL),
    ("own-namespaces", RUNSC, KERNEL),
    ("system-v", RUNSC, KERNEL),
    ("sparse-file", RUNSC, KERNEL),
    ("kill-everyone", RUNSC, PID_ONE),
    (
        "fork-bomb",
        RUNSC,
        "its kernel ends when the host refuses it another thread, before the deadline",
    ),
    (
        "memory-page-cache",
        RUNSC,
        "it does not do enough within the time of the probe, as each system call costs more",
    ),
    (
        "cpu-quota",
        RUNSC,
        "it does not do enough within the time of the probe, as each system call costs more",
    ),
    (
        "output-flood",
        RUNSC,
        "it does not do enough within the time of the probe, as each system call costs more",
    ),
];

/// Why a probe cannot apply to a substrate; `None` if it applies.
pub fn why_not_applied(substrate: Substrate, probe: &Probe) -> Option<&'static str> {
    let Substrate::Oci(runtime) = substrate else { return None };
    if runtime == OciRuntime::Runsc && probe.profile == SandboxProfile::Strict {
        return Some("runsc has no profile strict");
    }
    let applies =
        |(name, runtimes, _): &&Exemption| *name == probe.name && runtimes.contains(&runtime);
    EXEMPTIONS.iter().find(applies).map(|(_, _, why)| *why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probes::PROBES;

    #[test]
    fn every_exemption_is_of_a_probe_and_has_a_reason() {
        for (name, runtimes, why) in EXEMPTIONS {
            assert!(PROBES.iter().any(|probe| probe.name == *name), "{name}");
            assert!(!runtimes.is_empty() && !why.is_empty(), "{name}");
        }
        let native = |probe: &Probe| why_not_applied(Substrate::Native, probe);
        assert!(PROBES.iter().all(|probe| native(probe).is_none()));
    }
}
