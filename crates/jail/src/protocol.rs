//! Runs in: every process.
//!
//! Shared between processes: the bytes and descriptors that one process of ours sends and another
//! one reads. The reader of a job is in `guest`, its writer in `server`.
//!
//! | message | from | to |
//! |---|---|---|
//! | `step`, written by `encode`: the steps of a plan | spawner | the child that sets up a cell |
//! | `job`: files, variables, what to start | server | guest |
//! | `report`: walls are up, how the program ended | pid 1 | server |
//! | `fork_request`: fork a cell | spawner | template |
//! | `last_word`: the exit code of a stopped main process | guest | pid 1 |

pub mod constants;
#[cfg(not(cloche_template))]
pub(crate) mod encode;
pub mod fd_numbers;
pub mod fork_request;
pub mod job;
pub(crate) mod last_word;
pub mod report;
pub(crate) mod step;
