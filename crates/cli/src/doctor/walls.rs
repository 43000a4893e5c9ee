//! The walls in the order of a report, and what a trial shows about each.
//!
//! A cell is built in some seventy steps, which are grouped here under the names of walls. This
//! module judges a trial. It only tries namespaces itself, to find out which one is refused.

use serde::Serialize;

use super::advice;

/// The result of building a sandbox.
#[derive(Debug, Default)]
pub(super) struct SandboxTrial {
    /// Walls that the spawner cannot build, and why.
    pub(super) missing: Vec<(String, String)>,
    /// A step that failed inside a new cell, and why.
    pub(super) failed_step: Option<(String, String)>,
    /// Why no cell could be built at all.
    pub(super) refusal: Option<String>,
    /// Whether a program has run.
    pub(super) built: bool,
}

impl SandboxTrial {
    /// The names of the walls that `--allow-missing` accepts.
    pub(super) fn missing_names(&self) -> Vec<String> {
        self.missing.iter().map(|(wall, _)| wall.clone()).collect()
    }

    /// Why the wall is missing, if the spawner reported it.
    fn said_missing(&self, name: &str) -> Option<&str> {
        let all_cgroups = |wall: &str| wall == "cgroups" && name.starts_with("cgroup:");
        let reported = self.missing.iter().find(|(wall, _)| wall == name || all_cgroups(wall));
        reported.map(|(_, why)| why.as_str())
    }
}

/// The state of a wall.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum WallState {
    Present,
    Missing,
    /// Another wall failed before this one was reached.
    Unknown,
}

/// A wall and its state.
#[derive(Debug, Serialize)]
pub(super) struct Wall {
    pub(super) name: &'static str,
    pub(super) stops: &'static str,
    pub(super) state: WallState,
    pub(super) why: Option<String>,
    pub(super) how: Option<String>,
}

impl Wall {
    /// Its name, if it is missing.
    pub(super) fn missing_name(&self) -> Option<String> {
        (self.state == WallState::Missing).then(|| self.name.to_owned())
    }
}

/// A wall: its name, what it prevents, and the prefixes of its steps in the plan.
struct WallKind(&'static str, &'static str, &'static [&'static str]);

/// In the order in which a cell is built.
const KINDS: [WallKind; 24] = [
    WallKind("namespace:user", "privileges on the host", &[]),
    WallKind("namespace:mount", "seeing or changing the host's files", &[]),
    WallKind("namespace:pid", "seeing or signalling other processes; daemons that stay", &[]),
    WallKind("namespace:net", "every network but its own loopback", &[]),
    WallKind("namespace:ipc", "shared memory and queues of other processes", &[]),
    WallKind("namespace:uts", "the host's name", &[]),
    WallKind(
        "namespace:cgroup",
        "seeing its position among the host's control groups",
        &["namespace:cgroup"],
    ),
    WallKind("host-uid", "access between two sandboxes with the same user id", &[]),
    WallKind("cgroup:memory", "using up the host's memory", &[]),
    WallKind("cgroup:pids", "using up the host's processes", &[]),
    WallKind("cgroup:cpu", "using up the host's processors", &[]),
    WallKind("names", "recognizing the host by its name", &["hostname", "loopback", "network:"]),
    WallKind("disk", "filling the host's disk", &["scratch"]),
    WallKind(
        "root",
        "reaching files outside the image",
        &["root:", "image:", "read-only:/usr", "home", "tmp", "shm", "data", "secrets"],
    ),
    WallKind("dev", "the host's devices", &["dev", "read-only:/dev"]),
    WallKind(
        "proc",
        "reading about the host in /proc",
        &["proc", "mask:", "bind:/proc", "read-only:/proc"],
    ),
    WallKind("rlimits", "core dumps on the host, pinned memory, real-time priority", &["rlimit:"]),
    WallKind("close-fds", "inheriting our descriptors", &["close-fds"]),
    WallKind("capabilities", "using root's privileges", &["capabilities", "identity:"]),
    WallKind("no-new-privs", "set-user-id programs", &["no-new-privs"]),
    WallKind(
        "landlock",
        "writing outside home, /tmp and /dev/shm, should the mounts fail",
        &["landlock"],
    ),
    WallKind("sockets", "pinning kernel memory in the queues of sockets", &["sockets"]),
    WallKind("seccomp", "most of the kernel's attack surface", &["seccomp"]),
    WallKind("die-with-parent", "outliving the spawner", &["die-with-parent"]),
];

