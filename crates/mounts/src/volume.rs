//! Runs in: server (no capabilities), mount server (no capabilities). Managed volumes: a directory
//! of files, and a ledger that keeps their quota.

mod beneath;
mod ledger;
mod volume_archive;
mod volume_removal;
mod volume_store;

pub(crate) use beneath::{Beneath, open_beneath};
pub use ledger::{VolumeFull, VolumeUsage};
pub(crate) use ledger::{VolumeLedger, VolumeQuota, to_errno};
pub use volume_archive::VolumeArchiveReport;
pub use volume_store::{VolumeEntry, VolumeFiles, VolumeStore};
