//! Reading what a run has written, in a process that does nothing else and then ends.
//!
//! Files may have any mode and marks that only root can see, so the server cannot read them. The
//! packer keeps the two capabilities that it needs, walks the tree beneath one descriptor, and
//! writes an archive to a pipe, under a filter of its own (`policy/packer.json`). It never opens anything by a path of the host's.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
};

use cloche_jail::{
    seccomp,
    sys::{self, CloneRequest, CloneSide, Errno, PrctlOption},
};
use cloche_layers::{ContentLimits, OverlayXattrs, UpperDir, pack_upper_dir};
use cloche_model::HomePath;
use rustix::{
    fs::{Mode, OFlags},
    net::{AddressFamily, SocketFlags, SocketType, socketpair},
    thread::{CapabilitySet, CapabilitySets},
};
use sha2::{Digest, Sha256};

use super::{
    hard_links,
    protocol::{self, PackReport, PackRequest, PacketBuffer, PlacedDigest, is_plain_name},
};

/// The file system that guests write to.
const TMPFS: u64 = 0x0102_1994;
/// The one that shows their homes.
const OVERLAY: u64 = 0x794c_7630;

/// Who a packer is.
#[derive(Clone, Copy)]
pub(super) struct PackerProcess {
    /// Whether it has capabilities to drop.
    pub(super) privileged: bool,
    /// The first of the ids that guests have.
    pub(super) first_guest: u32,
}

/// Files of any mode and the marks of an overlay.
const READING: CapabilitySet = CapabilitySet::DAC_READ_SEARCH.union(CapabilitySet::SYS_ADMIN);
/// And to have an overlay copy up what is a guest's.
const COMPLETING: CapabilitySet = READING.union(CapabilitySet::FOWNER);

impl PackerProcess {
    /// Starts a packer for this; what it finds goes to the pipes.
    pub(super) fn start(self, request: &PackRequest, fds: &[OwnedFd]) -> io::Result<()> {
        fork_packer(|| {
            install_filter()?;
            self.pack(request, fds)
        })
    }

    /// Starts one that waits for something to pack. While somebody waits, to start one takes as long
    /// as to pack a few files.
    pub(super) fn start_idle(self) -> io::Result<IdlePacker> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        fork_packer(|| {
            // It may wait for long, and is not to keep alive what others have let go of.
            const ONLY: RawFd = 3;
            let socket = theirs.as_raw_fd();
            if socket != ONLY {
                sys::dup_onto(socket, ONLY).map_err(io_error)?;
            }
            sys::close_range(ONLY as u32 + 1, u32::MAX).map_err(io_error)?;
            if self.privileged {
                keep_capabilities(COMPLETING)?;
            }
            install_filter()?;
            let received = PacketBuffer::new().receive::<PackRequest>(sys::into_owned_fd(ONLY));
            let (request, fds) = received.map_err(io::Error::other)?;
            let packed = self.pack(&request, &fds);
            // Some are closed by now; the others go with this process.
            std::mem::forget(fds);
            packed
        })?;
        Ok(IdlePacker { socket: ours })
    }

    fn pack(self, request: &PackRequest, fds: &[OwnedFd]) -> io::Result<()> {
        let ([directory, archive, verdict], rest) =
            fds.split_first_chunk().ok_or_else(missing_descriptors)?;
        let upper = UpperDir { dir: directory.as_fd(), merged: rest.first().map(AsFd::as_fd) };
        let first_guest = self.privileged.then_some(self.first_guest);
        check_guest_owned(upper.dir, TMPFS, first_guest)?;
        upper.merged.map_or(Ok(()), |merged| check_guest_owned(merged, OVERLAY, first_guest))?;
        pack_and_report(request, upper, [archive, verdict], self.privileged)
    }
}

/// A packer that waits for something to pack.
pub(super) struct IdlePacker {
    socket: OwnedFd,
}

impl IdlePacker {
    /// Has it pack this; false if it is gone.
    pub(super) fn pack(self, request: &PackRequest, fds: &[OwnedFd]) -> bool {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        protocol::send_packet(self.socket.as_fd(), request, &fds).is_ok()
    }
}

/// Starts a process for this alone.
fn fork_packer(work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    match sys::clone(CloneRequest::default()).map_err(io_error)? {
        CloneSide::Parent(_, pidfd) => {
            sys::close(pidfd);
            Ok(())
        }
        CloneSide::Child => {
            let _ = sys::prctl(PrctlOption::ParentDeathSignal, 9);
            sys::exit(i32::from(work().is_err()))
        }
    }
}

