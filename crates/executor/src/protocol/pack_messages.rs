//! Runs in: server (no capabilities), spawner (root) and packer. The order to pack what a run
//! wrote, and the packer's report.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// What the packer packs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PackRequest {
    /// Files that the server placed in the home before the run.
    pub(crate) placed: Vec<PlacedDigest>,
    /// The mode that the home had before the run.
    pub(crate) home_mode: Option<u32>,
    /// The most bytes that are kept of one file, and of all files; without it, all are kept.
    pub(crate) most: Option<(u64, u64)>,
}

/// A file that the server placed in the home before the run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PlacedDigest {
    /// Its name.
    pub(crate) name: String,
    /// The SHA-256 of its content.
    pub(crate) digest: [u8; 32],
    /// Whether the packer leaves it out if the run did not change it.
    pub(crate) leave_out: bool,
}

/// The packer's report, after the whole archive.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PackReport {
    /// Placed files that the run did not change.
    pub(crate) unchanged: BTreeSet<String>,
    /// Whether files have more extended attributes than a home keeps.
    pub(crate) lost_attributes: bool,
    /// Files that were packed only in part, with their full sizes.
    pub(crate) cut: BTreeMap<String, u64>,
}
