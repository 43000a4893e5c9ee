//! Runs in: server (no capabilities).
//!
//! OCI images: references, documents, archives and registries. An image is checked, and its layers
//! are converted and stored in the layer store.
//!
//! This crate knows no tenant, no cell and no HTTP of its callers. It makes no HTTP client of its
//! own: the caller passes a [`ClientSource`].

mod archive;
mod assemble;
mod discover;
mod documents;
mod elf;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod import;
mod language_table;
mod platform;
mod progress;
mod pull;
mod registry;
mod settings;

pub use archive::{ArchiveDir, ArchiveLimits};
pub use assemble::{ImageAssembler, LayerCatalog, NewImage};
pub use discover::find_interpreters;
pub use error::ImageError;
pub use import::ImportChoice;
pub use progress::{ImageProgress, ProgressPhase, ProgressReport};
pub use pull::PullRequest;
pub use registry::{ClientSource, ClientTarget, RegistryAccess, RegistryCredentials};
pub use settings::ImageLimits;
