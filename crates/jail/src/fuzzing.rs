//! Runs in: tests and fuzz targets.
//!
//! The properties that the fuzz targets check of the readers that run in a cell.
//!
//! Each function takes any bytes and panics if a property does not hold. The tests at the end
//! replay the seeds that are in the tree.

use core::ffi::CStr;
use std::ffi::CString;

use crate::{
    guest::job_reader::{self, ExecLists, JobPort},
    protocol::{
        encode::{self, OwnedStep},
        job::{EXEC_BYTES, EXEC_KEEPS_JOB, EXEC_STRINGS},
        step::{ProgramReader, Step, StepRef},
    },
    server::job_writer,
    sys::{Errno, RawFd, Result},
};

/// Reads bytes as an encoded plan. Each accepted step is encoded again, to as many bytes, and these
/// are read as the same step.
pub fn check_steps(bytes: &[u8]) {
    let mut reader = ProgramReader::new(bytes);
    while !reader.is_empty() {
        let before = reader.rest();
        let Some(wall) = reader.read_text() else { return };
        let Some(step) = reader.read_step() else { return };
        let used = before.len() - reader.rest().len();
        let mut again = Vec::new();
        encode::append_text(&mut again, &wall.to_owned());
        encode::append_step(&mut again, &to_owned_step(&step));
        assert_eq!(again.len(), used, "a step is encoded to another length: {step:?}");
        let mut reread = ProgramReader::new(&again);
        assert_eq!(reread.read_text(), Some(wall));
        assert_eq!(reread.read_step().as_ref(), Some(&step));
        assert!(reread.is_empty());
        if let Step::Landlock { rules, .. } = step {
            check_rules(rules);
        }
    }
}

/// Reads Landlock rules. If all of them are accepted, they are encoded to the same bytes.
fn check_rules(bytes: &[u8]) {
    let mut reader = ProgramReader::new(bytes);
    let mut read = Vec::new();
    while !reader.is_empty() {
        let (Some(path), Some(access)) = (reader.read_text(), reader.read_number()) else { return };
        read.push((path.to_owned(), access));
    }
    assert_eq!(encode::encode_rules(&read), bytes);
}

fn to_owned_step(step: &StepRef<'_>) -> OwnedStep {
    let text = |text: &CStr| text.to_owned();
    match *step {
        Step::Become { uid, gid, clear_groups } => Step::Become { uid, gid, clear_groups },
        Step::Hostname { name } => Step::Hostname { name: name.to_vec() },
        Step::Loopback => Step::Loopback,
        Step::Mount { source, target, kind, flags, data } => Step::Mount {
            source: text(source),
            target: text(target),
            kind: text(kind),
            flags,
            data: text(data),
        },
        Step::Directory { path, mode, uid, gid } => {
            Step::Directory { path: text(path), mode, uid, gid }
        }
        Step::Pivot { root } => Step::Pivot { root: text(root) },
        Step::Enter { path } => Step::Enter { path: text(path) },
        Step::Limit { which, soft, hard } => Step::Limit { which, soft, hard },
        Step::CloseFrom { first } => Step::CloseFrom { first },
        Step::NoNewPrivs => Step::NoNewPrivs,
        Step::NoSpeculation { kind } => Step::NoSpeculation { kind },
        Step::WatchSockets { most } => Step::WatchSockets { most },
        Step::Landlock { files, scoped, size, rules } => {
            Step::Landlock { files, scoped, size, rules: rules.to_vec() }
        }
        Step::DropBounding { last } => Step::DropBounding { last },
        Step::DropCapabilities => Step::DropCapabilities,
        Step::Seccomp { program } => Step::Seccomp { program: program.to_vec() },
        Step::DieWithParent => Step::DieWithParent,
        Step::Unshare { kinds } => Step::Unshare { kinds },
        Step::Write { path, content } => {
            Step::Write { path: text(path), content: content.to_vec() }
        }
        Step::BuildIn { path } => Step::BuildIn { path: text(path) },
        Step::ContainSignals => Step::ContainSignals,
    }
}

/// Reads bytes as a job, in both ways: with exec and for a waiting interpreter. The first byte is
/// the most bytes that one read returns. The actions of a job, written as a job, are the bytes
/// read.
pub fn check_job(bytes: &[u8]) {
    let Some((&step, job)) = bytes.split_first() else { return };
    let step = usize::from(step).max(1);
    let mut port = MemoryPort::new(job, step);
    let ended = job_reader::take_job_from(&mut port);
    assert!(ended.is_err() || port.executed, "a job ended without a program");
    port.check_encoded();

    let mut waiting = MemoryPort::new(job, step);
    let mut buffer = vec![0; EXEC_BYTES];
    if let Ok((variables, is_archive)) = job_reader::take_variables(&mut waiting, &mut buffer) {
        let mut reader = ProgramReader::new(variables);
        while reader.read_text().is_some() {}
        let all = waiting.files.concat();
        // A mark that is split between two files counts as well.
        assert_eq!(is_archive, all.windows(4).any(|bytes| bytes == b"PK\x05\x06"));
    }
    waiting.check_encoded();
    assert_eq!(waiting.encoded, port.encoded, "the two readers took different files");
}

