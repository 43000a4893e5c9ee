//! Runs in: mount server (no capabilities). The changing operations of an object mount, as results.

use std::{sync::Arc, time::Duration};

use fuser::FileAttr;
use rustix::io::Errno;

use super::{
    mount::{ObjectHandle, ObjectMount},
    nodes::Found,
    spool::SpoolFile,
};
use crate::{ObjectInfo, ObjectPath, PutCondition, StorageError};

/// The most files that are written at once.
const MAX_WRITERS: usize = 256;
/// Larger objects are not copied by the store in one request.
const MAX_COPY: u64 = 5 << 30;
/// How long a copy in the store may take.
const COPY_TIMEOUT: Duration = Duration::from_secs(30);

impl ObjectMount {
    /// Opens a file to write. `truncates` drops its content.
    pub(super) async fn open_writer(&self, node: u64, truncates: bool) -> Result<u64, Errno> {
        self.attributes(node).await?;
        let spool = self.spool_of(node, truncates)?;
        let handle = self.handles.lock().insert(ObjectHandle::Writer(node, spool))?;
        let mut nodes = self.nodes.lock();
        let node = nodes.get_mut(node)?;
        node.handles += 1;
        node.writers += 1;
        Ok(handle)
    }

    /// The spool of a file; a new one if it is not being written.
    fn spool_of(&self, node: u64, truncates: bool) -> Result<Arc<SpoolFile>, Errno> {
        let known = {
            let nodes = self.nodes.lock();
            if nodes.get(node)?.is_directory {
                return Err(Errno::ISDIR);
            }
            nodes.get(node)?.spool.clone()
        };
        if let Some(spool) = known {
            if truncates {
                spool.resize(0)?;
            }
            return Ok(spool);
        }
        let info = self.nodes.lock().get(node)?.info.clone().ok_or(Errno::IO)?;
        let condition = info.tag.clone().map_or(PutCondition::Always, PutCondition::IfTag);
        let spool = self.new_spool(condition)?;
        if !truncates {
            spool.set_base(self.new_reader(node)?, &info);
        }
        self.nodes.lock().get_mut(node)?.spool = Some(Arc::clone(&spool));
        Ok(spool)
    }

    fn new_spool(&self, condition: PutCondition) -> Result<Arc<SpoolFile>, Errno> {
        if self.nodes.lock().spools().len() >= MAX_WRITERS {
            return Err(Errno::MFILE);
        }
        let settings = &self.settings;
        let budget = Arc::clone(&self.spool_budget);
        let spool = SpoolFile::open(&settings.spool, budget, settings.most_bytes, condition)?;
        Ok(Arc::new(spool))
    }

