//! The spawner: the one privileged process, single-threaded, which starts cells and nothing else.
//!
//! `client` is how the rest of the executor speaks to it, `keeper` restarts it, `worker` is its
//! loop, `bells` is what wakes it, `ground` is the bare mount namespace it works in, `host_ids` reserves the ids of its cells,
//! `homes` mounts the homes of threads,
//! `packer` reads what a run has written, `linked` finds the other names of what it changed,
//! `protocol` is what is said.

mod bells;
pub(crate) mod client;
pub(crate) mod gone;
mod ground;
mod held;
pub(crate) mod homes;
mod host_ids;
mod keeper;
mod linked;
pub(crate) mod meter;
mod packer;
mod plans;
pub(crate) mod protocol;
mod stock;
mod templates;
mod worker;

pub use client::Process;
pub use keeper::{NotASpawner, run, run_with};
