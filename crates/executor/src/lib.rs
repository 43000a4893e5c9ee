//! Runs in: server (no capabilities), spawner (root) and packer. Runs one `RunSpec` on this host:
//! takes a cell, gives it the program, watches it to its end.
//!
//! Each folder has the code of one process: `server`, `spawner`, `packer`. What they say to each
//! other is in `protocol`. `server/run.rs` shows one run from beginning to end.
//!
//! The crate knows cells, deadlines and output. It does not know who sent the request, what they
//! may do, or what becomes of the outcome. Usable as a library:
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use cloche_executor::{Executor, ExecutorConfig, RunIo};
//! use cloche_model::{Language, RunSpec};
//!
//! let executor = Executor::start(ExecutorConfig::with_program("cloche")).await?;
//! let spec = RunSpec::new(Language::Python, "print(6 * 7)");
//! let outcome = executor.run(spec, RunIo::default()).await?;
//! assert_eq!(outcome.stdout.bytes, b"42\n");
//! executor.stop().await;
//! # Ok(()) }
//! ```

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod packer;
mod protocol;
mod server;
pub mod spawner;

pub use protocol::{HOME, USER};
pub use server::{
    commit::CommitError,
    config::ExecutorConfig,
    executor::{Executor, ExecutorStartError},
    home_mount::HomeError,
    image_mounts::ImageMountError,
    image_probe::{InterpreterFacts, ProbedInterpreter, ProgramStart},
    metrics,
    pool::PoolSettings,
    run::RunIo,
    run_error::RunError,
    spawner_client::SpawnError,
    storage_mounts::MountStorageConfig,
    warm::DEFAULT_PRELOAD,
};
