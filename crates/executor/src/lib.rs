//! Runs one `RunSpec` on this host: finds a cell, brings the program in, watches it to its end.
//!
//! It knows cells, deadlines and output. It does not know who asked, what they may, or what
//! becomes of the outcome. Usable as a library:
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use cloche_executor::{Config, Executor, RunIo};
//! use cloche_model::{Language, RunSpec};
//!
//! let executor = Executor::start(Config::with_program("cloche")).await?;
//! let spec = RunSpec::new(Language::Python, "print(6 * 7)");
//! let outcome = executor.run(spec, RunIo::default()).await?;
//! assert_eq!(outcome.stdout.bytes, b"42\n");
//! executor.stop().await;
//! # Ok(()) }
//! ```

mod cell;
mod cell_run;
mod commit;
mod control_socket;
mod executor;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod home_mount;
mod image;
mod job_builder;
pub mod metrics;
mod output;
mod pool;
mod pool_bucket;
mod priority;
pub mod spawner;
mod warm;

pub use commit::CommitError;
pub use executor::{Executor, ExecutorConfig, ExecutorStartError, RunError, RunIo};
pub use home_mount::HomeError;
pub use image::{HOME, USER};
pub use pool::PoolSettings;
pub use spawner::client::SpawnError;
pub use warm::DEFAULT_PRELOAD;
