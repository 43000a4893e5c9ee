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
    calls::Call,
    init::{CONTROL_FD, Report, report},
    pid_one::{end_everyone_else, read_file},
    small_filter::{SmallFilter, Verdict},
    socket_budget::SocketBudget,
    sys::{self, Changed, RawFd, Result, Room},
    text::Text,
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
pub(crate) fn install() -> Result<RawFd> {
    let (tell, allow) = (Verdict::Tell, Verdict::Allow);
    let socket = (Call::Socket, AF_UNIX);
    let filter = SmallFilter::of_calls_unless(Call::Connect, socket, tell, allow);
    sys::seccomp_listener(filter.bytes())
}

/// The same for a process that is going to be pid 1, with the notification fd where it stays.
pub(crate) fn install_for_pid_one() -> Result<()> {
    let listener = install()?;
    if listener != SOCKETS_FD {
        sys::dup_onto(listener, SOCKETS_FD)?;
        sys::close(listener);
    }
    Ok(())
}

/// A pid 1's watch.
pub(crate) struct Watch {
    /// Where a pid 1 lives that shares a template's memory.
    room: Option<Room>,
    budget: SocketBudget,
    /// How many sockets that are not `AF_UNIX` were asked for.
    sockets: u32,
    wakes: u32,
}

impl Watch {
    /// Puts both descriptors where they stay; all signals are held back already.
    pub(crate) fn begin(room: Option<Room>, listener: RawFd, most: u32) -> Result<Self> {
        if listener != SOCKETS_FD {
            sys::dup_onto(listener, SOCKETS_FD)?;
        }
        let children = sys::signal_descriptor(sys::SIGCHLD)?;
        if children != CHILDREN_FD {
            sys::dup_onto(children, CHILDREN_FD)?;
        }
        Ok(Self { room, budget: SocketBudget::of(most), sockets: 0, wakes: 0 })
    }

    /// Waits for any child to end or to be stopped, and lets sockets be made meanwhile.
    pub(crate) fn wait_for_change(&mut self) -> Result<Changed> {
        loop {
            let changed = sys::change_until_now()?;
            if changed.pid() != 0 {
                return Ok(changed);
            }
            let [ended, asked] = sys::readable([CHILDREN_FD, SOCKETS_FD], None)?;
            self.rest(ended);
            if ended {
                // Only that there was one: which, is asked above.
                sys::read(CHILDREN_FD, &mut [0; 128])?;
            }
            if asked {
                self.answer();
            }
        }
    }

    /// Sleeps where a guest wakes it again and again: by sockets, by children that stop and go on, by
    /// processes that it has to reap. Those that came meanwhile are dealt with at once.
    fn rest(&mut self, is_child: bool) {
        self.wakes = self.wakes.saturating_add(1);
        if self.room.is_some() && self.wakes > WAKES_AT_ONCE {
            let rest = if is_child { REST_FOR_CHILD } else { REST_FOR_SOCKET };
            let _ = sys::readable([], Some(rest));
        }
    }

    fn answer(&mut self) {
        // The process that asked may be gone by now.
        let _ = sys::answer_call(SOCKETS_FD, |call, family| {
            if call == Call::Connect.number() {
                return self.budget.take(None);
            }
            self.sockets = self.sockets.saturating_add(1);
            self.budget.take(Some(family))
        });
    }

    /// Waits until whoever was told of the end has done what is left to do, or is gone. Taking a cell
    /// apart takes as long as most need to keep what it has written, and would be in their way. The main
    /// process, which has stopped for good, is killed then: it makes no socket any more. It is killed
    /// before, and that said, if its home is going to be read: a timer could let it go on and write.
    /// False, and at once, if anything happens to it before that: it has gone on.
    pub(crate) fn wait_for_leave(&self, main: i32) -> bool {
        const KILL: i32 = 9;
        if sys::readable([CHILDREN_FD, CONTROL_FD], None) != Ok([false, true]) {
            return false;
        }
        // One byte asks for the end of all; otherwise it was closed.
        if sys::read(CONTROL_FD, &mut [0]) != Ok(1) {
            return sys::kill(main, KILL).is_ok();
        }
        end_everyone_else();
        report(CONTROL_FD, Report::Alone);
        sys::readable([CONTROL_FD], None).is_ok()
    }

    /// The last thing a pid 1 does: says in its room whether its network is as it was.
    pub(crate) fn end(&self) {
        if let Some(room) = self.room
            && self.sockets == 0
            && none_is_open() == Some(true)
        {
            room.leave_clean();
        }
    }
}

/// Whether no socket of any kind is left in this network; nobody makes one any more.
fn none_is_open() -> Option<bool> {
    let (mut place, mut buffer) = (Text::default(), [0; 64]);
    let counts = read_file(place.text(b"/proc/net/sockstat\0"), &mut buffer)?;
    Some(counts.starts_with(b"sockets: used 0\n"))
}
