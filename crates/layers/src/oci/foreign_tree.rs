//! Runs in: server (no capabilities).
//!
//! The file tree of one layer of an image: what is left when entries replaced each other, with every
//! directory that a path needs.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Bound,
};

use crate::{
    LayerBounds, LayerError, Tree, TreeNode,
    archive::{foreign::ForeignItem, join_path, split_path},
    entry::{EntryKind, LayerEntry, Mtime},
    error::NAMES_BYTES,
    tree::NodeKind,
};

/// How many symbolic links a path may lead through.
const LINKS: usize = 40;

/// Where the data of a file is.
#[derive(Clone, Debug)]
pub(super) enum ForeignData {
    /// In the archive, at the offset in the entry.
    Archive,
    /// In a file of a lower layer, to which the archive has a hard link.
    Below(Box<TreeNode>),
}

/// A file, link or pipe, with all its names.
#[derive(Clone, Debug)]
pub(super) struct ForeignInode {
    pub(super) entry: LayerEntry,
    pub(super) data: ForeignData,
}

#[derive(Clone, Debug)]
enum ForeignNode {
    Directory(LayerEntry),
    Inode(usize),
}

/// One entry of the finished layer.
pub(super) struct FinishedEntry {
    pub(super) entry: LayerEntry,
    /// Where its data is, if it has any.
    pub(super) data: Option<ForeignData>,
}

/// The layer while its archive is read.
pub(super) struct ForeignTree<'a> {
    /// The merged lower layers.
    below: &'a Tree,
    bounds: LayerBounds,
    nodes: BTreeMap<Vec<u8>, ForeignNode>,
    inodes: Vec<ForeignInode>,
    whiteouts: BTreeSet<Vec<u8>>,
    opaque: BTreeSet<Vec<u8>>,
    names: u64,
    needs_below: bool,
}

impl<'a> ForeignTree<'a> {
    pub(super) fn new(below: &'a Tree, bounds: LayerBounds) -> Self {
        Self {
            below,
            bounds,
            nodes: BTreeMap::new(),
            inodes: Vec::new(),
            whiteouts: BTreeSet::new(),
            opaque: BTreeSet::new(),
            names: 0,
            needs_below: false,
        }
    }

    /// Adds the next item of the archive. A later entry replaces an earlier one at its path.
    pub(super) fn add_item(&mut self, item: ForeignItem) -> Result<(), LayerError> {
        match item {
            ForeignItem::Whiteout(path) => {
                self.count_entry(path.len())?;
                self.whiteouts.insert(path);
            }
            ForeignItem::Opaque(path) => {
                self.count_entry(path.len())?;
                self.opaque.insert(path);
            }
            ForeignItem::Entry(mut entry) => {
                let more = match &entry.kind {
                    EntryKind::Symlink { target } | EntryKind::HardLink { target } => target.len(),
                    EntryKind::File { extents: Some(extents), .. } => 16 * extents.len(),
                    _ => 0,
                };
                let attributes: usize = entry.xattrs.iter().map(|(k, v)| k.len() + v.len()).sum();
                self.count_entry(entry.path.len() + more + attributes)?;
                if !entry.path.is_empty() {
                    let (directory, name) = split_path(&entry.path);
                    entry.path = join_path(&self.resolve_directory(directory)?, name);
                }
                self.add_entry(entry)?;
            }
        }
        Ok(())
    }

    /// Counts every entry of the archive, those that are replaced later included.
    fn count_entry(&mut self, names: usize) -> Result<(), LayerError> {
        let entries = self.nodes.len() + self.inodes.len() + self.whiteouts.len();
        self.names += names as u64;
        if entries as u64 >= 2 * self.bounds.entries || self.names > NAMES_BYTES {
            return Err(LayerError::TooMuch("too many entries"));
        }
        Ok(())
    }

    fn add_entry(&mut self, entry: LayerEntry) -> Result<(), LayerError> {
        let path = entry.path.clone();
        if let EntryKind::Directory { .. } = entry.kind {
            self.nodes.insert(path, ForeignNode::Directory(entry));
            return Ok(());
        }
        let inode = match &entry.kind {
            EntryKind::HardLink { target } => self.find_link_target(target)?,
            _ => {
                self.inodes.push(ForeignInode { entry, data: ForeignData::Archive });
                self.inodes.len() - 1
            }
        };
        self.remove_subtree(&path);
        self.nodes.insert(path, ForeignNode::Inode(inode));
        Ok(())
    }

