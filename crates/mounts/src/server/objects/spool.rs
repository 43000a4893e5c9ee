//! Runs in: mount server (no capabilities). A file of an object store that is being written.
//!
//! What is written goes to a local file without a name. The rest of an object that is updated is
//! read by ranges when it is needed. At a close or fsync the whole file becomes the object, if the
//! object is still the one that was opened.

use std::{
    fs::File,
    ops::Range,
    os::{fd::OwnedFd, unix::fs::FileExt as _},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use object_store::PutPayload;
use parking_lot::Mutex;
use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::{range_set::RangeSet, read_ahead::ObjectReader};
use crate::{ObjectInfo, ObjectPath, ObjectStorage, PutCondition, StorageError, volume::to_errno};

/// Files up to this size are uploaded by one request, others in parts of this size.
const PART: u64 = 8 << 20;
/// Parts that are uploaded at once.
const PARTS_AT_ONCE: usize = 3;
/// How long an upload may take: this, and a second for each part of this size.
const LEAST_UPLOAD: Duration = Duration::from_secs(30);
const SLOWEST: u64 = 512 << 10;

/// Parts of all files of a mount that are in memory at once, to be uploaded.
const MOST_PARTS: usize = 6;

/// Bytes in spool files of one mount, and parts of them in memory.
#[derive(Debug)]
pub(super) struct SpoolBudget {
    used: AtomicU64,
    most: u64,
    parts: Semaphore,
}

impl SpoolBudget {
    pub(super) fn new(most: u64) -> Self {
        Self { used: AtomicU64::new(0), most, parts: Semaphore::new(MOST_PARTS) }
    }

    /// Waits until one more part may be in memory. The upload has a deadline.
    async fn take_part(&self) -> Option<SemaphorePermit<'_>> {
        self.parts.acquire().await.ok()
    }

    fn change(&self, from: u64, to: u64) -> Result<(), Errno> {
        if to <= from {
            self.used.fetch_sub(from - to, Ordering::Relaxed);
            return Ok(());
        }
        let growth = to - from;
        let grow = |used: u64| used.checked_add(growth).filter(|sum| *sum <= self.most);
        let grown = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grow);
        grown.map(drop).map_err(|_| Errno::DQUOT)
    }
}

/// A file that is being written.
pub(super) struct SpoolFile {
    file: File,
    state: Mutex<SpoolState>,
    /// Held while the file is uploaded.
    upload: tokio::sync::Mutex<()>,
    budget: Arc<SpoolBudget>,
    most_bytes: u64,
}

struct SpoolState {
    size: u64,
    modified: SystemTime,
    local: RangeSet,
    /// The object that has the bytes that are not local, and how many of them still count.
    base: Option<(Arc<ObjectReader>, u64)>,
    condition: PutCondition,
    /// Grows with every change; equal to `stored` if there is nothing to upload.
    generation: u64,
    stored: u64,
    unlinked: bool,
}

