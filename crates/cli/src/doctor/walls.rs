//! The walls as people know them, and what a trial says about each.
//!
//! A box is built in some seventy steps; here they are gathered under the names of what they are
//! for. It judges what was tried and tries only namespaces itself, to tell which one is refused.

use serde::Serialize;

use super::advice;

/// What building a sandbox has shown.
#[derive(Debug, Default)]
pub(super) struct Trial {
    /// Walls the spawner said it cannot build, and why.
    pub(super) missing: Vec<(String, String)>,
    /// A step that failed inside a new cell, and why.
    pub(super) failed_step: Option<(String, String)>,
    /// Why there was no cell at all.
    pub(super) refusal: Option<String>,
    /// Whether a program has run.
    pub(super) built: bool,
}

impl Trial {
    /// The names of the walls that a server can be told to do without.
    pub(super) fn names(&self) -> Vec<String> {
        self.missing.iter().map(|(wall, _)| wall.clone()).collect()
    }

    /// Why the wall is missing, where the spawner said so.
    fn said_missing(&self, name: &str) -> Option<&str> {
        let all_cgroups = |wall: &str| wall == "cgroups" && name.starts_with("cgroup:");
        let said = self.missing.iter().find(|(wall, _)| wall == name || all_cgroups(wall));
        said.map(|(_, why)| why.as_str())
    }
}

/// What is known of a wall.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    Present,
    Missing,
    /// Another wall failed before this one was reached.
    Unknown,
}

/// A wall, and how it stands.
#[derive(Debug, Serialize)]
pub(super) struct Wall {
    pub(super) name: &'static str,
    pub(super) stops: &'static str,
    pub(super) state: State,
    pub(super) why: Option<String>,
    pub(super) how: Option<String>,
}

impl Wall {
    /// Its name, if it is missing.
    pub(super) fn missing_name(&self) -> Option<String> {
        (self.state == State::Missing).then(|| self.name.to_owned())
    }
}

/// A wall: its name, what it stops, and the steps of the plan it is made of (by prefix).
struct Kind(&'static str, &'static str, &'static [&'static str]);

/// In the order in which a box is built.
const KINDS: [Kind; 24] = [
    Kind("namespace:user", "privileges on the host", &[]),
    Kind("namespace:mount", "seeing or changing the host's files", &[]),
    Kind("namespace:pid", "seeing or signalling other processes; daemons that stay", &[]),
    Kind("namespace:net", "every network but its own loopback", &[]),
    Kind("namespace:ipc", "shared memory and queues of others", &[]),
    Kind("namespace:uts", "the host's name", &[]),
    Kind(
        "namespace:cgroup",
        "where it stands among the host's control groups",
        &["namespace:cgroup"],
    ),
    Kind("host-uid", "what two sandboxes could do to each other as one user", &[]),
    Kind("cgroup:memory", "using up the host's memory", &[]),
    Kind("cgroup:pids", "using up the host's processes", &[]),
    Kind("cgroup:cpu", "using up the host's processors", &[]),
    Kind("names", "telling the host by its name", &["hostname", "loopback"]),
    Kind("disk", "filling the host's disk", &["scratch"]),
    Kind(
        "root",
        "reaching files outside the image",
        &["root:", "image:", "read-only:/usr", "home", "tmp", "shm"],
    ),
    Kind("dev", "the host's devices", &["dev", "read-only:/dev"]),
    Kind(
        "proc",
        "what /proc tells of the host",
        &["proc", "mask:", "bind:/proc", "read-only:/proc"],
    ),
    Kind("rlimits", "core dumps on the host, pinned memory, real-time priority", &["rlimit:"]),
    Kind("close-fds", "descriptors of ours", &["close-fds"]),
    Kind("capabilities", "what root may do", &["capabilities", "identity:"]),
    Kind("no-new-privs", "set-user-id programs", &["no-new-privs"]),
    Kind(
        "landlock",
        "writing outside home, /tmp and /dev/shm, should the mounts fail",
        &["landlock"],
    ),
    Kind("sockets", "pinning kernel memory in the queues of sockets", &["sockets"]),
    Kind("seccomp", "most of the kernel's attack surface", &["seccomp"]),
    Kind("die-with-parent", "outliving us", &["die-with-parent"]),
];

