//! The spawner: the one privileged process, single-threaded, which starts cells and nothing else.
//!
//! `client` is how the rest of the executor speaks to it, `keeper` restarts it, `worker` is its
//! loop, `bells` is what wakes it, `ground` is the bare mount namespace it works in, `host_ids` reserves the ids of its cells,
//! `homes` mounts the homes of threads,
//! `packer` reads what a run has written, `linked` finds the other names of what it changed,
//! `lock_watch` finds cells with too many file locks, `protocol` is what is said.

pub(crate) mod cell_exit;
pub(crate) mod cell_meter;
mod cell_record;
pub(crate) mod client;
mod event_loop;
mod hard_links;
pub(crate) mod home_mounter;
mod host_ids;
mod host_setup;
mod lock_watch;
mod packer;
mod plan_cache;
mod poller;
mod prepared;
pub(crate) mod protocol;
mod supervisor;
mod template_connection;

pub use client::SpawnerProcess;
pub use supervisor::{NotASpawner, run_spawner, run_spawner_with};
