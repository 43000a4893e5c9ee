//! One process in a box.
//!
//! `plan` says what the box is, `apply` and `init` build it from inside, `launch` starts it,
//! `cgroup` bounds it. Synchronous, imports nothing of the project's, and holds its only `unsafe`
//! code, in `sys`. It cannot name a tenant, a request or a language.

pub(crate) mod apply;
pub mod cgroup;
mod encode;
mod errno;
mod fmt_buf;
pub mod fork_server;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod init;
pub mod job_reader;
pub mod job_writer;
mod landlock;
pub mod launch;
mod netns_pool;
pub(crate) mod pid_one;
pub mod plan;
pub mod privileges;
pub mod proc_masks;
pub mod rlimits;
mod safe_calls;
pub mod seccomp;
mod small_filter;
mod socket_budget;
mod socket_watch;
pub mod speculation;
pub(crate) mod step;
pub mod sys;
mod syscall_table;
pub mod walls;
