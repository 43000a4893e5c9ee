//! One layer in place of a stack: what survives of every blob, put into a new archive.

use std::{
    collections::HashMap,
    io::{self, BufWriter, Read, Write},
};

use cloche_model::LayerDigest;
use tokio::runtime::Handle;
use tokio_util::io::SyncIoBridge;

use crate::{
    LayerError, Layers, Node, Stored, Tree,
    blobs::blocking,
    entry::{Entry, Kind},
    ingest::Bare,
    layers::NEW_HOME,
    tree::NodeKind,
    verified,
    wire::{
        read::{Archive, Item},
        write,
    },
};

/// How much may wait between the two halves of the work.
const PIPE: usize = 1 << 18;

impl Layers {
    /// Makes one layer that is equal to a stack, which begins with the oldest layer of a home. None
    /// if the stack holds nothing but the home itself.
    ///
    /// # Errors
    /// If a layer is missing or damaged, or the result cannot be stored.
    pub async fn squash(&self, stack: &[LayerDigest]) -> Result<Option<Stored>, LayerError> {
        let tree = self.tree(stack).await?;
        let is_new = |home: &Node| home.mode == NEW_HOME && home.xattrs.is_empty();
        if tree.entries() == 0 && tree.get(b"").is_none_or(is_new) {
            return Ok(None);
        }
        let bare = Bare::Unless(NEW_HOME, Vec::new());
        let (out, archive) = tokio::io::duplex(PIPE);
        let out = BufWriter::with_capacity(1 << 16, SyncIoBridge::new(out));
        let (layers, stack) = (self.clone(), stack.to_vec());
        // All of it where blocking is no harm: dropping `out` writes, too.
        let write = blocking(move || layers.write_survivors(&stack, &tree, out));
        let (written, stored) = tokio::join!(write, self.store_unless(archive, bare));
        // If the first half fails, the second says only that the archive ended early.
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
        let (mut files, rest) = plan(tree);
        for entry in &rest {
            write::head(&mut out, entry).map_err(writing)?;
        }
        for digest in stack {
            let Some(wanted) = files.remove(digest) else { continue };
            let blob = Handle::current().block_on(self.0.blobs.read(digest))?;
            verified::read(blob, digest, |archive| survivors(archive, &wanted, &mut out))?;
        }
        write::end(&mut out).map_err(writing)
    }
}

/// The files of one layer that survive: by their path there, all paths that they have now.
type Wanted = HashMap<Vec<u8>, Vec<Vec<u8>>>;

/// What is copied from blobs, and what is known without them, directories first.
fn plan(tree: &Tree) -> (HashMap<LayerDigest, Wanted>, Vec<Entry>) {
    let mut files: HashMap<LayerDigest, Wanted> = HashMap::new();
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
                Kind::HardLink { target: earlier.to_vec() }
            }
            NodeKind::Symlink(target) => Kind::Symlink { target: target.clone() },
            NodeKind::Fifo => Kind::Fifo,
            NodeKind::Directory | NodeKind::File => {
                directories.push(entry(
                    path,
                    node,
                    Kind::Directory { opaque: false, redirect: None },
                ));
                continue;
            }
        };
        others.push(entry(path, node, kind));
    }
    directories.append(&mut others);
    (files, directories)
}

fn entry(path: &[u8], node: &Node, kind: Kind) -> Entry {
    Entry {
        path: path.to_vec(),
        kind,
        mode: node.mode,
        mtime: node.mtime,
        xattrs: node.xattrs.clone(),
    }
}

/// Copies the wanted files of an archive, under their new names.
fn survivors<R: Read>(
    archive: &mut Archive<R>,
    wanted: &Wanted,
    out: &mut impl Write,
) -> Result<(), LayerError> {
    while let Some(item) = archive.next()? {
        let Item::Entry(mut entry) = item else { continue };
        let Some((first, others)) = wanted.get(&entry.path).and_then(|paths| paths.split_first())
        else {
            continue;
        };
        if !matches!(entry.kind, Kind::File { .. }) {
            continue;
        }
        entry.path.clone_from(first);
        write::head(out, &entry).map_err(writing)?;
        let data = entry.kind.data_bytes();
        let copied = io::copy(archive, out).map_err(writing)?;
        if copied != data {
            return Err(LayerError::Refused("an archive that ends early".to_owned()));
        }
        write::pad(out, data).map_err(writing)?;
        for path in others {
            let kind = Kind::HardLink { target: first.clone() };
            let link = Entry { path: path.clone(), kind, ..entry.clone() };
            write::head(out, &Entry { xattrs: Vec::new(), ..link }).map_err(writing)?;
        }
    }
    Ok(())
}

fn writing(source: io::Error) -> LayerError {
    LayerError::from_io("writing a layer", source)
}