/// Says of each wall whether it stands.
pub(super) fn judge(trial: &Trial) -> Vec<Wall> {
    let refused = if trial.built { Vec::new() } else { refused_namespaces() };
    let ground = trial.said_missing("ground").is_none();
    let failed = trial.failed_step.as_ref();
    let failed_at = failed.and_then(|(step, _)| KINDS.iter().position(|kind| kind.has(step)));
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
            // What is no step has been tried by other means, if there was ground to try it on.
            let elsewhere = kind.2.is_empty() && (ground || name.starts_with("namespace:"));
            let tried = reached || elsewhere;
            let state = match why {
                Some(_) => State::Missing,
                None if tried => State::Present,
                None => State::Unknown,
            };
            let how = why.is_some().then(|| advice::how_to_get(name));
            Wall { name, stops: kind.1, state, why, how }
        })
        .chain(unnamed(trial, failed_at))
        .collect()
}

impl Kind {
    fn has(&self, step: &str) -> bool {
        self.2.iter().any(|prefix| step.starts_with(prefix))
    }
}

/// What went wrong and belongs to no wall of the table.
fn unnamed(trial: &Trial, failed_at: Option<usize>) -> Option<Wall> {
    let ground =
        trial.missing.iter().find(|(wall, _)| wall == "ground").map(|(_, why)| why.clone());
    let step = trial.failed_step.as_ref().filter(|_| failed_at.is_none());
    let why = ground
        .or_else(|| step.map(|(step, why)| format!("{step}: {why}")))
        .or_else(|| trial.refusal.clone())?;
    let how = Some(advice::how_to_get("ground"));
    let stops = "everything: without it there is no sandbox";
    Some(Wall { name: "ground", stops, state: State::Missing, why: Some(why), how })
}

fn refused_namespaces() -> Vec<(&'static str, String)> {
    let tried = cloche_jail::walls::namespaces();
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

    fn state(walls: &[Wall], name: &str) -> State {
        walls.iter().find(|wall| wall.name == name).unwrap().state
    }

    #[test]
    fn a_host_that_builds_everything_misses_nothing() {
        let walls = judge(&Trial { built: true, ..Trial::default() });
        assert!(walls.iter().all(|wall| wall.state == State::Present));
    }

    #[test]
    fn a_failing_step_is_reported_under_the_name_of_its_wall() {
        let failed_step = Some(("root:overlay".to_owned(), "Operation not permitted".to_owned()));
        let walls = judge(&Trial { failed_step, ..Trial::default() });
        assert_eq!(state(&walls, "root"), State::Missing);
        assert_eq!(state(&walls, "disk"), State::Present);
        assert_eq!(state(&walls, "seccomp"), State::Unknown);
    }

    #[test]
    fn without_control_groups_every_limit_of_theirs_is_missing() {
        let missing = vec![("cgroups".to_owned(), "Permission denied".to_owned())];
        let walls = judge(&Trial { missing, built: true, ..Trial::default() });
        for name in ["cgroup:memory", "cgroup:pids", "cgroup:cpu"] {
            assert_eq!(state(&walls, name), State::Missing, "{name}");
        }
        assert_eq!(state(&walls, "namespace:cgroup"), State::Present);
    }

    #[test]
    fn a_step_that_nobody_knows_is_not_swallowed() {
        let failed_step = Some(("start of the guest".to_owned(), "EAGAIN".to_owned()));
        let walls = judge(&Trial { failed_step, ..Trial::default() });
        assert_eq!(state(&walls, "ground"), State::Missing);
    }
}
