//! One entry of a layer: what a path is, or that it is gone.

use serde::{Deserialize, Serialize};

/// A moment of the file system's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Mtime {
    /// Seconds since 1970, rounded down.
    pub seconds: i64,
    /// And nanoseconds, below a thousand million.
    pub nanos: u32,
}

/// A stretch of a sparse file that holds data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// Where in the file.
    pub offset: u64,
    /// How long.
    pub length: u64,
}

/// An extended attribute: its name with the `user.` before it, and its value.
pub type Xattr = (Vec<u8>, Vec<u8>);

/// The beginning of the SHA-256 of a file's data.
pub type ContentHash = [u8; 16];

/// What a layer says about one path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerEntry {
    /// Bytes as the guest chose them, names separated by `/`; empty for the home itself.
    pub path: Vec<u8>,
    /// What is there.
    pub kind: EntryKind,
    /// The permission bits.
    pub mode: u32,
    /// When it was last written.
    pub mtime: Mtime,
    /// Attributes in the `user.` namespace, in the order of their names.
    pub xattrs: Vec<Xattr>,
}

/// What is at a path of a layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryKind {
    /// A directory, which shows what older layers hold there too.
    Directory {
        /// Older layers are not looked at.
        opaque: bool,
        /// Older layers hold it under this path.
        redirect: Option<Vec<u8>>,
    },
    /// A file with content.
    File {
        /// Its size, holes included.
        size: u64,
        /// The stretches with data, if not all of it is.
        extents: Option<Vec<Extent>>,
        /// Where its data begins in the archive.
        data_at: u64,
        /// What its data is known by, once it was read.
        hash: ContentHash,
    },
    /// Another name for a file of the same layer.
    HardLink {
        /// The path of the first name.
        target: Vec<u8>,
    },
    /// A symbolic link.
    Symlink {
        /// What it says, never followed.
        target: Vec<u8>,
    },
    /// A named pipe.
    Fifo,
    /// What older layers hold here is gone.
    Whiteout,
}

impl EntryKind {
    /// How many bytes of data it brings.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        match self {
            Self::File { extents: Some(extents), .. } => extents.iter().map(|e| e.length).sum(),
            Self::File { size, extents: None, .. } => *size,
            _ => 0,
        }
    }
}
