//! The operations on layers, as their callers see them.

use std::{
    collections::{BTreeMap, HashSet},
    ops::Range,
    path::Path,
    sync::Arc,
    time::Duration,
};

use cloche_model::{Layer, LayerDigest};
use tokio::io::AsyncRead;

use crate::{Entry, LayerError, LayersConfig, Mtime, Xattr};

/// All layers of this host: where they are kept and what of them is unpacked.
#[derive(Clone)]
pub struct Layers {}

/// A layer that is durable.
#[derive(Clone, Debug)]
pub struct Stored {
    /// What it is found by, and its sizes.
    pub layer: Layer,
    /// What is in it.
    pub index: Arc<Index>,
}

/// What is in a layer, without the content.
#[derive(Debug)]
pub struct Index {
    entries: Vec<Entry>,
}

impl Index {
    /// All entries, in the order of their paths; the home itself (an empty path) is the first.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }
}

/// The merged view of a stack: what a guest sees that mounts it.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    nodes: BTreeMap<Vec<u8>, Arc<Node>>,
}

/// One path of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// What it is.
    pub kind: NodeKind,
    /// The permission bits.
    pub mode: u32,
    /// When it was last written.
    pub mtime: Mtime,
    /// The size of its content, holes included; of a symbolic link, the length of its target.
    pub size: u64,
    /// How many bytes of data it has, holes not counted.
    pub data_bytes: u64,
    /// Attributes in the `user.` namespace.
    pub xattrs: Vec<Xattr>,
    /// The layer that holds it.
    pub layer: LayerDigest,
    /// Its path in that layer: of a hard link, that of the first name.
    pub path_in_layer: Vec<u8>,
}

/// What a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// A directory.
    Directory,
    /// A file with content.
    File,
    /// A symbolic link, and what it says.
    Symlink(Vec<u8>),
    /// A named pipe.
    Fifo,
}

/// What differs between two trees, in the order of the paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diff {
    /// Only the newer one has these.
    pub added: Vec<Vec<u8>>,
    /// Both have these, with other content, kind, mode, time or attributes; directories count only
    /// for kind, mode and attributes.
    pub changed: Vec<Vec<u8>>,
    /// Only the older one had these.
    pub removed: Vec<Vec<u8>>,
}

impl Tree {
    /// What is at a path (empty: the home itself). No symbolic link is followed.
    #[must_use]
    pub fn get(&self, path: &[u8]) -> Option<&Node> {
        self.nodes.get(path).map(|node| &**node)
    }

    /// The names in a directory, in order; none if it is none.
    #[must_use]
    pub fn list(&self, directory: &[u8]) -> Option<Vec<(&[u8], &Node)>> {
        let _ = directory;
        None
    }

    /// Everything, in the order of the paths: a directory comes before what is in it.
    pub fn walk(&self) -> impl Iterator<Item = (&[u8], &Node)> {
        self.nodes.iter().map(|(path, node)| (&path[..], &**node))
    }

    /// The bytes of data of all files; each counts once, however many names it has.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        0
    }

    /// How many paths there are, without the home itself.
    #[must_use]
    pub fn entries(&self) -> u64 {
        0
    }

    /// What changed between two trees.
    #[must_use]
    pub fn diff(old: &Self, new: &Self) -> Diff {
        let _ = (old, new);
        Diff::default()
    }
}

/// A stack that is unpacked and stays so until this is dropped.
#[derive(Debug)]
pub struct Mountable {}

impl Mountable {
    /// The names of the layers' directories in `cache_dir`, the oldest first.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        Vec::new()
    }

    /// The mode and time of the home itself, from the newest layer; none if the stack is empty.
    /// An overlay shows those of its upper directory, so whoever mounts it must set them there.
    #[must_use]
    pub fn root(&self) -> Option<(u32, Mtime)> {
        None
    }
}

/// An open file of a stack.
pub struct OpenFile {
    /// What it is.
    pub node: Node,
    /// The part of it that is read.
    pub range: Range<u64>,
    /// Its content.
    pub content: Box<dyn AsyncRead + Send + Unpin>,
}

/// A layer in the making: files that arrive one after the other.
pub struct LayerWriter {}

