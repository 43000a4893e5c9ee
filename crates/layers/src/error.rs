//! What can go wrong with layers, and what a stored layer may at most be.

use std::io;

use cloche_model::{ByteSize, LayerDigest};

/// Why an operation on layers failed.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    /// The store holds no such layer.
    #[error("there is no layer {0}")]
    Missing(LayerDigest),
    /// The bytes of a layer are not those that its digest promises.
    #[error("layer {digest} is damaged: {what}")]
    Damaged {
        /// Which one.
        digest: LayerDigest,
        /// What was found.
        what: String,
    },
    /// An archive holds what a layer may not.
    #[error("not a layer: {0}")]
    Refused(String),
    /// Too large, too many, or too well compressed.
    #[error("the layer has {0}")]
    TooMuch(&'static str),
    /// There is nothing at this path.
    #[error("there is no {0:?}")]
    NoSuchPath(String),
    /// Something at this path is in the way.
    #[error("{0:?} {1}")]
    WrongKind(String, &'static str),
    /// A directory does not hold an image that can be imported.
    #[error("not an image that can be imported: {0}")]
    BadImage(String),
    /// The configuration cannot be used.
    #[error("layers: {0}")]
    Config(String),
    /// A file operation of ours failed.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The object store failed.
    #[error("the layer store failed: {0}")]
    Store(#[from] object_store::Error),
}

impl LayerError {
    /// Puts what was being done to an error of the system.
    pub(crate) fn io_context(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::from_io(what, source)
    }

    /// An error that travelled inside an `io::Error` comes out as what it was.
    pub(crate) fn from_io(what: &'static str, source: io::Error) -> Self {
        if source.get_ref().is_some_and(|inner| inner.is::<Self>()) {
            let inner = source.into_inner().and_then(|inner| inner.downcast::<Self>().ok());
            return inner
                .map_or(Self::Io { what, source: io::ErrorKind::Other.into() }, |inner| *inner);
        }
        Self::Io { what, source }
    }

    /// Whether the disk had no room for it.
    #[must_use]
    pub fn is_disk_full(&self) -> bool {
        let is_full = |error: &io::Error| {
            matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
        };
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(self);
        while let Some(error) = cause {
            if error.downcast_ref::<io::Error>().is_some_and(is_full) {
                return true;
            }
            cause = error.source();
        }
        matches!(self, Self::Io { source, .. } if is_full(source))
    }

    /// So that it can travel through readers and writers.
    pub(crate) fn into_io(self) -> io::Error {
        io::Error::other(self)
    }
}

/// How large a layer, and a stack of them, may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerBounds {
    /// Files, directories, links and deletions.
    pub entries: u64,
    /// Bytes in files, holes not counted.
    pub bytes: ByteSize,
    /// How many times larger than its compressed form an imported layer may be. Layers that were
    /// packed here are not held to it: a guest may well write a gigabyte of one letter.
    pub ratio: u64,
}

impl Default for LayerBounds {
    fn default() -> Self {
        Self { entries: 1 << 20, bytes: ByteSize::gib(64), ratio: 2000 }
    }
}

/// A compressed layer may always unpack to this much, whatever the ratio.
pub(crate) const RATIO_FREE: u64 = 64 << 20;
/// The longest path in a layer. Longer than the kernel takes in one call: paths are walked by steps.
pub(crate) const PATH_BYTES: usize = 16 << 10;
/// The longest name of a file.
pub(crate) const NAME_BYTES: usize = 255;
/// The longest target of a symbolic link.
pub(crate) const TARGET_BYTES: usize = 4095;
/// Paths, targets and attributes of all entries together.
pub(crate) const NAMES_BYTES: u64 = 256 << 20;
/// The largest size that a file may claim, holes included: ext4 can hold no more than 16 TiB.
pub(crate) const FILE_BYTES: u64 = 8 << 40;
/// The extended attributes of one file.
pub(crate) const XATTR_BYTES: usize = 256 << 10;
/// The attributes of one file that a home keeps, each with some for its place: what every disk of
/// a cache can hold. ext4 has one block for all of them and the overlay's marks.
pub(crate) const KEPT_XATTR_BYTES: usize = 3600;
/// What one attribute takes beside its name and value.
pub(crate) const XATTR_PLACE: usize = 20;
/// The records before one entry.
pub(crate) const PAX_BYTES: u64 = 1 << 20;
/// The map of one sparse file.
pub(crate) const EXTENTS: usize = 1 << 18;
