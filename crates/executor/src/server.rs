//! Runs in: server (no capabilities). Runs programs in cells that the spawner makes.
//!
//! A reader begins with `run`: one run in six steps. `executor` starts and stops; `pool`,
//! `pool_bucket` and `warm` hold cells that wait for a job; `spawner_client` speaks to the spawner.

mod aftermath;
pub(crate) mod cell;
pub(crate) mod cell_exit;
pub(crate) mod cell_meter;
pub(crate) mod cell_network;
pub(crate) mod cell_trust;
pub(crate) mod cell_waiters;
pub(crate) mod cell_watch;
pub(crate) mod commit;
pub(crate) mod config;
pub(crate) mod control_socket;
pub(crate) mod executor;
pub(crate) mod home_mount;
pub(crate) mod home_place;
pub(crate) mod image_mounts;
pub(crate) mod image_probe;
pub(crate) mod interpreter;
pub(crate) mod job_builder;
pub(crate) mod job_socket;
pub mod metrics;
pub(crate) mod output;
pub(crate) mod pool;
pub(crate) mod pool_bucket;
mod pool_refill;
pub(crate) mod priority;
pub(crate) mod reached_stores;
pub(crate) mod run;
pub(crate) mod run_error;
mod shell_gate;
mod slow_imports;
pub(crate) mod spawner_client;
pub(crate) mod spawner_process;
pub(crate) mod storage_mounts;
pub(crate) mod substrates;
pub(crate) mod tool_socket;
pub(crate) mod warm;
