//! Runs in: pid 1 of a cell whose interpreter waits at the gate.
//!
//! Some interpreters read a file of our choice in their own start-up, before they look at their
//! main file, but cannot read a job there. Such a file is the gate: a FIFO. Pid 1 takes the job
//! instead, writes its files, and then opens the gate. Core only.
//!
//! The guest's process takes the first job, which starts the interpreter, as in a cold cell. Pid 1
//! has the same walls and the same user as its guest, and no guest code runs before the gate opens.

use core::ffi::CStr;

use super::{
    cold_cell,
    socket_watch::{SOCKETS_FD, SocketWatch},
    supervise,
};
use crate::{
    guest::{
        job_reader::{self, ExecLists, JobPort, JobSocket},
        start::run_guest,
    },
    protocol::{
        constants::{EXIT_BAD_JOB, EXIT_NO_JOB, GATE, READY},
        fd_numbers::{CONTROL_FD, JOB_FD},
        report::{CellReport, send_report},
    },
    setup::{
        apply::{self, StepScope},
        enter::{CellFds, enter_cell, report_ready},
    },
    shared::fmt_buf::FmtBuf,
    sys::{self, ChildChange, Errno, RawFd, Result},
};

/// Nanoseconds between two looks whether the interpreter has come to the gate.
const LOOK: u64 = 300_000;

/// The job socket, the kernel, and the gate to which pid 1 passes what the interpreter is to read.
struct GateSocket {
    gate: RawFd,
}

impl JobPort for GateSocket {
    fn read_job(&mut self, buffer: &mut [u8]) -> Result<usize> {
        JobSocket.read_job(buffer)
    }

    fn enter_directory(&mut self, directory: &CStr) -> Result<()> {
        JobSocket.enter_directory(directory)
    }

    fn create_file(&mut self, name: &CStr, mode: u32) -> Result<RawFd> {
        JobSocket.create_file(name, mode)
    }

    fn write_file(&mut self, file: RawFd, bytes: &[u8]) -> Result<usize> {
        JobSocket.write_file(file, bytes)
    }

    fn close_file(&mut self, file: RawFd) {
        JobSocket.close_file(file);
    }

    fn pass_gate(&mut self, mut bytes: &[u8]) -> Result<()> {
        const PAUSE: u64 = 200_000;
        while !bytes.is_empty() {
            match sys::write(self.gate, bytes) {
                Ok(written) => bytes = &bytes[written..],
                // The FIFO is full: the interpreter has not read yet.
                Err(Errno::AGAIN) => sys::poll_readable([], Some(PAUSE)).map(drop)?,
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    fn exec_program(&mut self, _: &CStr, _: &ExecLists<'_>, _: bool) -> Result<()> {
        Err(Errno::NOSYS)
    }
}

/// The life of pid 1, from just after `clone` to its end.
pub(crate) fn run_pid_one(program: &[u8], fds: CellFds) -> ! {
    enter_cell(program, StepScope::All, fds, || {});
    report_ready();
    let mut path = FmtBuf::default();
    let path = path.push_bytes(GATE.as_bytes()).push_bytes(b"\0").as_bytes();
    let parked = CStr::from_bytes_with_nul(path)
        .map_err(|_| Errno::INVAL)
        .and_then(|gate| park_guest(gate, apply::find_socket_limit(program)));
    match parked.and_then(|(main, mut watch, gate)| {
        wait_for_job(&mut watch)?;
        job_reader::take_gate_job(&mut GateSocket { gate })?;
        sys::close(gate);
        Ok((main, watch))
    }) {
        Ok((main, watch)) => supervise::supervise_guest(main, Some(watch), false),
        // The server has let go of a parked cell.
        Err(Errno::PIPE) => sys::exit(EXIT_NO_JOB),
        Err(_) => end_cell(CellReport::Exited(EXIT_BAD_JOB)),
    }
}

/// Starts the guest and waits until its interpreter is at the gate, which has no name from then on.
/// Returns its pid, the watch, and the end of the gate to write to.
fn park_guest(gate: &CStr, limit: Option<u32>) -> Result<(i32, SocketWatch, RawFd)> {
    const OWNER_ONLY: u32 = 0o600;
    sys::mkfifo(gate, OWNER_ONLY)?;
    let Some(main) = sys::fork()? else {
        if limit.is_some() {
            // With the notification fd the guest could answer its own notifications.
            sys::close(SOCKETS_FD);
        }
        run_guest()
    };
    // Without a limit of sockets there is nothing that waits for several things at once.
    let mut watch = cold_cell::watch_sockets(limit)?.ok_or(Errno::NOSYS)?;
    let opened = open_gate(gate, &mut watch)?;
    sys::unlink(gate)?;
    sys::write(JOB_FD, READY.as_bytes())?;
    Ok((main, watch, opened))
}

fn open_gate(gate: &CStr, watch: &mut SocketWatch) -> Result<RawFd> {
    const WRITE_NONBLOCK: i32 = 0o1 | 0o4000;
    loop {
        match sys::open(gate, WRITE_NONBLOCK, 0) {
            Err(Errno::NXIO) => {}
            opened => return opened,
        }
        watch.wait_for_event(None, Some(LOOK))?;
        leave_if_ended()?;
    }
}

fn wait_for_job(watch: &mut SocketWatch) -> Result<()> {
    while !watch.wait_for_event(Some(JOB_FD), None)? {
        leave_if_ended()?;
    }
    Ok(())
}

/// Ends the cell if its only other process has ended before its job came.
fn leave_if_ended() -> Result<()> {
    match sys::poll_child_change()? {
        ChildChange::Exited { pid, code } if pid != 0 => end_cell(CellReport::Exited(code)),
        ChildChange::Killed { pid, signal } if pid != 0 => end_cell(CellReport::Signalled(signal)),
        _ => Ok(()),
    }
}

fn end_cell(report: CellReport) -> ! {
    supervise::kill_all_others();
    send_report(CONTROL_FD, report);
    sys::exit(0)
}
