//! Runs in: spawner (root).
//!
//! Starts a cell: the parent's side of `clone`.
//!
//! It knows how a process starts in new namespaces with its ids mapped. The encoded steps decide
//! what happens inside.

use std::{
    fs, io,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd},
};

use super::{
    cgroup::CgroupEntry,
    plan::{HostIdentity, TEMPLATE_GUESTS},
};
use crate::{
    pid_one::{cold_cell, contained_cell, gated_cell},
    protocol::fd_numbers::FIRST_FOREIGN_FD,
    setup::enter::{CellFds, MAX_CGROUPS},
    sys::{self, CLONE_NEWNET, CLONE_NEWUSER, CloneRequest, CloneSide, Errno},
};

/// Everything that a new cell needs.
pub struct LaunchRequest<'a> {
    /// `CLONE_NEW*` flags.
    pub namespaces: u64,
    /// The encoded steps.
    pub program: &'a [u8],
    /// The host ids of the cell's users.
    pub identity: HostIdentity,
    /// The guest's user and group id inside the cell.
    pub guest: (u32, u32),
    /// A netns that was made ahead, in which the cell starts.
    pub network: Option<BorrowedFd<'a>>,
    /// Its cgroup.
    pub cgroup: CgroupEntry,
    /// The guest's standard input, output, error.
    pub stdio: [BorrowedFd<'a>; 3],
    /// The job socket of the guest's process.
    pub job: BorrowedFd<'a>,
    /// The control socket, on which pid 1 reports.
    pub control: BorrowedFd<'a>,
    /// A template's socket for fork requests.
    pub fork: Option<BorrowedFd<'a>>,
    /// What its first process does.
    pub kind: LaunchKind,
}

/// The kinds of cells that the spawner starts itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchKind {
    /// A cold or parked cell, or a template.
    Cold,
    /// A cell whose interpreter waits at the gate.
    Gated,
    /// A contained cell, which starts in the working directory of the spawner.
    Contained,
}

/// A cell that was started. Pid 1 reports on the control socket whether its walls are up.
#[derive(Debug)]
pub struct LaunchedCell {
    /// The pid of the cell's pid 1, in the spawner's pid namespace.
    pub pid: i32,
    /// Its pidfd: readable when it has ended.
    pub pidfd: OwnedFd,
}

/// Starts a cell.
pub fn launch_cell(launch: &LaunchRequest<'_>) -> io::Result<LaunchedCell> {
    let (go_read, go_write) = sys::pipe()
        .map(|(r, w)| (sys::into_owned_fd(r), sys::into_owned_fd(w)))
        .map_err(to_io_error)?;
    // The child moves its descriptors to the numbers 0 to 5, so none may have such a number before.
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
    let tasks: Vec<OwnedFd> =
        launch.cgroup.tasks.iter().map(|fd| dup_above_ours(*fd)).collect::<io::Result<_>>()?;
    cgroups.iter_mut().zip(&tasks).for_each(|(slot, fd)| *slot = Some(fd.as_raw_fd()));
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
    let made_ahead = if network.is_some() { CLONE_NEWNET } else { 0 };
    let request = CloneRequest {
        namespaces: launch.namespaces & !made_ahead,
        cgroup: launch.cgroup.start_in,
    };
    let writer = go_write.as_raw_fd();
    match sys::clone(request).map_err(to_io_error)? {
        CloneSide::Child => {
            // The spawner's end of `go`: if it stayed open here, pid 1 would never see the end of
            // the spawner.
            sys::close(writer);
            match launch.kind {
                LaunchKind::Cold => cold_cell::run_pid_one(launch.program, fds),
                LaunchKind::Gated => gated_cell::run_pid_one(launch.program, fds),
                LaunchKind::Contained => contained_cell::run_first_process(launch.program, fds),
            }
        }
        CloneSide::Parent(pid, pidfd) => {
            let launched = LaunchedCell { pid, pidfd: sys::into_owned_fd(pidfd) };
            if launch.namespaces & CLONE_NEWUSER != 0 {
                map_ids(pid, launch.identity, launch.guest)?;
            }
            raise_oom_score(pid, launch.identity)?;
            sys::write(writer, b"!").map_err(to_io_error)?;
            Ok(launched)
        }
    }
}

/// The spawner is in another netns while this value lives; dropping it returns.
struct NetnsGuard {
    home: fs::File,
}

impl NetnsGuard {
    fn enter(network: BorrowedFd<'_>) -> io::Result<Self> {
        let home = fs::File::open("/proc/self/ns/net")?;
        sys::setns(network.as_raw_fd(), CLONE_NEWNET).map_err(to_io_error)?;
        Ok(Self { home })
    }
}

impl Drop for NetnsGuard {
    fn drop(&mut self) {
        // On an error the spawner stays in the cell's netns, which only keeps that netns alive.
        let _ = sys::setns(self.home.as_raw_fd(), CLONE_NEWNET);
    }
}

fn dup_above_ours(fd: RawFd) -> io::Result<OwnedFd> {
    sys::dup_above(fd, FIRST_FOREIGN_FD as i32 + 1).map(sys::into_owned_fd).map_err(to_io_error)
}

/// The `oom_score_adj` of a guest. The spawner may be protected from the OOM killer, and a process
/// that it clones inherits its score.
pub const GUEST_OOM_SCORE: i32 = 500;

/// Sets the score before the cell continues: its processes inherit it, and cannot lower it.
fn raise_oom_score(pid: i32, identity: HostIdentity) -> io::Result<()> {
    let raised = fs::write(format!("/proc/{pid}/oom_score_adj"), GUEST_OOM_SCORE.to_string());
    match identity {
        // The spawner of an ordinary user has no protection that could be inherited.
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
            // The kernel lets an ordinary user map a group only after this.
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
