//! Runs in: server (no capabilities).
//!
//! Writes the job that the guest's process of a cell reads with `guest::job_reader`.

use std::ffi::{CStr, CString};

use crate::protocol::{
    encode,
    job::{
        EXEC_BYTES, EXEC_KEEPS_JOB, EXEC_STRINGS, JOB_DIRECTORY, JOB_EXEC, JOB_FILE, JOB_GATE,
        JOB_WARM_UP, PATH_BYTES,
    },
};

/// A program to exec at the end of a job.
#[derive(Clone, Debug)]
pub struct ExecProgram {
    /// Its path in the cell.
    pub program: CString,
    /// Its arguments, the name included.
    pub args: Vec<CString>,
    /// Its complete environment.
    pub env: Vec<CString>,
    /// Whether the job socket stays open as descriptor 3, for a second job.
    pub keeps_job: bool,
}

/// Why a job cannot be encoded.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum InvalidJob {
    /// The arguments and variables are too many or too long.
    #[error(
        "arguments and environment have {bytes} bytes in up to {strings} strings each; \
         at most {} bytes and {} strings are allowed",
        EXEC_BYTES,
        EXEC_STRINGS - 1
    )]
    TooLarge {
        /// The length of all of them, encoded.
        bytes: usize,
        /// The larger of the numbers of arguments and of variables.
        strings: usize,
    },
    /// A file of 4 GiB or more, or an invalid name.
    #[error(
        "the file {0:?} cannot be sent: it has 4 GiB or more, or its name is too long or has a NUL"
    )]
    File(String),
}

fn append_word(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// Appends a file to a job; the name is relative to the home.
pub fn append_file(
    out: &mut Vec<u8>,
    name: &str,
    mode: u32,
    content: &[u8],
) -> Result<(), InvalidJob> {
    let invalid = || InvalidJob::File(name.to_owned());
    let path = CString::new(name).map_err(|_| invalid())?;
    let path = path.as_bytes_with_nul();
    let len = u32::try_from(content.len()).map_err(|_| invalid())?;
    if path.len() > PATH_BYTES {
        return Err(invalid());
    }
    append_word(out, JOB_FILE);
    append_word(out, mode);
    append_word(out, path.len() as u32);
    out.extend_from_slice(path);
    append_word(out, len);
    out.extend_from_slice(content);
    Ok(())
}

/// Appends a directory to change to. To be appended before any file.
pub fn append_directory(out: &mut Vec<u8>, directory: &CStr) {
    let path = directory.to_bytes_with_nul();
    append_word(out, JOB_DIRECTORY);
    append_word(out, path.len() as u32);
    out.extend_from_slice(path);
}

/// Appends what an interpreter reads that waits at the gate. To be appended after all files.
pub fn append_gate(out: &mut Vec<u8>, words: &[u8]) -> Result<(), InvalidJob> {
    let len = u32::try_from(words.len()).map_err(|_| InvalidJob::File("gate".to_owned()))?;
    append_word(out, JOB_GATE);
    append_word(out, len);
    out.extend_from_slice(words);
    Ok(())
}

/// What a forked interpreter that waits is sent while there is no job. Others do not understand it.
pub const WARM_UP: [u8; 4] = JOB_WARM_UP.to_le_bytes();

/// Appends the last record of a job.
pub fn append_exec(out: &mut Vec<u8>, exec: &ExecProgram) -> Result<(), InvalidJob> {
    let mut strings = Vec::new();
    let all = [&exec.program].into_iter().chain(&exec.args).chain(&exec.env);
    all.for_each(|value| encode::append_text(&mut strings, value));
    let most = exec.args.len().max(exec.env.len());
    if strings.len() > EXEC_BYTES || most >= EXEC_STRINGS {
        return Err(InvalidJob::TooLarge { bytes: strings.len(), strings: most });
    }
    append_word(out, JOB_EXEC);
    append_word(out, if exec.keeps_job { EXEC_KEEPS_JOB } else { 0 });
    append_word(out, exec.args.len() as u32);
    append_word(out, exec.env.len() as u32);
    append_word(out, strings.len() as u32);
    out.extend_from_slice(&strings);
    Ok(())
}
