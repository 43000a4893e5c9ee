//! Runs in: mount server (no capabilities). Open files and directories of a mount.

use std::{collections::HashMap, ffi::OsString, fs::File, os::fd::OwnedFd, sync::Arc};

use fuser::FileType;
use parking_lot::Mutex;

/// The most open files and directories of one mount.
const MAX_HANDLES: usize = 4096;

/// An open file.
#[derive(Debug)]
pub(super) struct OpenMountFile {
    pub(super) file: File,
    pub(super) node: u64,
    /// Opened to append: every write goes to the end, also beside writers of other cells.
    pub(super) appends: bool,
    pub(super) writes: bool,
}

/// An open directory, with its entries as they were when it was read from the beginning.
#[derive(Debug)]
pub(super) struct OpenDirectory {
    pub(super) directory: OwnedFd,
    pub(super) node: u64,
    pub(super) entries: Mutex<Option<Vec<(OsString, FileType)>>>,
}

#[derive(Clone, Debug)]
pub(super) enum Handle {
    File(Arc<OpenMountFile>),
    Directory(Arc<OpenDirectory>),
}

/// The open files and directories of a mount, by number.
#[derive(Debug, Default)]
pub(super) struct HandleTable {
    next: u64,
    open: HashMap<u64, Handle>,
}

impl HandleTable {
    /// Adds a handle; `None` if there are too many.
    pub(super) fn insert(&mut self, handle: Handle) -> Option<u64> {
        if self.open.len() >= MAX_HANDLES {
            return None;
        }
        self.next += 1;
        self.open.insert(self.next, handle);
        Some(self.next)
    }

    pub(super) fn file(&self, id: u64) -> Option<Arc<OpenMountFile>> {
        match self.open.get(&id)? {
            Handle::File(file) => Some(Arc::clone(file)),
            Handle::Directory(_) => None,
        }
    }

    pub(super) fn directory(&self, id: u64) -> Option<Arc<OpenDirectory>> {
        match self.open.get(&id)? {
            Handle::Directory(directory) => Some(Arc::clone(directory)),
            Handle::File(_) => None,
        }
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<Handle> {
        self.open.remove(&id)
    }

    /// All files that are open.
    pub(super) fn files(&self) -> Vec<Arc<OpenMountFile>> {
        let file = |handle: &Handle| match handle {
            Handle::File(file) => Some(Arc::clone(file)),
            Handle::Directory(_) => None,
        };
        self.open.values().filter_map(file).collect()
    }
}
