//! Runs in: mount server (no capabilities). The reading operations of an object mount, as results.

use std::{
    collections::HashMap,
    future::Future,
    os::fd::OwnedFd,
    sync::{Arc, OnceLock},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use cloche_model::{KeyPrefix, ObjectConnection};
use fuser::FileAttr;
use parking_lot::Mutex;
use rustix::io::Errno;

use super::{
    directory_list::DirectoryList,
    nodes::{Found, ObjectNodes},
    read_ahead::{ObjectReader, ReadBudget},
    small_files::SmallFiles,
    spool::{SpoolBudget, SpoolFile},
};
use crate::{
    EndpointAccess, ObjectPath, ObjectStorage, StorageError,
    server::{
        attributes::{LONG_TTL, ROOT, SHORT_TTL},
        lazy_runtime::LazyRuntime,
        meter::MountMeter,
    },
};

/// How long a request about names may take.
const NAME_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes that are read ahead for all open files of a mount.
const READ_AHEAD: u64 = 64 << 20;
/// The most open files and directories.
const MAX_HANDLES: usize = 4096;

/// What an object mount is made from.
pub(in crate::server) struct ObjectMountSettings {
    pub(in crate::server) connection: (ObjectConnection, KeyPrefix),
    pub(in crate::server) access: Arc<dyn EndpointAccess>,
    /// The directory of spool files.
    pub(in crate::server) spool: Arc<OwnedFd>,
    pub(in crate::server) owner: (u32, u32),
    pub(in crate::server) read_only: bool,
    pub(in crate::server) most_bytes: u64,
    pub(in crate::server) most_spool: u64,
}

/// A prefix of a bucket that is mounted.
pub(in crate::server) struct ObjectMount {
    pub(super) settings: ObjectMountSettings,
    pub(super) runtime: Arc<LazyRuntime>,
    /// Held while a thread begins an answer about names.
    pub(super) turn: Mutex<()>,
    storage: OnceLock<Result<ObjectStorage, StorageError>>,
    pub(super) nodes: Mutex<ObjectNodes>,
    pub(super) handles: Mutex<ObjectHandles>,
    pub(super) small_files: Mutex<SmallFiles>,
    budget: ReadBudget,
    pub(super) spool_budget: Arc<SpoolBudget>,
    pub(super) meter: MountMeter,
}

/// An open file or directory.
#[derive(Clone)]
pub(super) enum ObjectHandle {
    /// A file that was opened to read.
    Reader(u64, Arc<Mutex<Arc<ObjectReader>>>),
    /// A file that was opened to write.
    Writer(u64, Arc<SpoolFile>),
    Directory(Arc<tokio::sync::Mutex<DirectoryList>>),
}

#[derive(Default)]
pub(super) struct ObjectHandles {
    next: u64,
    open: HashMap<u64, ObjectHandle>,
}

impl ObjectHandles {
    pub(super) fn insert(&mut self, handle: ObjectHandle) -> Result<u64, Errno> {
        if self.open.len() >= MAX_HANDLES {
            return Err(Errno::MFILE);
        }
        self.next += 1;
        self.open.insert(self.next, handle);
        Ok(self.next)
    }

    pub(super) fn get(&self, id: u64) -> Result<ObjectHandle, Errno> {
        self.open.get(&id).cloned().ok_or(Errno::BADF)
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<ObjectHandle> {
        self.open.remove(&id)
    }
}

impl ObjectMount {
    pub(in crate::server) fn new(settings: ObjectMountSettings, runtime: Arc<LazyRuntime>) -> Self {
        let spool_budget = Arc::new(SpoolBudget::new(settings.most_spool));
        Self {
            settings,
            runtime,
            turn: Mutex::default(),
            storage: OnceLock::new(),
            nodes: Mutex::new(ObjectNodes::new()),
            handles: Mutex::default(),
            small_files: Mutex::default(),
            budget: ReadBudget::new(READ_AHEAD),
            spool_budget,
            meter: MountMeter::default(),
        }
    }

    pub(in crate::server) fn meter(&self) -> &MountMeter {
        &self.meter
    }

    /// How long the kernel may use what it knows.
    pub(super) fn ttl(&self) -> Duration {
        if self.settings.read_only { LONG_TTL } else { SHORT_TTL }
    }

    /// The client, made when it is first used: an unused mount costs nothing.
    pub(super) fn storage(&self) -> Result<&ObjectStorage, Errno> {
        let (connection, prefix) = &self.settings.connection;
        let connect = || {
            ObjectStorage::connect(connection, prefix.clone(), Arc::clone(&self.settings.access))
        };
        match self.storage.get_or_init(connect) {
            Ok(storage) => Ok(storage),
            Err(error) => {
                self.meter.add_error(&StorageError::Unreachable(error.to_string()));
                Err(Errno::IO)
            }
        }
    }

    /// The errno of a failed request, which is counted.
    pub(super) fn fail(&self, error: &StorageError) -> Errno {
        self.meter.add_error(error);
        error.errno()
    }

    /// Waits for an answer about names, for a bounded time.
    pub(super) async fn ask<T>(
        &self,
        request: impl Future<Output = Result<T, StorageError>>,
    ) -> Result<T, StorageError> {
        let answer = tokio::time::timeout(NAME_TIMEOUT, request).await;
        answer.unwrap_or(Err(StorageError::TimedOut(NAME_TIMEOUT)))
    }

    pub(super) fn attributes_of(&self, node: u64) -> Result<FileAttr, Errno> {
        self.nodes.lock().attributes(node, self.settings.owner, self.settings.read_only)
    }

    /// Finds an entry of a directory. Returns its number.
    pub(super) async fn find(&self, parent: u64, name: &str) -> Result<u64, Errno> {
        let path = {
            let mut nodes = self.nodes.lock();
            let known = nodes.child(parent, name);
            if let Some(known) = known.filter(|id| nodes.is_fresh(*id, self.ttl())) {
                return Ok(known);
            }
            if known.is_none() && nodes.is_absent(parent, name, self.ttl()) {
                return Err(Errno::NOENT);
            }
            if let Some(info) = nodes.take_listed(parent, name, self.ttl()) {
                return nodes.note(parent, name, Found::Object(info));
            }
            let answered = self.small_files.lock().answered(parent, name, self.ttl());
            if let Some(info) = answered {
                return nodes.note(parent, name, Found::Object(info));
            }
            // What cannot be a key does not exist.
            nodes.path_of(parent)?.join(name).map_err(|_| Errno::NOENT)?
        };
        let storage = self.storage()?;
        let asked = async { tokio::join!(storage.head(&path), storage.has_entries(&path)) };
        let asked = tokio::time::timeout(NAME_TIMEOUT, asked).await;
        let (object, directory) =
            asked.map_err(|_| self.fail(&StorageError::TimedOut(NAME_TIMEOUT)))?;
        let found = match (object, directory) {
            // Of a directory and an object with one name, only the directory can be seen.
            (_, Ok(true)) => Found::Directory,
            (Ok(info), Ok(false)) => Found::Object(info),
            (Err(StorageError::NotFound | StorageError::Invalid(_)), Ok(false)) => {
                return self.keep_local(parent, name);
            }
            (Err(error), _) | (_, Err(error)) => return Err(self.fail(&error)),
        };
        let mut nodes = self.nodes.lock();
        // It may have been opened to write in the meantime, and then this answer is old.
        match nodes.child(parent, name).filter(|id| nodes.is_fresh(*id, Duration::ZERO)) {
            Some(known) => Ok(known),
            None => nodes.note(parent, name, found),
        }
    }

    /// The store has no such name. A directory that was made here exists nevertheless.
    fn keep_local(&self, parent: u64, name: &str) -> Result<u64, Errno> {
        let mut nodes = self.nodes.lock();
        if let Some(known) = nodes.child(parent, name) {
            let node = nodes.get(known)?;
            if node.is_local || node.spool.is_some() {
                return Ok(known);
            }
            nodes.detach(parent, name);
        }
        nodes.note_absent(parent, name);
        Err(Errno::NOENT)
    }

    pub(super) async fn lookup(&self, parent: u64, name: &str) -> Result<FileAttr, Errno> {
        let node = self.find(parent, name).await?;
        self.nodes.lock().add_lookup(node);
        self.attributes_of(node)
    }

    pub(super) async fn attributes(&self, node: u64) -> Result<FileAttr, Errno> {
        let asked = {
            let nodes = self.nodes.lock();
            let known = nodes.get(node)?;
            let is_known = nodes.is_fresh(node, self.ttl()) || known.unlinked || known.is_local;
            if is_known { None } else { Some(nodes.name_of(node)?) }
        };
        if let Some((parent, name)) = asked
            && self.find(parent, &name).await? != node
        {
            return Err(Errno::STALE);
        }
        self.attributes_of(node)
    }

    /// Opens a file to read. The version that exists now is the one that is read.
    pub(super) async fn open_reader(&self, node: u64) -> Result<u64, Errno> {
        let refresh = {
            let nodes = self.nodes.lock();
            let known = nodes.get(node)?;
            let must = !nodes.is_fresh(node, self.ttl()) && !known.unlinked;
            if must { Some(nodes.name_of(node)?) } else { None }
        };
        if let Some((parent, name)) = refresh
            && self.find(parent, &name).await? != node
        {
            return Err(Errno::STALE);
        }
        let spool = self.nodes.lock().get(node)?.spool.clone();
        let handle = match spool {
            // It is being written: a reader sees what was written.
            Some(spool) => ObjectHandle::Writer(node, spool),
            None => {
                let reader = match self.take_ahead(node)? {
                    Some(reader) => reader,
                    None => {
                        let reader = self.new_reader(node)?;
                        reader.start_small();
                        reader
                    }
                };
                ObjectHandle::Reader(node, Arc::new(Mutex::new(reader)))
            }
        };
        let id = self.handles.lock().insert(handle)?;
        self.nodes.lock().get_mut(node)?.handles += 1;
        Ok(id)
    }

    /// The reader of a small object that was requested ahead. Requests the ones that will probably
    /// be opened next.
    fn take_ahead(&self, node: u64) -> Result<Option<Arc<ObjectReader>>, Errno> {
        let storage = self.storage()?;
        let (directory, name, info, path) = {
            let nodes = self.nodes.lock();
            let (directory, name) = nodes.name_of(node)?;
            let info = nodes.get(node)?.info.clone().ok_or(Errno::ISDIR)?;
            (directory, name, info, nodes.path_of(directory)?)
        };
        let mut small_files = self.small_files.lock();
        let taken = small_files.open(directory, &name, &info);
        small_files.read_ahead(|name, info| {
            let pinned = (info.size, info.tag.clone());
            let path = path.join(name).ok()?;
            let reader = ObjectReader::new(storage.clone(), path, pinned, self.budget.clone());
            reader.start_ahead().then(|| Arc::new(reader))
        });
        Ok(taken)
    }

    /// A reader of the version of an object that is known.
    pub(super) fn new_reader(&self, node: u64) -> Result<Arc<ObjectReader>, Errno> {
        let storage = self.storage()?.clone();
        let nodes = self.nodes.lock();
        let path = nodes.path_of(node)?;
        let info = nodes.get(node)?.info.clone().ok_or(Errno::ISDIR)?;
        let pinned = (info.size, info.tag);
        Ok(Arc::new(ObjectReader::new(storage, path, pinned, self.budget.clone())))
    }

    pub(super) async fn read(&self, handle: u64, offset: u64, size: u64) -> Result<Bytes, Errno> {
        let opened = self.handles.lock().get(handle)?;
        let (node, reader) = match opened {
            ObjectHandle::Writer(_, spool) => return self.read_spool(&spool, offset, size).await,
            ObjectHandle::Reader(node, reader) => (node, reader),
            ObjectHandle::Directory(_) => return Err(Errno::ISDIR),
        };
        let spool = self.nodes.lock().get(node).ok().and_then(|node| node.spool.clone());
        if let Some(spool) = spool {
            return self.read_spool(&spool, offset, size).await;
        }
        let current = Arc::clone(&reader.lock());
        match current.read(offset, size).await {
            Err(StorageError::Changed) if self.was_written_here(node) => {
                // This cell has replaced the object itself, so the reader follows.
                let newer = self.new_reader(node)?;
                *reader.lock() = Arc::clone(&newer);
                self.count(newer.read(offset, size).await)
            }
            // A deleted object is as gone as a replaced one.
            Err(StorageError::NotFound) => Err(Errno::STALE),
            read => self.count(read),
        }
    }

    fn was_written_here(&self, node: u64) -> bool {
        self.nodes.lock().get(node).is_ok_and(|node| node.was_written && !node.unlinked)
    }

    async fn read_spool(&self, spool: &SpoolFile, offset: u64, size: u64) -> Result<Bytes, Errno> {
        self.count(spool.read(offset, size).await.map(Bytes::from))
    }

    fn count(&self, read: Result<Bytes, StorageError>) -> Result<Bytes, Errno> {
        let data = read.map_err(|error| self.fail(&error))?;
        self.meter.add_read(data.len());
        Ok(data)
    }

    pub(super) fn open_directory(&self, node: u64) -> Result<u64, Errno> {
        let path: ObjectPath = self.nodes.lock().path_of(node)?;
        let list = DirectoryList::new(node, path);
        self.handles.lock().insert(ObjectHandle::Directory(Arc::new(tokio::sync::Mutex::new(list))))
    }

    /// Sets what no store keeps; it is remembered until the cell ends.
    pub(super) fn set_local(
        &self,
        node: u64,
        mode: Option<u32>,
        times: (Option<SystemTime>, Option<SystemTime>),
    ) -> Result<(), Errno> {
        let mut nodes = self.nodes.lock();
        let node = nodes.get_mut(node)?;
        node.mode = mode.map(|mode| mode & 0o777).or(node.mode);
        node.times = (times.0.or(node.times.0), times.1.or(node.times.1));
        Ok(())
    }

    pub(super) fn forget(&self, node: u64, lookups: u64) {
        if node != ROOT {
            self.nodes.lock().forget(node, lookups);
        }
    }
}
