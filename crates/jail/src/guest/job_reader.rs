//! Runs in: guest.
//!
//! Reads a job under all walls, in the process that becomes the guest. Core only.
//!
//! A job is files to write, then a program to exec. An interpreter that waits for its job takes the
//! files and the variables, and executes nothing. It does not know the language or the tenant.
//! `server::job_writer` is the writer.

use core::{ffi::CStr, ops::Range};

use crate::{
    protocol::{
        constants::READY,
        fd_numbers::JOB_FD,
        job::{
            EXEC_BYTES, EXEC_KEEPS_JOB, EXEC_STRINGS, JOB_DIRECTORY, JOB_EXEC, JOB_FILE, JOB_GATE,
            JOB_WARM_UP, PATH_BYTES,
        },
        step::ProgramReader,
    },
    sys::{self, Errno, HotPages, RawFd, Result, StringList},
};

/// Where a job comes from and what it acts on: the kernel, or the memory of the fuzz target of this
/// reader.
pub(crate) trait JobPort {
    /// Reads some bytes of the job; zero at its end.
    fn read_job(&mut self, buffer: &mut [u8]) -> Result<usize>;
    /// Changes to a directory.
    fn enter_directory(&mut self, directory: &CStr) -> Result<()>;
    /// Creates a file, or truncates an existing one.
    fn create_file(&mut self, name: &CStr, mode: u32) -> Result<RawFd>;
    /// Writes some bytes to the file.
    fn write_file(&mut self, file: RawFd, bytes: &[u8]) -> Result<usize>;
    /// Closes the file.
    fn close_file(&mut self, file: RawFd);
    /// Passes on what an interpreter at the gate reads. Any other guest needs none of it.
    fn pass_gate(&mut self, _bytes: &[u8]) -> Result<()> {
        Ok(())
    }
    /// Prepares for a program while there is time. Any guest but a forked one has nothing to do.
    fn warm_up(&mut self) {}
    /// Executes a program; returns only if that failed.
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
pub(crate) struct JobSocket;

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

/// The job socket, read in large pieces. Only for a process that takes the whole job itself: what it
/// has read ahead is lost to a program that it executes.
struct BufferedJobSocket {
    bytes: [u8; 4 << 10],
    /// The part of the bytes that was not taken yet.
    rest: Range<usize>,
    /// What usual programs use.
    usual: HotPages,
}

impl BufferedJobSocket {
    const fn new(usual: HotPages) -> Self {
        Self { bytes: [0; 4 << 10], rest: 0..0, usual }
    }
}

impl JobPort for BufferedJobSocket {
    fn read_job(&mut self, buffer: &mut [u8]) -> Result<usize> {
        if self.rest.is_empty() {
            self.rest = 0..JobSocket.read_job(&mut self.bytes)?;
        }
        let count = buffer.len().min(self.rest.len());
        let taken = self.rest.start..self.rest.start + count;
        buffer[..count].copy_from_slice(&self.bytes[taken]);
        self.rest.start += count;
        Ok(count)
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

    fn warm_up(&mut self) {
        self.usual.map_inside();
    }

    fn exec_program(&mut self, _: &CStr, _: &ExecLists<'_>, _: bool) -> Result<()> {
        Err(Errno::INVAL)
    }
}

/// Takes a whole job from the job socket; returns only if that failed.
pub(crate) fn take_job() -> Result<()> {
    take_job_from(&mut JobSocket)
}

/// Takes a whole job from any port.
pub(crate) fn take_job_from(port: &mut impl JobPort) -> Result<()> {
    take_files(port).map(drop)?;
    take_exec(port)
}

/// Takes all records of a job before its last one, which names the program. A request to warm up
/// comes first, what passes the gate comes last.
fn take_files(port: &mut impl JobPort) -> Result<ZipMarkScanner> {
    let mut mark = ZipMarkScanner::default();
    let (mut has_begun, mut has_passed_gate) = (false, false);
    loop {
        match read_word(port)? {
            JOB_EXEC => return Ok(mark),
            JOB_WARM_UP if !has_begun => port.warm_up(),
            _ if has_passed_gate => return Err(Errno::INVAL),
            JOB_FILE => take_file(port, &mut mark)?,
            JOB_DIRECTORY => take_directory(port)?,
            JOB_GATE => {
                let len = read_word(port)? as usize;
                read_parts(port, len, JobPort::pass_gate)?;
                has_passed_gate = true;
            }
            _ => return Err(Errno::INVAL),
        }
        has_begun = true;
    }
}

/// Looks for the end record of a zip archive in the bytes of all files. Python runs a main file
/// that is an archive in another way.
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

/// For an interpreter that waits: signals that it is ready, takes its job, and executes nothing.
/// Asked to warm up before, it maps the pages of usual programs. Returns the variables, at the start
/// of the buffer, each after its length and with its NUL; and whether a file may be a zip archive.
pub fn wait_for_variables(buffer: &mut [u8], usual: HotPages) -> Result<(&[u8], bool)> {
    let _ = sys::write(JOB_FD, READY.as_bytes());
    let taken = take_variables(&mut BufferedJobSocket::new(usual), buffer)?;
    sys::close(JOB_FD);
    Ok(taken)
}

/// Takes files and variables of a job from any port, and executes nothing.
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

/// The last record of a job: the program, its arguments, then its variables.
#[derive(Clone, Copy, Debug)]
pub struct ExecRecord<'a> {
    /// The number of arguments, the name of the program included.
    pub args: u32,
    /// All strings, each after its length and with its NUL.
    pub strings: &'a [u8],
}

impl<'a> ExecRecord<'a> {
    /// The strings in order.
    pub fn texts(self) -> impl Iterator<Item = &'a CStr> {
        let mut rest = ProgramReader::new(self.strings);
        core::iter::from_fn(move || if rest.is_empty() { None } else { rest.read_text() })
    }
}

