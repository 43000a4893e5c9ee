//! Runs in: server (no capabilities).
//!
//! The wire format of backups.

use cloche_engine::{BackupSummary, format_rfc3339};
use serde::Serialize;
use utoipa::ToSchema;

/// A backup that can be read now.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BackupRecord {
    /// The id, for the requests of its parts.
    id: String,
    /// The moment of the database in it.
    #[schema(format = DateTime)]
    created_at: String,
    /// The version of the server.
    version: String,
    /// The number of the newest migration of the database.
    schema: i64,
    /// The id of the key that seals secrets in the database. The key is not in a backup.
    sealing_key: Option<String>,
    /// The size of the database.
    database_bytes: u64,
    /// The layers that the database refers to.
    layers: Vec<BackupLayer>,
    /// The ids of the volumes.
    volumes: Vec<String>,
}

/// A layer of a backup.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BackupLayer {
    /// The digest of its bytes.
    digest: String,
    /// Its size.
    bytes: u64,
}

impl From<BackupSummary> for BackupRecord {
    fn from(summary: BackupSummary) -> Self {
        let layer = |(digest, bytes): (cloche_model::LayerDigest, u64)| BackupLayer {
            digest: digest.to_string(),
            bytes,
        };
        Self {
            id: summary.id,
            created_at: format_rfc3339(summary.created_at),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            schema: summary.contents.schema,
            sealing_key: summary.contents.sealing_key,
            database_bytes: summary.database_bytes,
            layers: summary.layers.into_iter().map(layer).collect(),
            volumes: summary.contents.volumes.iter().map(ToString::to_string).collect(),
        }
    }
}
