//! Runs in: driver (root, in pid, mount and network namespaces and the cgroup of its cell).
//!
//! The first process of a cell that an OCI runtime builds. It prepares the root, has an ordinary
//! user place the files of the job, writes the bundle, starts the runtime, and reports the end as
//! pid 1 of another cell does. The guest is in a pid namespace below, so the end of this process is
//! the end of everything in the cell: the runtime, its helpers and the guest.
//!
//! `stage` mounts, `placement` takes the job, `cell_init` starts pid 1 of the guest's namespace,
//! `bundle` writes `config.json`, and `runtime` knows the command lines. The driver reads no byte of
//! a guest.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
};

use cloche_jail::{
    has_too_many_sockets,
    launch::GUEST_OOM_SCORE,
    plan::{HostFacts, ImageView},
    protocol::{
        constants::EXIT_BAD_JOB,
        fd_numbers::{CONTROL_FD, FIRST_FOREIGN_FD, JOB_FD},
    },
    report::{CellReport, REPORT_LEN, WallName},
    rlimits::GuestRlimits,
    seccomp::SyscallPolicy,
    speculation,
    sys::{self, Errno, PrctlOption},
};
use cloche_model::OciRuntime;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

mod bundle;
mod cell_init;
mod finish;
mod placement;
mod runtime;
mod stage;

use cell_init::CellInit;
use runtime::{GuestEnd, RuntimeProgram};
pub(crate) use stage::{STAGE, STAGE_HOME};

/// The most reports that repeat what a runtime said: two KiB.
const MAX_WORDS: usize = 40;
/// How often the sockets of a cell are counted.
const COUNT_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 25_000_000 };

/// What a driver builds a cell from.
pub(crate) struct DriverSetup {
    /// The runtime.
    pub(crate) runtime: OciRuntime,
    /// The root file system.
    pub(crate) image: ImageView,
    /// The most bytes and inodes of all files that the guest writes.
    pub(crate) disk: (u64, u64),
    /// The resource limits of each process of the guest.
    pub(crate) rlimits: GuestRlimits,
    /// The most sockets, for kernel memory that no cgroup counts.
    pub(crate) sockets: u32,
    /// The host id of the image's owner, who is root inside the cell.
    pub(crate) image_owner: u32,
    /// The host id of the guest.
    pub(crate) guest: u32,
    /// The system call policy of the guest.
    pub(crate) syscalls: SyscallPolicy,
    /// What it must know of this host.
    pub(crate) facts: HostFacts,
    /// Whether it checks the version of the runtime first.
    pub(crate) checks_version: bool,
}

impl DriverSetup {
    /// The part of the disk limit that is for a `/dev/shm` that the runtime has in its own memory.
    const fn shared_memory_bytes(&self) -> u64 {
        const MOST: u64 = 64 << 20;
        match self.runtime {
            OciRuntime::Crun | OciRuntime::Runc => 0,
            OciRuntime::Runsc if self.disk.0 / 4 < MOST => self.disk.0 / 4,
            OciRuntime::Runsc => MOST,
        }
    }
}

/// The descriptors of a driver. None has a number that another one is going to get.
pub(crate) struct DriverFds {
    /// Standard input, output and error of the guest, the job socket, the control socket.
    pub(crate) cell: [OwnedFd; 5],
    /// The `tasks` files of the v1 cgroups to enter.
    pub(crate) cgroups: Vec<OwnedFd>,
    /// A network namespace that was made ahead.
    pub(crate) network: Option<OwnedFd>,
}

/// Why a cell could not be started.
#[derive(Debug)]
struct DriverFailure {
    /// What failed.
    wall: String,
    errno: Errno,
    /// What the runtime said, if it was the runtime.
    words: String,
}

impl DriverFailure {
    fn of_wall(wall: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| Self {
            wall: wall.to_owned(),
            errno: Errno(error.raw_os_error().unwrap_or(Errno::INVAL.0)),
            words: String::new(),
        }
    }

    fn of_runtime(runtime: OciRuntime, words: impl Into<String>) -> Self {
        let wall = format!("oci:{}", runtime.program());
        Self { wall, errno: Errno::INVAL, words: words.into() }
    }
}

