//! Runs in: spawner (root). Forks mount servers: one for each cell with storage, and some ahead.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
};

use cloche_jail::{
    cgroup::{Cgroup, CgroupEntry},
    launch::GUEST_OOM_SCORE,
    privileges,
    sys::{self, CloneRequest, CloneSide, PrctlOption},
};
use cloche_mounts::{MountServerInput, ReadyConnection, prepare_mount_server, run_mount_server};
use rustix::{
    net::{AddressFamily, SocketFlags, SocketType, socketpair},
    process::Pid,
};
use serde::{Deserialize, Serialize};

use super::{io_error, storage_mounter::FuseMount};
use crate::protocol::{self, PacketBuffer};

/// File descriptors of one packet.
const FDS_OF_PACKET: usize = 16;

/// Who a mount server is, and whom it serves.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct MountServerStart {
    /// The user and group that it becomes; `None` if the spawner is an ordinary user.
    pub(super) user: Option<(u32, u32)>,
    /// The host id of the guest.
    pub(super) guest: u32,
    /// The number of its FUSE connections, without the one that it has already.
    pub(super) connections: usize,
    /// The number of all file descriptors that come with this: the socket to the server, its FUSE
    /// connections, and the files with their read-ahead.
    pub(super) fds: usize,
}

/// A mount server that waits for its mounts. Dropping it ends it.
pub(super) struct IdleMountServer {
    socket: OwnedFd,
    pidfd: OwnedFd,
    /// The first mount that it will serve, attached nowhere yet. It has the connection of that.
    mount: Option<OwnedFd>,
    pub(super) cgroup: Option<Cgroup>,
}

impl IdleMountServer {
    /// Starts a mount server that waits for its mounts, with a mount that it will serve. A fork of
    /// the spawner, a change of cgroups, a new mount and the end of a mount server take longer than
    /// a short program.
    pub(super) fn start(
        cgroup: Option<Cgroup>,
        mount: FuseMount,
    ) -> Result<Self, (io::Error, Option<Cgroup>)> {
        let entry = cgroup.as_ref().map_or_else(CgroupEntry::default, Cgroup::entry);
        match fork_idle(&entry, &mount) {
            Ok((socket, pidfd)) => Ok(Self { socket, pidfd, mount: Some(mount.mount), cgroup }),
            Err(error) => Err((error, cgroup)),
        }
    }

    /// Whether it still waits.
    pub(super) fn is_alive(&self) -> bool {
        matches!(sys::poll_readable([self.pidfd.as_raw_fd()], Some(0)), Ok([false]))
    }

    /// The mount that it will serve first.
    pub(super) fn take_mount(&mut self) -> Option<OwnedFd> {
        self.mount.take()
    }