    /// The inode that a hard link names: of this layer, else a copy of one of a lower layer.
    fn find_link_target(&mut self, target: &[u8]) -> Result<usize, LayerError> {
        let refused = |what: &str| {
            let target = String::from_utf8_lossy(target);
            Err(LayerError::Refused(format!("a hard link to {target:?}, which {what}")))
        };
        let (directory, name) = split_path(target);
        let path = join_path(&self.resolve_directory(directory)?, name);
        match self.nodes.get(&path) {
            Some(ForeignNode::Inode(inode)) => return Ok(*inode),
            Some(ForeignNode::Directory(_)) => return refused("is a directory"),
            None => {}
        }
        let Some(node) = self.below.get(&path) else { return refused("does not exist") };
        let kind = match &node.kind {
            NodeKind::Directory => return refused("is a directory"),
            NodeKind::File if node.size != node.data_bytes => return refused("has holes"),
            NodeKind::File => {
                EntryKind::File { size: node.size, extents: None, data_at: 0, hash: [0; 16] }
            }
            NodeKind::Symlink(target) => EntryKind::Symlink { target: target.clone() },
            NodeKind::Fifo => EntryKind::Fifo,
        };
        self.needs_below = true;
        let (mode, mtime, xattrs) = (node.mode, node.mtime, node.xattrs.clone());
        let entry = LayerEntry { path: Vec::new(), kind, mode, mtime, xattrs };
        let data = ForeignData::Below(Box::new(node.clone()));
        self.inodes.push(ForeignInode { entry, data });
        Ok(self.inodes.len() - 1)
    }

    /// Follows the symbolic links of this layer in the path of a directory. `..` in a link does not
    /// leave the root. Links of lower layers are not followed: there a real directory replaces them.
    fn resolve_directory(&self, directory: &[u8]) -> Result<Vec<u8>, LayerError> {
        let names = |path: &[u8]| -> Vec<Vec<u8>> {
            let names = path.split(|&byte| byte == b'/');
            names.filter(|name| !matches!(*name, b"" | b".")).map(<[u8]>::to_vec).collect()
        };
        let mut rest: VecDeque<Vec<u8>> = names(directory).into();
        let (mut here, mut links) = (Vec::new(), 0);
        while let Some(name) = rest.pop_front() {
            if name == b".." {
                here = split_path(&here).0.to_vec();
                continue;
            }
            let next = join_path(&here, &name);
            let Some(ForeignNode::Inode(inode)) = self.nodes.get(&next) else {
                here = next;
                continue;
            };
            let EntryKind::Symlink { target } = &self.inodes[*inode].entry.kind else {
                let shown = String::from_utf8_lossy(&next);
                return Err(LayerError::Refused(format!(
                    "a path below {shown:?}, which is a file"
                )));
            };
            links += 1;
            if links > LINKS {
                return Err(LayerError::Refused("a path through too many links".to_owned()));
            }
            if target.starts_with(b"/") {
                here.clear();
            }
            for name in names(target).into_iter().rev() {
                rest.push_front(name);
            }
        }
        Ok(here)
    }

    /// Removes a path with everything below it.
    fn remove_subtree(&mut self, path: &[u8]) {
        self.nodes.remove(path);
        let below = [path, b"/"].concat();
        let range = (Bound::Included(below.clone()), Bound::Unbounded);
        let doomed = self.nodes.range(range).map(|(path, _)| path);
        let doomed: Vec<Vec<u8>> =
            doomed.take_while(|path| path.starts_with(&below)).cloned().collect();
        for path in doomed {
            self.nodes.remove(&path);
        }
    }