impl SpoolFile {
    /// A file that is new or truncated, or has the content of an object.
    pub(super) fn open(
        directory: &OwnedFd,
        budget: Arc<SpoolBudget>,
        most_bytes: u64,
        condition: PutCondition,
    ) -> Result<Self, Errno> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::EXCL;
        let file = rustix::fs::openat(directory, ".", flags, Mode::from_raw_mode(0o600))?;
        let state = SpoolState {
            size: 0,
            modified: SystemTime::now(),
            local: RangeSet::default(),
            base: None,
            condition,
            generation: 1,
            stored: 0,
            unlinked: false,
        };
        let upload = tokio::sync::Mutex::new(());
        Ok(Self { file: file.into(), state: Mutex::new(state), upload, budget, most_bytes })
    }

    /// Takes over the content of an object; nothing is changed by that.
    pub(super) fn set_base(&self, reader: Arc<ObjectReader>, info: &ObjectInfo) {
        let mut state = self.state.lock();
        state.size = info.size;
        state.modified = info.modified;
        state.base = Some((reader, info.size));
        state.stored = state.generation;
    }

    pub(super) fn size(&self) -> u64 {
        self.state.lock().size
    }

    pub(super) fn modified(&self) -> SystemTime {
        self.state.lock().modified
    }

    pub(super) fn is_dirty(&self) -> bool {
        let state = self.state.lock();
        state.generation != state.stored && !state.unlinked
    }

    /// Whether the object exists: this file was stored, or was an object before.
    pub(super) fn is_stored(&self) -> bool {
        let state = self.state.lock();
        state.stored > 0 || state.condition != PutCondition::IfNew
    }

    /// Its name is gone, so it is not stored any more.
    pub(super) fn mark_unlinked(&self) {
        self.state.lock().unlinked = true;
    }

    pub(super) fn write(&self, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let end = offset.checked_add(data.len() as u64).ok_or(Errno::FBIG)?;
        if end > self.most_bytes {
            return Err(Errno::FBIG);
        }
        let mut state = self.state.lock();
        let before = state.local.bytes();
        let mut local = state.local.clone();
        local.insert(offset..end);
        self.budget.change(before, local.bytes())?;
        if let Err(error) = self.file.write_all_at(data, offset) {
            let _ = self.budget.change(local.bytes(), before);
            return Err(to_errno(&error));
        }
        state.local = local;
        state.size = state.size.max(end);
        state.touch();
        Ok(())
    }

    pub(super) fn resize(&self, size: u64) -> Result<(), Errno> {
        if size > self.most_bytes {
            return Err(Errno::FBIG);
        }
        let mut state = self.state.lock();
        if size < state.size {
            let before = state.local.bytes();
            state.local.truncate(size);
            self.file.set_len(size).map_err(|error| to_errno(&error))?;
            let _ = self.budget.change(before, state.local.bytes());
            if let Some((_, base)) = &mut state.base {
                *base = (*base).min(size);
            }
        }
        state.size = size;
        state.touch();
        Ok(())
    }

    /// Reads a range, from the spool or from the object below it.
    pub(super) async fn read(&self, offset: u64, size: u64) -> Result<Vec<u8>, StorageError> {
        let end = offset.saturating_add(size).min(self.size());
        let mut data = Vec::with_capacity(usize::try_from(end.saturating_sub(offset)).unwrap_or(0));
        let mut at = offset;
        while at < end {
            let (stop, is_local, base) = {
                let state = self.state.lock();
                let (stop, is_local) = state.local.split(&(at..end));
                let base = state.base.as_ref().filter(|(_, base)| at < *base);
                let stop = base.filter(|_| !is_local).map_or(stop, |(_, base)| stop.min(*base));
                (stop, is_local, base.map(|(reader, _)| Arc::clone(reader)))
            };
            let length = usize::try_from(stop - at).unwrap_or(0);
            match (is_local, base) {
                (false, Some(reader)) => {
                    let part = reader.read(at, stop - at).await?;
                    data.extend_from_slice(&part);
                    data.resize(usize::try_from(stop - offset).unwrap_or(0), 0);
                }
                (false, None) => data.resize(data.len() + length, 0),
                (true, _) => {
                    let from = data.len();
                    data.resize(from + length, 0);
                    read_local(&self.file, &mut data[from..], at)?;
                }
            }
            at = stop;
        }
        Ok(data)
    }

    /// Stores the file as an object, if it has changed. Returns what is known of the object then.
    pub(super) async fn store(
        &self,
        storage: &ObjectStorage,
        path: &ObjectPath,
    ) -> Result<Option<ObjectInfo>, StorageError> {
        let _one = self.upload.lock().await;
        let (generation, size, condition) = {
            let state = self.state.lock();
            if state.generation == state.stored || state.unlinked {
                return Ok(None);
            }
            (state.generation, state.size, state.condition.clone())
        };
        let most = LEAST_UPLOAD + Duration::from_secs(size / SLOWEST);
        let upload = async {
            match size <= PART {
                true => {
                    let _part = self.budget.take_part().await;
                    let content = self.read(0, size).await?;
                    storage.put(path, PutPayload::from(content), &condition).await
                }
                false => self.upload_parts(storage, path, size, &condition).await,
            }
        };
        let tag = tokio::time::timeout(most, upload).await;
        let tag = tag.map_err(|_| StorageError::TimedOut(most))??;
        let tag = match tag {
            Some(tag) => Some(tag),
            None => storage.head(path).await?.tag,
        };
        let mut state = self.state.lock();
        state.stored = generation;
        state.condition = tag.clone().map_or(PutCondition::Always, PutCondition::IfTag);
        Ok(Some(ObjectInfo { size, modified: SystemTime::now(), tag }))
    }

    /// The object below is now the one that was stored from this file.
    pub(super) fn rebase(&self, reader: Arc<ObjectReader>) {
        let mut state = self.state.lock();
        if let Some((base, _)) = &mut state.base {
            *base = reader;
        }
    }

    /// The object has another name now, and this tag.
    pub(super) fn set_condition(&self, condition: PutCondition) {
        self.state.lock().condition = condition;
    }

    async fn upload_parts(
        &self,
        storage: &ObjectStorage,
        path: &ObjectPath,
        size: u64,
        condition: &PutCondition,
    ) -> Result<Option<String>, StorageError> {
        let upload = storage.begin_upload(path).await?;
        let put = |index: u64| {
            let upload = &upload;
            async move {
                let range: Range<u64> = index * PART..((index + 1) * PART).min(size);
                let length = range.end - range.start;
                let _part = self.budget.take_part().await;
                let mut content = self.read(range.start, length).await?;
                // It may have been truncated since; the next store uploads it again.
                content.resize(usize::try_from(length).unwrap_or(0), 0);
                let index = usize::try_from(index).unwrap_or(usize::MAX);
                storage.put_part(path, upload, (index, PutPayload::from(content))).await
            }
        };
        let parts = stream::iter(0..size.div_ceil(PART)).map(put).buffered(PARTS_AT_ONCE);
        let done = async {
            let parts: Vec<_> = parts.try_collect().await?;
            storage.complete_upload(path, &upload, parts, condition).await
        };
        match done.await {
            Err(error) => {
                // Without it the parts would stay in the bucket, unseen.
                let _ = storage.abort_upload(path, &upload).await;
                Err(error)
            }
            done => done,
        }
    }
}

impl SpoolState {
    fn touch(&mut self) {
        self.generation += 1;
        self.modified = SystemTime::now();
    }
}

impl Drop for SpoolFile {
    fn drop(&mut self) {
        let _ = self.budget.change(self.state.get_mut().local.bytes(), 0);
    }
}

fn read_local(file: &File, into: &mut [u8], offset: u64) -> Result<(), StorageError> {
    let mut read = 0;
    while read < into.len() {
        match file.read_at(&mut into[read..], offset + read as u64) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => {
                return Err(StorageError::Unreachable(format!("the spool failed: {error}")));
            }
        }
    }
    Ok(())
}