    pub(super) async fn create(
        &self,
        parent: u64,
        name: &str,
        mode: u32,
        exclusive: bool,
    ) -> Result<(FileAttr, u64), Errno> {
        self.check_new_name(parent, name)?;
        match self.find(parent, name).await {
            Ok(_) if exclusive => return Err(Errno::EXIST),
            Ok(node) => {
                let handle = self.open_writer(node, false).await?;
                self.nodes.lock().add_lookup(node);
                return Ok((self.attributes_of(node)?, handle));
            }
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
        let spool = self.new_spool(PutCondition::IfNew)?;
        let node = {
            let mut nodes = self.nodes.lock();
            let info = ObjectInfo { size: 0, modified: spool.modified(), tag: None };
            let id = nodes.note(parent, name, Found::Object(info))?;
            let node = nodes.get_mut(id)?;
            node.spool = Some(Arc::clone(&spool));
            node.mode = (mode & 0o777 != 0o644).then_some(mode & 0o777);
            (node.handles, node.writers) = (node.handles + 1, node.writers + 1);
            nodes.add_lookup(id);
            id
        };
        let handle = self.handles.lock().insert(ObjectHandle::Writer(node, spool))?;
        Ok((self.attributes_of(node)?, handle))
    }

    /// Whether a name can be part of a key.
    fn check_new_name(&self, parent: u64, name: &str) -> Result<ObjectPath, Errno> {
        const MAX_KEY: usize = 1024;
        if name.len() > 255 {
            return Err(Errno::NAMETOOLONG);
        }
        let path = self.nodes.lock().path_of(parent)?.join(name).map_err(|_| Errno::INVAL)?;
        let prefix = self.settings.connection.1.as_str().len();
        match prefix + path.as_str().len() > MAX_KEY {
            true => Err(Errno::NAMETOOLONG),
            false => Ok(path),
        }
    }

    pub(super) fn write(&self, handle: u64, offset: u64, data: &[u8]) -> Result<(), Errno> {
        match self.handles.lock().get(handle)? {
            ObjectHandle::Writer(_, spool) => spool.write(offset, data),
            _ => Err(Errno::BADF),
        }
    }

    /// Makes a file longer, as `fallocate` does.
    pub(super) fn extend(&self, handle: u64, end: u64) -> Result<(), Errno> {
        match self.handles.lock().get(handle)? {
            ObjectHandle::Writer(_, spool) if end > spool.size() => spool.resize(end),
            ObjectHandle::Writer(..) => Ok(()),
            _ => Err(Errno::BADF),
        }
    }

    pub(super) async fn resize(&self, node: u64, size: u64) -> Result<(), Errno> {
        let is_open = self.nodes.lock().get(node)?.writers > 0;
        if is_open {
            return self.spool_of(node, false)?.resize(size);
        }
        let handle = self.open_writer(node, size == 0).await?;
        let resized = match self.spool_of(node, false) {
            Ok(spool) => spool.resize(size),
            Err(error) => Err(error),
        };
        let stored = self.store(node).await;
        self.close(handle).await;
        resized.and(stored)
    }

    /// Stores what a handle has written. A handle that only read has nothing to store.
    pub(super) async fn flush(&self, handle: u64) -> Result<(), Errno> {
        let node = match self.handles.lock().get(handle)? {
            ObjectHandle::Writer(node, spool) if spool.is_dirty() => node,
            _ => return Ok(()),
        };
        self.store(node).await
    }

    /// Stores a file that is being written, if it has changed.
    async fn store(&self, node: u64) -> Result<(), Errno> {
        let (spool, path) = {
            let nodes = self.nodes.lock();
            let Some(spool) = nodes.get(node)?.spool.clone() else { return Ok(()) };
            (spool, nodes.path_of(node))
        };
        if !spool.is_dirty() {
            return Ok(());
        }
        let stored = spool.store(self.storage()?, &path?).await;
        let Some(info) = stored.map_err(|error| self.fail(&error))? else { return Ok(()) };
        self.meter.add_written(info.size);
        {
            let mut nodes = self.nodes.lock();
            if let Ok((parent, name)) = nodes.name_of(node) {
                self.small_files.lock().forget(parent, &name);
            }
            let node = nodes.get_mut(node)?;
            node.info = Some(info);
            node.was_written = true;
        }
        // What was not in the spool is in the new object now.
        spool.rebase(self.new_reader(node)?);
        Ok(())
    }

    pub(super) async fn close(&self, handle: u64) {
        let removed = self.handles.lock().remove(handle);
        let (node, writes) = match removed {
            Some(ObjectHandle::Writer(node, _)) => (node, true),
            Some(ObjectHandle::Reader(node, _)) => (node, false),
            Some(ObjectHandle::Directory(_)) | None => return,
        };
        // A mapping may have written after the last close.
        if writes && let Err(error) = self.store(node).await {
            tracing::debug!(?error, "a file could not be stored when it was released");
        }
        let mut nodes = self.nodes.lock();
        if let Ok(found) = nodes.get_mut(node) {
            found.handles = found.handles.saturating_sub(1);
            if writes && found.writers > 0 {
                found.writers -= 1;
            }
            if found.writers == 0 && found.handles == 0 {
                found.spool = None;
            }
        }
        nodes.remove_unused(node);
    }

    pub(super) async fn make_directory(
        &self,
        parent: u64,
        name: &str,
        mode: u32,
    ) -> Result<FileAttr, Errno> {
        self.check_new_name(parent, name)?;
        match self.find(parent, name).await {
            Ok(_) => return Err(Errno::EXIST),
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
        let id = {
            let mut nodes = self.nodes.lock();
            let id = nodes.note(parent, name, Found::Directory)?;
            let node = nodes.get_mut(id)?;
            node.is_local = true;
            node.mode = (mode & 0o777 != 0o755).then_some(mode & 0o777);
            nodes.add_lookup(id);
            id
        };
        self.attributes_of(id)
    }

    pub(super) async fn remove_directory(&self, parent: u64, name: &str) -> Result<(), Errno> {
        let node = self.find(parent, name).await?;
        let path = {
            let nodes = self.nodes.lock();
            if !nodes.get(node)?.is_directory {
                return Err(Errno::NOTDIR);
            }
            if nodes.has_children(node) {
                return Err(Errno::NOTEMPTY);
            }
            nodes.path_of(node)?
        };
        // The object that marks a directory is no entry of it.
        let page = self.ask(self.storage()?.list_page(&path, None)).await;
        let page = page.map_err(|error| self.fail(&error))?;
        if !page.directories.is_empty() || !page.objects.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        let mut nodes = self.nodes.lock();
        nodes.detach(parent, name);
        nodes.note_absent(parent, name);
        Ok(())
    }

    pub(super) async fn unlink(&self, parent: u64, name: &str) -> Result<(), Errno> {
        let node = self.find(parent, name).await?;
        let (path, is_stored) = {
            let nodes = self.nodes.lock();
            let found = nodes.get(node)?;
            if found.is_directory {
                return Err(Errno::ISDIR);
            }
            let is_stored = found.spool.as_ref().is_none_or(|spool| spool.is_stored());
            (nodes.path_of(node)?, is_stored)
        };
        if is_stored {
            let deleted = self.ask(self.storage()?.delete(&path)).await;
            deleted.map_err(|error| self.fail(&error))?;
        }
        let mut nodes = self.nodes.lock();
        self.small_files.lock().forget(parent, name);
        nodes.detach(parent, name);
        nodes.note_absent(parent, name);
        Ok(())
    }

    /// Renames a file: a copy in the store, and then a deletion.
    pub(super) async fn rename(
        &self,
        from: (u64, &str),
        to: (u64, &str),
        replaces: bool,
    ) -> Result<(), Errno> {
        let node = self.find(from.0, from.1).await?;
        let new_path = self.check_new_name(to.0, to.1)?;
        if self.nodes.lock().get(node)?.is_directory {
            return Err(Errno::XDEV);
        }
        match self.find(to.0, to.1).await {
            Ok(_) if !replaces => return Err(Errno::EXIST),
            Ok(target) if target == node => return Ok(()),
            Ok(target) if self.nodes.lock().get(target)?.is_directory => {
                return Err(Errno::ISDIR);
            }
            Ok(_) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
        self.store(node).await?;
        let (old_path, size) = {
            let nodes = self.nodes.lock();
            (nodes.path_of(node)?, nodes.get(node)?.info.as_ref().map_or(0, |info| info.size))
        };
        if size > MAX_COPY {
            return Err(Errno::XDEV);
        }
        let storage = self.storage()?;
        let moving = async {
            storage.copy(&old_path, &new_path).await?;
            let info = storage.head(&new_path).await?;
            storage.delete(&old_path).await?;
            Ok(info)
        };
        let moved = tokio::time::timeout(COPY_TIMEOUT, moving).await;
        let moved = moved.unwrap_or(Err(StorageError::TimedOut(COPY_TIMEOUT)));
        let info: ObjectInfo = moved.map_err(|error| self.fail(&error))?;
        let spool = {
            let mut nodes = self.nodes.lock();
            for (parent, name) in [from, to] {
                self.small_files.lock().forget(parent, name);
            }
            nodes.rename(node, to.0, to.1);
            let found = nodes.get_mut(node)?;
            found.was_written = true;
            let tag = info.tag.clone();
            found.info = Some(info);
            found.spool.clone().map(|spool| (spool, tag))
        };
        if let Some((spool, tag)) = spool {
            spool.rebase(self.new_reader(node)?);
            spool.set_condition(tag.map_or(PutCondition::Always, PutCondition::IfTag));
        }
        Ok(())
    }

    /// Whether the guest has a file open to write.
    pub(in crate::server) fn has_writers(&self) -> bool {
        !self.nodes.lock().spools().is_empty()
    }

    /// Whether something was written that is not stored.
    pub(in crate::server) fn must_store(&self) -> bool {
        self.nodes.lock().spools().iter().any(|(_, spool)| spool.is_dirty())
    }

    /// Stores everything that was written, within a bounded time. The guest has ended.
    pub(in crate::server) fn finish(&self, most: Duration) {
        if !self.must_store() {
            return;
        }
        let store_all = async {
            let spools = self.nodes.lock().spools();
            for (node, spool) in spools {
                if spool.is_dirty() {
                    let _ = self.store(node).await;
                }
            }
        };
        let Some(runtime) = self.runtime.get() else { return };
        runtime.block_on(async {
            let _ = tokio::time::timeout(most, store_all).await;
        });
    }
}
