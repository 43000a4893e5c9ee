//! Runs in: spawner (root). Forks packers: one for each diff, and one ahead.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
};

use cloche_jail::sys::{self, CloneRequest, CloneSide, PrctlOption};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::io_error;
use crate::{
    packer::{self, PackInput},
    protocol::{self, PackRequest, PacketBuffer},
};

/// How packers are started.
#[derive(Clone, Copy)]
pub(super) struct PackerProcess {
    /// Whether the spawner is root, so that a packer has capabilities to drop.
    pub(super) privileged: bool,
    /// The first host id of guests.
    pub(super) first_guest: u32,
}

impl PackerProcess {
    /// Starts a packer for this request. It writes the archive and its report to the pipes.
    pub(super) fn start(self, request: &PackRequest, fds: &[OwnedFd]) -> io::Result<()> {
        fork_packer(|| {
            packer::install_filter()?;
            self.pack(request, fds)
        })
    }

    /// Starts a packer that waits for its request. Starting one takes as long as packing a few
    /// files, so it is done before a run has ended.
    pub(super) fn start_idle(self) -> io::Result<IdlePacker> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        fork_packer(|| {
            // It may wait for long. It must not keep open what the spawner has closed.
            const ONLY: RawFd = 3;
            let socket = theirs.as_raw_fd();
            if socket != ONLY {
                sys::dup_onto(socket, ONLY).map_err(io_error)?;
            }
            sys::close_range(ONLY as u32 + 1, u32::MAX).map_err(io_error)?;
            if self.privileged {
                packer::keep_all_capabilities()?;
            }
            packer::install_filter()?;
            let received = PacketBuffer::new().receive::<PackRequest>(sys::into_owned_fd(ONLY));
            let (request, fds) = received.map_err(io::Error::other)?;
            let packed = self.pack(&request, &fds);
            // Packing has closed some of them; the end of this process closes the others.
            std::mem::forget(fds);
            packed
        })?;
        Ok(IdlePacker { socket: ours })
    }

    fn pack(self, request: &PackRequest, fds: &[OwnedFd]) -> io::Result<()> {
        let input = PackInput::from_fds(fds)?;
        packer::pack_and_report(request, input, self.privileged.then_some(self.first_guest))
    }
}

/// A packer that waits for its request.
pub(super) struct IdlePacker {
    socket: OwnedFd,
}

impl IdlePacker {
    /// Gives it the request; false if the process is gone.
    pub(super) fn pack(self, request: &PackRequest, fds: &[OwnedFd]) -> bool {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        protocol::send_packet(self.socket.as_fd(), request, &fds).is_ok()
    }
}

/// Forks a process that does this work and ends.
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
