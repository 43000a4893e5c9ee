//! Runs in: mount server (no capabilities). Reads an object by ranges, ahead of the guest.
//!
//! The first request is a little more than what the kernel asks for at once. While reads go on in
//! order, the window doubles; after some jumps only what is asked for is read. All open files of a
//! process share one budget of bytes.

use std::{collections::VecDeque, ops::Range, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::StreamExt as _;
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::{ObjectPath, ObjectStorage, StorageError};

/// The kernel reads this much ahead by itself.
const KERNEL_AHEAD: u64 = 128 << 10;
const FIRST_WINDOW: u64 = (1 << 20) + KERNEL_AHEAD;
const LARGEST_WINDOW: u64 = 32 << 20;
/// The longest request.
const PART: u64 = 8 << 20;
/// How far a jump forward may go and still count as in order.
const FORWARD: u64 = 16 << 20;
/// How much is kept behind the last read.
const BACKWARD: u64 = 1 << 20;
/// After this many jumps only what is asked for is read.
const JUMPS: u32 = 3;
/// The end of an object is kept: Parquet, zip and HDF5 read it first and again.
const TAIL: u64 = 1 << 20;
/// How long the guest waits for bytes.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// The unit of the budget.
const UNIT: u64 = 64 << 10;

/// Bytes that all open files of a process may read ahead.
#[derive(Clone)]
pub(super) struct ReadBudget(Arc<Semaphore>);

impl ReadBudget {
    pub(super) fn new(bytes: u64) -> Self {
        Self(Arc::new(Semaphore::new(usize::try_from(bytes / UNIT).unwrap_or(1))))
    }

    fn take(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        let units = u32::try_from(bytes.div_ceil(UNIT)).ok()?;
        Arc::clone(&self.0).try_acquire_many_owned(units).ok()
    }
}

/// A range of an object that is being read.
struct Segment {
    range: Range<u64>,
    arrived: Mutex<Arrived>,
    changed: Notify,
    /// Given back when the segment is dropped. What is asked for is read also without.
    _permit: Option<OwnedSemaphorePermit>,
}

#[derive(Default)]
struct Arrived {
    chunks: Vec<Bytes>,
    bytes: u64,
    failed: Option<StorageError>,
}

impl Segment {
    /// Copies what lies in a range; waits until it has arrived.
    async fn copy(&self, range: Range<u64>, into: &mut Vec<u8>) -> Result<(), StorageError> {
        // For all of it: a store that sends a byte now and then is as good as a dead one.
        let deadline = tokio::time::Instant::now() + READ_TIMEOUT;
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let arrived = self.arrived.lock();
                if let Some(error) = &arrived.failed {
                    return Err(error.clone());
                }
                if self.range.start + arrived.bytes >= range.end {
                    copy_chunks(
                        &arrived.chunks,
                        range.start - self.range.start,
                        range.end - self.range.start,
                        into,
                    );
                    return Ok(());
                }
            }
            let waited = tokio::time::timeout_at(deadline, changed).await;
            waited.map_err(|_| StorageError::TimedOut(READ_TIMEOUT))?;
        }
    }

    fn fail(&self, error: StorageError) {
        self.arrived.lock().failed = Some(error);
        self.changed.notify_waiters();
    }
}

fn copy_chunks(chunks: &[Bytes], from: u64, to: u64, into: &mut Vec<u8>) {
    let mut at = 0;
    for chunk in chunks {
        let end = at + chunk.len() as u64;
        if end > from && at < to {
            let start = usize::try_from(from.saturating_sub(at)).unwrap_or(0);
            let stop = usize::try_from((to - at).min(chunk.len() as u64)).unwrap_or(0);
            into.extend_from_slice(&chunk[start..stop]);
        }
        at = end;
    }
}

/// An object that is read, pinned to one version.
pub(super) struct ObjectReader {
    storage: ObjectStorage,
    path: ObjectPath,
    tag: Option<String>,
    size: u64,
    budget: ReadBudget,
    state: Mutex<ReadState>,
}

#[derive(Default)]
struct ReadState {
    segments: VecDeque<Arc<Segment>>,
    tail: Option<Arc<Segment>>,
    /// Where the next read in order begins.
    next: u64,
    window: u64,
    jumps: u32,
}

impl ObjectReader {
    pub(super) fn new(
        storage: ObjectStorage,
        path: ObjectPath,
        (size, tag): (u64, Option<String>),
        budget: ReadBudget,
    ) -> Self {
        let state = Mutex::new(ReadState { window: FIRST_WINDOW, ..ReadState::default() });
        Self { storage, path, tag, size, budget, state }
    }

    /// Starts to read an object that one request can read: most files that are opened are read.
    pub(super) fn start_small(&self) {
        if (1..=FIRST_WINDOW).contains(&self.size) {
            self.segment_at(0, self.size);
        }
    }

