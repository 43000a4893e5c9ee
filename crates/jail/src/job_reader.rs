//! Reading a job, in the process that becomes the guest, under all walls. Core only.
//!
//! Files to write, then what to exec; an interpreter that waits takes the files and the variables.
//! Neither knows what language or whose code it is. [`crate::job`] is the writer.

use core::ffi::CStr;

use crate::{
    init::JOB_FD,
    step::ProgramReader,
    sys::{self, Errno, RawFd, Result, StringList},
};

/// Marks a file in a job: mode, name, content.
pub const JOB_FILE: u32 = 1;
/// Marks the end of a job: what to exec.
pub const JOB_EXEC: u32 = 2;
/// Marks a directory to go to, since what is mounted there has changed.
pub const JOB_DIRECTORY: u32 = 3;
/// In an exec record: leave the job socket open as [`JOB_FD`].
pub const EXEC_KEEPS_JOB: u32 = 1;
/// The most bytes of arguments and environment together.
pub const EXEC_BYTES: usize = 160 << 10;
/// The most arguments, and the most environment variables.
pub const EXEC_STRINGS: usize = 128;

/// Where a job comes from and what it acts on. The kernel, but for the fuzz target of this reader,
/// which keeps everything in memory.
pub(crate) trait JobPort {
    /// Reads some bytes of the job; none at its end.
    fn read_job(&mut self, buffer: &mut [u8]) -> Result<usize>;
    /// Goes to a directory.
    fn enter_directory(&mut self, directory: &CStr) -> Result<()>;
    /// Makes a file, or empties the one that is there.
    fn create_file(&mut self, name: &CStr, mode: u32) -> Result<RawFd>;
    /// Writes some bytes to such a file.
    fn write_file(&mut self, file: RawFd, bytes: &[u8]) -> Result<usize>;
    /// Closes such a file.
    fn close_file(&mut self, file: RawFd);
    /// Becomes a program; returns only with the reason why not.
    fn exec_program(
        &mut self,
        program: &CStr,
        lists: &ExecLists<'_>,
        keeps_job: bool,
    ) -> Result<()>;
}

/// The arguments and the environment of a program.
pub(crate) struct ExecLists<'a> {
    pub(crate) args: StringList<'a, EXEC_STRINGS>,
    pub(crate) env: StringList<'a, EXEC_STRINGS>,
}

/// The job socket and the kernel.
struct JobSocket;

impl JobPort for JobSocket {
    fn read_job(&mut self, buffer: &mut [u8]) -> Result<usize> {
        sys::read(JOB_FD, buffer)
    }

    fn enter_directory(&mut self, directory: &CStr) -> Result<()> {
        sys::chdir(directory)
    }

    fn create_file(&mut self, name: &CStr, mode: u32) -> Result<RawFd> {
        const CREATE_TRUNCATE_WRITE_NOFOLLOW: i32 = 0o100 | 0o1000 | 0o1 | 0o400_000;
        sys::open(name, CREATE_TRUNCATE_WRITE_NOFOLLOW, mode)
    }

    fn write_file(&mut self, file: RawFd, bytes: &[u8]) -> Result<usize> {
        sys::write(file, bytes)
    }

    fn close_file(&mut self, file: RawFd) {
        sys::close(file);
    }

    fn exec_program(
        &mut self,
        program: &CStr,
        lists: &ExecLists<'_>,
        keeps_job: bool,
    ) -> Result<()> {
        if !keeps_job {
            sys::close_range(JOB_FD as u32, u32::MAX)?;
        }
        Err(sys::exec(program, &lists.args, &lists.env))
    }
}

/// Takes a whole job; returns only with the reason why not.
pub(crate) fn take_job() -> Result<()> {
    take_job_from(&mut JobSocket)
}

/// The same from any port.
pub(crate) fn take_job_from(port: &mut impl JobPort) -> Result<()> {
    take_files(port).map(drop)?;
    take_exec(port)
}

/// Everything of a job up to its end, which says what to exec.
fn take_files(port: &mut impl JobPort) -> Result<ZipMarkScanner> {
    let mut mark = ZipMarkScanner::default();
    loop {
        match read_word(port)? {
            JOB_FILE => take_file(port, &mut mark)?,
            JOB_EXEC => return Ok(mark),
            JOB_DIRECTORY => take_directory(port)?,
            _ => return Err(Errno::INVAL),
        }
    }
}

