//! Storage mounts of a run: what is mounted at `/data/{slug}`, and what was read and written there.

use std::{fmt, path::PathBuf, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{ByteSize, Invalid, KeyPrefix, Secret, VolumeId};

/// The directory in a cell that has the mounts of a run.
pub const MOUNTS_ROOT: &str = "/data";

/// The name of a mount in a cell: `/data/{slug}`. 1 to 63 lower-case letters, digits, hyphens and
/// underscores.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MountSlug(String);

impl MountSlug {
    /// The limit on bytes of a slug.
    pub const MAX_BYTES: usize = 63;

    /// The slug as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for MountSlug {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
        if text.is_empty() || text.len() > Self::MAX_BYTES || !text.chars().all(plain) {
            return Err(Invalid::new(
                "the name of a mount must be 1 to 63 lower-case letters, digits, hyphens or \
                 underscores",
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for MountSlug {
    type Error = Invalid;

    fn try_from(text: String) -> Result<Self, Invalid> {
        text.parse()
    }
}

impl From<MountSlug> for String {
    fn from(slug: MountSlug) -> Self {
        slug.0
    }
}

impl fmt::Display for MountSlug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One storage mount of a run.
///
/// The holder of a `MountSpec` has decided that the run may use it: its prefix is the narrowest of
/// connection, binding and request. Nothing below the engine checks again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountSpec {
    /// Its name in the cell.
    pub slug: MountSlug,
    /// What is mounted.
    pub source: MountSource,
    /// Whether every change is refused with `EROFS`.
    pub read_only: bool,
    /// Its limits.
    pub limits: MountLimits,
}

/// What is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountSource {
    /// A prefix of a bucket.
    Objects {
        /// How the bucket is reached.
        connection: ObjectConnection,
        /// The keys that the guest sees, as the root of the mount.
        prefix: KeyPrefix,
    },
    /// A managed volume of this host.
    Volume {
        /// Which volume.
        id: VolumeId,
        /// The most bytes that its files may have together.
        quota: ByteSize,
        /// The directory in the volume that is the root of the mount.
        sub_path: KeyPrefix,
    },
    /// A directory of this host, for `cloche run --mount`. Only the command line makes one.
    Directory(PathBuf),
}

/// How a bucket is reached. Made from the row of a connection, with its credentials unsealed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectConnection {
    /// The protocol.
    pub kind: ObjectStoreKind,
    /// The URL of the service; the public service of this kind if absent.
    pub endpoint: Option<String>,
    /// The bucket or container.
    pub bucket: String,
    /// The region; `us-east-1` if absent. S3 only.
    pub region: Option<String>,
    /// The credentials. They are always explicit: neither the environment nor the metadata service
    /// of this host is ever asked.
    pub credentials: ObjectCredentials,
    /// Whether the operator allows this endpoint to be a private address and to speak plain HTTP.
    pub allows_private_endpoint: bool,
}

/// The protocol of an object store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ObjectStoreKind {
    /// Amazon S3 and services that speak its protocol.
    S3,
    /// Google Cloud Storage.
    Gcs,
    /// Azure Blob Storage.
    Azure,
}

impl ObjectStoreKind {
    /// The name on the wire and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Gcs => "gcs",
            Self::Azure => "azure",
        }
    }
}

impl FromStr for ObjectStoreKind {
    type Err = Invalid;

    fn from_str(name: &str) -> Result<Self, Invalid> {
        match name {
            "s3" => Ok(Self::S3),
            "gcs" => Ok(Self::Gcs),
            "azure" => Ok(Self::Azure),
            _ => Err(Invalid::new("kind must be one of: s3, gcs, azure")),
        }
    }
}

/// Who a connection is at its object store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectCredentials {
    /// Nobody: requests are not signed, for public buckets.
    Anonymous,
    /// A key of S3.
    AccessKey {
        /// Its public part.
        id: String,
        /// Its secret part.
        secret: Secret,
        /// The token of temporary credentials.
        session_token: Option<Secret>,
    },
    /// The JSON document of a service account of Google Cloud.
    ServiceAccount(Secret),
    /// A storage account of Azure.
    AccountKey {
        /// The name of the account.
        account: String,
        /// Its key.
        key: Secret,
    },
}

/// The limits of one mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountLimits {
    /// The most bytes of one file that is written: `EFBIG` beyond it.
    pub file_size: ByteSize,
    /// The most bytes of all files of an object store that are being written: `EDQUOT` beyond it.
    pub spool: ByteSize,
}

impl Default for MountLimits {
    fn default() -> Self {
        Self { file_size: ByteSize::gib(5), spool: ByteSize::gib(1) }
    }
}

/// What a run did with one mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountReport {
    /// The name of the mount in the cell.
    pub slug: MountSlug,
    /// Bytes that the guest read. The kernel caches, so that a second read may count nothing.
    pub bytes_read: u64,
    /// Bytes that the guest wrote to a volume or directory, or that were stored in a bucket.
    pub bytes_written: u64,
    /// Requests that failed because of the storage, not because of the guest.
    pub errors: u64,
    /// The first of those, for the owner of the mount; never for the guest.
    pub first_error: Option<String>,
}

impl MountReport {
    /// The report of a mount that was not used.
    #[must_use]
    pub fn unused(slug: MountSlug) -> Self {
        Self { slug, bytes_read: 0, bytes_written: 0, errors: 0, first_error: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_name_is_a_slug() {
        for text in ["company-data", "a", "0_x", &"x".repeat(63)] {
            assert_eq!(text.parse::<MountSlug>().unwrap().as_str(), text);
        }
        for text in ["", "A", "a/b", "..", ".", "a b", "a\0", "ä", &"x".repeat(64)] {
            assert!(text.parse::<MountSlug>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn credentials_print_as_stars() {
        let secret = Secret::new("hunter2");
        let credentials =
            ObjectCredentials::AccessKey { id: "AKIA".into(), secret, session_token: None };
        assert!(!format!("{credentials:?}").contains("hunter2"));
    }
}
