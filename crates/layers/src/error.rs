//! Errors of layer operations, and the limits of a stored layer.

use std::io;

use cloche_model::{ByteSize, LayerDigest};

/// Why an operation on layers failed.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    /// The store does not have this layer.
    #[error("layer {0} does not exist")]
    Missing(LayerDigest),
    /// The bytes of a layer do not match its digest.
    #[error("layer {digest} is damaged: {what}")]
    Damaged {
        /// The digest that was asked for.
        digest: LayerDigest,
        /// What was found.
        what: String,
    },
    /// An archive contains something that a layer may not contain.
    #[error("not a layer: {0}")]
    Refused(String),
    /// The layer has too many bytes, too many entries, or a compression ratio that is too high.
    #[error("the layer has {0}")]
    TooMuch(&'static str),
    /// Nothing is at this path.
    #[error("{0:?} does not exist")]
    NoSuchPath(String),
    /// The path is occupied by the wrong kind of file.
    #[error("{0:?} {1}")]
    WrongKind(String, &'static str),
    /// A directory does not contain an image that can be imported.
    #[error("not an image that can be imported: {0}")]
    BadImage(String),
    /// The configuration cannot be used.
    #[error("layers: {0}")]
    Config(String),
    /// A file operation of ours failed.
    #[error("{what}: {source}")]
    Io {
        /// The operation that failed.
        what: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The object store failed.
    #[error("the layer store failed: {0}")]
    Store(#[from] object_store::Error),
}

impl LayerError {
    /// Adds the operation to an error of the operating system.
    pub(crate) fn io_context(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::from_io(what, source)
    }

    /// Unpacks a `LayerError` that travelled inside an `io::Error`.
    pub(crate) fn from_io(what: &'static str, source: io::Error) -> Self {
        if source.get_ref().is_some_and(|inner| inner.is::<Self>()) {
            let inner = source.into_inner().and_then(|inner| inner.downcast::<Self>().ok());
            return inner
                .map_or(Self::Io { what, source: io::ErrorKind::Other.into() }, |inner| *inner);
        }
        Self::Io { what, source }
    }

    /// Whether the disk or the quota was full.
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

    /// Wraps the error so that it can pass through readers and writers.
    pub(crate) fn into_io(self) -> io::Error {
        io::Error::other(self)
    }
}

/// The maximum size of a layer and of a stack of layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerBounds {
    /// Files, directories, links and whiteouts.
    pub entries: u64,
    /// Bytes in files, without holes.
    pub bytes: ByteSize,
    /// How many times larger than its compressed form an imported layer may be. Layers that were
    /// packed here are exempt, because a guest may write a gigabyte of the same byte.
    pub ratio: u64,
}

impl Default for LayerBounds {
    fn default() -> Self {
        Self { entries: 1 << 20, bytes: ByteSize::gib(64), ratio: 2000 }
    }
}

/// A compressed layer may always unpack to this many bytes, whatever its ratio.
pub(crate) const RATIO_FREE: u64 = 64 << 20;
/// The longest path in a layer. The kernel accepts less in one call, so paths are walked step by
/// step.
pub(crate) const PATH_BYTES: usize = 16 << 10;
/// The longest name of a file.
pub(crate) const NAME_BYTES: usize = 255;
/// The longest target of a symbolic link.
pub(crate) const TARGET_BYTES: usize = 4095;
/// The sum over all entries of paths, targets and attributes.
pub(crate) const NAMES_BYTES: u64 = 256 << 20;
/// The largest apparent size of a file, holes included. ext4 allows at most 16 TiB.
pub(crate) const FILE_BYTES: u64 = 8 << 40;
/// The size of all extended attributes of one file.
pub(crate) const XATTR_BYTES: usize = 256 << 10;
/// The size of all attributes of one file that a home keeps, each with its overhead. Every file
/// system of a cache can store this much: ext4 has one block for all of them and the overlay's
/// marks.
pub(crate) const KEPT_XATTR_BYTES: usize = 3600;
/// The overhead of one attribute beside its name and value.
pub(crate) const XATTR_PLACE: usize = 20;
/// The size of the pax records before one entry.
pub(crate) const PAX_BYTES: u64 = 1 << 20;
/// The number of extents of one sparse file.
pub(crate) const EXTENTS: usize = 1 << 18;
