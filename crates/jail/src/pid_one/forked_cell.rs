//! Runs in: pid 1 of a forked cell.
//!
//! The life of pid 1 that shares its template's memory, on a stack of its own. It forks the guest's
//! process, builds the cell while the kernel copies pages for the guest, and gives up every right
//! before the guest continues. Core only.

use super::{
    socket_watch::{self, SocketWatch},
    supervise::supervise_guest,
};
use crate::{
    guest::start::become_guest,
    protocol::{
        fd_numbers::{CONTROL_FD, FIRST_FOREIGN_FD, FIRST_NETNS_FD},
        report::{failure_report, send_report},
    },
    setup::{
        apply::{self, StepScope},
        enter::CellFds,
    },
    shared::small_filter::{FilterVerdict, SmallFilter},
    sys::{
        self, Call, Errno, HotPages, PrctlOption, RawFd, Result, SavedContext, SharedStack,
        ThreadIdAddress,
    },
};

/// What a template passes to pid 1 of a new cell.
#[derive(Clone, Copy)]
pub(crate) struct NewCell {
    pub(crate) fds: CellFds,
    /// The write end of `go`, which the cell must not keep.
    pub(crate) ready: RawFd,
    /// The stack of pid 1.
    pub(crate) stack: SharedStack,
    /// The guest's user and group, as it sees them.
    pub(crate) user: u32,
    pub(crate) libc: ThreadIdAddress,
    /// Where the guest's process resumes the interpreter.
    pub(crate) guest: SavedContext,
    pub(crate) hot: HotPages,
}

/// The life of pid 1, from just after `clone` to its end. In the guest's process it resumes the
/// interpreter instead, once pid 1 has no rights any more; until then that process maps its memory.
pub(crate) fn run_new_cell(cell: NewCell, program: &[u8]) -> ! {
    sys::close(cell.ready);
    let _ = sys::ignore_signal(sys::SIGCHLD, false);
    let Ok((guest, go)) = sys::pipe() else { sys::exit(1) };
    // Before the fork, so that the filter applies to the guest from its first instruction.
    let limit = apply::find_socket_limit(program);
    let Ok(sockets) =
        limit.map(|most| socket_watch::install_listener().map(|fd| (fd, most))).transpose()
    else {
        send_report(cell.fds.control, failure_report(c"sockets", Errno::NOSYS));
        sys::exit(1)
    };
    // The guest's table of descriptors is as large as the greatest one of this process requires.
    let _ = sys::close_range(FIRST_NETNS_FD, u32::MAX);
    match sys::fork_under_libc(cell.libc) {
        Ok(None) => {
            sockets.into_iter().for_each(|(listener, _)| sys::close(listener));
            sys::close(go);
            let fds = CellFds { go: guest, ..cell.fds };
            become_guest(program, fds, || cell.hot.map());
            cell.guest.resume()
        }
        parent => {
            let setup = PidOneSetup { stack: cell.stack, user: cell.user, sockets };
            run_beside_guest(program, cell.fds, setup, (parent, go))
        }
    }
}

/// What pid 1 needs besides the descriptors.
#[derive(Clone, Copy)]
struct PidOneSetup {
    stack: SharedStack,
    /// The user that it becomes.
    user: u32,
    /// The notification fd, and the most sockets of the cell.
    sockets: Option<(RawFd, u32)>,
}

/// Builds the cell, gives up every right, lets the guest continue, and then only supervises it.
fn run_beside_guest(
    program: &[u8],
    fds: CellFds,
    setup: PidOneSetup,
    (guest, go): (Result<Option<i32>>, RawFd),
) -> ! {
    if sys::read(fds.go, &mut [0]) != Ok(1) {
        sys::exit(1);
    }
    // The signal handlers are the interpreter's, and would run in the template's memory.
    if sys::block_signals().is_err() {
        sys::exit(1);
    }
    if let Err(failure) = apply::apply_plan(program, StepScope::Cell) {
        send_report(fds.control, failure_report(failure.wall, failure.errno));
        sys::exit(1);
    }
    if fds.control != CONTROL_FD && sys::dup_onto(fds.control, CONTROL_FD).is_err() {
        sys::exit(1);
    }
    // `go` may have a number that the watch needs for its descriptors.
    let ready = sys::dup_above(go, socket_watch::FIRST_OTHER_FD as RawFd).and_then(|go| {
        let begin = |(sockets, most)| SocketWatch::begin(Some(setup.stack), sockets, most);
        let watch = setup.sockets.map(begin).transpose()?;
        drop_privileges(setup.user)?;
        sys::write(go, b"!")?;
        let first = watch.as_ref().map_or(FIRST_FOREIGN_FD, |_| socket_watch::FIRST_OTHER_FD);
        sys::close_range(first, u32::MAX).map(|()| watch)
    });
    match ready.and_then(|watch| guest.map(|guest| (guest, watch))) {
        Ok((Some(pid), watch)) => supervise_guest(pid, watch, true),
        Ok((None, _)) => sys::exit(1),
        Err(errno) => {
            send_report(CONTROL_FD, failure_report(c"start of the guest", errno));
            sys::exit(1)
        }
    }
}

fn drop_privileges(user: u32) -> Result<()> {
    // The first error is the first number that is not a capability of this kernel.
    let mut capabilities = 0..64;
    while capabilities
        .next()
        .is_some_and(|last| sys::prctl(PrctlOption::DropBounding, last).is_ok())
    {}
    sys::become_user(user, user, false)?;
    sys::capset_none()?;
    sys::prctl(PrctlOption::NoNewPrivs, 1)?;
    sys::install_seccomp(
        SmallFilter::of_calls(&CALLS, FilterVerdict::Allow, FilterVerdict::Kill).as_bytes(),
    )
}

/// The system calls that pid 1 makes after this point. Any other call kills it.
const CALLS: [Call; 13] = [
    Call::Waitid,
    Call::Ppoll,
    Call::Ioctl,
    Call::Read,
    Call::Write,
    Call::Close,
    Call::CloseRange,
    Call::Dup3,
    Call::Openat,
    Call::Sendmsg,
    Call::Kill,
    Call::Getpid,
    Call::ExitGroup,
];
