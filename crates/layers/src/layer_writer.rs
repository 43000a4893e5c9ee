//! Makes a layer from files that arrive one after the other, in constant memory.

use std::{
    collections::BTreeMap,
    io,
    time::{SystemTime, UNIX_EPOCH},
};

use cloche_model::LayerDigest;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt, DuplexStream},
    task::JoinHandle,
};

use crate::{
    LayerError, Layers, StoredLayer, Tree,
    archive::{check_path, write},
    entry::{EntryKind, LayerEntry, Mtime},
    error::FILE_BYTES,
    tree::NodeKind,
};

/// How many bytes may be buffered between the writer and the store.
const PIPE: usize = 1 << 18;

/// A layer to which files are written one after the other.
pub struct LayerWriter {
    below: Tree,
    /// The paths of this layer so far, and whether each is a directory.
    made: BTreeMap<Vec<u8>, bool>,
    out: DuplexStream,
    store: JoinHandle<Result<Option<StoredLayer>, LayerError>>,
    now: Mtime,
    broken: bool,
}

impl Layers {
    /// Begins a layer on top of a stack. Nothing is stored before `finish`.
    ///
    /// # Errors
    /// If a layer of the stack is missing or damaged.
    pub async fn begin_layer(&self, stack: &[LayerDigest]) -> Result<LayerWriter, LayerError> {
        let below = self.load_tree(stack).await?;
        let (out, archive) = tokio::io::duplex(PIPE);
        let layers = self.clone();
        let store = tokio::spawn(async move { layers.store_archive(archive).await });
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seconds = i64::try_from(now.as_secs()).unwrap_or(0);
        let now = Mtime { seconds, nanos: now.subsec_nanos() };
        let made = BTreeMap::new();
        let mut writer = LayerWriter { below, made, out, store, now, broken: false };
        writer.put_directory(b"").await?;
        Ok(writer)
    }
}

impl LayerWriter {
    /// Adds a file of exactly `length` bytes, and its missing parent directories. It replaces a
    /// file of the stack at the same path.
    ///
    /// # Errors
    /// If the path cannot be used, something other than a file is there, or the content is shorter
    /// or longer. After an error in the content or the store the writer can only be dropped.
    pub async fn put_file(
        &mut self,
        path: &[u8],
        mode: u32,
        length: u64,
        mut content: impl AsyncRead + Send + Unpin,
    ) -> Result<(), LayerError> {
        self.check_new_path(path)?;
        if length > FILE_BYTES {
            return Err(LayerError::TooMuch("a file that is too large"));
        }
        if self.below.get(path).is_some_and(|node| node.kind == NodeKind::Directory) {
            return Err(LayerError::WrongKind(lossy_path(path), "is a directory"));
        }
        self.put_parents(path).await?;
        let kind = EntryKind::File { size: length, extents: None, data_at: 0, hash: [0; 16] };
        self.put_entry(path, kind, mode).await?;
        self.broken = true;
        let mut exactly = (&mut content).take(length);
        let copied = tokio::io::copy(&mut exactly, &mut self.out).await;
        let copied = copied.map_err(LayerError::io_context("receiving a file"))?;
        let more =
            content.read(&mut [0]).await.map_err(LayerError::io_context("receiving a file"))?;
        if copied != length || more != 0 {
            return Err(LayerError::WrongKind(
                lossy_path(path),
                "does not have the announced length",
            ));
        }
        let mut padding = Vec::new();
        write::write_padding(&mut padding, length)
            .map_err(LayerError::io_context("writing a layer"))?;
        self.send_bytes(&padding).await?;
        self.broken = false;
        Ok(())
    }

    /// Removes a file of the stack, or a directory with its content.
    ///
    /// # Errors
    /// If nothing is at the path.
    pub async fn remove_path(&mut self, path: &[u8]) -> Result<(), LayerError> {
        self.check_new_path(path)?;
        if self.below.get(path).is_none() {
            return Err(LayerError::NoSuchPath(lossy_path(path)));
        }
        self.put_parents(path).await?;
        self.put_entry(path, EntryKind::Whiteout, 0).await
    }

    /// Stores the layer. Returns `None` if nothing was written.
    ///
    /// # Errors
    /// If the layer cannot be stored, or a file was not written completely.
    pub async fn finish(mut self) -> Result<Option<StoredLayer>, LayerError> {
        if !self.broken {
            let mut end = Vec::new();
            write::write_end(&mut end).map_err(LayerError::io_context("writing a layer"))?;
            let _ = self.out.write_all(&end).await;
        }
        drop(self.out);
        match self.store.await {
            Ok(stored) => stored,
            Err(error) => Err(LayerError::from_io("storing a layer", io::Error::other(error))),
        }
    }

    /// Checks that a path can be written and was not written before.
    fn check_new_path(&self, path: &[u8]) -> Result<(), LayerError> {
        check_path(path)?;
        if path.is_empty() || self.made.contains_key(path) {
            return Err(LayerError::WrongKind(lossy_path(path), "already exists"));
        }
        Ok(())
    }

    /// Writes the parent directories of a path.
    async fn put_parents(&mut self, path: &[u8]) -> Result<(), LayerError> {
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        let directories: Vec<&[u8]> = slashes.map(|(at, _)| &path[..at]).collect();
        for directory in &directories {
            let below = self.below.get(directory).map(|node| node.kind == NodeKind::Directory);
            if self.made.get(*directory).copied().or(below) == Some(false) {
                return Err(LayerError::WrongKind(lossy_path(directory), "is not a directory"));
            }
        }
        for directory in directories {
            if !self.made.contains_key(directory) {
                self.put_directory(directory).await?;
            }
        }
        Ok(())
    }

    /// Writes a directory as it is in the stack, or a new one.
    async fn put_directory(&mut self, path: &[u8]) -> Result<(), LayerError> {
        let kind = EntryKind::Directory { opaque: false, redirect: None };
        let path = path.to_vec();
        let entry = match self.below.get(&path) {
            Some(node) => {
                let (mode, xattrs) = (node.mode, node.xattrs.clone());
                // Its content changes, so its time is now.
                LayerEntry { path, kind, mode, mtime: self.now, xattrs }
            }
            None => LayerEntry { path, kind, mode: 0o755, mtime: self.now, xattrs: Vec::new() },
        };
        self.write_entry(entry).await
    }

    async fn put_entry(
        &mut self,
        path: &[u8],
        kind: EntryKind,
        mode: u32,
    ) -> Result<(), LayerError> {
        let (mtime, xattrs) = (self.now, Vec::new());
        self.write_entry(LayerEntry { path: path.to_vec(), kind, mode, mtime, xattrs }).await
    }

    async fn write_entry(&mut self, entry: LayerEntry) -> Result<(), LayerError> {
        let mut head = Vec::new();
        write::write_header(&mut head, &entry)
            .map_err(LayerError::io_context("writing a layer"))?;
        let directory = matches!(entry.kind, EntryKind::Directory { .. });
        self.made.insert(entry.path, directory);
        self.send_bytes(&head).await
    }

    async fn send_bytes(&mut self, bytes: &[u8]) -> Result<(), LayerError> {
        let sent = self.out.write_all(bytes).await;
        sent.inspect_err(|_| self.broken = true).map_err(LayerError::io_context("storing a layer"))
    }
}

fn lossy_path(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}
