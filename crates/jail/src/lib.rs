//! One process in a box.
//!
//! `plan` says what the box is, `apply` and `init` build it from inside, `launch` starts it,
//! `cgroup` bounds it. Synchronous, imports nothing of the project's, and holds its only `unsafe`
//! code, in `sys`. It cannot name a tenant, a request or a language.

pub(crate) mod apply;
mod calls;
pub mod cgroup;
mod encode;
mod errno;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod init;
pub mod job;
mod landlock;
pub mod launch;
mod networks;
pub(crate) mod pid_one;
mod plain;
pub mod plan;
pub mod privileges;
pub mod proc_masks;
pub mod rlimits;
pub mod seccomp;
pub mod serve;
mod small_filter;
mod socket_budget;
pub mod speculation;
pub(crate) mod step;
pub mod sys;
pub mod take;
mod text;
pub mod walls;
mod watch;
