//! What of the probes cannot apply to a substrate, as a table with reasons.

use cloche_model::{OciRuntime, Substrate};

use crate::{
    probes::Probe,
    verdict::{self, Judge},
};

/// What of a probe does not count on some runtimes, and why.
struct Exemption {
    probe: &'static str,
    runtimes: &'static [OciRuntime],
    part: ExemptPart,
    why: &'static str,
}

/// What of a probe does not count.
enum ExemptPart {
    /// All of it: it is not run.
    Whole,
    /// The checks whose lines begin like this. All others count.
    Checks(&'static [&'static str]),
    /// Its own word. Another judge decides.
    Judged(Judge),
}

use ExemptPart::{Checks, Judged, Whole};

/// Those whose guests use the kernel of the host.
const KERNELS: &[OciRuntime] = &[OciRuntime::Crun, OciRuntime::Runc];
const ALL: &[OciRuntime] = &[OciRuntime::Crun, OciRuntime::Runc, OciRuntime::Runsc];
const CRUN: &[OciRuntime] = &[OciRuntime::Crun];
const RUNC: &[OciRuntime] = &[OciRuntime::Runc];
const RUNSC: &[OciRuntime] = &[OciRuntime::Runsc];

const LANDLOCK: &str = "a runtime installs no Landlock rules, so these files can be opened; the \
                        kernel refuses the writes, or they change the program's own process only";
const NO_NETWORK: &str = "only cells of the substrate native have a network";
const PID_ONE: &str = "the program is pid 1 of gVisor's kernel, so what it reaches is its own";
const OWN_MEMORY: &str = "gVisor has these objects in its own memory, which counts as the cell's";
const OWN_VIEW: &str = "this file is made by gVisor and says nothing about the host";
const OWN_ERROR: &str = "gVisor refuses it with another error";
const OWN_END: &str = "gVisor's kernel can end before the deadline, and all of the cell with it";

/// The probes of walls that a runtime does not build, and those that judge what is different by
/// design. `docs/SPECIFICATION.md` says what this means for a sandbox.
const EXEMPTIONS: &[Exemption] = &[
    exempt("network-floor", ALL, Whole, NO_NETWORK),
    exempt("network-list", ALL, Whole, NO_NETWORK),
    exempt("network-device", ALL, Whole, NO_NETWORK),
    exempt("network-neighbours", ALL, Whole, NO_NETWORK),
    exempt("landlock", KERNELS, Whole, LANDLOCK),
    exempt("landlock", RUNSC, Whole, LANDLOCK),
    exempt("pid-one", KERNELS, Checks(&["write attr/current: worked"]), LANDLOCK),
    exempt(
        "kernel-settings",
        KERNELS,
        Checks(&["/proc/self/loginuid: ", "/proc/self/uid_map: ", "/proc/self/oom_adj: "]),
        LANDLOCK,
    ),
    exempt("kernel-settings", RUNSC, Checks(&["/proc/self/uid_map: "]), OWN_VIEW),
    exempt(
        "mount-flags",
        CRUN,
        Checks(&["others ['/dev/null'"]),
        "without mknod a runtime mounts each device of the host that a guest may use",
    ),
    exempt(
        "mount-flags",
        RUNC,
        Checks(&["others ['/dev/null'"]),
        "without mknod a runtime mounts each device of the host that a guest may use",
    ),
    exempt("mount-flags", RUNSC, Whole, OWN_VIEW),
    exempt(
        "devices",
        CRUN,
        Checks(&["/dev ['core', 'fd'"]),
        "crun makes the link /dev/core, to a file that is masked",
    ),
    exempt(
        "devices",
        RUNSC,
        Checks(&["/dev ['fd', 'full', 'fuse', 'net'", "fuse: worked", "net/tun: worked"]),
        "the devices are gVisor's own, and using them takes capabilities",
    ),
    exempt(
        "masks",
        CRUN,
        Checks(&["mounted twice: ['/proc/sys/"]),
        "crun mounts the masks below /proc/sys twice",
    ),
    exempt("masks", RUNSC, Whole, "all of /proc is gVisor's own"),
    exempt(
        "socket-queues",
        KERNELS,
        Judged(verdict::ran_out_of_memory),
        "the driver counts sockets and ends a cell with too many as out of memory",
    ),
    exempt("socket-queues", RUNSC, Whole, OWN_MEMORY),
    exempt("pid-one", RUNSC, Whole, PID_ONE),
    exempt("pid-one-names", RUNSC, Checks(&["its environment: ", "its program: "]), PID_ONE),
    exempt("from-node", RUNSC, Checks(&["pid 1's memory: "]), PID_ONE),
    exempt("kill-everyone", RUNSC, Whole, PID_ONE),
    exempt("descriptors", RUNSC, Checks(&["{0: 'host:"]), "gVisor names pipes of the host so"),
    exempt("privileges", RUNSC, Whole, "its status files have no line for each of these"),
    exempt("memory-program", RUNSC, Checks(&["NoNewPrivs  Seccomp 2"]), OWN_VIEW),
    exempt(
        "host-uid",
        RUNSC,
        Whole,
        "the ids that it shows are gVisor's own; on the host it is nobody in its own namespace",
    ),
    exempt("own-namespaces", RUNSC, Whole, OWN_VIEW),
    exempt("cgroup-view", RUNSC, Checks(&["paths []"]), OWN_VIEW),
    exempt("sparse-file", RUNSC, Checks(&["2147483648 blocks"]), OWN_VIEW),
    exempt(
        "foreign-calls",
        RUNSC,
        Checks(&["i386: answered"]),
        "gVisor takes the number for one of its own calls, under the same filter",
    ),
    exempt("terminals", RUNSC, Checks(&["/dev/tty: EIO"]), OWN_ERROR),
    exempt("mounting", RUNSC, Checks(&["mount_setattr: ENOSYS"]), OWN_ERROR),
    exempt(
        "strict-calls",
        RUNSC,
        Checks(&["AF_INET: EPERM", "AF_INET6: EPERM", "AF_NETLINK: EPERM"]),
        OWN_ERROR,
    ),
    exempt("cpu-quota", RUNSC, Whole, "processor times are gVisor's own, not those of the cgroup"),
    exempt("fork-bomb", RUNSC, Judged(verdict::over_at_deadline), OWN_END),
    exempt(
        "memory-page-cache",
        RUNSC,
        Whole,
        "with so little memory gVisor does not read as much within the time of the probe",
    ),
    exempt("terminals", RUNSC, Checks(&["900 terminals"]), OWN_MEMORY),
    exempt("record-locks", RUNSC, Whole, OWN_MEMORY),
    exempt("watches", RUNSC, Whole, OWN_MEMORY),
    exempt("watch-count", RUNSC, Whole, OWN_MEMORY),
    exempt("timers", RUNSC, Whole, OWN_MEMORY),
    exempt("message-queues", RUNSC, Checks(&["8 queues, then no error"]), OWN_MEMORY),
    exempt("realtime", RUNSC, Checks(&["SCHED_FIFO: EINVAL", "SCHED_RR: EINVAL"]), OWN_ERROR),
    exempt(
        "realtime",
        RUNSC,
        Checks(&["nice -5: worked"]),
        "priorities are gVisor's own; the host's scheduler does not see them",
    ),
];

