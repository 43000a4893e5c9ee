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

mod attach;
mod cell;
mod control;
mod drive;
mod executor;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod home;
mod image;
pub mod metrics;
mod output;
mod pool;
mod priority;
mod seal;
mod shelf;
pub mod spawner;
mod warm;

pub use executor::{Config, Executor, RunError, RunIo, StartError};
pub use home::HomeError;
pub use image::{HOME, USER};
pub use pool::PoolSettings;
pub use priority::CpuPriority;
pub use seal::SealError;
pub use spawner::client::SpawnError;
pub use warm::DEFAULT_PRELOAD;
