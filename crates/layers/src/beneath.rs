//! Resolves paths below an open directory, without leaving it or following a link.

use std::{
    ffi::CString,
    io,
    os::fd::{AsFd, OwnedFd},
};

use rustix::{
    fs::{Dir, FileType, Mode, OFlags, ResolveFlags},
    io::Errno,
};

/// How many bytes of a path are given to the kernel at once. Its limit is 4096.
const STEP: usize = 3000;

const DIRECTORY: OFlags =
    OFlags::DIRECTORY.union(OFlags::RDONLY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens a path below `top`. `mode` is used only if the flags create a file.
pub(crate) fn open_path(
    top: impl AsFd,
    path: &[u8],
    flags: OFlags,
    mode: Mode,
) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(rustix::fs::openat2(top, path, flags | OFlags::CLOEXEC, mode, resolve)?)
}

/// Opens a directory below `top`, however long its path is (empty: `top` itself). No link is
/// followed.
///
/// # Errors
/// If the directory does not exist or may not be opened.
pub fn open_directory(top: impl AsFd, path: &[u8]) -> io::Result<OwnedFd> {
    let mut here = open_path(&top, b".", DIRECTORY, Mode::empty())?;
    let mut rest = path;
    while !rest.is_empty() {
        let (step, more) = if rest.len() <= STEP {
            (rest, &[][..])
        } else {
            let slash = rest[..STEP].iter().rposition(|&byte| byte == b'/');
            let at = slash.ok_or(Errno::NAMETOOLONG)?;
            (&rest[..at], &rest[at + 1..])
        };
        here = open_path(&here, step, DIRECTORY, Mode::empty())?;
        rest = more;
    }
    Ok(here)
}

/// A directory whose content is being removed: its name, and the directories that remain in it.
struct RemovalLevel {
    name: CString,
    directories: Vec<CString>,
}

/// Removes a directory of `top` with its content, whatever its permissions are. One directory is
/// open at a time, however deep the tree is. Does nothing if the directory does not exist.
pub(crate) fn remove_tree(top: impl AsFd, name: &str) -> io::Result<()> {
    let name = CString::new(name)?;
    let mut here = open_path(&top, b".", DIRECTORY, Mode::empty())?;
    here = match enter_directory(&here, &name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    let mut levels = vec![RemovalLevel { name, directories: remove_files(&here)? }];
    while let Some(level) = levels.last_mut() {
        if let Some(next) = level.directories.pop() {
            here = enter_directory(&here, &next)?;
            levels.push(RemovalLevel { name: next, directories: remove_files(&here)? });
            continue;
        }
        here = rustix::fs::openat(&here, "..", DIRECTORY, Mode::empty())?;
        rustix::fs::unlinkat(&here, &level.name, rustix::fs::AtFlags::REMOVEDIR)?;
        levels.pop();
    }
    Ok(())
}

fn enter_directory(here: &OwnedFd, name: &CString) -> io::Result<OwnedFd> {
    match open_path(here, name.as_bytes(), DIRECTORY, Mode::empty()) {
        Ok(directory) => {
            rustix::fs::fchmod(&directory, Mode::RWXU)?;
            Ok(directory)
        }
        // A directory of ours without read permission. No other process can put a link there.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            rustix::fs::chmodat(here, name, Mode::RWXU, rustix::fs::AtFlags::empty())?;
            open_path(here, name.as_bytes(), DIRECTORY, Mode::empty())
        }
        Err(error) => Err(error),
    }
}

/// The names in a directory: of directories, and of other files.
pub(crate) fn list_names(here: &OwnedFd) -> io::Result<(Vec<CString>, Vec<CString>)> {
    let (mut directories, mut others) = (Vec::new(), Vec::new());
    for found in Dir::read_from(here)? {
        let found = found?;
        match (found.file_name().to_bytes(), found.file_type()) {
            (b"." | b"..", _) => {}
            (_, FileType::Directory) => directories.push(found.file_name().to_owned()),
            _ => others.push(found.file_name().to_owned()),
        }
    }
    Ok((directories, others))
}

/// Removes everything from a directory except directories. Returns their names.
fn remove_files(here: &OwnedFd) -> io::Result<Vec<CString>> {
    let (mut directories, others) = list_names(here)?;
    for name in others {
        match rustix::fs::unlinkat(here, &name, rustix::fs::AtFlags::empty()) {
            Err(Errno::ISDIR) => directories.push(name),
            other => other?,
        }
    }
    Ok(directories)
}
