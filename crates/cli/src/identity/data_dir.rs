//! Runs in: server (root until it is confined, then its own user).
//!
//! The data directory belongs to the server alone: mode 0700, its files 0600, all owned by the user
//! that the server becomes. It is walked beneath one descriptor, and no link is followed. A
//! directory that is probably not ours is refused before anything in it is changed.

use std::{
    ffi::{CStr, CString},
    fs::{self, DirBuilder},
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::DirBuilderExt,
    },
    path::{Path, PathBuf},
};

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, Stat, Uid};

use super::ServerUser;

/// Names that only a data directory has. The second is created before anything else.
const DATA_DIR_NAMES: [&[u8]; 2] = [b"cloche.db", b"layers"];
/// Directories of the host that never belong to one server.
const SYSTEM: [&str; 28] = [
    "/",
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/home",
    "/lib",
    "/lib64",
    "/media",
    "/mnt",
    "/opt",
    "/proc",
    "/root",
    "/run",
    "/sbin",
    "/srv",
    "/sys",
    "/tmp",
    "/usr",
    "/usr/local",
    "/usr/share",
    "/var",
    "/var/cache",
    "/var/lib",
    "/var/log",
    "/var/run",
    "/var/spool",
    "/var/tmp",
];
/// The maximum depth of our directories, except unpacked layers, which are unpacked again.
const DEEPEST: usize = 12;
/// Modes are set down to this level. Deeper files are behind a directory that only we can enter.
const PRIVATE_LEVELS: usize = 2;

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DataDirError {
    #[error("{} is a directory of the system; name one for cloche alone with --data-dir", .0.display())]
    System(PathBuf),
    #[error(
        "{} contains {found:?} but no server data; name an empty directory with --data-dir",
        path.display()
    )]
    Foreign { path: PathBuf, found: String },
    #[error(
        "{} belongs to user {owner}; start cloche as that user or as root, or name another directory",
        path.display()
    )]
    Owner { path: PathBuf, owner: u32 },
    #[error("{} belongs to user {owner}; remove it or give it to the server's user", path.display())]
    ForeignFile { path: PathBuf, owner: u32 },
    #[error("the data directory {} is in use by another server", .0.display())]
    InUse(PathBuf),
    #[error("{} is a hard link to a file of root; remove it", .0.display())]
    HardLink(PathBuf),
    #[error("{} is nested too deeply", .0.display())]
    Depth(PathBuf),
    #[error(
        "the server's user cannot enter {}; move it out of a private directory or allow mounts",
        path.display()
    )]
    Unreachable { path: PathBuf, source: io::Error },
    #[error("cannot make the data directory {} private", path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// Creates the directory if it is missing, and makes it and its files private to the user.
pub(crate) fn make_private(path: &Path, user: &ServerUser) -> Result<(), DataDirError> {
    let failed = |source| DataDirError::Io { path: path.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
    let real = fs::canonicalize(path).map_err(failed)?;
    if SYSTEM.iter().any(|system| real == Path::new(system)) {
        return Err(DataDirError::System(real));
    }
    let top = open_directory(rustix::fs::CWD, real.as_os_str()).map_err(failed)?;
    let found = rustix::fs::fstat(&top).map_err(|errno| failed(errno.into()))?;
    check_ours(&top, path)?;
    check_unused(&real, path)?;
    let euid = rustix::process::geteuid().as_raw();
    if euid != 0 && found.st_uid != euid {
        return Err(DataDirError::Owner { path: path.to_owned(), owner: found.st_uid });
    }
    let walk = OwnershipWalk { user, euid, top: found };
    rustix::fs::fchmod(&top, Mode::RWXU).map_err(|errno| failed(errno.into()))?;
    if walk.changes_owner(&top, "layers/cache") {
        // The previous user unpacked them. It is a cache, so they are unpacked again.
        cloche_layers::remove_unpacked(&real.join("layers")).map_err(failed)?;
    }
    walk.walk_directory(&top, path, 0)?;
    // Last, so that an interrupted walk is repeated at the next start.
    walk.chown_to_user(&top, &found).map_err(failed)
}

/// Checks that the directory is empty or was used by a server before.
fn check_ours(top: &OwnedFd, path: &Path) -> Result<(), DataDirError> {
    let failed = |source| DataDirError::Io { path: path.to_owned(), source };
    let names = entry_names(top).map_err(failed)?;
    let is_ours = names.iter().any(|name| DATA_DIR_NAMES.contains(&name.to_bytes()));
    match names.first() {
        Some(found) if !is_ours => {
            let found = found.to_string_lossy().into_owned();
            Err(DataDirError::Foreign { path: path.to_owned(), found })
        }
        _ => Ok(()),
    }
}

/// Refuses the directory of a running server. A server holds the lock once it has started.
fn check_unused(real: &Path, path: &Path) -> Result<(), DataDirError> {
    match fs::File::open(real.join("lock")).map(|lock| lock.try_lock()) {
        Ok(Err(fs::TryLockError::WouldBlock)) => Err(DataDirError::InUse(path.to_owned())),
        _ => Ok(()),
    }
}

/// A walk through the directory.
struct OwnershipWalk<'a> {
    user: &'a ServerUser,
    euid: u32,
    /// The directory itself, as it was found.
    top: Stat,
}

