//! Runs in: `cloche backup`, `cloche restore`.
//!
//! The manifest of a backup: its parts with their sizes and digests. It is written after all of them,
//! so a backup without a manifest is not complete.

use cloche_model::{LayerDigest, VolumeId};
use serde::{Deserialize, Serialize};

use super::{BackupError, place::ObjectDigest};

/// The format that this version writes and reads.
const FORMAT: u32 = 1;

/// The parts of a backup.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct BackupManifest {
    /// The number of this format.
    pub(super) format: u32,
    /// The name of the backup: the time of its beginning.
    pub(super) id: String,
    /// The moment of the database.
    pub(super) created_at: String,
    /// The version of the server.
    pub(super) version: String,
    /// The schema of the database.
    pub(super) schema: i64,
    /// The id of the key that seals its secrets.
    pub(super) sealing_key: Option<String>,
    pub(super) database: PartRecord,
    pub(super) layers: Vec<LayerRecord>,
    pub(super) volumes: Vec<VolumePart>,
    /// The key itself, if the operator put it into the backup.
    pub(super) secret_key: Option<PartRecord>,
}

/// A part: its size and its SHA-256.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PartRecord {
    pub(super) bytes: u64,
    pub(super) sha256: String,
}

/// A layer. Its digest is its name.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LayerRecord {
    pub(super) digest: LayerDigest,
    pub(super) bytes: u64,
}

/// The archive of a volume.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct VolumePart {
    pub(super) id: VolumeId,
    pub(super) bytes: u64,
    pub(super) sha256: String,
}

impl From<ObjectDigest> for PartRecord {
    fn from(written: ObjectDigest) -> Self {
        Self { bytes: written.bytes, sha256: written.sha256 }
    }
}

impl BackupManifest {
    pub(super) const FORMAT: u32 = FORMAT;

    pub(super) fn parse(text: &[u8]) -> Result<Self, BackupError> {
        let number: FormatNumber = serde_json::from_slice(text).map_err(BackupError::Manifest)?;
        if number.format != FORMAT {
            return Err(BackupError::Format { found: number.format, known: FORMAT });
        }
        serde_json::from_slice(text).map_err(BackupError::Manifest)
    }

    pub(super) fn to_text(&self) -> Result<String, BackupError> {
        serde_json::to_string_pretty(self).map_err(BackupError::Manifest)
    }
}

/// The only field that every format has.
#[derive(Deserialize)]
struct FormatNumber {
    format: u32,
}