/// The life of a driver, from just after `clone` to its end.
pub(crate) fn run_driver(setup: &DriverSetup, fds: &DriverFds) -> ! {
    let _ = sys::prctl(PrctlOption::ParentDeathSignal, 9);
    if enter_cell(fds).is_err() {
        sys::exit(1);
    }
    match drive_cell(setup) {
        Ok(Some(end)) => {
            // Nothing changes in the cell after its end is reported.
            end_all_processes();
            report_end(end);
            wait_for_release();
        }
        Ok(None) => {}
        Err(failure) => report_failure(&failure),
    }
    sys::exit(0)
}

/// Enters the cgroups and the network namespace, and moves the descriptors to their numbers.
fn enter_cell(fds: &DriverFds) -> io::Result<()> {
    let os = |errno: Errno| io::Error::from_raw_os_error(errno.0);
    for tasks in &fds.cgroups {
        sys::write(tasks.as_raw_fd(), b"0").map_err(os)?;
    }
    // After the process is in its cgroup, so that the hierarchy that the guest sees begins there.
    sys::unshare(sys::CLONE_NEWCGROUP).map_err(os)?;
    match &fds.network {
        Some(network) => sys::setns(network.as_raw_fd(), sys::CLONE_NEWNET).map_err(os)?,
        None => sys::loopback_up().map_err(os)?,
    }
    for (fd, number) in fds.cell.iter().zip(0_i32..) {
        sys::dup_onto(fd.as_raw_fd(), number).map_err(os)?;
    }
    sys::close_range(FIRST_FOREIGN_FD, u32::MAX).map_err(os)?;
    // Only the first three are for the runtime.
    for own in [JOB_FD, CONTROL_FD] {
        sys::close_on_exec(own).map_err(os)?;
    }
    let _ = sys::prctl(PrctlOption::Dumpable, 0);
    Ok(())
}

/// Builds the cell and runs its job; nothing if the server has gone away.
fn drive_cell(setup: &DriverSetup) -> Result<Option<GuestEnd>, DriverFailure> {
    stage::mount_proc().map_err(DriverFailure::of_wall("proc"))?;
    fs::write("/proc/self/oom_score_adj", GUEST_OOM_SCORE.to_string())
        .map_err(DriverFailure::of_wall("oom-score"))?;
    if setup.syscalls == SyscallPolicy::Strict {
        disable_speculation(setup).map_err(DriverFailure::of_wall("speculation"))?;
    }
    let program = RuntimeProgram::find(setup.runtime)?;
    if setup.checks_version {
        program.check_version()?;
    }
    stage::build_stage(setup).map_err(DriverFailure::of_wall("stage"))?;
    let home = File::open(STAGE_HOME).map_err(DriverFailure::of_wall("home"))?;
    let _ = sys::sendmsg(CONTROL_FD, &CellReport::Ready.to_bytes(), &[home.as_raw_fd()]);
    drop(home);
    if wait_for(JOB_FD, None).map_err(DriverFailure::of_wall("job"))? != WaitEnd::Readable {
        return Ok(None);
    }
    let placed = placement::place_job(setup).map_err(DriverFailure::of_wall("job"))?;
    sys::close(JOB_FD);
    let Some(start) = placed else { return Ok(Some(GuestEnd::Exited(EXIT_BAD_JOB))) };
    let init = match setup.runtime {
        OciRuntime::Crun | OciRuntime::Runc => {
            Some(CellInit::start(setup).map_err(DriverFailure::of_wall("pid-one"))?)
        }
        OciRuntime::Runsc => None,
    };
    let init_pid = init.as_ref().map(|init| init.pid);
    bundle::write_bundle(setup, &start, init_pid).map_err(DriverFailure::of_wall("bundle"))?;
    let guest = program.start(setup)?;
    // The guest has its own copies. Its output ends when the last of them is closed.
    (0..3).for_each(sys::close);
    // The sockets of a guest of runsc are in its own kernel.
    let most = (setup.runtime != OciRuntime::Runsc).then_some(setup.sockets);
    match wait_for(guest.watch_fd(), most).map_err(DriverFailure::of_wall("guest"))? {
        WaitEnd::Readable => guest.read_end().map(Some),
        WaitEnd::ServerGone => Ok(None),
        WaitEnd::TooManySockets => Ok(Some(GuestEnd::TooManySockets)),
    }
}