/// Judges the state of each wall.
pub(super) fn judge_walls(trial: &SandboxTrial) -> Vec<Wall> {
    let refused = if trial.built { Vec::new() } else { refused_namespaces() };
    let ground = trial.said_missing("ground").is_none();
    let failed = trial.failed_step.as_ref();
    let failed_at = failed.and_then(|(step, _)| KINDS.iter().position(|kind| kind.has_step(step)));
    KINDS
        .iter()
        .enumerate()
        .map(|(at, kind)| {
            let name = kind.0;
            let namespace = refused.iter().find(|(wall, _)| *wall == name);
            let why = trial
                .said_missing(name)
                .map(str::to_owned)
                .or_else(|| namespace.map(|(_, why)| why.clone()))
                .or_else(|| {
                    failed
                        .filter(|_| failed_at == Some(at))
                        .map(|(step, why)| format!("{step}: {why}"))
                });
            let reached = trial.built || failed_at.is_some_and(|failed| at < failed);
            // Walls that are not plan steps were checked when the spawner started, if it got that
            // far.
            let checked_at_start = kind.2.is_empty() && (ground || name.starts_with("namespace:"));
            let tried = reached || checked_at_start;
            let state = match why {
                Some(_) => WallState::Missing,
                None if tried => WallState::Present,
                None => WallState::Unknown,
            };
            let how = why.is_some().then(|| advice::how_to_get(name));
            Wall { name, stops: kind.1, state, why, how }
        })
        .chain(unnamed_failure(trial, failed_at))
        .collect()
}

impl WallKind {
    fn has_step(&self, step: &str) -> bool {
        self.2.iter().any(|prefix| step.starts_with(prefix))
    }
}

/// A failure that belongs to no wall of the table.
fn unnamed_failure(trial: &SandboxTrial, failed_at: Option<usize>) -> Option<Wall> {
    let ground =
        trial.missing.iter().find(|(wall, _)| wall == "ground").map(|(_, why)| why.clone());
    let step = trial.failed_step.as_ref().filter(|_| failed_at.is_none());
    let why = ground
        .or_else(|| step.map(|(step, why)| format!("{step}: {why}")))
        .or_else(|| trial.refusal.clone())?;
    let how = Some(advice::how_to_get("ground"));
    let stops = "everything: no sandbox can be built without it";
    Some(Wall { name: "ground", stops, state: WallState::Missing, why: Some(why), how })
}

fn refused_namespaces() -> Vec<(&'static str, String)> {
    let tried = cloche_jail::walls::try_namespaces();
    tried
        .filter_map(|(name, tried)| {
            let errno = tried.err()?;
            Some((name, std::io::Error::from_raw_os_error(errno.0).to_string()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(walls: &[Wall], name: &str) -> WallState {
        walls.iter().find(|wall| wall.name == name).unwrap().state
    }

    #[test]
    fn a_host_that_builds_everything_has_all_walls() {
        let walls = judge_walls(&SandboxTrial { built: true, ..SandboxTrial::default() });
        assert!(walls.iter().all(|wall| wall.state == WallState::Present));
    }

    #[test]
    fn a_failing_step_is_reported_under_the_name_of_its_wall() {
        let failed_step = Some(("root:overlay".to_owned(), "Operation not permitted".to_owned()));
        let walls = judge_walls(&SandboxTrial { failed_step, ..SandboxTrial::default() });
        assert_eq!(state(&walls, "root"), WallState::Missing);
        assert_eq!(state(&walls, "disk"), WallState::Present);
        assert_eq!(state(&walls, "seccomp"), WallState::Unknown);
    }

    #[test]
    fn without_cgroups_every_cgroup_limit_is_missing() {
        let missing = vec![("cgroups".to_owned(), "Permission denied".to_owned())];
        let walls = judge_walls(&SandboxTrial { missing, built: true, ..SandboxTrial::default() });
        for name in ["cgroup:memory", "cgroup:pids", "cgroup:cpu"] {
            assert_eq!(state(&walls, name), WallState::Missing, "{name}");
        }
        assert_eq!(state(&walls, "namespace:cgroup"), WallState::Present);
    }

    #[test]
    fn a_failure_of_an_unknown_step_is_reported() {
        let failed_step = Some(("start of the guest".to_owned(), "EAGAIN".to_owned()));
        let walls = judge_walls(&SandboxTrial { failed_step, ..SandboxTrial::default() });
        assert_eq!(state(&walls, "ground"), WallState::Missing);
    }
}
