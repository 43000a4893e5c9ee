//! Runs in: spawner (root). Attaches a network to a cell that has run nothing yet: makes a tun
//! device in the cell's netns, and forks the stack worker that reads its packets.
//!
//! The device is made in place: a device that is moved to another netns waits for an RCU grace
//! period. The spawner keeps no descriptor of it, so that the end of the worker destroys it, and
//! that wait is the worker's.
//!
//! A spawner without root cannot return to its own netns, which belongs to the user namespace of the
//! host. There a short-lived child enters the cell's netns and passes the device back.

use std::{
    fs::{self, File},
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    time::Instant,
};

use cloche_egress::{addresses, stack};
use cloche_jail::{
    cgroup::{Cgroup, CgroupEntry, CgroupLimits},
    launch::GUEST_OOM_SCORE,
    privileges, seccomp,
    sys::{self, CloneRequest, CloneSide, PrctlOption, TunAddresses},
};
use rustix::{
    fs::{Mode, OFlags},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    },
    process::{Resource, Rlimit, WaitId, WaitIdOptions, getrlimit, setrlimit},
};

use super::{host_ids::HostIds, io_error};

/// The limits of a stack worker, besides those that it keeps itself. It needs 64 MiB at most.
pub(super) const WORKER_LIMITS: CgroupLimits =
    CgroupLimits { memory: Some(96 << 20), pids: Some(4), cpu: Some(1000) };

/// The most open files of a worker: its connections and flows, 256 of each, and some more. Without
/// it a worker that was broken into could hold as many sockets as its broker can make.
const WORKER_FILES: u64 = 1024;

/// The error of a device that was not made for a reason that has no number.
const EIO: i32 = 5;

/// A stack worker. It ends with its cell, or when the session with the broker ends.
pub(super) struct NetworkWorker {
    pub(super) pidfd: OwnedFd,
    pub(super) cgroup: Option<Cgroup>,
    /// When it is killed, once its cell has ended.
    pub(super) kill_at: Option<Instant>,
}

impl NetworkWorker {
    /// Ends the worker, and with it the network of its cell.
    pub(super) fn kill(&mut self) {
        self.kill_at = None;
        let _ = sys::pidfd_kill(self.pidfd.as_raw_fd(), 9);
    }
}

/// Attaches networks.
pub(super) struct NetworkAttacher {
    /// The host ids of this spawner; `None` if it is not root.
    ids: Option<HostIds>,
    tun_node: Option<OwnedFd>,
    /// The netns of the spawner, to return to.
    own_netns: Option<File>,
}

impl NetworkAttacher {
    pub(super) fn new(ids: Option<HostIds>, tun_node: Option<OwnedFd>) -> Self {
        Self { ids, tun_node, own_netns: File::open("/proc/self/ns/net").ok() }
    }

    /// Attaches a network to the cell of this slot. `cell` is the pidfd of its pid 1, `session` the
    /// worker's end of a session with the broker. Returns the pidfd of the stack worker.
    pub(super) fn attach(
        &self,
        (slot, cell): (u32, BorrowedFd<'_>),
        ipv6: bool,
        session: OwnedFd,
        cgroup: Option<&Cgroup>,
    ) -> io::Result<OwnedFd> {
        let tun = self.make_device(cell, &cell_addresses(ipv6))?;
        let entry = cgroup.map_or_else(CgroupEntry::default, Cgroup::entry);
        let identity = self.ids.map(|ids| ids.worker_id(slot));
        let request = CloneRequest { namespaces: 0, cgroup: entry.start_in };
        match sys::clone(request).map_err(io_error)? {
            CloneSide::Parent(_, pidfd) => Ok(sys::into_owned_fd(pidfd)),
            CloneSide::Child => {
                let _ = sys::prctl(PrctlOption::ParentDeathSignal, 9);
                let code = run_worker(tun, session, &entry.tasks, identity);
                sys::exit(i32::from(code.is_err()))
            }
        }
    }

    /// Makes the device in the netns of a cell, up and with its addresses and routes.
    fn make_device(&self, cell: BorrowedFd<'_>, addresses: &TunAddresses) -> io::Result<OwnedFd> {
        let node = self.tun_node.as_ref().ok_or_else(|| {
            io::Error::other("this host has no /dev/net/tun; load the kernel module tun")
        })?;
        if self.ids.is_none() {
            return make_device_in_child(cell, node.as_fd(), addresses);
        }
        let own = self.own_netns.as_ref().ok_or(io::ErrorKind::NotFound)?;
        sys::setns(cell.as_raw_fd(), sys::CLONE_NEWNET).map_err(io_error)?;
        let made = make_device_here(node.as_fd(), addresses);
        if sys::setns(own.as_raw_fd(), sys::CLONE_NEWNET).is_err() {
            // Nothing can be done right in the wrong netns: the supervisor starts a new loop.
            sys::exit(1);
        }
        made
    }
}

/// Opens the host's node of tun interfaces before the private root hides it.
pub(super) fn open_tun_node() -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    rustix::fs::open("/dev/net/tun", flags, Mode::empty()).ok()
}

