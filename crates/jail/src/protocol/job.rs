//! Runs in: server (no capabilities), guest.
//!
//! The records of a job: what the server writes and a guest's process reads.

pub use super::constants::{
    EXEC_BYTES, EXEC_KEEPS_JOB, EXEC_STRINGS, JOB_DIRECTORY, JOB_EXEC, JOB_FILE, JOB_GATE,
    JOB_WARM_UP, PATH_BYTES,
};