    /// Gives it its mounts; an error if the process is gone.
    pub(super) fn serve(
        self,
        start: MountServerStart,
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<OwnedFd> {
        for part in fds.chunks(FDS_OF_PACKET) {
            let sent = protocol::send_packet(self.socket.as_fd(), &start, part);
            sent.map_err(io::Error::other)?;
        }
        Ok(self.pidfd)
    }

    /// Ends it, and waits for that for at most this many nanoseconds.
    pub(super) fn end(self, within: u64) -> Option<Cgroup> {
        let _ = sys::pidfd_kill(self.pidfd.as_raw_fd(), 9);
        let _ = sys::poll_readable([self.pidfd.as_raw_fd()], Some(within));
        self.cgroup
    }
}

/// Forks a mount server for these mounts.
pub(super) fn start_mount_server(
    start: MountServerStart,
    fds: &[BorrowedFd<'_>],
    cgroup: &CgroupEntry,
) -> io::Result<OwnedFd> {
    fork_in(cgroup, |spawner| {
        let fds: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        close_others(&fds)?;
        prepare_mount_server()?;
        run_server(start, None, fds.into_iter().map(sys::into_owned_fd).collect(), spawner)
    })
}

fn fork_idle(cgroup: &CgroupEntry, mount: &FuseMount) -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let pidfd = fork_in(cgroup, |spawner| {
        let (socket, connection) = (theirs.as_raw_fd(), mount.connection.as_raw_fd());
        let read_ahead = mount.read_ahead.as_ref().map(AsRawFd::as_raw_fd);
        let kept: Vec<_> = [socket, connection].into_iter().chain(read_ahead).collect();
        close_others(&kept)?;
        let socket = sys::into_owned_fd(socket);
        die_with(spawner)?;
        prepare_mount_server()?;
        let (connection, read_ahead) =
            (sys::into_owned_fd(connection), read_ahead.map(sys::into_owned_fd));
        let ready = ReadyConnection::open(connection, read_ahead)?;
        let mut inbox = PacketBuffer::new();
        let mut fds = Vec::new();
        loop {
            let received = inbox.receive::<MountServerStart>(&socket);
            let (start, more) = received.map_err(io::Error::other)?;
            fds.extend(more);
            if fds.len() >= start.fds {
                drop((socket, inbox));
                return run_server(start, Some(ready), fds, spawner);
            }
        }
    })?;
    Ok((ours, pidfd))
}

/// Forks a process that does this in these cgroups, and ends. Returns its pidfd.
fn fork_in(cgroup: &CgroupEntry, work: impl FnOnce(Pid) -> io::Result<()>) -> io::Result<OwnedFd> {
    let spawner = rustix::process::getpid();
    let request = CloneRequest { namespaces: 0, cgroup: cgroup.start_in };
    match sys::clone(request).map_err(io_error)? {
        CloneSide::Parent(_, pidfd) => Ok(sys::into_owned_fd(pidfd)),
        CloneSide::Child => {
            let done = enter_cgroup(&cgroup.tasks).and_then(|()| work(spawner));
            sys::exit(i32::from(done.is_err()))
        }
    }
}

/// In the new process: joins its cgroups of version 1. The spawner is protected from the OOM killer,
/// a mount server is not.
fn enter_cgroup(tasks: &[RawFd]) -> io::Result<()> {
    for task in tasks {
        sys::write(*task, b"0").map_err(io_error)?;
    }
    // That of an ordinary user cannot be changed.
    let _ = std::fs::write("/proc/self/oom_score_adj", GUEST_OOM_SCORE.to_string());
    Ok(())
}

/// In the new process: closes every file descriptor but these, which its copy of the spawner's
/// memory owns otherwise.
fn close_others(kept: &[RawFd]) -> io::Result<()> {
    let mut in_order: Vec<u32> = kept.iter().map(|fd| fd.cast_unsigned()).collect();
    in_order.sort_unstable();
    let mut next = 3;
    for fd in in_order {
        if fd > next {
            sys::close_range(next, fd - 1).map_err(io_error)?;
        }
        next = fd + 1;
    }
    sys::close_range(next, u32::MAX).map_err(io_error)
}

fn die_with(spawner: Pid) -> io::Result<()> {
    sys::prctl(PrctlOption::ParentDeathSignal, 9).map_err(io_error)?;
    match rustix::process::getppid() == Some(spawner) {
        true => Ok(()),
        false => Err(io::Error::other("the spawner is gone")),
    }
}

/// In the new process: becomes an ordinary user, and serves.
fn run_server(
    start: MountServerStart,
    ready: Option<ReadyConnection>,
    fds: Vec<OwnedFd>,
    spawner: Pid,
) -> io::Result<()> {
    privileges::become_waiting_user(start.user)?;
    // After the change of user, which clears it.
    die_with(spawner)?;
    let mut fds = fds.into_iter();
    let control = fds.next().ok_or(io::ErrorKind::InvalidInput)?;
    let connections = fds.by_ref().take(start.connections).collect();
    let (read_ahead, guest) = (fds.collect(), (start.guest, start.guest));
    run_mount_server(MountServerInput { control, ready, connections, read_ahead, guest })
}
