//! One entry of a layer: what is at a path, or that it was deleted.

use serde::{Deserialize, Serialize};

/// A point in time of the file system's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Mtime {
    /// Seconds since 1970, rounded down.
    pub seconds: i64,
    /// Nanoseconds, below 1 000 000 000.
    pub nanos: u32,
}

/// A range of a sparse file that contains data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// Offset in the file.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
}

/// An extended attribute: its name including `user.`, and its value.
pub type Xattr = (Vec<u8>, Vec<u8>);

/// The first 16 bytes of the BLAKE3 hash of a file's data.
pub type ContentHash = [u8; 16];

/// The entry of a layer at one path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerEntry {
    /// The path in bytes as the guest chose them, separated by `/`. Empty for the home itself.
    pub path: Vec<u8>,
    /// The kind of the entry.
    pub kind: EntryKind,
    /// The permission bits.
    pub mode: u32,
    /// The modification time.
    pub mtime: Mtime,
    /// Attributes in the `user.` namespace, sorted by name.
    pub xattrs: Vec<Xattr>,
}

/// The kind of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryKind {
    /// A directory. Its content is merged with that of older layers.
    Directory {
        /// The content of older layers is hidden.
        opaque: bool,
        /// The directory has this path in older layers.
        redirect: Option<Vec<u8>>,
    },
    /// A file with content.
    File {
        /// Its size, holes included.
        size: u64,
        /// The ranges with data, if the file has holes.
        extents: Option<Vec<Extent>>,
        /// The offset of its data in the archive.
        data_at: u64,
        /// The hash of its data, set after the data was read.
        hash: ContentHash,
    },
    /// Another name for a file of the same layer.
    HardLink {
        /// The path of the first name.
        target: Vec<u8>,
    },
    /// A symbolic link.
    Symlink {
        /// The target, never followed.
        target: Vec<u8>,
    },
    /// A named pipe.
    Fifo,
    /// Hides the path of older layers.
    Whiteout,
}

impl EntryKind {
    /// The number of data bytes.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        match self {
            Self::File { extents: Some(extents), .. } => extents.iter().map(|e| e.length).sum(),
            Self::File { size, extents: None, .. } => *size,
            _ => 0,
        }
    }
}
