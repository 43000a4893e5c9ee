//! Runs in: server (no capabilities), `cloche restore`.
//!
//! A copy of the database at one moment, and what such a copy refers to outside of itself.

use std::{collections::BTreeSet, path::Path};

use async_trait::async_trait;
use cloche_model::{LayerDigest, VolumeId};

use crate::Result;

/// What a copy of the database refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseContents {
    /// The number of its newest migration.
    pub schema: i64,
    /// The id of the key that sealed its secrets.
    pub sealing_key: Option<String>,
    /// The layers of threads, executions and images.
    pub layers: BTreeSet<LayerDigest>,
    /// The volumes.
    pub volumes: BTreeSet<VolumeId>,
}

/// Copies of the whole store.
#[async_trait]
pub trait BackupStore: Send + Sync {
    /// Writes a copy of the database as it is at one moment to a new file. Writers go on meanwhile.
    async fn copy_database(&self, to: &Path) -> Result<DatabaseContents>;
}
