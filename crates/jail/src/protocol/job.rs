//! Runs in: server (no capabilities), guest.
//!
//! The records of a job: what the server writes and a guest's process reads.

/// A file: mode, name, content.
pub const JOB_FILE: u32 = 1;
/// The last record of a job: the program to exec.
pub const JOB_EXEC: u32 = 2;
/// A directory to change to, because a mount there is newer than the guest's working directory.
pub const JOB_DIRECTORY: u32 = 3;
/// A flag of an exec record: keep the job socket open as descriptor 3.
pub const EXEC_KEEPS_JOB: u32 = 1;
/// The most bytes of arguments and environment together.
pub const EXEC_BYTES: usize = 160 << 10;
/// The most arguments, and the most environment variables.
pub const EXEC_STRINGS: usize = 128;
/// The most bytes of a path, its NUL included.
pub(crate) const PATH_LEN: usize = 4096;