    /// Completes the layer. Returns its entries, each directory before its content, and whether they
    /// depend on the lower layers.
    pub(super) fn finish(mut self) -> Result<(Vec<FinishedEntry>, bool), LayerError> {
        let whiteouts = self.settle_whiteouts();
        let paths: Vec<Vec<u8>> = self.nodes.keys().chain(&whiteouts).cloned().collect();
        for path in paths {
            self.add_parents(&path);
        }
        self.nodes
            .entry(Vec::new())
            .or_insert_with(|| ForeignNode::Directory(plain_directory(Vec::new())));
        let mut finished: BTreeMap<Vec<u8>, FinishedEntry> = BTreeMap::new();
        let mut first_names: Vec<Option<Vec<u8>>> = vec![None; self.inodes.len()];
        for (path, node) in self.nodes {
            let done = match node {
                ForeignNode::Directory(mut entry) => {
                    let opaque = self.opaque.contains(&path);
                    entry.kind = EntryKind::Directory { opaque, redirect: None };
                    FinishedEntry { entry, data: None }
                }
                ForeignNode::Inode(at) => {
                    let ForeignInode { entry, data } = self.inodes[at].clone();
                    match &first_names[at] {
                        Some(first) => {
                            let kind = EntryKind::HardLink { target: first.clone() };
                            FinishedEntry { entry: LayerEntry { kind, ..entry }, data: None }
                        }
                        None => {
                            first_names[at] = Some(path.clone());
                            FinishedEntry { entry, data: Some(data) }
                        }
                    }
                }
            };
            finished.insert(path, done);
        }
        for path in whiteouts {
            let entry =
                LayerEntry { kind: EntryKind::Whiteout, mode: 0, ..plain_directory(Vec::new()) };
            finished.insert(path, FinishedEntry { entry, data: None });
        }
        if finished.len() as u64 > self.bounds.entries {
            return Err(LayerError::TooMuch("too many entries"));
        }
        let finished = finished.into_iter().map(|(path, mut done)| {
            done.entry.path = path;
            done
        });
        Ok((finished.collect(), self.needs_below))
    }

    /// The whiteouts that have something to hide. An entry of this layer wins over a whiteout of its
    /// path; a directory then hides the content of lower layers.
    fn settle_whiteouts(&mut self) -> Vec<Vec<u8>> {
        let all = std::mem::take(&mut self.whiteouts);
        self.needs_below |= !all.is_empty();
        let mut kept = Vec::new();
        for path in all {
            match self.nodes.get(&path) {
                Some(ForeignNode::Directory(_)) => {
                    self.opaque.insert(path);
                }
                Some(ForeignNode::Inode(_)) => {}
                None => kept.push(path),
            }
        }
        let (nodes, below) = (&self.nodes, self.below);
        self.opaque.retain(|path| match nodes.get(path) {
            Some(ForeignNode::Inode(_)) => false,
            Some(ForeignNode::Directory(_)) => true,
            None => below.get(path).is_some_and(|node| node.kind == NodeKind::Directory),
        });
        // Overlayfs would list a whiteout in a directory that no lower layer has.
        let hidden: BTreeSet<Vec<u8>> = kept.iter().cloned().collect();
        kept.retain(|path| {
            let mut above = ancestors(path);
            below.get(path).is_some()
                && !self.opaque.contains(&b""[..])
                && !above.any(|above| {
                    self.opaque.contains(above)
                        || hidden.contains(above)
                        || matches!(nodes.get(above), Some(ForeignNode::Inode(_)))
                })
        });
        for path in self.opaque.clone() {
            if !self.nodes.contains_key(&path) {
                let entry = self.directory_like_below(&path);
                self.nodes.insert(path, ForeignNode::Directory(entry));
            }
        }
        kept
    }

    /// Adds the directories above a path that the archive has left out.
    fn add_parents(&mut self, path: &[u8]) {
        for above in ancestors(path) {
            if !above.is_empty() && !self.nodes.contains_key(above) {
                let entry = self.directory_like_below(above);
                self.nodes.insert(above.to_vec(), ForeignNode::Directory(entry));
            }
        }
    }

    /// A directory with the metadata that it has in lower layers.
    fn directory_like_below(&mut self, path: &[u8]) -> LayerEntry {
        self.needs_below = true;
        let plain = plain_directory(path.to_vec());
        match self.below.get(path) {
            Some(node) if node.kind == NodeKind::Directory => LayerEntry {
                mode: node.mode,
                mtime: node.mtime,
                xattrs: node.xattrs.clone(),
                ..plain
            },
            _ => plain,
        }
    }
}

/// The directories above a path, without the root.
fn ancestors(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    slashes.map(|(at, _)| &path[..at])
}

fn plain_directory(path: Vec<u8>) -> LayerEntry {
    LayerEntry {
        path,
        kind: EntryKind::Directory { opaque: false, redirect: None },
        mode: 0o755,
        mtime: Mtime::default(),
        xattrs: Vec::new(),
    }
}
