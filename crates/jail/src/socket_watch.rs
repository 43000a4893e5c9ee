//! How pid 1 hears of every socket in its cell, and bounds how many there are. Core only.
//!
//! What waits in a socket is kernel memory, and much of it is charged to no control group: the queue
//! of a netlink socket, a connection that was not accepted yet, a datagram that is put together; with
//! v1 control groups every queue of TCP and UDP. So the number of sockets is bounded. The kernel holds
//! a process that calls `socket` for anything but `AF_UNIX`, or `connect`, until pid 1 has answered:
//! `connect` makes a socket, too, that of the other end.
//!
//! A network in which no socket but `AF_UNIX` was ever made, and none of any kind is left, is as it was
//! made, and can be another cell's next.

use crate::{
    fmt_buf::FmtBuf,
    init::{CONTROL_FD, CellReport, send_report},
    pid_one::{kill_all_others, read_file},
    small_filter::{FilterVerdict, SmallFilter},
    socket_budget::SocketBudget,
    sys::{self, ChildChange, RawFd, Result, SharedStack},
    syscall_table::Call,
};

/// Where pid 1 hears of sockets.
pub(crate) const SOCKETS_FD: RawFd = 5;
/// Where pid 1 hears of children.
const CHILDREN_FD: RawFd = 6;
/// The first descriptor that a watching pid 1 does not need.
pub(crate) const FIRST_OTHER_FD: u32 = 7;
/// Those whose other end is on the same machine.
const AF_UNIX: u32 = 1;
/// So often pid 1 is woken at once; then it rests each time. A forked cell's is not in the cell's
/// cgroup: what it does is not charged to the cell.
const WAKES_AT_ONCE: u32 = 256;
/// Nanoseconds, for a socket. Some programs make many.
const REST_FOR_SOCKET: u64 = 150_000;
/// For a child that stopped, went on or ended. No program has many that pid 1 hears of.
const REST_FOR_CHILD: u64 = 3_000_000;

/// Has the kernel tell of sockets that this process or one that comes from it makes or connects.
/// Returns the notification fd. `socket` is the only way to get a first socket.
pub(crate) fn install_listener() -> Result<RawFd> {
    let (tell, allow) = (FilterVerdict::Tell, FilterVerdict::Allow);
    let socket = (Call::Socket, AF_UNIX);
    let filter = SmallFilter::of_calls_unless(Call::Connect, socket, tell, allow);
    sys::install_seccomp_listener(filter.as_bytes())
}

/// The same for a process that is going to be pid 1, with the notification fd where it stays.
pub(crate) fn install_pid_one_listener() -> Result<()> {
    let listener = install_listener()?;
    if listener != SOCKETS_FD {
        sys::dup_onto(listener, SOCKETS_FD)?;
        sys::close(listener);
    }
    Ok(())
}

/// A pid 1's watch.
pub(crate) struct SocketWatch {
    /// Where a pid 1 lives that shares a template's memory.
    stack: Option<SharedStack>,
    budget: SocketBudget,
    /// How many sockets that are not `AF_UNIX` were asked for.
    sockets: u32,
    wakes: u32,
}

impl SocketWatch {
    /// Puts both descriptors where they stay; all signals are held back already.
    pub(crate) fn begin(room: Option<SharedStack>, listener: RawFd, most: u32) -> Result<Self> {
        if listener != SOCKETS_FD {
            sys::dup_onto(listener, SOCKETS_FD)?;
        }
        let children = sys::open_signalfd(sys::SIGCHLD)?;
        if children != CHILDREN_FD {
            sys::dup_onto(children, CHILDREN_FD)?;
        }
        Ok(Self { stack: room, budget: SocketBudget::with_limit(most), sockets: 0, wakes: 0 })
    }

    /// Waits for any child to end or to be stopped, and lets sockets be made meanwhile.
    pub(crate) fn wait_for_change(&mut self) -> Result<ChildChange> {
        loop {
            let changed = sys::poll_child_change()?;
            if changed.pid() != 0 {
                return Ok(changed);
            }
            let [ended, asked] = sys::poll_readable([CHILDREN_FD, SOCKETS_FD], None)?;
            self.throttle_wakes(ended);
            if ended {
                // Only that there was one: which, is asked above.
                sys::read(CHILDREN_FD, &mut [0; 128])?;
            }
            if asked {
                self.answer_call();
            }
        }
    }

    /// Sleeps where a guest wakes it again and again: by sockets, by children that stop and go on, by
    /// processes that it has to reap. Those that came meanwhile are dealt with at once.
    fn throttle_wakes(&mut self, is_child: bool) {
        self.wakes = self.wakes.saturating_add(1);
        if self.stack.is_some() && self.wakes > WAKES_AT_ONCE {
            let rest = if is_child { REST_FOR_CHILD } else { REST_FOR_SOCKET };
            let _ = sys::poll_readable([], Some(rest));
        }
    }

    fn answer_call(&mut self) {
        // The process that asked may be gone by now.
        let _ = sys::answer_notification(SOCKETS_FD, |call, family| {
            if call == Call::Connect.number() {
                return self.budget.take_socket(None);
            }
            self.sockets = self.sockets.saturating_add(1);
            self.budget.take_socket(Some(family))
        });
    }

    /// Waits until whoever was told of the end has done what is left to do, or is gone. Taking a cell
    /// apart takes as long as most need to keep what it has written, and would be in their way. The main
    /// process, which has stopped for good, is killed then: it makes no socket any more. It is killed
    /// before, and that said, if its home is going to be read: a timer could let it go on and write.
    /// False, and at once, if anything happens to it before that: it has gone on.
    pub(crate) fn wait_for_leave(&self, main: i32) -> bool {
        const KILL: i32 = 9;
        if sys::poll_readable([CHILDREN_FD, CONTROL_FD], None) != Ok([false, true]) {
            return false;
        }
        // One byte asks for the end of all; otherwise it was closed.
        if sys::read(CONTROL_FD, &mut [0]) != Ok(1) {
            return sys::kill(main, KILL).is_ok();
        }
        kill_all_others();
        send_report(CONTROL_FD, CellReport::Alone);
        sys::poll_readable([CONTROL_FD], None).is_ok()
    }

    /// The last thing a pid 1 does: says in its room whether its network is as it was.
    pub(crate) fn report_clean_netns(&self) {
        if let Some(room) = self.stack
            && self.sockets == 0
            && no_socket_is_open() == Some(true)
        {
            room.mark_clean();
        }
    }
}

/// Whether no socket of any kind is left in this network; nobody makes one any more.
fn no_socket_is_open() -> Option<bool> {
    let (mut place, mut buffer) = (FmtBuf::default(), [0; 64]);
    let counts = read_file(place.push_bytes(b"/proc/net/sockstat\0"), &mut buffer)?;
    Some(counts.starts_with(b"sockets: used 0\n"))
}
