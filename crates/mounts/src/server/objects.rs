//! Runs in: mount server (no capabilities). A mount of a prefix of a bucket.
//!
//! Reads are ranges of objects, pinned to the version that was opened. Writes go to a local spool and
//! become an object at a close or fsync. Every request of the kernel has a deadline, so that a dead
//! store is an error of the program and never a hang.

mod blocks;
mod directory_list;
mod filesystem;
mod mount;
mod nodes;
mod range_set;
mod read_ahead;
mod replies;
mod small_files;
mod spool;
mod writes;

pub(super) use filesystem::ObjectFs;
pub(super) use mount::{ObjectMount, ObjectMountSettings};
