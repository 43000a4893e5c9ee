//! Runs in: spawner (root). The one privileged process; single-threaded, it makes cells and nothing
//! else. The server's side of the socket is in `server/spawner_client.rs`.
//!
//! `supervisor` starts the event loop and starts it again if it dies. `event_loop` reads requests
//! and answers them. The rest is what it uses to do so, one mechanism per file.

use std::io;

use cloche_jail::sys::Errno;

mod cell_mount_servers;
mod cell_networks;
mod cell_record;
mod cell_registry;
mod contained_host;
mod driver_process;
mod event_loop;
mod home_mounter;
mod home_target;
mod host_ids;
mod host_setup;
mod image;
mod image_mounter;
mod lock_watch;
mod mount_server_process;
mod network_worker;
mod packer_process;
mod plan_cache;
mod poller;
mod prepared;
mod process_watch;
mod scratch_dir;
mod storage_mounter;
mod supervisor;
mod template_connection;
mod tool_socket;
mod user_xattrs;

pub(crate) use home_mounter::LAYERS;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use home_mounter::check_layer_name;
pub use supervisor::{NotASpawner, run_spawner, run_spawner_with};
pub(crate) use user_xattrs::read_user_xattrs;

/// The handle that the server has to a spawner that it started. It is in the server's folder; this
/// path stays for callers.
pub use crate::server::spawner_process::SpawnerProcess;

fn io_error(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.0)
}