impl LayerWriter {
    /// Adds a file of exactly `length` bytes, and the directories on the way that are missing.
    ///
    /// # Errors
    /// If the path cannot be used, something else is there, or the content ends early or late.
    pub async fn put(
        &mut self,
        path: &[u8],
        mode: u32,
        length: u64,
        content: impl AsyncRead + Send + Unpin,
    ) -> Result<(), LayerError> {
        let _ = (path, mode, length, content);
        Err(LayerError::Config("not there yet".to_owned()))
    }

    /// Removes a file or a directory with all that is in it.
    ///
    /// # Errors
    /// If there is nothing at the path.
    pub async fn remove(&mut self, path: &[u8]) -> Result<(), LayerError> {
        let _ = path;
        Err(LayerError::Config("not there yet".to_owned()))
    }

    /// Stores the layer; none if nothing was put.
    ///
    /// # Errors
    /// If it cannot be stored.
    pub async fn finish(self) -> Result<Option<Stored>, LayerError> {
        Err(LayerError::Config("not there yet".to_owned()))
    }
}

/// What an exported image says about itself.
#[derive(Clone, Debug, Default)]
pub struct ExportMeta {
    /// The name that tools show (`org.opencontainers.image.ref.name`).
    pub name: String,
    /// When, in RFC 3339; the beginning of 1970 if there is none.
    pub created: Option<String>,
    /// Annotations of the manifest.
    pub annotations: BTreeMap<String, String>,
}

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Layers that were deleted.
    pub deleted: u64,
    /// Their size as stored.
    pub bytes: u64,
    /// Layers that are still there.
    pub kept: u64,
}

/// How much there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Disk that unpacked layers take.
    pub cache_bytes: u64,
    /// How many are unpacked.
    pub cached: u64,
    /// How many of those are in use.
    pub in_use: u64,
    /// Layers in the store.
    pub blobs: u64,
    /// Their size as stored.
    pub blob_bytes: u64,
}

#[allow(
    clippy::unused_async,
    unused_variables,
    clippy::missing_errors_doc,
    missing_docs,
    reason = "signatures first"
)]
impl Layers {
    pub async fn open(config: LayersConfig) -> Result<Self, LayerError> {
        later()
    }
    /// Where unpacked layers are: `<dir>/cache`.
    pub fn cache_dir(&self) -> &Path {
        Path::new("")
    }
    /// none: nothing but the home itself in it
    pub async fn store(
        &self,
        tar: impl AsyncRead + Send + Unpin + 'static,
    ) -> Result<Option<Stored>, LayerError> {
        later()
    }
    pub async fn index(&self, layer: &LayerDigest) -> Result<Arc<Index>, LayerError> {
        later()
    }
    pub async fn tree(&self, stack: &[LayerDigest]) -> Result<Tree, LayerError> {
        later()
    }
    pub async fn mountable(&self, stack: &[LayerDigest]) -> Result<Mountable, LayerError> {
        later()
    }
    /// Starts unpacking in the background.
    pub fn warm(&self, layer: LayerDigest) {}
    pub async fn open_file(
        &self,
        stack: &[LayerDigest],
        path: &[u8],
        range: Option<Range<u64>>,
    ) -> Result<OpenFile, LayerError> {
        later()
    }
    pub async fn writer(&self, stack: &[LayerDigest]) -> Result<LayerWriter, LayerError> {
        later()
    }
    pub async fn squash(&self, stack: &[LayerDigest]) -> Result<Option<Stored>, LayerError> {
        later()
    }
    pub async fn export(
        &self,
        stack: &[LayerDigest],
        dir: &Path,
        meta: &ExportMeta,
    ) -> Result<(), LayerError> {
        later()
    }
    pub async fn import(&self, dir: &Path) -> Result<Vec<Stored>, LayerError> {
        later()
    }
    pub async fn sweep(
        &self,
        keep: &HashSet<LayerDigest>,
        grace: Duration,
    ) -> Result<Swept, LayerError> {
        later()
    }
    pub async fn usage(&self) -> Result<Usage, LayerError> {
        later()
    }
}

fn later<T>() -> Result<T, LayerError> {
    Err(LayerError::Config("not there yet".to_owned()))
}
