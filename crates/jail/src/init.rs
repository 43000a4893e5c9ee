//! Pid 1 of a cell, and the process that becomes the guest. Core only; runs in the new process.
//!
//! Pid 1 takes the steps, forks the guest's process, reaps everything, reports how the main
//! process ended, and ends: the kernel then kills whatever is left in the pid namespace. The
//! guest's process reads its job under all walls: files to write, then what to exec. Neither
//! knows what language or whose code it is.

use core::ffi::CStr;

use crate::{
    apply,
    step::Reader,
    sys::{self, Errno, Prctl, RawFd, Result, StringList, ThreadIdPlace},
};

/// Where the job arrives, in every process of the cell that is ours.
pub const JOB_FD: RawFd = 3;
/// Where pid 1 reports.
pub const CONTROL_FD: RawFd = 4;
/// Where a template is asked for forks; closed in everything that comes from it.
pub const FORK_FD: RawFd = 5;
/// The first descriptor that is not one of ours.
pub const FIRST_FOREIGN_FD: u32 = 5;

/// What pid 1 reports, as one message of [`REPORT_LEN`] bytes: kind, value, name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// Every wall is up; the job can be sent. Carries the home, as a directory to be read from.
    Ready,
    /// A wall could not be built.
    Failed(WallName, Errno),
    /// The main process ended with this code.
    Exited(i32),
    /// The main process was ended by this signal.
    Signalled(i32),
}

/// The name of a wall, cut to what fits into a report.
pub type WallName = [u8; 56];

/// The length of an encoded report.
pub const REPORT_LEN: usize = 64;

impl Report {
    /// As bytes for the control socket.
    #[must_use]
    pub fn encode(self) -> [u8; REPORT_LEN] {
        let (kind, value, name) = match self {
            Self::Ready => (1_u32, 0, [0; 56]),
            Self::Failed(name, errno) => (2, errno.0, name),
            Self::Exited(code) => (3, code, [0; 56]),
            Self::Signalled(signal) => (4, signal, [0; 56]),
        };
        let mut out = [0; REPORT_LEN];
        out[..4].copy_from_slice(&kind.to_le_bytes());
        out[4..8].copy_from_slice(&value.to_le_bytes());
        out[8..].copy_from_slice(&name);
        out
    }

    /// From bytes; nothing where they are not a report.
    #[must_use]
    pub fn decode(bytes: &[u8; REPORT_LEN]) -> Option<Self> {
        let value = i32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        match bytes[0] {
            1 => Some(Self::Ready),
            2 => {
                let mut name = [0; 56];
                name.copy_from_slice(&bytes[8..]);
                Some(Self::Failed(name, Errno(value)))
            }
            3 => Some(Self::Exited(value)),
            4 => Some(Self::Signalled(value)),
            _ => None,
        }
    }
}

fn failed(wall: &CStr, errno: Errno) -> Report {
    let mut name = [0; 56];
    name.iter_mut().zip(wall.to_bytes()).for_each(|(to, from)| *to = *from);
    Report::Failed(name, errno)
}

/// The descriptors a new cell is given; none is where another of them is to go.
#[derive(Clone, Copy)]
pub struct CellFds {
    /// Pid 1 reads one byte here once its ids are mapped; closed means: give up.
    pub go: RawFd,
    /// The guest's standard input, output and error.
    pub stdio: [RawFd; 3],
    /// Where the job arrives.
    pub job: RawFd,
    /// Where pid 1 reports.
    pub control: RawFd,
    /// A template's socket for forks.
    pub fork: Option<RawFd>,
    /// The `tasks` files of the v1 cgroups to enter; none with v2, where it is born inside.
    pub cgroups: [Option<RawFd>; MAX_CGROUPS],
}

/// The most v1 hierarchies a cell is in.
pub const MAX_CGROUPS: usize = 4;

/// The life of pid 1, from just after `clone` to its end.
pub fn run(program: &[u8], fds: CellFds) -> ! {
    enter(program, fds);
    match sys::fork() {
        Ok(None) => guest(),
        Ok(Some(pid)) => supervise(pid),
        Err(errno) => {
            report(CONTROL_FD, failed(c"start of the guest", errno));
            sys::exit(1)
        }
    }
}

/// Takes every step into the box; ends with a report where one fails.
pub fn enter(program: &[u8], fds: CellFds) {
    if sys::read(fds.go, &mut [0]) != Ok(1) {
        sys::exit(1);
    }
    if let Err(errno) = join(fds.cgroups).and_then(|()| arrange(fds)) {
        report(fds.control, failed(c"cgroups and descriptors", errno));
        sys::exit(1);
    }
    if let Err(failure) = apply::apply(program) {
        report(CONTROL_FD, failed(failure.wall, failure.errno));
        sys::exit(1);
    }
    // Pid 1 is a copy of the spawner's memory or a template's: the guest may not look into it.
    let _ = sys::prctl(Prctl::Dumpable, 0);
}

