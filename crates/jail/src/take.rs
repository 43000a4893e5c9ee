//! Reading a job, in the process that becomes the guest, under all walls. Core only.
//!
//! Files to write, then what to exec; an interpreter that waits takes the files and the variables.
//! Neither knows what language or whose code it is. [`crate::job`] is the writer.

use core::ffi::CStr;

use crate::{
    init::JOB_FD,
    step::Reader,
    sys::{self, Errno, Result, StringList},
};

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

/// Takes a whole job; returns only with the reason why not.
pub(crate) fn take_job() -> Result<()> {
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
