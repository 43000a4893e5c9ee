//! Runs in: pid 1 of a cell.
//!
//! Reaps every process, reports how the main process ended, and exits. The kernel then kills every
//! process that is left in the pid namespace. Core only.

use super::{
    announced_exit::{LastWordFiles, announced_exit_code},
    socket_watch::SocketWatch,
};
use crate::{
    protocol::{
        fd_numbers::{CONTROL_FD, JOB_FD},
        report::{CellReport, send_report},
    },
    sys::{self, ChildChange, Errno},
};

/// How many times pid 1 reads the name of a stopped main process.
const MOST_LOOKS: u32 = 32;

/// Reaps until the main process has ended; then exits, and every process of the cell with it.
/// If the main process may announce its end, what that needs is prepared before it.
pub(super) fn supervise_guest(main: i32, mut watch: Option<SocketWatch>, announces: bool) -> ! {
    (0..=JOB_FD).for_each(sys::close);
    let mut files = LastWordFiles::default();
    if announces {
        files = LastWordFiles::open_ahead(main);
    }
    let mut looks = MOST_LOOKS;
    loop {
        let changed = match &mut watch {
            Some(watch) => watch.wait_for_change(),
            None => sys::wait_for_change(),
        };
        let ended = match changed {
            Ok(ChildChange::Exited { pid, code }) if pid == main => Some(CellReport::Exited(code)),
            Ok(ChildChange::Killed { pid, signal }) if pid == main => {
                Some(CellReport::Signalled(signal))
            }
            // The limit: a guest that stops again and again would keep pid 1 busy, and the time of
            // pid 1 may be charged to no cell.
            Ok(ChildChange::Stopped { pid }) if pid == main && looks > 0 => {
                looks -= 1;
                if let Some(code) = announced_exit_code(main, &mut files, &mut looks) {
                    send_report(CONTROL_FD, CellReport::Exited(code));
                    leave_cell(watch.as_ref(), |watch| watch.wait_for_leave(main));
                }
                None
            }
            Ok(_) | Err(Errno::INTR) => None,
            Err(_) => sys::exit(1),
        };
        if let Some(ended) = ended {
            kill_all_others();
            send_report(CONTROL_FD, ended);
            leave_cell(watch.as_ref(), |_| true);
        }
    }
}

/// Exits, and every process of the cell with it. `all_is_quiet` returns whether no process of the
/// cell can act any more; only then the netns can be reported as clean.
fn leave_cell(watch: Option<&SocketWatch>, all_is_quiet: impl FnOnce(&SocketWatch) -> bool) -> ! {
    match watch {
        Some(watch) if all_is_quiet(watch) => watch.report_clean_netns(),
        // Before the control socket closes, which tells the server that the home does not change
        // any more.
        Some(_) => kill_all_others(),
        None => {}
    }
    sys::exit(0)
}

/// Kills and reaps every other process of the cell, so that nothing changes in the cell after its
/// end is reported. A killed process can no longer fork, so once is enough.
pub(super) fn kill_all_others() {
    const KILL: i32 = 9;
    // Outside a pid namespace of its own, -1 would mean every process of the host.
    if sys::getpid() == 1 && sys::kill(-1, KILL).is_ok() {
        while !matches!(sys::wait_any(), Err(errno) if errno != Errno::INTR) {}
    }
}