/// Disables speculation for this process and all that it starts, for good.
fn disable_speculation(setup: &DriverSetup) -> io::Result<()> {
    for ((kind, _), can) in speculation::KINDS.into_iter().zip(setup.facts.speculation) {
        if can {
            let disabled = sys::force_disable_speculation(kind);
            disabled.map_err(|errno| io::Error::from_raw_os_error(errno.0))?;
        }
    }
    Ok(())
}

/// Why a wait is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitEnd {
    Readable,
    /// The server closed the control socket.
    ServerGone,
    TooManySockets,
}

/// Waits until a descriptor is readable, or the cell has more than `most` sockets. The kernel counts
/// a closed socket for a moment, so it is the second count that decides.
fn wait_for(fd: RawFd, most: Option<u32>) -> io::Result<WaitEnd> {
    let [watched, control] = [borrow(fd)?, borrow(CONTROL_FD)?];
    let timeout = most.map(|_| COUNT_INTERVAL);
    let mut had_too_many = false;
    loop {
        let mut polled = [
            PollFd::new(&watched, PollFlags::IN),
            PollFd::new(&control, PollFlags::IN | PollFlags::HUP),
        ];
        match poll(&mut polled, timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) => continue,
            ready => ready?,
        };
        if !polled[0].revents().is_empty() {
            return Ok(WaitEnd::Readable);
        }
        if !polled[1].revents().is_empty() {
            return Ok(WaitEnd::ServerGone);
        }
        let has_too_many = most.is_some_and(has_too_many_sockets);
        if has_too_many && had_too_many {
            return Ok(WaitEnd::TooManySockets);
        }
        had_too_many = has_too_many;
    }
}

/// A copy of a descriptor that the driver knows by its number.
fn borrow(fd: RawFd) -> io::Result<OwnedFd> {
    let copied = sys::dup_above(fd, FIRST_FOREIGN_FD as RawFd);
    copied.map(sys::into_owned_fd).map_err(|errno| io::Error::from_raw_os_error(errno.0))
}

fn report_end(end: GuestEnd) {
    let report = match end {
        GuestEnd::Exited(code) => CellReport::Exited(code),
        GuestEnd::Killed(signal) => CellReport::Signalled(signal),
        GuestEnd::TooManySockets => CellReport::KernelMemory,
    };
    let _ = sys::sendmsg(CONTROL_FD, &report.to_bytes(), &[]);
}

/// Sends what the runtime said, in parts, and then what failed.
fn report_failure(failure: &DriverFailure) {
    let send = |report: CellReport| {
        let bytes: [u8; REPORT_LEN] = report.to_bytes();
        let _ = sys::sendmsg(CONTROL_FD, &bytes, &[]);
    };
    for part in failure.words.as_bytes().chunks(size_of::<WallName>()).take(MAX_WORDS) {
        send(CellReport::Words(fill_name(part)));
    }
    send(CellReport::Failed(fill_name(failure.wall.as_bytes()), failure.errno));
}

fn fill_name(text: &[u8]) -> WallName {
    let mut name = [0; size_of::<WallName>()];
    name.iter_mut().zip(text).for_each(|(to, from)| *to = *from);
    name
}

/// Waits until the server has packed the home. It may ask before for the end of every process.
fn wait_for_release() {
    let Ok(control) = borrow(CONTROL_FD) else { return };
    let (mut control, mut order) = (File::from(control), [0]);
    while control.read(&mut order).is_ok_and(|len| len == 1) {
        end_all_processes();
        let _ = sys::sendmsg(control.as_fd().as_raw_fd(), &CellReport::Alone.to_bytes(), &[]);
    }
}

/// Kills and reaps every other process of this pid namespace, and so those of the namespaces below.
fn end_all_processes() {
    let _ = sys::kill(-1, 9);
    while sys::wait_any().is_ok() {}
}