/// Enters the v1 cgroups. Through `tasks`, since `cgroup.procs` waits for an RCU grace period when
/// the host is idle: 5 ms against 0.05.
fn join(cgroups: [Option<RawFd>; MAX_CGROUPS]) -> Result<()> {
    cgroups.into_iter().flatten().try_for_each(|tasks| sys::write(tasks, b"0").map(drop))
}

/// Puts the cell's descriptors where everyone expects them.
fn arrange(fds: CellFds) -> Result<()> {
    for (at, fd) in [0, 1, 2].into_iter().zip(fds.stdio) {
        sys::dup_onto(fd, at)?;
    }
    sys::dup_onto(fds.job, JOB_FD)?;
    sys::dup_onto(fds.control, CONTROL_FD)?;
    fds.fork.map_or(Ok(()), |fork| sys::dup_onto(fork, FORK_FD))
}

fn report(control: RawFd, report: Report) {
    // If nobody listens any more, nobody needs to know; pid 1 goes on to its end either way.
    let _ = sys::send(control, &report.encode(), &[]);
}

/// Says that the job can be sent, and hands out the home: what a run has left there is read
/// through it when nothing else of the box is left.
fn report_ready() {
    const DIRECTORY_CLOEXEC: i32 = 0o200_000 | 0o2_000_000;
    match sys::open(c".", DIRECTORY_CLOEXEC, 0) {
        Ok(home) => {
            let _ = sys::send(CONTROL_FD, &Report::Ready.encode(), &[home]);
            sys::close(home);
        }
        Err(_) => report(CONTROL_FD, Report::Ready),
    }
}