/// For a cell whose guest another program starts: takes the files of the job from the job socket,
/// and returns the rest without executing it.
pub fn place_job(buffer: &mut [u8]) -> Result<ExecRecord<'_>> {
    let port = &mut JobSocket;
    take_files(port).map(drop)?;
    let [_, args, _, len] = read_words(port)?;
    let strings = buffer.get_mut(..len as usize).ok_or(Errno::INVAL)?;
    read_exact(port, strings)?;
    Ok(ExecRecord { args, strings })
}

/// For pid 1 whose guest waits at the gate: takes the files of the job from the job socket, writes
/// what the interpreter is to read to the gate, and skips the rest.
pub(crate) fn take_gate_job(port: &mut impl JobPort) -> Result<()> {
    take_files(port).map(drop)?;
    let [_, _, _, len] = read_words(port)?;
    read_parts(port, len as usize, |_, _| Ok(()))
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

/// Reads the four numbers of an exec record.
fn read_words(port: &mut impl JobPort) -> Result<[u32; 4]> {
    Ok([read_word(port)?, read_word(port)?, read_word(port)?, read_word(port)?])
}

/// Reads a path: its length, then its bytes with their NUL.
fn read_path<'a>(port: &mut impl JobPort, buffer: &'a mut [u8; PATH_BYTES]) -> Result<&'a CStr> {
    let len = read_word(port)? as usize;
    let path = buffer.get_mut(..len).ok_or(Errno::INVAL)?;
    read_exact(port, path)?;
    CStr::from_bytes_with_nul(path).map_err(|_| Errno::INVAL)
}

fn take_directory(port: &mut impl JobPort) -> Result<()> {
    let mut path = [0; PATH_BYTES];
    let path = read_path(port, &mut path)?;
    port.enter_directory(path)
}

/// Takes a file record: mode, name, length of the content, content.
fn take_file(port: &mut impl JobPort, mark: &mut ZipMarkScanner) -> Result<()> {
    let mode = read_word(port)?;
    let mut name = [0; PATH_BYTES];
    let name = read_path(port, &mut name)?;
    let file = port.create_file(name, mode)?;
    let len = read_word(port)? as usize;
    read_parts(port, len, |port, mut bytes| {
        mark.scan(bytes);
        while !bytes.is_empty() {
            let written = port.write_file(file, bytes)?;
            bytes = &bytes[written..];
        }
        Ok(())
    })?;
    port.close_file(file);
    Ok(())
}

/// Reads so many bytes, part by part.
fn read_parts<P: JobPort>(
    port: &mut P,
    mut left: usize,
    mut take_part: impl FnMut(&mut P, &[u8]) -> Result<()>,
) -> Result<()> {
    let mut buffer = [0; 4 << 10];
    while left > 0 {
        let part = left.min(buffer.len());
        read_exact(port, &mut buffer[..part])?;
        take_part(port, &buffer[..part])?;
        left -= part;
    }
    Ok(())
}

/// Takes an exec record: flags, counts of arguments and variables, length, then the program's path,
/// the arguments and the variables, each after its length and with its NUL.
fn take_exec(port: &mut impl JobPort) -> Result<()> {
    // Every page of a buffer costs a page fault, so that of most jobs is small.
    const USUAL: usize = 4 << 10;
    match read_words(port)? {
        words @ [.., len] if len as usize <= USUAL => exec_strings::<_, USUAL>(port, words),
        words => exec_strings::<_, EXEC_BYTES>(port, words),
    }
}

/// Executes a program with at most `MOST` bytes of strings. Not inlined, so that each size has its
/// own stack.
#[inline(never)]
fn exec_strings<P: JobPort, const MOST: usize>(port: &mut P, words: [u32; 4]) -> Result<()> {
    let [flags, args, vars, len] = words;
    let mut strings = [0; MOST];
    let strings = strings.get_mut(..len as usize).ok_or(Errno::INVAL)?;
    read_exact(port, strings)?;
    let mut rest = ProgramReader::new(strings);
    let mut next = || rest.read_text().ok_or(Errno::INVAL);
    let program = next()?;
    let mut lists = ExecLists { args: StringList::new(), env: StringList::new() };
    (0..args).try_for_each(|_| lists.args.push(next()?))?;
    (0..vars).try_for_each(|_| lists.env.push(next()?))?;
    port.exec_program(program, &lists, flags & EXEC_KEEPS_JOB != 0)
}
