//! Reading what a run has written, in a process that does nothing else and then ends.
//!
//! Files may have any mode and marks that only root can see, so the server cannot read them. The
//! packer keeps the two capabilities that it needs, walks the tree beneath one descriptor, and
//! writes an archive to a pipe. It never opens anything by a path of the host's.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use cloche_jail::sys::{self, CloneRequest, Cloned, Prctl};
use cloche_layers::{Markers, Most, Upper, pack};
use cloche_model::HomePath;
use rustix::{
    fs::{Mode, OFlags},
    thread::{CapabilitySet, CapabilitySets},
};
use sha2::{Digest, Sha256};

use super::{
    linked,
    protocol::{PackRequest, Placed, Verdict},
};

/// The file system that guests write to.
const TMPFS: u64 = 0x0102_1994;
/// The one that shows their homes.
const OVERLAY: u64 = 0x794c_7630;

/// Starts a packer; what it finds goes to the pipes.
pub(super) fn start(
    request: &PackRequest,
    fds: &[OwnedFd],
    privileged: bool,
    first_guest: u32,
) -> io::Result<()> {
    let ([directory, archive, verdict], rest) = fds.split_first_chunk().ok_or_else(too_few)?;
    let upper = Upper { dir: directory.as_fd(), merged: rest.first().map(AsFd::as_fd) };
    let first_guest = privileged.then_some(first_guest);
    check(upper.dir, TMPFS, first_guest)?;
    upper.merged.map_or(Ok(()), |merged| check(merged, OVERLAY, first_guest))?;
    let cloned = sys::clone(CloneRequest::default());
    match cloned.map_err(|errno| io::Error::from_raw_os_error(errno.0))? {
        Cloned::Parent(_, pidfd) => {
            sys::close(pidfd);
            Ok(())
        }
        Cloned::Child => {
            let _ = sys::prctl(Prctl::ParentDeathSignal, 9);
            let told = work(request, upper, [archive, verdict], privileged);
            sys::exit(i32::from(told.is_err()))
        }
    }
}

fn too_few() -> io::Error {
    io::Error::other("a packer needs three descriptors")
}

/// Only what a guest owns on the file systems of homes is packed: the server could name any
/// directory that it can open.
fn check(directory: BorrowedFd<'_>, wanted: u64, first_guest: Option<u32>) -> io::Result<()> {
    let kind = rustix::fs::fstatfs(directory)?.f_type;
    let owner = rustix::fs::fstat(directory)?.st_uid;
    let is_guest_s = first_guest.is_none_or(|first| owner >= first);
    if kind as u64 != wanted || !is_guest_s {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "no guest wrote there"));
    }
    Ok(())
}

fn work(
    request: &PackRequest,
    upper: Upper<'_>,
    [archive, verdict]: [&OwnedFd; 2],
    privileged: bool,
) -> io::Result<()> {
    if privileged {
        let reading = CapabilitySet::DAC_READ_SEARCH | CapabilitySet::SYS_ADMIN;
        if let Some(merged) = upper.merged {
            keep_only(reading | CapabilitySet::FOWNER)?;
            linked::complete(upper.dir, merged)?;
        }
        keep_only(reading)?;
    }
    let directory = upper.dir;
    let same: Vec<&Placed> =
        request.placed.iter().filter(|placed| is_unchanged(directory, placed)).collect();
    let skip = same.iter().filter(|placed| placed.leave_out);
    let options = cloche_layers::PackRequest {
        skip: skip.map(|placed| OsString::from(&placed.name)).collect(),
        markers: if privileged { Markers::Trusted } else { Markers::User },
        home_mode: request.home_mode,
        most: request.most.map(|(file, total)| Most { file, total }),
    };
    let packed = pack(upper, &options, File::from(archive.try_clone()?))?;
    // Whoever reads need not wait until this process has ended. It is a copy: nobody else has these.
    sys::close(archive.as_raw_fd());
    let said = Verdict {
        unchanged: same.iter().map(|placed| placed.name.clone()).collect(),
        lost_attributes: packed.attributes_left_out > 0,
        cut: packed.cut.iter().map(|(path, size)| (HomePath::text_of(path), *size)).collect(),
    };
    File::from(verdict.try_clone()?).write_all(&serde_json::to_vec(&said)?)?;
    sys::close(verdict.as_raw_fd());
    Ok(())
}

/// Drops all capabilities but these. To read files of any mode and the marks of an overlay takes
/// two; to have the overlay copy up what is a guest's takes one more.
fn keep_only(keep: CapabilitySet) -> io::Result<()> {
    let sets =
        CapabilitySets { effective: keep, permitted: keep, inheritable: CapabilitySet::empty() };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

/// Whether a file is still what was put there.
fn is_unchanged(directory: BorrowedFd<'_>, placed: &Placed) -> bool {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(directory, placed.name.as_str(), flags, Mode::empty());
    let Ok(file) = opened else { return false };
    let Ok(stat) = rustix::fs::fstat(&file) else { return false };
    let plain = stat.st_mode & 0o170_000 == 0o100_000;
    if !plain || stat.st_mode & 0o7777 != 0o644 || stat.st_nlink != 1 {
        return false;
    }
    let (mut file, mut hash) = (File::from(file), Sha256::new());
    let mut buffer = vec![0; 64 << 10];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return hash.finalize()[..] == placed.digest,
            Ok(len) => hash.update(&buffer[..len]),
            Err(_) => return false,
        }
    }
}
