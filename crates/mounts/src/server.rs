//! Runs in: mount server (no capabilities). The FUSE process of one cell: it serves every mount of
//! that cell, and ends with it.

mod attributes;
mod confinement;
mod control;
mod directory;
mod idle_session;
mod late_filesystem;
mod lazy_runtime;
mod meter;
mod objects;
mod process;

pub use confinement::prepare_mount_server;
pub use process::{MountServerInput, ReadyConnection, run_mount_server};