const fn exempt(
    probe: &'static str,
    runtimes: &'static [OciRuntime],
    part: ExemptPart,
    why: &'static str,
) -> Exemption {
    Exemption { probe, runtimes, part, why }
}

/// The exemptions of a probe on a substrate.
fn exemptions_of(
    substrate: Substrate,
    probe: &Probe,
) -> impl Iterator<Item = &'static Exemption> + use<> {
    let (name, runtime) = match substrate {
        Substrate::Native => (probe.name, None),
        Substrate::Oci(runtime) => (probe.name, Some(runtime)),
    };
    EXEMPTIONS.iter().filter(move |exemption| {
        exemption.probe == name
            && runtime.is_some_and(|runtime| exemption.runtimes.contains(&runtime))
    })
}

/// Why a probe cannot apply to a substrate; `None` if it applies.
pub fn why_not_applied(substrate: Substrate, probe: &Probe) -> Option<&'static str> {
    let mut exemptions = exemptions_of(substrate, probe);
    exemptions.find(|one| matches!(one.part, Whole)).map(|one| one.why)
}

/// Who decides about a probe on a substrate.
pub(crate) fn judge_of(substrate: Substrate, probe: &Probe) -> Judge {
    let judged = |one: &Exemption| match one.part {
        Judged(judge) => Some(judge),
        Whole | Checks(_) => None,
    };
    exemptions_of(substrate, probe).find_map(judged).unwrap_or(probe.judge)
}

/// What a probe printed, without the checks that do not count on a substrate.
pub(crate) fn leave_out_checks(substrate: Substrate, probe: &Probe, said: &str) -> String {
    let parts = exemptions_of(substrate, probe).filter_map(|one| match one.part {
        Checks(checks) => Some((checks, one.why)),
        Whole | Judged(_) => None,
    });
    let parts: Vec<_> = parts.collect();
    let reason = |check: &str| {
        parts.iter().find(|(checks, _)| checks.iter().any(|begin| check.starts_with(begin)))
    };
    let lines = said.lines().map(|line| {
        let Some(broken) = line.strip_prefix("BROKE ") else { return line.to_owned() };
        let checks = broken.split("; ").map(str::trim).filter(|check| !check.is_empty());
        let (left_out, left): (Vec<&str>, Vec<&str>) =
            checks.partition(|check| reason(check).is_some());
        if !left.is_empty() || left_out.is_empty() {
            return format!("BROKE {}", left.join("; "));
        }
        let why = left_out.iter().filter_map(|check| Some(reason(check)?.1));
        let mut why: Vec<&str> = why.collect();
        why.dedup();
        format!("HELD all but {} ({})", left_out.join(", "), why.join("; "))
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probes::PROBES;

    fn probe(name: &str) -> &'static Probe {
        PROBES.iter().find(|probe| probe.name == name).unwrap()
    }

    #[test]
    fn every_exemption_is_of_a_probe_and_has_a_reason() {
        for Exemption { probe, runtimes, why, .. } in EXEMPTIONS {
            assert!(PROBES.iter().any(|known| known.name == *probe), "{probe}");
            assert!(!runtimes.is_empty() && !why.is_empty(), "{probe}");
        }
        let native = |probe: &Probe| exemptions_of(Substrate::Native, probe).count();
        assert!(PROBES.iter().all(|probe| native(probe) == 0));
    }

    #[test]
    fn only_the_named_checks_of_a_probe_do_not_count() {
        let (crun, masks) = (Substrate::Oci(OciRuntime::Crun), probe("masks"));
        let known = "mounted twice: ['/proc/sys/fs']";
        let left = |substrate, said: &str| leave_out_checks(substrate, masks, said);
        assert!(left(crun, &format!("BROKE {known}")).starts_with("HELD all but mounted twice"));
        let both = format!("x\nBROKE /proc/kcore is not covered; {known}");
        assert_eq!(left(crun, &both), "x\nBROKE /proc/kcore is not covered");
        assert_eq!(left(Substrate::Native, &both), both);
        assert_eq!(left(crun, "HELD all"), "HELD all");
    }
}
