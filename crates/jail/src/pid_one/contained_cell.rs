//! Runs in: the first process of a contained cell.
//!
//! A contained cell has no pid namespace. Its first process takes the place of pid 1: it is the
//! subreaper of all processes of the cell, and kills all of them at the end. Core only.
//!
//! Its descendants cannot signal it: they are in a Landlock domain below its own. By its own domain
//! it can signal nothing but them, so signal -1 is for exactly the processes of the cell, and no
//! fork escapes it. Before Landlock 6 it kills its children again and again until none is left.

use crate::{
    guest::start::run_contained_guest,
    protocol::{
        fd_numbers::{CONTROL_FD, JOB_FD},
        report::{CellReport, failure_report, send_report},
    },
    setup::{
        apply::{self, StepScope},
        enter::{self, CellFds},
    },
    shared::{
        fmt_buf::FmtBuf,
        proc_file::{parse_decimal, read_file},
    },
    sys::{self, ChildChange, Errno, PrctlOption, RawFd, Result},
};

/// The signal by which the spawner, or its death, ends the cell.
pub const END_SIGNAL: i32 = 15;
const KILL: i32 = 9;
/// The signalfd of SIGCHLD.
const CHILDREN_FD: RawFd = 5;
/// The signalfd of [`END_SIGNAL`].
const END_FD: RawFd = 6;
/// The first descriptor number that this process does not need.
const FIRST_OTHER_FD: u32 = 7;
/// How often the children are killed where one signal does not reach all of them.
const MOST_ROUNDS: u32 = 10_000;

/// The life of the first process, from just after `clone` to its end.
pub(crate) fn run_first_process(program: &[u8], fds: CellFds) -> ! {
    enter::enter_contained_cell(fds);
    if let Err(errno) = prepare_supervision() {
        send_report(CONTROL_FD, failure_report(c"start of the cell", errno));
        sys::exit(1);
    }
    enter::apply_or_report(program, StepScope::Cell);
    let reaches_all = apply::contains_signals(program);
    match sys::fork() {
        Ok(None) => {
            sys::close(CHILDREN_FD);
            sys::close(END_FD);
            run_contained_guest(program)
        }
        Ok(Some(main)) => ContainedCell { main, reaches_all }.supervise(),
        Err(errno) => {
            send_report(CONTROL_FD, failure_report(c"start of the guest", errno));
            sys::exit(1)
        }
    }
}

/// Blocks signals and opens them as descriptors, before there is a process to lose.
fn prepare_supervision() -> Result<()> {
    sys::block_signals()?;
    sys::prctl(PrctlOption::ChildSubreaper, 1)?;
    sys::prctl(PrctlOption::ParentDeathSignal, END_SIGNAL as usize)?;
    sys::close_range(CHILDREN_FD as u32, u32::MAX)?;
    for (signal, wanted) in [(sys::SIGCHLD, CHILDREN_FD), (END_SIGNAL as usize, END_FD)] {
        let opened = sys::open_signalfd(signal)?;
        if opened != wanted {
            sys::dup_onto(opened, wanted)?;
            sys::close(opened);
        }
    }
    sys::close_range(FIRST_OTHER_FD, u32::MAX)
}

/// What the first process knows of its cell.
struct ContainedCell {
    /// The main process.
    main: i32,
    /// Whether signal -1 reaches the processes of the cell and no other.
    reaches_all: bool,
}

impl ContainedCell {
    /// Reaps until the main process has ended or the spawner ends the cell.
    fn supervise(&self) -> ! {
        (0..=JOB_FD).for_each(sys::close);
        loop {
            let ended = match sys::poll_child_change() {
                Ok(ChildChange::Exited { pid, code }) if pid == self.main => {
                    CellReport::Exited(code)
                }
                Ok(ChildChange::Killed { pid, signal }) if pid == self.main => {
                    CellReport::Signalled(signal)
                }
                Ok(changed) if changed.pid() != 0 => continue,
                _ => {
                    self.wait_for_signal();
                    continue;
                }
            };
            self.kill_all();
            send_report(CONTROL_FD, ended);
            wait_for_leave();
            sys::exit(0)
        }
    }

    fn wait_for_signal(&self) {
        match sys::poll_readable([CHILDREN_FD, END_FD], None) {
            Ok([_, true]) => {
                self.kill_all();
                sys::exit(1)
            }
            Ok(_) => {
                // It says only that some child changed.
                let _ = sys::read(CHILDREN_FD, &mut [0; 128]);
            }
            Err(_) => {}
        }
    }

    /// Kills and reaps every other process of the cell.
    fn kill_all(&self) {
        for _ in 0..MOST_ROUNDS {
            if self.reaches_all {
                let _ = sys::kill(-1, KILL);
            } else {
                kill_children();
            }
            if reap_all() == Err(Errno::CHILD) {
                return;
            }
        }
    }
}

/// Reaps until no child is left, which is `CHILD`, or none has ended for a while.
fn reap_all() -> Result<()> {
    const PAUSE: u64 = 2_000_000;
    while sys::poll_child_change()?.pid() != 0 {}
    if sys::poll_readable([CHILDREN_FD], Some(PAUSE))? == [true] {
        sys::read(CHILDREN_FD, &mut [0; 128])?;
    }
    Ok(())
}

/// Kills the processes that are children of this one now. Their children become children of this
/// process.
fn kill_children() {
    let pid = sys::getpid();
    let (mut path, mut buffer) = (FmtBuf::default(), [0; 4096]);
    path.push_bytes(b"/proc/").push_pid(pid).push_bytes(b"/task/").push_pid(pid);
    let Some(list) = read_file(path.push_bytes(b"/children\0"), &mut buffer) else { return };
    for child in list.split(|byte| *byte == b' ').filter_map(parse_decimal) {
        let _ = sys::kill(child.cast_signed(), KILL);
    }
}

/// Waits, after the end was reported, until the server closes the control socket: the directory of
/// the cell is removed when this process is gone. If the server sends a byte, it is going to read
/// the home, in which no process is left.
fn wait_for_leave() {
    loop {
        match sys::poll_readable([CONTROL_FD, END_FD], None) {
            Ok([true, _]) if sys::read(CONTROL_FD, &mut [0]) == Ok(1) => {
                send_report(CONTROL_FD, CellReport::Alone);
            }
            Err(Errno::INTR) | Ok([false, false]) => {}
            _ => return,
        }
    }
}
