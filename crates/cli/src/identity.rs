//! Runs in: server (root until it is confined, then its own user).
//!
//! The identity of the server once its spawner runs, and what it can still access. Started as root,
//! it becomes a user of its own. Then it replaces the host's mounts by a private root with its data
//! directory and the files for name resolution and TLS. Then it applies Landlock and a seccomp
//! filter. All of this happens while the process has one thread.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use cloche_executor::ExecutorStartError;
use cloche_jail::{privileges, seccomp};
use rustix::thread::{CapabilitySet, CapabilitySets};

mod data_dir;
mod landlock;
mod private_root;
mod shared_dir;
pub(crate) mod trial;
mod user;

pub(crate) use data_dir::{DataDirError, make_private};
pub(crate) use shared_dir::make_shared_store;
pub(crate) use user::ServerUser;

use crate::serve::Failure;

/// The OOM score adjustment of server and spawner: the kernel kills nearly everything else first.
pub(crate) const OOM_SCORE: i32 = -900;

/// The files that the confined server uses.
#[derive(Debug, Default)]
pub(crate) struct ServerNeeds {
    /// The directory that it writes to. An executor sidecar has none.
    pub(crate) data_dir: Option<PathBuf>,
    /// Directories that it writes to besides, such as a layer store that other processes share.
    pub(crate) writes: Vec<PathBuf>,
    /// Files and directories that it reads in addition to those that every server reads.
    pub(crate) reads: Vec<PathBuf>,
    /// Whether it runs cells. Then it reads files of homes that are on no mount of its own, which
    /// Landlock would refuse. Only the private root limits what it can read then.
    pub(crate) runs_cells: bool,
}

/// Makes new files accessible to the server only.
pub(crate) fn set_private_umask() {
    use rustix::fs::Mode;
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
}

/// Makes the kernel kill nearly everything else before this process and its spawner. Cells get a
/// score of their own. Only root can set this.
pub(crate) fn protect_from_oom() {
    if rustix::process::geteuid().is_root()
        && let Err(error) = fs::write("/proc/self/oom_score_adj", OOM_SCORE.to_string())
    {
        tracing::warn!(%error, "could not protect the server from the OOM killer");
    }
}

/// A missing wall, and the reason.
type Missing = (String, String);

/// Becomes the user, and keeps only the access that is needed. Fails if a wall cannot be built and
/// is not in `allow_missing`.
pub(crate) fn confine_process(
    user: &ServerUser,
    needs: &ServerNeeds,
    allow_missing: &[String],
) -> Result<(), Failure> {
    let mut missing = build_walls(user, needs)?;
    missing.retain(|(wall, _)| !allow_missing.contains(wall));
    if missing.is_empty() { Ok(()) } else { Err(ExecutorStartError::Missing(missing).into()) }
}

/// Keeps the right to read any file, if this process has it, and gives up everything else: it
/// cannot write, execute, be inspected or get new privileges.
pub(crate) fn confine_reader() -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        let keep = CapabilitySet::DAC_READ_SEARCH;
        let inheritable = CapabilitySet::empty();
        let sets = CapabilitySets { effective: keep, permitted: keep, inheritable };
        // Root in a container may lack the capability; it can still read its own files.
        if rustix::thread::set_capabilities(None, sets).is_err() {
            privileges::drop_all_capabilities()?;
        }
    }
    rustix::thread::set_no_new_privs(true)?;
    privileges::forbid_inspection()?;
    // On an old kernel the capability and the single purpose are the only limits.
    let _ = landlock::restrict_access(&[PathBuf::from("/")], &[], true);
    Ok(())
}

/// The user and group of a broker whose server was started as root.
const BROKER_USER: u32 = 65528;

/// Leaves a broker of networks the host's network, and the files for TLS and name resolution. It
/// has a user of its own, so that neither it nor the server can inspect or signal the other.
pub(crate) fn confine_broker() -> io::Result<()> {
    match rustix::process::geteuid().is_root() {
        true => privileges::become_user(BROKER_USER, BROKER_USER)?,
        false => privileges::drop_all_capabilities()?,
    }
    privileges::forbid_inspection()?;
    let reads = ["/etc", "/usr/share", "/usr/lib/ssl", "/usr/local/share", "/proc/net"];
    // On an old kernel its user, the filter and the single purpose are the only limits.
    let _ = landlock::restrict_access(&reads.map(PathBuf::from), &[], true);
    seccomp::confine_server().map_err(|errno| io::Error::from_raw_os_error(errno.0))
}

