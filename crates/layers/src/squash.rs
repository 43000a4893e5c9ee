//! Replaces a stack by one layer: copies what survives of each blob into a new archive.

use std::{
    collections::HashMap,
    io::{self, BufWriter, Read, Write},
};

use cloche_model::LayerDigest;
use tokio::runtime::Handle;
use tokio_util::io::SyncIoBridge;

use crate::{
    LayerError, Layers, StoredLayer, Tree, TreeNode,
    archive::{
        read::{ArchiveItem, ArchiveReader},
        write,
    },
    blob_store::run_blocking,
    checked_blob,
    entry::{EntryKind, LayerEntry},
    ingest::EmptyHomePolicy,
    layers::NEW_HOME,
    tree::NodeKind,
};

/// How many bytes may be buffered between the writer and the store.
const PIPE: usize = 1 << 18;

impl Layers {
    /// Makes one layer with the content of a stack, which starts with the oldest layer of a home.
    /// Returns `None` if the stack contains nothing but the home itself.
    ///
    /// # Errors
    /// If a layer is missing or damaged, or the result cannot be stored.
    pub async fn squash_stack(
        &self,
        stack: &[LayerDigest],
    ) -> Result<Option<StoredLayer>, LayerError> {
        let tree = self.load_tree(stack).await?;
        let is_new = |home: &TreeNode| home.mode == NEW_HOME && home.xattrs.is_empty();
        if tree.entry_count() == 0 && tree.get(b"").is_none_or(is_new) {
            return Ok(None);
        }
        let policy = EmptyHomePolicy::DropIfSame(NEW_HOME, Vec::new());
        let (out, archive) = tokio::io::duplex(PIPE);
        let out = BufWriter::with_capacity(1 << 16, SyncIoBridge::new(out));
        let (layers, stack) = (self.clone(), stack.to_vec());
        // All of it on a blocking thread, because dropping `out` writes too.
        let write = run_blocking(move || layers.write_survivors(&stack, &tree, out));
        let (written, stored) = tokio::join!(write, self.store_with_policy(archive, policy));
        // If the writer fails, the store only reports that the archive ended early.
        match written {
            Err(LayerError::Io { source, .. }) if source.kind() == io::ErrorKind::BrokenPipe => {
                stored
            }
            other => other.and(stored),
        }
    }

    fn write_survivors(
        &self,
        stack: &[LayerDigest],
        tree: &Tree,
        mut out: impl Write,
    ) -> Result<(), LayerError> {
        let (mut files, rest) = plan_squash(tree);
        for entry in &rest {
            write::write_header(&mut out, entry).map_err(write_error)?;
        }
        for digest in stack {
            let Some(wanted) = files.remove(digest) else { continue };
            let blob = Handle::current().block_on(self.0.blobs.open_blob(digest))?;
            checked_blob::read_checked(blob, digest, |archive| {
                copy_survivors(archive, &wanted, &mut out)
            })?;
        }
        write::write_end(&mut out).map_err(write_error)
    }
}

/// The surviving files of one layer: their path in the layer, and all their current paths.
type SurvivingFiles = HashMap<Vec<u8>, Vec<Vec<u8>>>;

/// The files to copy from blobs, and the entries that need no blob, directories first.
fn plan_squash(tree: &Tree) -> (HashMap<LayerDigest, SurvivingFiles>, Vec<LayerEntry>) {
    let mut files: HashMap<LayerDigest, SurvivingFiles> = HashMap::new();
    let (mut directories, mut others) = (Vec::new(), Vec::new());
    let mut first: HashMap<(&LayerDigest, &[u8]), &[u8]> = HashMap::new();
    for (path, node) in tree.walk() {
        if node.kind == NodeKind::File {
            let layer = files.entry(node.layer.clone()).or_default();
            layer.entry(node.path_in_layer.clone()).or_default().push(path.to_vec());
            continue;
        }
        let earlier = *first.entry((&node.layer, &node.path_in_layer)).or_insert(path);
        let kind = match &node.kind {
            NodeKind::Symlink(_) | NodeKind::Fifo if earlier != path => {
                EntryKind::HardLink { target: earlier.to_vec() }
            }
            NodeKind::Symlink(target) => EntryKind::Symlink { target: target.clone() },
            NodeKind::Fifo => EntryKind::Fifo,
            NodeKind::Directory | NodeKind::File => {
                directories.push(node_to_entry(
                    path,
                    node,
                    EntryKind::Directory { opaque: false, redirect: None },
                ));
                continue;
            }
        };
        others.push(node_to_entry(path, node, kind));
    }
    directories.append(&mut others);
    (files, directories)
}

fn node_to_entry(path: &[u8], node: &TreeNode, kind: EntryKind) -> LayerEntry {
    LayerEntry {
        path: path.to_vec(),
        kind,
        mode: node.mode,
        mtime: node.mtime,
        xattrs: node.xattrs.clone(),
    }
}

/// Copies the wanted files of an archive to their current paths.
fn copy_survivors<R: Read>(
    archive: &mut ArchiveReader<R>,
    wanted: &SurvivingFiles,
    out: &mut impl Write,
) -> Result<(), LayerError> {
    while let Some(item) = archive.next_item()? {
        let ArchiveItem::Entry(mut entry) = item else { continue };
        let Some((first, others)) = wanted.get(&entry.path).and_then(|paths| paths.split_first())
        else {
            continue;
        };
        if !matches!(entry.kind, EntryKind::File { .. }) {
            continue;
        }
        entry.path.clone_from(first);
        write::write_header(out, &entry).map_err(write_error)?;
        let data = entry.kind.data_bytes();
        let copied = io::copy(archive, out).map_err(write_error)?;
        if copied != data {
            return Err(LayerError::Refused("an archive that ends early".to_owned()));
        }
        write::write_padding(out, data).map_err(write_error)?;
        for path in others {
            let kind = EntryKind::HardLink { target: first.clone() };
            let link = LayerEntry { path: path.clone(), kind, ..entry.clone() };
            write::write_header(out, &LayerEntry { xattrs: Vec::new(), ..link })
                .map_err(write_error)?;
        }
    }
    Ok(())
}

fn write_error(source: io::Error) -> LayerError {
    LayerError::from_io("writing a layer", source)
}
