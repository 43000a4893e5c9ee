//! Runs in: pid 1 of a cell.
//!
//! Seccomp notifications of sockets: pid 1 bounds how many sockets its cell has. Core only.
//!
//! The queues of a socket are kernel memory, and much of it is charged to no cgroup: the queue of a
//! netlink socket, a connection that was not accepted yet, fragments of a datagram; with v1 cgroups
//! every queue of TCP and UDP. So the number of sockets is bounded. The kernel suspends a process
//! that calls `socket` for any family but `AF_UNIX`, or `connect`, until pid 1 has answered.
//! `connect` is included because it makes a socket, too: the one of the other end.
//!
//! A netns in which no socket but `AF_UNIX` was ever created, and in which no socket of any kind is
//! left, is as it was made. Another cell can reuse it.

use super::{socket_budget::SocketBudget, supervise::kill_all_others};
use crate::{
    protocol::{
        fd_numbers::CONTROL_FD,
        report::{CLEAN_NETNS, CellReport, send_report},
    },
    shared::{
        fmt_buf::FmtBuf,
        proc_file::read_file,
        small_filter::{FilterVerdict, SmallFilter},
    },
    sys::{self, Call, ChildChange, RawFd, Result, SharedStack},
};

/// The notification fd of the socket filter.
pub(crate) const SOCKETS_FD: RawFd = 5;
/// The signalfd of SIGCHLD.
const CHILDREN_FD: RawFd = 6;
/// The first descriptor number that a pid 1 with a watch does not need.
pub(crate) const FIRST_OTHER_FD: u32 = 7;
/// The family whose `socket` calls are not notified: both ends are on this host.
const AF_UNIX: u32 = 1;
/// After this many wake-ups pid 1 sleeps before it handles each further one. Pid 1 of a forked cell
/// is not in the cell's cgroup, so its processor time is not charged to the cell.
const WAKES_AT_ONCE: u32 = 256;
/// Nanoseconds of sleep for a socket. Some programs make many.
const REST_FOR_SOCKET: u64 = 150_000;
/// Nanoseconds of sleep for a child that stopped, continued or ended. Ordinary programs have few
/// children of pid 1.
const REST_FOR_CHILD: u64 = 3_000_000;

/// Installs the filter that notifies of sockets which this process or a descendant creates or
/// connects. Returns the notification fd. `socket` is the only way to get a first socket.
pub(crate) fn install_listener() -> Result<RawFd> {
    let (notify, allow) = (FilterVerdict::Notify, FilterVerdict::Allow);
    let socket = (Call::Socket, AF_UNIX);
    let filter = SmallFilter::of_calls_unless(Call::Connect, socket, notify, allow);
    sys::install_seccomp_listener(filter.as_bytes())
}

/// Installs the same filter in a process that becomes pid 1, and moves the notification fd to
/// [`SOCKETS_FD`].
pub(crate) fn install_pid_one_listener() -> Result<()> {
    let listener = install_listener()?;
    if listener != SOCKETS_FD {
        sys::dup_onto(listener, SOCKETS_FD)?;
        sys::close(listener);
    }
    Ok(())
}

/// The state of the watch in pid 1.
pub(crate) struct SocketWatch {
    /// The stack of a pid 1 that shares a template's memory.
    stack: Option<SharedStack>,
    budget: SocketBudget,
    /// How many sockets other than `AF_UNIX` were requested.
    sockets: u32,
    wakes: u32,
}

impl SocketWatch {
    /// Moves both descriptors to their numbers. All signals are blocked already.
    pub(super) fn begin(stack: Option<SharedStack>, listener: RawFd, most: u32) -> Result<Self> {
        if listener != SOCKETS_FD {
            sys::dup_onto(listener, SOCKETS_FD)?;
        }
        let children = sys::open_signalfd(sys::SIGCHLD)?;
        if children != CHILDREN_FD {
            sys::dup_onto(children, CHILDREN_FD)?;
        }
        Ok(Self { stack, budget: SocketBudget::with_limit(most), sockets: 0, wakes: 0 })
    }