/// Reaps until the main process has ended; then ends, and everything in the cell with it.
pub fn supervise(main: i32) -> ! {
    report_ready();
    (0..=JOB_FD).for_each(sys::close);
    loop {
        match sys::wait_any() {
            Ok(reaped) if reaped.pid == main => {
                end_everyone_else();
                let ended = if reaped.signalled {
                    Report::Signalled(reaped.status)
                } else {
                    Report::Exited(reaped.status)
                };
                report(CONTROL_FD, ended);
                sys::exit(0);
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => sys::exit(1),
        }
    }
}

/// Kills and reaps whatever the main process has left behind, so that nothing changes in the box
/// after its end is reported. Whoever is killed can no longer fork, so once is enough.
fn end_everyone_else() {
    const KILL: i32 = 9;
    // Everyone is everyone on the host, for whoever is not the first of a namespace of its own.
    if sys::getpid() == 1 && sys::kill(-1, KILL).is_ok() {
        while matches!(sys::wait_any(), Ok(_) | Err(Errno::INTR)) {}
    }
}

/// The process that becomes the guest: waits for its job, then does it.
fn guest() -> ! {
    sys::close(CONTROL_FD);
    // Not inspectable until exec: it is still a copy of the spawner's memory.
    let _ = sys::prctl(Prctl::Dumpable, 0);
    let _ = sys::setsid();
    let errno = take_job().err().unwrap_or(Errno::INVAL);
    // A shell's codes: 127 when the program is not there, 126 when it cannot be run.
    sys::exit(if errno == Errno::NOENT { 127 } else { 126 })
}

/// From pid 1 that is a copied interpreter: stays behind as pid 1, and returns as the guest. It may
/// be looked into by itself from here on, and leads its own session.
pub fn become_guest_of_this_cell(libc: ThreadIdPlace) {
    match sys::fork_under_libc(libc) {
        Ok(None) => {
            sys::close(CONTROL_FD);
            let _ = sys::prctl(Prctl::Dumpable, 1);
            let _ = sys::setsid();
        }
        Ok(Some(pid)) => supervise(pid),
        Err(errno) => {
            report(CONTROL_FD, failed(c"start of the guest", errno));
            sys::exit(1)
        }
    }
}

/// Marks a file in a job: mode, name, content.
pub const JOB_FILE: u32 = 1;
/// Marks the end of a job: what to exec.
pub const JOB_EXEC: u32 = 2;
/// Marks a directory to go to, since what is mounted there has changed.
pub const JOB_GO: u32 = 3;
/// In an exec record: leave the job socket open as [`JOB_FD`].
pub const EXEC_KEEPS_JOB: u32 = 1;
/// The most bytes of arguments and environment together.
pub const EXEC_BYTES: usize = 160 << 10;
/// The most arguments, and the most environment variables.
pub const EXEC_STRINGS: usize = 128;

fn take_job() -> Result<()> {
    take_files().map(drop)?;
    exec()
}

/// Everything of a job up to its end, which says what to exec.
fn take_files() -> Result<Mark> {
    let mut mark = Mark::default();
    loop {
        match read_word()? {
            JOB_FILE => write_file(&mut mark)?,
            JOB_EXEC => return Ok(mark),
            JOB_GO => go()?,
            _ => return Err(Errno::INVAL),
        }
    }
}

/// Whether a zip archive's mark has been among the bytes of files. Python runs a main file that
/// is an archive in another way.
#[derive(Default)]
struct Mark {
    matched: usize,
    found: bool,
}

impl Mark {
    fn look(&mut self, bytes: &[u8]) {
        const MARK: [u8; 4] = *b"PK\x05\x06";
        for byte in bytes {
            self.matched = match self.matched {
                at if MARK[at] == *byte => at + 1,
                _ => usize::from(MARK[0] == *byte),
            };
            if self.matched == MARK.len() {
                *self = Self { matched: 0, found: true };
            }
        }
    }
}

/// For an interpreter that waits: says that it is ready, takes its job, and executes nothing. What
/// it puts at the start of the buffer are the variables to have, each after its length, with its NUL.
/// Also tells whether a file may be an archive.
pub fn wait_for_variables(buffer: &mut [u8]) -> Result<(&[u8], bool)> {
    let _ = sys::write(JOB_FD, b"R");
    let mark = take_files()?;
    let (_, args, _, len) = (read_word()?, read_word()?, read_word()?, read_word()?);
    let strings = buffer.get_mut(..len as usize).ok_or(Errno::INVAL)?;
    read_exact(strings)?;
    sys::close(JOB_FD);
    let mut rest = Reader::new(strings);
    (0..=args).try_for_each(|_| rest.text().map(drop)).ok_or(Errno::INVAL)?;
    let before = strings.len() - rest.rest().len();
    strings.copy_within(before.., 0);
    let variables = strings.len() - before;
    Ok((&strings[..variables], mark.found))
}

fn read_exact(mut buffer: &mut [u8]) -> Result<()> {
    while !buffer.is_empty() {
        match sys::read(JOB_FD, buffer) {
            Ok(0) => return Err(Errno::PIPE),
            Ok(len) => buffer = &mut buffer[len..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn read_word() -> Result<u32> {
    let mut word = [0; 4];
    read_exact(&mut word)?;
    Ok(u32::from_le_bytes(word))
}

/// The most bytes of a path in a job.
const PATH_LEN: usize = 4096;

/// A path: its length, and the bytes with their NUL.
fn read_path(buffer: &mut [u8; PATH_LEN]) -> Result<&CStr> {
    let len = read_word()? as usize;
    let path = buffer.get_mut(..len).ok_or(Errno::INVAL)?;
    read_exact(path)?;
    CStr::from_bytes_with_nul(path).map_err(|_| Errno::INVAL)
}

fn go() -> Result<()> {
    sys::chdir(read_path(&mut [0; PATH_LEN])?)
}

/// A file record: mode, name, length of the content, content.
fn write_file(mark: &mut Mark) -> Result<()> {
    const CREATE_TRUNCATE_WRITE_NOFOLLOW: i32 = 0o100 | 0o1000 | 0o1 | 0o400_000;
    let mode = read_word()?;
    let mut name = [0; PATH_LEN];
    let name = read_path(&mut name)?;
    let file = sys::open(name, CREATE_TRUNCATE_WRITE_NOFOLLOW, mode)?;
    let mut left = read_word()? as usize;
    let mut buffer = [0; 4 << 10];
    while left > 0 {
        let part = left.min(buffer.len());
        read_exact(&mut buffer[..part])?;
        mark.look(&buffer[..part]);
        let mut bytes = &buffer[..part];
        while !bytes.is_empty() {
            let written = sys::write(file, bytes)?;
            bytes = &bytes[written..];
        }
        left -= part;
    }
    sys::close(file);
    Ok(())
}

/// An exec record: flags, counts of arguments and variables, length, then the program's path, the
/// arguments and the variables, each after its length and with its NUL.
fn exec() -> Result<()> {
    let (flags, args, vars, len) = (read_word()?, read_word()?, read_word()?, read_word()?);
    let mut strings = [0; EXEC_BYTES];
    let strings = strings.get_mut(..len as usize).ok_or(Errno::INVAL)?;
    read_exact(strings)?;
    let mut rest = Reader::new(strings);
    let mut next = || rest.text().ok_or(Errno::INVAL);
    let program = next()?;
    let mut argv = StringList::<EXEC_STRINGS>::new();
    for _ in 0..args {
        argv.push(next()?)?;
    }
    let mut env = StringList::<EXEC_STRINGS>::new();
    for _ in 0..vars {
        env.push(next()?)?;
    }
    if flags & EXEC_KEEPS_JOB == 0 {
        sys::close_range(JOB_FD as u32, u32::MAX)?;
    }
    Err(sys::exec(program, &argv, &env))
}