impl OwnershipWalk<'_> {
    fn walk_directory(
        &self,
        directory: &OwnedFd,
        path: &Path,
        depth: usize,
    ) -> Result<(), DataDirError> {
        let failed = |source| DataDirError::Io { path: path.to_owned(), source };
        if depth > DEEPEST {
            return Err(DataDirError::Depth(path.to_owned()));
        }
        for name in entry_names(directory).map_err(failed)? {
            let path = path.join(name.to_string_lossy().as_ref());
            self.visit_entry(directory, &name, &path, depth)?;
        }
        Ok(())
    }

    fn visit_entry(
        &self,
        parent: &OwnedFd,
        name: &CStr,
        path: &Path,
        depth: usize,
    ) -> Result<(), DataDirError> {
        let failed = |source| DataDirError::Io { path: path.to_owned(), source };
        let handle = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(parent, name, handle, Mode::empty()) {
            // Removed in the meantime, as the log of a database may be.
            Err(rustix::io::Errno::NOENT) => return Ok(()),
            file => file.map_err(|errno| failed(errno.into()))?,
        };
        let found = rustix::fs::fstat(&file).map_err(|errno| failed(errno.into()))?;
        self.check_owner(&found, path)?;
        let is_settled = found.st_uid == self.user.uid() && depth >= PRIVATE_LEVELS;
        if is_settled {
            return Ok(());
        }
        let kind = FileType::from_raw_mode(found.st_mode);
        if kind == FileType::Directory {
            let directory = open_directory(parent, name).map_err(failed)?;
            self.walk_directory(&directory, path, depth + 1)?;
        }
        self.chown_to_user(&file, &found).map_err(failed)?;
        let private = found.st_mode & 0o7777 & if kind.is_dir() { 0o700 } else { 0o600 };
        let is_plain = kind.is_dir() || kind.is_file();
        if depth < PRIVATE_LEVELS && is_plain && found.st_mode & 0o7777 != private {
            set_mode(parent, name, private).map_err(failed)?;
        }
        Ok(())
    }

    /// Checks that the file belongs to root, the server, or the owner that the directory had
    /// before.
    fn check_owner(&self, found: &Stat, path: &Path) -> Result<(), DataDirError> {
        let owner = found.st_uid;
        if ![0, self.user.uid(), self.top.st_uid, self.euid].contains(&owner) {
            return Err(DataDirError::ForeignFile { path: path.to_owned(), owner });
        }
        // If others could create names here, a name may be a hard link to a file that is not ours.
        let others_wrote = self.top.st_uid != 0 && self.top.st_uid != self.user.uid()
            || self.top.st_mode & 0o022 != 0;
        let has_more_names = FileType::from_raw_mode(found.st_mode).is_file() && found.st_nlink > 1;
        if owner == 0 && others_wrote && has_more_names {
            return Err(DataDirError::HardLink(path.to_owned()));
        }
        Ok(())
    }

    /// Changes the owner of a file to the server's user, if the server becomes another user.
    fn chown_to_user(&self, file: &OwnedFd, found: &Stat) -> io::Result<()> {
        let ServerUser::Become { uid, gid, .. } = *self.user else { return Ok(()) };
        if (found.st_uid, found.st_gid) == (uid, gid) {
            return Ok(());
        }
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        Ok(rustix::fs::chownat(file, c"", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?)
    }

    /// Whether a path below will get another owner.
    fn changes_owner(&self, top: &OwnedFd, path: &str) -> bool {
        let becomes = matches!(self.user, ServerUser::Become { .. });
        let found = rustix::fs::statat(top, path, AtFlags::SYMLINK_NOFOLLOW);
        becomes && found.is_ok_and(|found| found.st_uid != self.user.uid())
    }
}

fn open_directory(at: impl AsFd, name: impl rustix::path::Arg) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(at, name, flags, Mode::empty())?)
}

fn set_mode(parent: &OwnedFd, name: &CStr, mode: u32) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    Ok(rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?)
}

fn entry_names(directory: &OwnedFd) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_owned();
        if !matches!(name.to_bytes(), b"." | b"..") {
            names.push(name);
        }
    }
    Ok(names)
}