/// Makes a node where the host has none, as many containers do. It is in the spawner's root only.
pub(super) fn make_tun_node(privileged: bool) -> Option<OwnedFd> {
    const TUN: (u32, u32) = (10, 200);
    if !privileged {
        return None;
    }
    sys::mknod(c"/tun", 0o020_600, TUN.0, TUN.1).ok()?;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    rustix::fs::open("/tun", flags, Mode::empty()).ok()
}

/// The addresses of every cell on the link to its stack worker.
fn cell_addresses(ipv6: bool) -> TunAddresses {
    TunAddresses {
        v4: addresses::CELL_V4.octets(),
        v4_prefix: addresses::PREFIX_V4,
        v6: ipv6.then(|| (addresses::CELL_V6.octets(), addresses::PREFIX_V6)),
        mtu: addresses::MTU,
    }
}

/// Makes the device in a child that enters the netns of a cell and ends there. It sends the device,
/// or the number of the error.
fn make_device_in_child(
    cell: BorrowedFd<'_>,
    node: BorrowedFd<'_>,
    addresses: &TunAddresses,
) -> io::Result<OwnedFd> {
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let request = CloneRequest { namespaces: 0, cgroup: None };
    match sys::clone(request).map_err(io_error)? {
        CloneSide::Child => {
            let _ = sys::prctl(PrctlOption::ParentDeathSignal, 9);
            let made = sys::setns(cell.as_raw_fd(), sys::CLONE_NEWNET)
                .map_err(io_error)
                .and_then(|()| make_device_here(node, addresses));
            let sent = send_device(theirs.as_fd(), &made);
            sys::exit(i32::from(sent.is_err()))
        }
        CloneSide::Parent(_, pidfd) => {
            let pidfd = sys::into_owned_fd(pidfd);
            // Only the child has the other end now, so its death ends the wait.
            drop(theirs);
            let made = receive_device(ours.as_fd());
            // The loop may have reaped it by then.
            let _ = rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
            made
        }
    }
}

fn send_device(socket: BorrowedFd<'_>, made: &io::Result<OwnedFd>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = made.as_ref().ok().map(|tun| [tun.as_fd()]);
    if let Some(fds) = &fds {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    let errno = made.as_ref().err().map_or(0, |error| error.raw_os_error().unwrap_or(EIO));
    let bytes = errno.to_ne_bytes();
    rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive_device(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut errno = [0; size_of::<i32>()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut errno)];
    rustix::net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = message
            && let Some(tun) = fds.next()
        {
            return Ok(tun);
        }
    }
    match i32::from_ne_bytes(errno) {
        0 => Err(io::Error::other("the process that makes the tun device died")),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Makes the device in the netns of this process. A tun device belongs to the netns in which its
/// node was opened, so the node is opened here, through the descriptor without access.
fn make_device_here(node: BorrowedFd<'_>, addresses: &TunAddresses) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", node.as_raw_fd());
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let tun = rustix::fs::open(path, flags, Mode::empty())?;
    sys::make_tun(tun.as_raw_fd()).map_err(io_error)?;
    sys::configure_tun(addresses).map_err(io_error)?;
    Ok(tun)
}

/// The life of a stack worker: keeps two descriptors and no right, and moves packets until one of
/// them is closed.
fn run_worker(
    tun: OwnedFd,
    session: OwnedFd,
    tasks: &[RawFd],
    identity: Option<u32>,
) -> io::Result<()> {
    /// The spawner's standard output is the null device, and its standard input is the socket of
    /// the server.
    const NULL: RawFd = 1;
    const KEPT: [RawFd; 2] = [3, 4];
    for task in tasks {
        sys::write(*task, b"0").map_err(io_error)?;
    }
    // The spawner is protected from the OOM killer. An ordinary user's is not.
    let _ = fs::write("/proc/self/oom_score_adj", GUEST_OOM_SCORE.to_string());
    // Neither may have a number that the other is going to get.
    let above = KEPT[1] + 1;
    let copies = [tun.as_raw_fd(), session.as_raw_fd()].map(|fd| sys::dup_above(fd, above));
    std::mem::forget((tun, session));
    for (copy, to) in copies.into_iter().zip(KEPT) {
        sys::dup_onto(copy.map_err(io_error)?, to).map_err(io_error)?;
    }
    for standard in [0, 2] {
        sys::dup_onto(NULL, standard).map_err(io_error)?;
    }
    sys::close_range(above as u32, u32::MAX).map_err(io_error)?;
    let [tun, session] = KEPT.map(sys::into_owned_fd);
    match identity {
        Some(id) => privileges::become_user(id, id)?,
        None => privileges::drop_all_capabilities()?,
    }
    // A change of the user clears it.
    sys::prctl(PrctlOption::ParentDeathSignal, 9).map_err(io_error)?;
    privileges::forbid_inspection()?;
    limit_open_files()?;
    sys::install_logged_seccomp(seccomp::stack_filter()).map_err(io_error)?;
    stack::run(tun, session)
}

fn limit_open_files() -> io::Result<()> {
    let most = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX).min(WORKER_FILES);
    let limit = Rlimit { current: Some(most), maximum: Some(most) };
    Ok(setrlimit(Resource::Nofile, limit)?)
}
