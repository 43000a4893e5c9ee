//! Runs in: every process.
//!
//! One isolated process tree: a plan of walls, and the system calls that build them.
//!
//! A folder holds the code of one process. Code that several processes share is in `protocol` (what
//! they send to each other), `shared`, `seccomp` and `sys`.
//!
//! | folder | process and privilege |
//! |---|---|
//! | [`server`] | the server, without capabilities: writes jobs, gives up privileges |
//! | [`spawner`] | the spawner, root: plans a cell, makes its cgroup, clones pid 1 |
//! | [`template`] | a template, root in its own user namespace: forks cells |
//! | [`setup`] | a child between `clone` and the guest: applies the steps of the plan |
//! | `pid_one` | pid 1 of a cell: reaps, reports, bounds sockets |
//! | [`guest`] | the guest's process under all walls, before `exec` |
//! | [`protocol`], `shared`, [`seccomp`] | several of these |
//! | [`sys`] | all of these: system calls, and the only `unsafe` code |
//!
//! The crate is synchronous, imports no other crate of the project, and cannot name a tenant, a
//! request or a language. `template_lib.rs` is the root of a second crate from the same files.

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod guest;
pub(crate) mod pid_one;
pub mod protocol;
pub mod seccomp;
pub mod server;
pub mod setup;
pub(crate) mod shared;
pub mod spawner;
pub mod sys;
pub mod template;

// Short paths for the other crates.
pub use pid_one::{
    contained_cell::END_SIGNAL, driven_cell::stay_as_pid_one, socket_budget::has_too_many_sockets,
};
pub use protocol::report;
pub use server::{job_writer, privileges};
pub use spawner::{cgroup, launch, plan, proc_masks, rlimits, speculation, walls};