/// A job in memory, and the actions that it caused.
struct MemoryPort<'a> {
    job: &'a [u8],
    rest: &'a [u8],
    step: usize,
    /// The actions, written as a job.
    encoded: Vec<u8>,
    files: Vec<Vec<u8>>,
    open: Option<(CString, u32)>,
    executed: bool,
}

impl<'a> MemoryPort<'a> {
    fn new(job: &'a [u8], step: usize) -> Self {
        let (encoded, files) = (Vec::new(), Vec::new());
        Self { job, rest: job, step, encoded, files, open: None, executed: false }
    }

    fn read_so_far(&self) -> &'a [u8] {
        &self.job[..self.job.len() - self.rest.len()]
    }

    /// The completed files and directories are the beginning of the bytes that were read.
    fn check_encoded(&self) {
        assert!(self.read_so_far().starts_with(&self.encoded), "a job was read as another");
    }
}

impl JobPort for MemoryPort<'_> {
    fn warm_up(&mut self) {
        assert!(self.encoded.is_empty(), "a request to warm up is not the first record");
        self.encoded.extend(job_writer::WARM_UP);
    }

    fn read_job(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let count = self.step.min(buffer.len()).min(self.rest.len());
        let (head, rest) = self.rest.split_at(count);
        buffer[..count].copy_from_slice(head);
        self.rest = rest;
        Ok(count)
    }

    fn enter_directory(&mut self, directory: &CStr) -> Result<()> {
        job_writer::append_directory(&mut self.encoded, directory);
        Ok(())
    }

    fn create_file(&mut self, name: &CStr, mode: u32) -> Result<RawFd> {
        assert!(self.open.is_none(), "a second file was opened before the first was closed");
        assert!(name.to_bytes_with_nul().len() <= 4096);
        // The writer takes names that are UTF-8 only.
        if name.to_str().is_err() {
            return Err(Errno::INVAL);
        }
        self.open = Some((name.to_owned(), mode));
        self.files.push(Vec::new());
        Ok(7)
    }

    fn write_file(&mut self, file: RawFd, bytes: &[u8]) -> Result<usize> {
        assert!(file == 7 && self.open.is_some() && !bytes.is_empty());
        let count = bytes.len().min(self.step);
        let Some(open) = self.files.last_mut() else { return Err(Errno::INVAL) };
        open.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn close_file(&mut self, file: RawFd) {
        assert_eq!(file, 7);
        let (Some((name, mode)), Some(content)) = (self.open.take(), self.files.last()) else {
            panic!("a file was closed that was not open");
        };
        let name = name.to_str().unwrap_or_default();
        assert_eq!(job_writer::append_file(&mut self.encoded, name, mode, content), Ok(()));
    }

    fn exec_program(
        &mut self,
        program: &CStr,
        lists: &ExecLists<'_>,
        keeps_job: bool,
    ) -> Result<()> {
        self.executed = true;
        let record = &self.read_so_far()[self.encoded.len()..];
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| record[at * 4 + byte]));
        let (args, env) = (word(2) as usize, word(3) as usize);
        assert_eq!(keeps_job, word(1) & EXEC_KEEPS_JOB != 0);
        assert!(args < EXEC_STRINGS && env < EXEC_STRINGS && word(4) as usize <= EXEC_BYTES);
        let strings = &record[20..];
        assert_eq!(strings.len(), word(4) as usize);
        // The lists point to consecutive strings, each after its length, and end with null.
        let mut reader = ProgramReader::new(strings);
        assert_eq!(reader.read_text(), Some(program));
        let mut next = program.as_ptr().addr() + program.count_bytes() + 1;
        for (list, count) in [(&lists.args, args), (&lists.env, env)] {
            assert!(list.pointers[count..].iter().all(|pointer| pointer.is_null()));
            for pointer in &list.pointers[..count] {
                let Some(text) = reader.read_text() else { panic!("more strings than there are") };
                assert_eq!(pointer.addr(), next + 8, "a list points somewhere else");
                next = pointer.addr() + text.count_bytes() + 1;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use crate::job_writer::ExecProgram;

    /// A target and its check.
    type FuzzCheck = (&'static str, fn(&[u8]));

    #[test]
    fn seeds_of_the_fuzz_targets_pass() {
        let all: [FuzzCheck; 2] = [("job", check_job), ("steps", check_steps)];
        for (target, check) in all {
            let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
            let seeds: Vec<_> =
                fs::read_dir(seeds).unwrap().map(|seed| seed.unwrap().path()).collect();
            assert!(!seeds.is_empty(), "{target} has no seeds");
            seeds.iter().for_each(|seed| check(&fs::read(seed).unwrap()));
        }
    }

    #[test]
    fn an_exec_record_of_any_length_is_executed() {
        for len in [1, 4000, 4096, 5000, 100_000] {
            let text = |len| CString::new(vec![b'x'; len]).unwrap();
            let (args, env) = (vec![text(4), text(3)], vec![text(1), text(len)]);
            let exec = ExecProgram { program: text(8), args, env, keeps_job: true };
            // Whole reads, so that only the length of the record matters.
            let mut job = vec![255];
            job_writer::append_exec(&mut job, &exec).unwrap();
            let mut port = MemoryPort::new(&job[1..], usize::MAX);
            assert_eq!(job_reader::take_job_from(&mut port), Ok(()), "{len}");
            assert!(port.executed, "{len}");
            check_job(&job);
        }
    }
}