/// From here on this process can read, write and end, and any other call ends it.
fn install_filter() -> io::Result<()> {
    sys::prctl(PrctlOption::NoNewPrivs, 1).map_err(io_error)?;
    sys::install_logged_seccomp(seccomp::packer_filter()).map_err(io_error)
}

fn io_error(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.0)
}

fn missing_descriptors() -> io::Error {
    io::Error::other("a packer needs three descriptors")
}

/// Only what a guest owns on the file systems of homes is packed: the server could name any
/// directory that it can open.
fn check_guest_owned(
    directory: BorrowedFd<'_>,
    wanted: u64,
    first_guest: Option<u32>,
) -> io::Result<()> {
    let kind = rustix::fs::fstatfs(directory)?.f_type;
    let owner = rustix::fs::fstat(directory)?.st_uid;
    let is_guest_s = first_guest.is_none_or(|first| owner >= first);
    if kind as u64 != wanted || !is_guest_s {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "no guest wrote there"));
    }
    Ok(())
}

fn pack_and_report(
    request: &PackRequest,
    upper: UpperDir<'_>,
    [archive, verdict]: [&OwnedFd; 2],
    privileged: bool,
) -> io::Result<()> {
    if privileged {
        if let Some(merged) = upper.merged {
            keep_capabilities(COMPLETING)?;
            hard_links::complete_hard_links(upper.dir, merged)?;
        }
        keep_capabilities(READING)?;
    }
    let directory = upper.dir;
    let same: Vec<&PlacedDigest> =
        request.placed.iter().filter(|placed| is_unchanged(directory, placed)).collect();
    let skip = same.iter().filter(|placed| placed.leave_out);
    let options = cloche_layers::PackOptions {
        skip: skip.map(|placed| OsString::from(&placed.name)).collect(),
        markers: if privileged { OverlayXattrs::Trusted } else { OverlayXattrs::User },
        home_mode: request.home_mode,
        most: request.most.map(|(file, total)| ContentLimits { file, total }),
    };
    let packed = pack_upper_dir(upper, &options, File::from(archive.try_clone()?))?;
    // Whoever reads need not wait until this process has ended. It is a copy: nobody else has these.
    sys::close(archive.as_raw_fd());
    let said = PackReport {
        unchanged: same.iter().map(|placed| placed.name.clone()).collect(),
        lost_attributes: packed.attributes_left_out > 0,
        cut: packed.cut.iter().map(|(path, size)| (HomePath::text_of(path), *size)).collect(),
    };
    File::from(verdict.try_clone()?).write_all(&serde_json::to_vec(&said)?)?;
    sys::close(verdict.as_raw_fd());
    Ok(())
}

/// Drops all capabilities but these.
fn keep_capabilities(keep: CapabilitySet) -> io::Result<()> {
    let sets =
        CapabilitySets { effective: keep, permitted: keep, inheritable: CapabilitySet::empty() };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

/// Whether a file is still what was put there.
fn is_unchanged(directory: BorrowedFd<'_>, placed: &PlacedDigest) -> bool {
    // The packer reads what the server may not: only files of the guest's own home are compared.
    if !is_plain_name(&placed.name) {
        return false;
    }
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

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    fn placed(name: &str) -> PlacedDigest {
        PlacedDigest {
            name: name.to_owned(),
            digest: Sha256::digest(b"secret").into(),
            leave_out: true,
        }
    }

    fn open(path: &Path) -> OwnedFd {
        File::open(path).unwrap().into()
    }

    #[test]
    fn files_outside_the_home_are_not_compared_with_what_the_server_says() {
        let outside = tempfile::tempdir().unwrap();
        let home = outside.path().join("home");
        fs::create_dir_all(home.join("below")).unwrap();
        let secrets = [outside.path().join("secret"), home.join("below/own"), home.join("own")];
        for secret in &secrets {
            fs::write(secret, "secret").unwrap();
            fs::set_permissions(secret, std::os::unix::fs::PermissionsExt::from_mode(0o644))
                .unwrap();
        }
        let home = open(&home);
        let absolute = secrets[0].to_str().unwrap();
        for name in ["../secret", "./../secret", absolute, "below/own", "./own", "", ".", ".."] {
            assert!(!is_unchanged(home.as_fd(), &placed(name)), "{name:?} was read");
        }
        assert!(is_unchanged(home.as_fd(), &placed("own")));
    }

    #[test]
    fn links_and_files_with_other_names_are_not_compared() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        fs::write(at("own"), "secret").unwrap();
        std::os::unix::fs::symlink(at("own"), at("soft")).unwrap();
        fs::hard_link(at("own"), at("hard")).unwrap();
        let home = open(home.path());
        for name in ["soft", "hard", "own"] {
            assert!(!is_unchanged(home.as_fd(), &placed(name)), "{name:?} was read");
        }
    }
}