    /// Reads a range; shorter at the end of the object.
    pub(super) async fn read(&self, offset: u64, size: u64) -> Result<Vec<u8>, StorageError> {
        let end = offset.saturating_add(size).min(self.size);
        if offset >= end {
            return Ok(Vec::new());
        }
        let mut data = Vec::with_capacity(usize::try_from(end - offset).unwrap_or(0));
        let mut at = offset;
        while at < end {
            let segment = self.segment_at(at, end);
            let stop = segment.range.end.min(end);
            if let Err(error) = segment.copy(at..stop, &mut data).await {
                self.forget(&segment);
                return Err(error);
            }
            at = stop;
        }
        self.note_read(offset, end);
        Ok(data)
    }

    /// The segment that has this byte; a new one if there is none.
    fn segment_at(&self, at: u64, end: u64) -> Arc<Segment> {
        let mut state = self.state.lock();
        let has = |segment: &&Arc<Segment>| segment.range.contains(&at);
        if let Some(segment) = state.segments.iter().chain(&state.tail).find(has) {
            return Arc::clone(segment);
        }
        let tail_start = self.size.saturating_sub(TAIL);
        if self.size > FIRST_WINDOW && at >= tail_start && state.next < tail_start {
            let segment = self.start_segment(tail_start..self.size, true);
            state.tail = Some(Arc::clone(&segment));
            return segment;
        }
        let in_order = at >= state.next && at - state.next <= FORWARD;
        let length = if in_order {
            state.window.min(PART)
        } else {
            state.jumps += 1;
            state.window = FIRST_WINDOW;
            state.segments.clear();
            if state.jumps > JUMPS { end - at } else { FIRST_WINDOW }
        };
        let stop = at.saturating_add(length.max(end - at)).min(self.size);
        let segment = self.start_segment(at..stop, true);
        state.segments.push_back(Arc::clone(&segment));
        segment
    }

    /// Notes a read, lets go what lies behind it, and reads ahead.
    fn note_read(&self, offset: u64, end: u64) {
        let mut state = self.state.lock();
        let in_order = offset <= state.next && end >= state.next
            || offset >= state.next && offset - state.next <= FORWARD;
        state.next = state.next.max(end);
        if !in_order {
            state.next = end;
            return;
        }
        while state.segments.front().is_some_and(|first| first.range.end + BACKWARD <= end) {
            state.segments.pop_front();
        }
        let ahead = state.segments.back().map_or(end, |last| last.range.end.max(end));
        // The next window begins when half of this one is used.
        if state.jumps > JUMPS || ahead >= self.size || ahead - end > state.window / 2 {
            return;
        }
        state.window = (state.window * 2).min(LARGEST_WINDOW);
        let mut from = ahead;
        let until = end.saturating_add(state.window).min(self.size);
        while from < until {
            let stop = (from + PART).min(until);
            let Some(permit) = self.budget.take(stop - from) else { return };
            let segment = self.start_with(from..stop, Some(permit));
            state.segments.push_back(segment);
            from = stop;
        }
    }

    fn forget(&self, segment: &Arc<Segment>) {
        let mut state = self.state.lock();
        state.segments.retain(|other| !Arc::ptr_eq(other, segment));
        if state.tail.as_ref().is_some_and(|tail| Arc::ptr_eq(tail, segment)) {
            state.tail = None;
        }
    }

    fn start_segment(&self, range: Range<u64>, _asked: bool) -> Arc<Segment> {
        let permit = self.budget.take(range.end - range.start);
        self.start_with(range, permit)
    }

    /// Starts to read a range, in a task that ends when no one holds the segment.
    fn start_with(&self, range: Range<u64>, permit: Option<OwnedSemaphorePermit>) -> Arc<Segment> {
        let segment = Arc::new(Segment {
            range: range.clone(),
            arrived: Mutex::default(),
            changed: Notify::new(),
            _permit: permit,
        });
        let weak = Arc::downgrade(&segment);
        let (storage, path, tag) = (self.storage.clone(), self.path.clone(), self.tag.clone());
        tokio::spawn(async move {
            let opened = tokio::time::timeout(
                READ_TIMEOUT,
                storage.read(&path, Some(range.clone()), tag.as_deref()),
            );
            let opened = opened.await.unwrap_or(Err(StorageError::TimedOut(READ_TIMEOUT)));
            let mut body = match opened {
                Ok((_, body)) => body,
                Err(error) => {
                    if let Some(segment) = weak.upgrade() {
                        segment.fail(error);
                    }
                    return;
                }
            };
            let wanted = range.end - range.start;
            loop {
                let chunk = body.next().await;
                let Some(segment) = weak.upgrade() else { return };
                match chunk {
                    Some(Ok(chunk)) => {
                        let mut arrived = segment.arrived.lock();
                        let rest = usize::try_from(wanted - arrived.bytes).unwrap_or(usize::MAX);
                        let chunk = chunk.slice(..chunk.len().min(rest));
                        arrived.bytes += chunk.len() as u64;
                        arrived.chunks.push(chunk);
                        drop(arrived);
                        segment.changed.notify_waiters();
                    }
                    Some(Err(error)) => return segment.fail(error),
                    None => {
                        if segment.arrived.lock().bytes < wanted {
                            let why = "the answer was shorter than the object";
                            segment.fail(StorageError::Unreachable(why.to_owned()));
                        }
                        return;
                    }
                }
            }
        });
        segment
    }
}
