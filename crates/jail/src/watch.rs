//! How pid 1 learns whether anybody in its cell has left something in its network. Core only.
//!
//! Without a socket nothing can be. A socket of a program's own machine (`AF_UNIX`) leaves nothing but
//! itself. Of all others pid 1 is told: the kernel holds whoever makes one until pid 1 has heard of it,
//! and then goes on with the call: pid 1 decides nothing. What the guest's own filter refuses is
//! refused all the same. A network in which no such socket was made, and none of any kind is left, is
//! as it was made, and can be another cell's next.

use crate::{
    calls::Call,
    init::CONTROL_FD,
    pid_one::read_file,
    small_filter::{SmallFilter, Verdict},
    sys::{self, Changed, RawFd, Result, Room},
    text::Text,
};

/// Where pid 1 hears of sockets.
const SOCKETS_FD: RawFd = 5;
/// Where pid 1 hears of children.
const CHILDREN_FD: RawFd = 6;
/// The first descriptor that a watching pid 1 does not need.
pub(crate) const FIRST_OTHER_FD: u32 = 7;
/// Those whose other end is on the same machine.
const AF_UNIX: u32 = 1;
/// As many sockets are made at once; then pid 1 rests for each one. It is not in the cell's cgroup,
/// so what it does is at nobody's expense.
const AT_ONCE: u32 = 256;
const REST: u64 = 200_000;

/// Has the kernel tell of every socket to elsewhere that this process or one that comes from it
/// makes; gives what it tells it by. All ways to one that begin without one are one call.
pub(crate) fn install() -> Result<RawFd> {
    let (tell, allow) = (Verdict::Tell, Verdict::Allow);
    sys::seccomp_listener(SmallFilter::of_call_unless(Call::Socket, AF_UNIX, tell, allow).bytes())
}

/// A pid 1's watch.
pub(crate) struct Watch {
    room: Room,
    sockets: u32,
}

impl Watch {
    /// Puts both descriptors where they stay; all signals are held back already.
    pub(crate) fn begin(room: Room, listener: RawFd) -> Result<Self> {
        if listener != SOCKETS_FD {
            sys::dup_onto(listener, SOCKETS_FD)?;
        }
        let children = sys::signal_descriptor(sys::SIGCHLD)?;
        if children != CHILDREN_FD {
            sys::dup_onto(children, CHILDREN_FD)?;
        }
        Ok(Self { room, sockets: 0 })
    }

    /// Waits for any child to end or to be stopped, and lets sockets be made meanwhile.
    pub(crate) fn wait_for_change(&mut self) -> Result<Changed> {
        loop {
            let changed = sys::change_until_now()?;
            if changed.pid() != 0 {
                return Ok(changed);
            }
            let [ended, asked] = sys::readable([CHILDREN_FD, SOCKETS_FD], None)?;
            if ended {
                // Only that there was one: which, is asked above.
                sys::read(CHILDREN_FD, &mut [0; 128])?;
            }
            if asked {
                self.let_pass();
            }
        }
    }

    fn let_pass(&mut self) {
        self.sockets = self.sockets.saturating_add(1);
        let rests = self.sockets > AT_ONCE;
        // Whoever asked may be gone by now. It waits in a way that no signal interrupts from when it
        // was heard of; so the rest comes then.
        let _ = sys::let_call_pass(SOCKETS_FD, || {
            if rests {
                let _ = sys::readable([CHILDREN_FD], Some(REST));
            }
        });
    }

    /// Waits until whoever was told of the end has done what is left to do, or is gone. Taking a cell
    /// apart takes as long as most need to keep what it has written, and would be in their way. The main
    /// process, which has stopped for good, is killed then: it makes no socket any more. False, and at
    /// once, if anything happens to it before that: it has gone on.
    pub(crate) fn wait_for_leave(&self, main: i32) -> bool {
        const KILL: i32 = 9;
        // Nothing is ever sent on the control socket: it is closed.
        let changed = sys::readable([CHILDREN_FD, CONTROL_FD], None);
        changed == Ok([false, true]) && sys::kill(main, KILL).is_ok()
    }

    /// The last thing a pid 1 does: says in its room whether its network is as it was.
    pub(crate) fn end(&self) {
        if self.sockets == 0 && none_is_open() == Some(true) {
            self.room.leave_clean();
        }
    }
}

/// Whether no socket of any kind is left in this network; nobody makes one any more.
fn none_is_open() -> Option<bool> {
    let (mut place, mut buffer) = (Text::default(), [0; 64]);
    let counts = read_file(place.text(b"/proc/net/sockstat\0"), &mut buffer)?;
    Some(counts.starts_with(b"sockets: used 0\n"))
}
