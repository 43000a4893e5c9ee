//! The merged view of a stack, as overlayfs shows it, without a mount.

use std::{
    collections::{BTreeMap, HashSet},
    ops::Bound,
    sync::Arc,
};

use cloche_model::LayerDigest;

use crate::{
    LayerBounds, LayerError, LayerIndex, Layers,
    blob_store::run_blocking,
    entry::{ContentHash, EntryKind, LayerEntry, Mtime, Xattr},
    error::{NAMES_BYTES, PATH_BYTES},
};

/// The merged view of a stack, as a guest sees it.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// By path. In byte order, everything below `p` lies between `p/` and `p0`.
    nodes: BTreeMap<Vec<u8>, Arc<TreeNode>>,
}

/// One path of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeNode {
    /// The kind of the node.
    pub kind: NodeKind,
    /// The permission bits.
    pub mode: u32,
    /// The modification time.
    pub mtime: Mtime,
    /// The size of its content, holes included. For a symbolic link, the length of its target.
    pub size: u64,
    /// The number of data bytes, without holes.
    pub data_bytes: u64,
    /// The hash of its content.
    pub content: ContentHash,
    /// Attributes in the `user.` namespace.
    pub xattrs: Vec<Xattr>,
    /// The layer that contains it.
    pub layer: LayerDigest,
    /// Its path in that layer. For a hard link, the path of the first name.
    pub path_in_layer: Vec<u8>,
}

/// The kind of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// A directory.
    Directory,
    /// A file with content.
    File,
    /// A symbolic link with its target.
    Symlink(Vec<u8>),
    /// A named pipe.
    Fifo,
}

/// The differences between two trees, sorted by path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TreeDiff {
    /// Paths that only the newer tree has.
    pub added: Vec<Vec<u8>>,
    /// Paths in both trees that differ in kind, content, mode, attributes or time. The time of a
    /// directory is ignored.
    pub changed: Vec<Vec<u8>>,
    /// Paths that only the older tree has.
    pub removed: Vec<Vec<u8>>,
}

impl Layers {
    /// The merged view of a stack, oldest layer first.
    ///
    /// # Errors
    /// If a layer is missing or damaged, or the stack is too large.
    pub async fn load_tree(&self, stack: &[LayerDigest]) -> Result<Tree, LayerError> {
        let mut indexes = Vec::with_capacity(stack.len());
        for digest in stack {
            indexes.push((digest.clone(), self.load_index(digest).await?));
        }
        let bounds = self.0.config.bounds;
        run_blocking(move || {
            let mut tree = Tree::default();
            for (digest, index) in &indexes {
                tree.apply_layer(digest, index, bounds)?;
            }
            Ok(tree)
        })
        .await
    }
}

impl Tree {
    /// The node at a path (empty: the home itself). No symbolic link is followed.
    #[must_use]
    pub fn get(&self, path: &[u8]) -> Option<&TreeNode> {
        self.nodes.get(path).map(|node| &**node)
    }

    /// The names in a directory, sorted. `None` if the directory does not exist.
    #[must_use]
    pub fn list_directory(&self, directory: &[u8]) -> Option<Vec<(&[u8], &TreeNode)>> {
        if self.get(directory)?.kind != NodeKind::Directory {
            return None;
        }
        let prefix = if directory.is_empty() { Vec::new() } else { range_below(directory).0 };
        let mut found = Vec::new();
        let mut from = Bound::Excluded(prefix.clone());
        while let Some((path, node)) = self.nodes.range((from, Bound::Unbounded)).next() {
            let Some(name) = path.strip_prefix(&prefix[..]) else { break };
            from = match name.iter().position(|&byte| byte == b'/') {
                // Inside another directory, which is skipped as a whole.
                Some(slash) => Bound::Included(range_below(&path[..prefix.len() + slash]).1),
                None => {
                    found.push((name, &**node));
                    Bound::Excluded(path.clone())
                }
            };
        }
        Some(found)
    }

    /// All nodes, sorted by path. A directory comes before its content.
    pub fn walk(&self) -> impl Iterator<Item = (&[u8], &TreeNode)> {
        self.nodes.iter().map(|(path, node)| (&path[..], &**node))
    }