/// Whether a zip archive's mark has been among the bytes of files. Python runs a main file that
/// is an archive in another way.
#[derive(Default)]
struct ZipMarkScanner {
    matched: usize,
    found: bool,
}

impl ZipMarkScanner {
    fn scan(&mut self, bytes: &[u8]) {
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
    let taken = take_variables(&mut JobSocket, buffer)?;
    sys::close(JOB_FD);
    Ok(taken)
}

/// Takes a job from any port, and executes nothing.
pub(crate) fn take_variables<'a>(
    port: &mut impl JobPort,
    buffer: &'a mut [u8],
) -> Result<(&'a [u8], bool)> {
    let mark = take_files(port)?;
    let [_, args, _, len] = read_words(port)?;
    let strings = buffer.get_mut(..len as usize).ok_or(Errno::INVAL)?;
    read_exact(port, strings)?;
    let mut rest = ProgramReader::new(strings);
    (0..=args).try_for_each(|_| rest.read_text().map(drop)).ok_or(Errno::INVAL)?;
    let before = strings.len() - rest.rest().len();
    strings.copy_within(before.., 0);
    let variables = strings.len() - before;
    Ok((&strings[..variables], mark.found))
}

fn read_exact(port: &mut impl JobPort, mut buffer: &mut [u8]) -> Result<()> {
    while !buffer.is_empty() {
        match port.read_job(buffer) {
            Ok(0) => return Err(Errno::PIPE),
            Ok(len) => buffer = &mut buffer[len..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn read_word(port: &mut impl JobPort) -> Result<u32> {
    let mut word = [0; 4];
    read_exact(port, &mut word)?;
    Ok(u32::from_le_bytes(word))
}

/// The four numbers of an exec record.
fn read_words(port: &mut impl JobPort) -> Result<[u32; 4]> {
    Ok([read_word(port)?, read_word(port)?, read_word(port)?, read_word(port)?])
}

/// The most bytes of a path in a job.
const PATH_LEN: usize = 4096;

/// A path: its length, and the bytes with their NUL.
fn read_path<'a>(port: &mut impl JobPort, buffer: &'a mut [u8; PATH_LEN]) -> Result<&'a CStr> {
    let len = read_word(port)? as usize;
    let path = buffer.get_mut(..len).ok_or(Errno::INVAL)?;
    read_exact(port, path)?;
    CStr::from_bytes_with_nul(path).map_err(|_| Errno::INVAL)
}

fn take_directory(port: &mut impl JobPort) -> Result<()> {
    let mut path = [0; PATH_LEN];
    let path = read_path(port, &mut path)?;
    port.enter_directory(path)
}

/// A file record: mode, name, length of the content, content.
fn take_file(port: &mut impl JobPort, mark: &mut ZipMarkScanner) -> Result<()> {
    let mode = read_word(port)?;
    let mut name = [0; PATH_LEN];
    let name = read_path(port, &mut name)?;
    let file = port.create_file(name, mode)?;
    let mut left = read_word(port)? as usize;
    let mut buffer = [0; 4 << 10];
    while left > 0 {
        let part = left.min(buffer.len());
        read_exact(port, &mut buffer[..part])?;
        mark.scan(&buffer[..part]);
        let mut bytes = &buffer[..part];
        while !bytes.is_empty() {
            let written = port.write_file(file, bytes)?;
            bytes = &bytes[written..];
        }
        left -= part;
    }
    port.close_file(file);
    Ok(())
}

/// An exec record: flags, counts of arguments and variables, length, then the program's path, the
/// arguments and the variables, each after its length and with its NUL.
fn take_exec(port: &mut impl JobPort) -> Result<()> {
    let [flags, args, vars, len] = read_words(port)?;
    let mut strings = [0; EXEC_BYTES];
    let strings = strings.get_mut(..len as usize).ok_or(Errno::INVAL)?;
    read_exact(port, strings)?;
    let mut rest = ProgramReader::new(strings);
    let mut next = || rest.read_text().ok_or(Errno::INVAL);
    let program = next()?;
    let mut lists = ExecLists { args: StringList::new(), env: StringList::new() };
    for _ in 0..args {
        lists.args.push(next()?)?;
    }
    for _ in 0..vars {
        lists.env.push(next()?)?;
    }
    port.exec_program(program, &lists, flags & EXEC_KEEPS_JOB != 0)
}
