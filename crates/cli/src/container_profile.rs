//! Runs in: server (before its first thread), `cloche doctor`.
//!
//! The profile `container` of an executor: it runs as an ordinary user in a container that is
//! hardened already, without capabilities and perhaps without user namespaces. Lists the walls that
//! may be missing there, each with the reason. Every other wall that is missing refuses the start.

use std::{
    fs::DirBuilder,
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

use clap::ValueEnum;
use cloche_executor::{Executor, ExecutorConfig};
use cloche_model::error_chain;
use tokio::runtime::Builder;

/// What an executor expects of its surroundings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExecutorProfile {
    /// Every wall is required, but for those in `--allow-missing`.
    #[default]
    Standard,
    /// A hardened container, in which some walls are missing and the container takes their place.
    Container,
}

/// A wall that may be missing in a container, and why that is acceptable there.
pub(crate) type AcceptedWall = (&'static str, &'static str);

/// Missing wherever an ordinary user runs cells.
const ORDINARY_USER: [AcceptedWall; 5] = [
    ("cgroups", MEASURED),
    ("cgroup:memory", MEASURED),
    ("cgroup:pids", "RLIMIT_NPROC or the spawner counts the processes of each job"),
    (
        "cgroup:cpu",
        "the processors of the container bound all jobs, and CPU seconds bound each process",
    ),
    (
        "host-uid",
        "all jobs have the user of the container, which owns nothing else; other walls keep them \
         apart",
    ),
];
const MEASURED: &str = "the spawner measures each job and kills it beyond its limit; the memory of \
                        the container bounds all jobs";

/// Missing also where the container allows no namespaces.
const NO_NAMESPACES: [AcceptedWall; 13] = [
    ("namespace:user", "a job has no capability, and no new privileges"),
    ("namespace:mount", FILES),
    (
        "namespace:pid",
        "a job can signal only its own processes, reads no other process, and its first process \
         kills all of them at the end",
    ),
    ("namespace:net", "a job can make no socket; the container has no external network"),
    ("namespace:ipc", "System V objects and message queues are refused"),
    ("namespace:uts", "the host name is the container's"),
    ("namespace:cgroup", "Landlock shows no cgroup"),
    ("names", "the host name is the container's"),
    (
        "disk",
        "each file has a limit; the tmpfs of the container bounds all files, and each job's are \
         removed at its end",
    ),
    ("root", FILES),
    ("dev", "Landlock shows six harmless devices"),
    ("proc", "Landlock shows a job its main process and facts about the machine"),
    ("sockets", "a job can make no socket"),
];
const FILES: &str = "Landlock shows programs, libraries and a short list of /etc; a job writes \
                     only to its own directory, and the container's root is read-only";

/// How an executor with this profile makes its cells.
pub(crate) struct ContainerCells {
    /// The directory of contained cells; `None` where cells have namespaces.
    pub(crate) contained: Option<PathBuf>,
    /// Why cells have no namespaces.
    pub(crate) why: Option<String>,
}

impl ContainerCells {
    /// Finds out how cells can be made here, by making one. To be called before the first thread.
    pub(crate) fn choose(config: &ExecutorConfig, scratch: &Path) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(Self::try_cells(config, scratch))
    }

    /// The same in a runtime.
    pub(crate) async fn try_cells(config: &ExecutorConfig, scratch: &Path) -> io::Result<Self> {
        let mut config = config.clone();
        config.pool = None;
        config.allow_missing.extend(names_of(&ORDINARY_USER));
        match try_one_cell(config).await {
            Ok(()) => Ok(Self { contained: None, why: None }),
            // A cell without a user namespace has the user of the server.
            Err(why) if rustix::process::geteuid().is_root() => Err(io::Error::other(format!(
                "root cannot run jobs without namespaces: start the container as an ordinary user \
                 ({why})"
            ))),
            Err(why) => Ok(Self { contained: Some(make_scratch_dir(scratch)?), why: Some(why) }),
        }
    }

    /// The walls that may be missing.
    pub(crate) fn accepted_walls(&self) -> Vec<AcceptedWall> {
        let mut accepted = ORDINARY_USER.to_vec();
        if self.contained.is_some() {
            accepted.extend(NO_NAMESPACES);
        }
        accepted
    }

    /// Changes a configuration for these cells.
    pub(crate) fn apply_to(&self, config: &mut ExecutorConfig) {
        config.allow_missing.extend(names_of(&self.accepted_walls()));
        config.contained.clone_from(&self.contained);
    }
}

/// Why a wall may be missing in a container.
pub(crate) fn reason_for(wall: &str) -> &'static str {
    let mut all = ORDINARY_USER.into_iter().chain(NO_NAMESPACES);
    all.find(|(name, _)| *name == wall).map_or("--allow-missing names it", |(_, why)| why)
}

fn names_of(walls: &[AcceptedWall]) -> impl Iterator<Item = String> {
    walls.iter().map(|(wall, _)| (*wall).to_owned())
}

async fn try_one_cell(config: ExecutorConfig) -> Result<(), String> {
    let executor = Executor::start(config).await.map_err(|error| error_chain(&error))?;
    let tried = executor.try_cell().await.map_err(|error| error_chain(&error));
    executor.stop().await;
    tried
}

/// Makes the private directory that reserves the names of contained cells beside it.
fn make_scratch_dir(parent: &Path) -> io::Result<PathBuf> {
    const TMPFS: u64 = 0x0102_1994;
    const MOST_TRIES: u32 = 1000;
    let explain = |error: io::Error| {
        let text = format!("cannot use {} for the files of jobs: {error}", parent.display());
        io::Error::new(error.kind(), text)
    };
    let kind = rustix::fs::statfs(parent).map_err(|errno| explain(errno.into()))?.f_type;
    if kind as u64 != TMPFS {
        return Err(explain(io::Error::other("it is not on a tmpfs; name one by --scratch")));
    }
    if parent.metadata().map_err(explain)?.uid() == rustix::process::geteuid().as_raw() {
        let path = parent.display();
        tracing::warn!(%path, "a job can close this directory for all jobs, because this user owns \
             it; mount the tmpfs with another owner and mode 1777");
    }
    let own = std::process::id();
    for number in 0..MOST_TRIES {
        let path = parent.join(format!("cloche-{own}-{number}"));
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|()| path).map_err(explain),
        }
    }
    Err(explain(io::ErrorKind::AlreadyExists.into()))
}
