//! Starting a cell: the parent's side of `clone`.
//!
//! Knows how a process gets into new namespaces with its ids mapped. What happens inside is the
//! program's; what for is the caller's.

use std::{
    fs, io,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd},
};

use crate::{
    cgroup::CgroupEntry,
    init::{self, CellFds, FIRST_FOREIGN_FD, MAX_CGROUPS},
    plan::{HostIdentity, TEMPLATE_GUESTS},
    sys::{self, CloneRequest, CloneSide, Errno},
};

/// Everything a new cell needs.
pub struct LaunchRequest<'a> {
    /// `CLONE_NEW*` flags.
    pub namespaces: u64,
    /// The encoded steps.
    pub program: &'a [u8],
    /// Who the box's users are on the host.
    pub identity: HostIdentity,
    /// The guest's user and group, as it sees them.
    pub guest: (u32, u32),
    /// A network that was made ahead, to be born into.
    pub network: Option<BorrowedFd<'a>>,
    /// Its cgroup.
    pub cgroup: CgroupEntry,
    /// The guest's standard input, output, error.
    pub stdio: [BorrowedFd<'a>; 3],
    /// Where the guest's process reads its job.
    pub job: BorrowedFd<'a>,
    /// Where pid 1 reports.
    pub control: BorrowedFd<'a>,
    /// A template's socket for forks.
    pub fork: Option<BorrowedFd<'a>>,
}

/// A cell that has been started; whether its walls are up is reported on its control socket.
#[derive(Debug)]
pub struct LaunchedCell {
    /// Pid 1 of the cell, as the host counts.
    pub pid: i32,
    /// The same as a descriptor: readable when it has ended.
    pub pidfd: OwnedFd,
}

/// Starts a cell.
pub fn launch_cell(launch: &LaunchRequest<'_>) -> io::Result<LaunchedCell> {
    let (go_read, go_write) = sys::pipe()
        .map(|(r, w)| (sys::into_owned_fd(r), sys::into_owned_fd(w)))
        .map_err(to_io_error)?;
    // The child puts its descriptors at 0 to 5, so none may be there to begin with.
    let copies: Vec<OwnedFd> = [
        go_read.as_raw_fd(),
        launch.stdio[0].as_raw_fd(),
        launch.stdio[1].as_raw_fd(),
        launch.stdio[2].as_raw_fd(),
        launch.job.as_raw_fd(),
        launch.control.as_raw_fd(),
    ]
    .into_iter()
    .chain(launch.fork.map(|fd| fd.as_raw_fd()))
    .map(dup_above_ours)
    .collect::<io::Result<_>>()?;
    let mut cgroups = [None; MAX_CGROUPS];
    let doors: Vec<OwnedFd> =
        launch.cgroup.tasks.iter().map(|fd| dup_above_ours(*fd)).collect::<io::Result<_>>()?;
    cgroups.iter_mut().zip(&doors).for_each(|(slot, fd)| *slot = Some(fd.as_raw_fd()));
    let number = |at: usize| copies[at].as_raw_fd();
    let fds = CellFds {
        go: number(0),
        stdio: [number(1), number(2), number(3)],
        job: number(4),
        control: number(5),
        fork: copies.get(6).map(AsRawFd::as_raw_fd),
        cgroups,
    };
    let network = launch.network.map(NetnsGuard::enter).transpose()?;
    let made_ahead = if network.is_some() { NEW_NET } else { 0 };
    let request =
        CloneRequest { namespaces: launch.namespaces & !made_ahead, cgroup: launch.cgroup.born_in };
    let writer = go_write.as_raw_fd();
    match sys::clone(request).map_err(to_io_error)? {
        CloneSide::Child => {
            // Our end of `go`: with it open here, pid 1 would never see that we are gone.
            sys::close(writer);
            init::run_pid_one(launch.program, fds)
        }
        CloneSide::Parent(pid, pidfd) => {
            let launched = LaunchedCell { pid, pidfd: sys::into_owned_fd(pidfd) };
            if launch.namespaces & 0x1000_0000 != 0 {
                map_ids(pid, launch.identity, launch.guest)?;
            }
            raise_oom_score(pid, launch.identity)?;
            sys::write(writer, b"!").map_err(to_io_error)?;
            Ok(launched)
        }
    }
}

const NEW_NET: u64 = 0x4000_0000;

/// Being in another network for a while; dropping it goes back.
struct NetnsGuard {
    home: fs::File,
}

impl NetnsGuard {
    fn enter(network: BorrowedFd<'_>) -> io::Result<Self> {
        let home = fs::File::open("/proc/self/ns/net")?;
        sys::setns(network.as_raw_fd(), NEW_NET).map_err(to_io_error)?;
        Ok(Self { home })
    }
}

impl Drop for NetnsGuard {
    fn drop(&mut self) {
        // Staying in a cell's network would only keep that network alive.
        let _ = sys::setns(self.home.as_raw_fd(), NEW_NET);
    }
}

fn dup_above_ours(fd: RawFd) -> io::Result<OwnedFd> {
    sys::dup_above(fd, FIRST_FOREIGN_FD as i32 + 1).map(sys::into_owned_fd).map_err(to_io_error)
}

/// What the kernel adds to a guest's badness when the host runs out of memory. The spawner may be
/// protected, and a copy of it has its score.
pub const GUEST_OOM_SCORE: i32 = 500;

/// Before the cell goes on: everything in it inherits this, and nothing in it can lower it.
fn raise_oom_score(pid: i32, identity: HostIdentity) -> io::Result<()> {
    let raised = fs::write(format!("/proc/{pid}/oom_score_adj"), GUEST_OOM_SCORE.to_string());
    match identity {
        // An ordinary user's spawner has no protection that could be inherited.
        HostIdentity::Shared { .. } => Ok(()),
        HostIdentity::Own { .. } | HostIdentity::Range { .. } => raised,
    }
}

fn map_ids(pid: i32, identity: HostIdentity, (uid, gid): (u32, u32)) -> io::Result<()> {
    let (uids, gids) = match identity {
        HostIdentity::Own { image_owner, guest } => (
            format!("0 {image_owner} 1\n{uid} {guest} 1\n"),
            format!("0 {image_owner} 1\n{gid} {guest} 1\n"),
        ),
        HostIdentity::Range { image_owner, first, count } => {
            let map = format!("0 {image_owner} 1\n{TEMPLATE_GUESTS} {first} {count}\n");
            (map.clone(), map)
        }
        HostIdentity::Shared { uid: outer_uid, gid: outer_gid } => {
            // The kernel's condition for an ordinary user to map a group.
            fs::write(format!("/proc/{pid}/setgroups"), "deny")?;
            (format!("{uid} {outer_uid} 1\n"), format!("{gid} {outer_gid} 1\n"))
        }
    };
    fs::write(format!("/proc/{pid}/uid_map"), uids)?;
    fs::write(format!("/proc/{pid}/gid_map"), gids)
}

fn to_io_error(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.0)
}