    /// The data bytes of all files. A file with several names counts once.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        let mut seen = HashSet::new();
        let files = self.walk().filter(|(_, node)| node.kind == NodeKind::File);
        files
            .filter(|&(_, node)| seen.insert((&node.layer, &node.path_in_layer)))
            .map(|(_, node)| node.data_bytes)
            .sum()
    }

    /// The number of paths, without the home itself.
    #[must_use]
    pub fn entry_count(&self) -> u64 {
        self.nodes.len().saturating_sub(1) as u64
    }

    /// The differences between two trees.
    #[must_use]
    pub fn diff(old: &Self, new: &Self) -> TreeDiff {
        let mut diff = TreeDiff::default();
        for (path, node) in &new.nodes {
            match old.nodes.get(path) {
                None => diff.added.push(path.clone()),
                Some(before) if before.differs_from(node) => diff.changed.push(path.clone()),
                Some(_) => {}
            }
        }
        let gone = old.nodes.keys().filter(|path| !new.nodes.contains_key(*path));
        diff.removed = gone.cloned().collect();
        diff
    }

    /// Applies a layer on top of the tree.
    pub(crate) fn apply_layer(
        &mut self,
        digest: &LayerDigest,
        index: &LayerIndex,
        bounds: LayerBounds,
    ) -> Result<(), LayerError> {
        // Redirects refer to the tree before this layer.
        let mut moved = BTreeMap::new();
        let (mut count, mut names) = (0, 0);
        for entry in index.entries() {
            if let EntryKind::Directory { opaque: false, redirect: Some(from) } = &entry.kind {
                let subtree = self.subtree(from);
                count += subtree.len() as u64;
                names += subtree.iter().map(|(path, _)| path.len() as u64).sum::<u64>();
                if count > bounds.entries || names > NAMES_BYTES {
                    return Err(LayerError::TooMuch("renamed too many entries"));
                }
                moved.insert(&entry.path, subtree);
            }
        }
        for entry in index.entries() {
            self.apply_entry(digest, index, entry, moved.remove(&entry.path))?;
            if self.nodes.len() as u64 > bounds.entries {
                return Err(LayerError::TooMuch("too many entries"));
            }
        }
        Ok(())
    }

    fn apply_entry(
        &mut self,
        digest: &LayerDigest,
        index: &LayerIndex,
        entry: &LayerEntry,
        moved: Option<Vec<(Vec<u8>, Arc<TreeNode>)>>,
    ) -> Result<(), LayerError> {
        let path = &entry.path;
        let was_directory = self.get(path).is_some_and(|node| node.kind == NodeKind::Directory);
        let merges = was_directory
            && matches!(entry.kind, EntryKind::Directory { opaque: false, redirect: None });
        if !merges {
            self.remove_below(path);
        }
        for (below, node) in moved.into_iter().flatten() {
            if path.len() + below.len() > PATH_BYTES {
                return Err(LayerError::TooMuch("renamed a path that is too long"));
            }
            self.nodes.insert([&path[..], &below].concat(), node);
        }
        if entry.kind == EntryKind::Whiteout {
            self.nodes.remove(path);
            return Ok(());
        }
        let first = match &entry.kind {
            EntryKind::HardLink { target } => index.get(target).unwrap_or(entry),
            _ => entry,
        };
        self.nodes.insert(path.clone(), Arc::new(TreeNode::new(digest, first)));
        Ok(())
    }

    /// The nodes below a directory with their relative paths, which start with `/`.
    fn subtree(&self, directory: &[u8]) -> Vec<(Vec<u8>, Arc<TreeNode>)> {
        let (start, end) = range_below(directory);
        let range = self.nodes.range(start..end);
        range.map(|(path, node)| (path[directory.len()..].to_vec(), Arc::clone(node))).collect()
    }

    fn remove_below(&mut self, directory: &[u8]) {
        if directory.is_empty() {
            return self.nodes.retain(|path, _| path.is_empty());
        }
        let (start, end) = range_below(directory);
        let gone: Vec<Vec<u8>> =
            self.nodes.range(start..end).map(|(path, _)| path.clone()).collect();
        for path in gone {
            self.nodes.remove(&path);
        }
    }
}

/// The bounds of the paths below a directory other than the home itself.
fn range_below(directory: &[u8]) -> (Vec<u8>, Vec<u8>) {
    ([directory, b"/"].concat(), [directory, b"0"].concat())
}

impl TreeNode {
    fn new(layer: &LayerDigest, entry: &LayerEntry) -> Self {
        let mut content = ContentHash::default();
        let (kind, size) = match &entry.kind {
            EntryKind::File { size, hash, .. } => {
                content = *hash;
                (NodeKind::File, *size)
            }
            EntryKind::Symlink { target } => {
                (NodeKind::Symlink(target.clone()), target.len() as u64)
            }
            EntryKind::Fifo => (NodeKind::Fifo, 0),
            EntryKind::Directory { .. } | EntryKind::HardLink { .. } | EntryKind::Whiteout => {
                (NodeKind::Directory, 0)
            }
        };
        Self {
            kind,
            mode: entry.mode,
            mtime: entry.mtime,
            size,
            data_bytes: entry.kind.data_bytes(),
            content,
            xattrs: entry.xattrs.clone(),
            layer: layer.clone(),
            path_in_layer: entry.path.clone(),
        }
    }

    fn differs_from(&self, other: &Self) -> bool {
        let location = |node: &Self| (node.layer.clone(), node.path_in_layer.clone());
        let metadata = |node: &Self| (node.kind.clone(), node.mode, node.xattrs.clone());
        match (&self.kind, &other.kind) {
            (NodeKind::Directory, NodeKind::Directory) => metadata(self) != metadata(other),
            _ if location(self) == location(other) => false,
            // The file was written again, or is in another layer because the stack was squashed.
            _ => {
                metadata(self) != metadata(other)
                    || (self.mtime, self.size, self.content)
                        != (other.mtime, other.size, other.content)
            }
        }
    }
}