    /// Waits until any child has ended or was stopped; answers socket notifications meanwhile.
    pub(super) fn wait_for_change(&mut self) -> Result<ChildChange> {
        loop {
            let changed = sys::poll_child_change()?;
            if changed.pid() != 0 {
                return Ok(changed);
            }
            self.wait_for_event(None, None)?;
        }
    }

    /// Waits until a child may have changed, a socket notification was answered, `other` is
    /// readable, or so many nanoseconds are over. Returns whether `other` is readable.
    pub(super) fn wait_for_event(
        &mut self,
        other: Option<RawFd>,
        within: Option<u64>,
    ) -> Result<bool> {
        // The kernel skips a negative descriptor.
        let fds = [CHILDREN_FD, SOCKETS_FD, other.unwrap_or(-1)];
        let [ended, asked, other] = sys::poll_readable(fds, within)?;
        self.throttle_wakes(ended);
        if ended {
            // It says only that some child changed; `poll_child_change` says which.
            sys::read(CHILDREN_FD, &mut [0; 128])?;
        }
        if asked {
            self.answer_call();
        }
        Ok(other)
    }

    /// Sleeps if a guest wakes pid 1 again and again: by sockets, by children that stop and
    /// continue, by processes to reap. Events that arrive during the sleep are handled together.
    fn throttle_wakes(&mut self, is_child: bool) {
        self.wakes = self.wakes.saturating_add(1);
        if self.stack.is_some() && self.wakes > WAKES_AT_ONCE {
            let rest = if is_child { REST_FOR_CHILD } else { REST_FOR_SOCKET };
            let _ = sys::poll_readable([], Some(rest));
        }
    }

    fn answer_call(&mut self) {
        // An error: the process that made the call may be gone by now.
        let _ = sys::answer_notification(SOCKETS_FD, |call, family| {
            if call == Call::Connect.number() {
                return self.budget.take_socket(None);
            }
            self.sockets = self.sockets.saturating_add(1);
            self.budget.take_socket(Some(family))
        });
    }

    /// Waits, after the end was reported, until the server closes the control socket. Taking a cell
    /// apart takes about as long as the server needs to store what the cell has written, and would
    /// compete with it. Then pid 1 kills the stopped main process, so that it makes no socket any
    /// more.
    ///
    /// If the server sends one byte first, it is going to read the home: a timer could continue the
    /// main process, which could then write. Pid 1 kills every process before and reports
    /// [`CellReport::Alone`].
    ///
    /// Returns false at once if the main process changes before that: it was continued.
    pub(super) fn wait_for_leave(&self, main: i32) -> bool {
        const KILL: i32 = 9;
        if sys::poll_readable([CHILDREN_FD, CONTROL_FD], None) != Ok([false, true]) {
            return false;
        }
        // One byte requests that all processes are killed; end of file means that it was closed.
        if sys::read(CONTROL_FD, &mut [0]) != Ok(1) {
            return sys::kill(main, KILL).is_ok();
        }
        kill_all_others();
        send_report(CONTROL_FD, CellReport::Alone);
        sys::poll_readable([CONTROL_FD], None).is_ok()
    }

    /// The last action of pid 1: records if the netns is as it was made. A template looks at the
    /// stack, and the spawner at the exit code.
    pub(super) fn report_clean_netns(&self) {
        if self.sockets > 0 || no_socket_is_open() != Some(true) {
            return;
        }
        match self.stack {
            Some(stack) => stack.mark_clean(),
            None => sys::exit(CLEAN_NETNS),
        }
    }
}

/// Whether no socket of any kind is left in this netns. No process is left that could create one.
fn no_socket_is_open() -> Option<bool> {
    let (mut path, mut buffer) = (FmtBuf::default(), [0; 64]);
    let counts = read_file(path.push_bytes(b"/proc/net/sockstat\0"), &mut buffer)?;
    Some(counts.starts_with(b"sockets: used 0\n"))
}
