//! The layers of a home, and the files that a run wrote.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{ByteSize, Invalid};

/// The digest of a stored layer: `sha256:` and 64 hex digits of the compressed bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LayerDigest(String);

impl LayerDigest {
    const PREFIX: &str = "sha256:";

    /// Creates a digest from the bytes of a SHA-256 hash.
    #[must_use]
    pub fn from_sha256(hash: [u8; 32]) -> Self {
        let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        Self(format!("{}{hex}", Self::PREFIX))
    }

    /// The digest with its prefix.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The 64 hex digits.
    #[must_use]
    pub fn hex_digits(&self) -> &str {
        &self.0[Self::PREFIX.len()..]
    }
}

impl FromStr for LayerDigest {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let hex = text.strip_prefix(Self::PREFIX).unwrap_or("");
        let plain = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
        if hex.len() != 64 || !hex.chars().all(plain) {
            return Err(Invalid::new("a layer digest must be sha256: and 64 hex digits"));
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for LayerDigest {
    type Error = Invalid;

    fn try_from(text: String) -> Result<Self, Invalid> {
        text.parse()
    }
}

impl From<LayerDigest> for String {
    fn from(digest: LayerDigest) -> Self {
        digest.0
    }
}

impl fmt::Display for LayerDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of a layer store: 32 hex digits, written into the store once. Two processes that read
/// the same name use the same store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LayerStoreId(u128);

impl LayerStoreId {
    /// Creates a name from random bytes.
    #[must_use]
    pub fn from_random(bytes: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(bytes))
    }
}

impl FromStr for LayerStoreId {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let plain = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
        let id = u128::from_str_radix(text, 16).ok();
        id.filter(|_| text.len() == 32 && text.chars().all(plain))
            .map(Self)
            .ok_or_else(|| Invalid::new("the name of a layer store must be 32 hex digits"))
    }
}

impl TryFrom<String> for LayerStoreId {
    type Error = Invalid;

    fn try_from(text: String) -> Result<Self, Invalid> {
        text.parse()
    }
}

impl From<LayerStoreId> for String {
    fn from(id: LayerStoreId) -> Self {
        id.to_string()
    }
}

impl fmt::Display for LayerStoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// One stored layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// Its content address.
    pub digest: LayerDigest,
    /// Its compressed size, as stored.
    pub stored: ByteSize,
    /// The size of the files in it.
    pub bytes: ByteSize,
    /// How many paths it adds, changes or removes.
    pub entries: u64,
}

impl Layer {
    /// Its size on disk: whole blocks for the layer, and one block for its index.
    #[must_use]
    pub const fn disk_bytes(&self) -> u64 {
        Self::disk_bytes_for(self.stored.bytes())
    }

    /// Like [`Self::disk_bytes`], from the stored size alone.
    #[must_use]
    pub const fn disk_bytes_for(stored: u64) -> u64 {
        const BLOCK: u64 = 4096;
        stored.div_ceil(BLOCK).saturating_add(1).saturating_mul(BLOCK)
    }
}

/// The home that a run in a thread starts with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadHome {
    /// Its layers, oldest first.
    pub layers: Vec<LayerDigest>,
    /// How much this run may write.
    pub room: HomeQuota,
}

/// How much may be written to a home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HomeQuota {
    /// The limit on bytes in files.
    pub bytes: ByteSize,
    /// The limit on files, directories and links.
    pub inodes: u64,
}

/// A file that a run wrote, as reported to the caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputFile {
    /// Its path below the home, in the text form of `HomePath`.
    pub name: String,
    /// Its size when the run ended.
    pub size: u64,
    /// Whether only a part of it was kept.
    pub truncated: bool,
}

/// The changes that a run made to its home, once they are durable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HomeWrites {
    /// The layer with the changes; `None` if nothing was written.
    pub layer: Option<Layer>,
    /// The files written, sorted by name. Unmodified input files are not listed.
    pub files: Vec<OutputFile>,
    /// How many files are not listed.
    pub files_omitted: u64,
    /// Whether the quota was reached.
    pub quota_exceeded: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_round_trips_and_has_one_spelling() {
        let digest = LayerDigest::from_sha256([0xab; 32]);
        assert_eq!(digest.as_str().parse(), Ok(digest.clone()));
        assert_eq!(digest.hex_digits().len(), 64);
        for wrong in ["", "sha256:", &digest.as_str()[1..], &digest.as_str().to_uppercase()] {
            assert!(wrong.parse::<LayerDigest>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_name_of_a_store_round_trips_and_has_one_spelling() {
        let id = LayerStoreId::from_random([0x0a; 16]);
        assert_eq!(id.to_string().parse(), Ok(id));
        for wrong in ["", "0a", "+a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a", &id.to_string().to_uppercase()]
        {
            assert!(wrong.parse::<LayerStoreId>().is_err(), "{wrong:?}");
        }
    }
}