/// Makes the supervisor of a broker the user that the broker is, without capabilities. If only root
/// may execute this program, it stays root, because the next broker could not be started otherwise.
pub(crate) fn confine_supervisor() -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    const OTHERS_EXECUTE: u32 = 0o001;
    let mode = fs::metadata("/proc/self/exe")?.permissions().mode();
    let is_root = rustix::process::geteuid().is_root();
    match (is_root, mode & OTHERS_EXECUTE != 0) {
        (true, true) => privileges::become_user(BROKER_USER, BROKER_USER)?,
        (true, false) => {}
        (false, _) => privileges::drop_all_capabilities()?,
    }
    privileges::forbid_inspection()
}

/// Builds every wall. Returns those that this host does not support.
fn build_walls(user: &ServerUser, needs: &ServerNeeds) -> Result<Vec<Missing>, Failure> {
    let mut missing = Vec::new();
    let reads = readable_paths(needs);
    let writes: Vec<_> = needs.data_dir.iter().chain(&needs.writes).map(PathBuf::as_path).collect();
    let built = private_root::enter_private_root(&reads, &writes);
    match user {
        ServerUser::Become { uid, gid, .. } => privileges::become_user(*uid, *gid)?,
        ServerUser::Keep { .. } => privileges::drop_all_capabilities()?,
    }
    privileges::forbid_inspection()?;
    if let Some(data_dir) = &needs.data_dir {
        check_reach(data_dir)?;
    }
    needs.writes.iter().try_for_each(|path| check_open(path))?;
    // Without a private root, Landlock limits what the server can read.
    let governs_reads = built.is_err() && !needs.runs_cells;
    if let Err(error) = &built
        && !governs_reads
    {
        missing.push(("server:root".to_owned(), error.to_string()));
    }
    if let Err(why) = landlock::restrict_access(&reads, &writes, governs_reads) {
        missing.push(("server:landlock".to_owned(), why));
    }
    if let Err(errno) = seccomp::confine_server() {
        let why = io::Error::from_raw_os_error(errno.0).to_string();
        missing.push(("server:seccomp".to_owned(), why));
    }
    Ok(missing)
}

/// Checks that the data directory is reachable. Without a private root the server walks the host's
/// directories as its new user.
fn check_reach(data_dir: &Path) -> Result<(), DataDirError> {
    std::env::set_current_dir(data_dir)
        .map_err(|source| DataDirError::Unreachable { path: data_dir.to_owned(), source })
}

fn check_open(path: &Path) -> Result<(), DataDirError> {
    let unreachable = |source| DataDirError::Unreachable { path: path.to_owned(), source };
    fs::read_dir(path).map(drop).map_err(unreachable)
}

/// The files for name resolution, TLS, time zones and the number of processors.
const EVERY_SERVER_READS: [&str; 10] = [
    "/etc",
    "/usr",
    "/lib",
    "/lib32",
    "/lib64",
    "/bin",
    "/nix/store",
    "/sys/fs/cgroup",
    "/sys/devices/system/cpu",
    "/proc",
];

fn readable_paths(needs: &ServerNeeds) -> Vec<PathBuf> {
    let variables = ["SSL_CERT_FILE", "SSL_CERT_DIR"];
    let certificates = variables.into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    let all = EVERY_SERVER_READS.into_iter().map(PathBuf::from);
    let all = all.chain(resolver_path()).chain(certificates).chain(needs.reads.iter().cloned());
    all.filter_map(|path| std::path::absolute(path).ok()).filter(|path| path.exists()).collect()
}

/// The directory of the resolver configuration, if it is not in `/etc`. A directory, because the
/// file is replaced when it changes.
fn resolver_path() -> Option<PathBuf> {
    let file = fs::canonicalize("/etc/resolv.conf").ok()?;
    if file.starts_with("/etc") || file.starts_with("/usr") {
        return None;
    }
    let directory = file.parent()?;
    let is_its_own = directory.components().count() > 2;
    Some(if is_its_own { directory.to_owned() } else { file })
}
