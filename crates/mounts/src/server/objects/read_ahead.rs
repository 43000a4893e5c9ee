//! Runs in: mount server (no capabilities). Reads an object by ranges, ahead of the guest.
//!
//! The first request is a little more than what the kernel asks for at once. While reads go on in
//! order, the window doubles. For a store that answers at once it stays small: memory that was never
//! touched costs more than the copies on its way, and what waits unread has left the processor's
//! cache. After some jumps only what is asked for is read. All open files of a process share one
//! budget of bytes.

use std::{
    collections::VecDeque,
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::StreamExt as _;
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::blocks::{BlockPool, READ_BLOCK, RangeBlocks};
use crate::{ObjectPath, ObjectStorage, StorageError};

/// The kernel reads this much ahead by itself.
const KERNEL_AHEAD: u64 = 128 << 10;
const FIRST_WINDOW: u64 = (1 << 20) + KERNEL_AHEAD;
/// The window for a near store, as long as it sends as fast as the guest reads.
const NEAR_WINDOW: u64 = 8 << 20;
const LARGEST_WINDOW: u64 = 32 << 20;
/// A near store begins to answer within this time.
const NEAR: Duration = Duration::from_millis(5);
/// A guest that waits longer for one read waits for the store.
const LONG_WAIT: Duration = Duration::from_millis(10);
/// The longest request.
const PART: u64 = 8 << 20;
/// How far a jump forward may go and still count as in order.
const FORWARD: u64 = 16 << 20;
/// How much is kept behind the last read: a program may read it again, and two requests of the kernel
/// may be answered in the other order.
const BACKWARD: u64 = 3 << 20;
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
pub(super) struct ReadBudget {
    units: Arc<Semaphore>,
    blocks: BlockPool,
}

impl ReadBudget {
    pub(super) fn new(bytes: u64) -> Self {
        let units = Arc::new(Semaphore::new(usize::try_from(bytes / UNIT).unwrap_or(1)));
        Self { units, blocks: BlockPool::default() }
    }

    fn take(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        let units = u32::try_from(bytes.div_ceil(UNIT)).ok()?;
        Arc::clone(&self.units).try_acquire_many_owned(units).ok()
    }
}

/// A range of an object that is being read.
struct Segment {
    range: Range<u64>,
    asked: Instant,
    arrived: Mutex<Arrived>,
    changed: Notify,
    /// Given back when the segment is dropped. What is asked for is read also without.
    _permit: Option<OwnedSemaphorePermit>,
}

struct Arrived {
    blocks: RangeBlocks,
    /// When the store began to answer.
    answered: Option<Instant>,
    failed: Option<StorageError>,
    /// The end of the shortest read that waits.
    wanted: u64,
    /// Where the reads under way begin.
    reading: Vec<u64>,
}

impl Segment {
    /// Whether this is or will be kept.
    fn has(&self, at: u64) -> bool {
        self.range.contains(&at) && self.arrived.lock().blocks.start() <= at
    }

    /// Whether the store has begun to answer at once.
    fn is_near(&self) -> bool {
        let answered = self.arrived.lock().answered;
        answered.is_some_and(|answered| answered.duration_since(self.asked) <= NEAR)
    }

    /// Lets go what lies before a place, as far as it is not being read.
    fn release_before(&self, at: u64) {
        let mut arrived = self.arrived.lock();
        let at = arrived.reading.iter().copied().fold(at, u64::min);
        arrived.blocks.release_before(at);
    }

    /// Reads what lies in a range; waits until it has arrived. `None` if it was let go meanwhile.
    async fn read(&self, range: Range<u64>) -> Result<Option<Bytes>, StorageError> {
        self.arrived.lock().reading.push(range.start);
        let read = self.wait_for(range.clone()).await;
        let reading = &mut self.arrived.lock().reading;
        if let Some(at) = reading.iter().position(|start| *start == range.start) {
            reading.swap_remove(at);
        }
        read
    }

    async fn wait_for(&self, range: Range<u64>) -> Result<Option<Bytes>, StorageError> {
        // For all of it: a store that sends a byte now and then is as good as a dead one.
        let deadline = tokio::time::Instant::now() + READ_TIMEOUT;
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let mut arrived = self.arrived.lock();
                if let Some(error) = &arrived.failed {
                    return Err(error.clone());
                }
                if arrived.blocks.end() >= range.end {
                    return Ok(arrived.blocks.get(range));
                }
                arrived.wanted = arrived.wanted.min(range.end);
            }
            let waited = tokio::time::timeout_at(deadline, changed).await;
            waited.map_err(|_| StorageError::TimedOut(READ_TIMEOUT))?;
        }
    }

    /// Adds what has arrived. Wakes the reads that wait if one of them has all that it asked for.
    fn push(&self, chunk: &[u8]) {
        let mut arrived = self.arrived.lock();
        arrived.blocks.push(chunk);
        if arrived.blocks.end() >= arrived.wanted {
            // The others say again what they want.
            arrived.wanted = u64::MAX;
            drop(arrived);
            self.changed.notify_waiters();
        }
    }

    fn fail(&self, error: StorageError) {
        self.arrived.lock().failed = Some(error);
        self.changed.notify_waiters();
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
    /// Whether the store has ever begun to answer at once.
    is_near: bool,
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

    /// Whether one request reads an object of this size.
    pub(super) fn is_small(size: u64) -> bool {
        (1..=FIRST_WINDOW).contains(&size)
    }

    /// Starts to read a small object: most files that are opened are read.
    pub(super) fn start_small(&self) {
        if Self::is_small(self.size) {
            self.segment_at(0, self.size);
        }
    }

    /// Starts to read a small object that was not opened; false if there is no space for it.
    pub(super) fn start_ahead(&self) -> bool {
        let Some(permit) = self.budget.take(self.size) else { return false };
        let segment = self.start_with(0..self.size, Some(permit));
        self.state.lock().segments.push_back(segment);
        true
    }

    /// When the store answered that it has this version.
    pub(super) fn answered(&self) -> Option<Instant> {
        self.first_arrived(|arrived| arrived.answered)
    }

    /// Whether the first request has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.first_arrived(|arrived| arrived.failed.as_ref().map(drop)).is_some()
    }

    fn first_arrived<T>(&self, get: impl FnOnce(&Arrived) -> Option<T>) -> Option<T> {
        let state = self.state.lock();
        let arrived = state.segments.front()?.arrived.lock();
        get(&arrived)
    }

    /// Reads a range; shorter at the end of the object.
    pub(super) async fn read(&self, offset: u64, size: u64) -> Result<Bytes, StorageError> {
        let end = offset.saturating_add(size).min(self.size);
        if offset >= end {
            return Ok(Bytes::new());
        }
        let began = Instant::now();
        let mut parts = Vec::new();
        let mut at = offset;
        while at < end {
            let segment = self.segment_at(at, end);
            let stop = segment.range.end.min(end);
            match segment.read(at..stop).await {
                Ok(Some(part)) => parts.push(part),
                // Another read was so far ahead that this was let go.
                Ok(None) => continue,
                Err(error) => {
                    self.forget(&segment);
                    return Err(error);
                }
            }
            at = stop;
        }
        self.note_read(offset, end, began.elapsed() > LONG_WAIT);
        match parts.len() {
            1 => Ok(parts.remove(0)),
            _ => Ok(parts.concat().into()),
        }
    }

    /// The segment that has this byte; a new one if there is none.
    fn segment_at(&self, at: u64, end: u64) -> Arc<Segment> {
        let mut state = self.state.lock();
        let has = |segment: &&Arc<Segment>| segment.has(at);
        if let Some(segment) = state.segments.iter().chain(&state.tail).find(has) {
            return Arc::clone(segment);
        }
        let tail_start = self.size.saturating_sub(TAIL);
        if self.size > FIRST_WINDOW && at >= tail_start && state.next < tail_start {
            let segment = self.start_segment(tail_start..self.size);
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
        let segment = self.start_segment(at..stop);
        state.segments.push_back(Arc::clone(&segment));
        segment
    }

    /// Notes a read, lets go what lies behind it, and reads ahead.
    fn note_read(&self, offset: u64, end: u64, has_waited: bool) {
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
        if let Some(first) = state.segments.front() {
            first.release_before(end.saturating_sub(BACKWARD));
        }
        let ahead = state.segments.back().map_or(end, |last| last.range.end.max(end));
        // The next window begins when half of this one is used.
        if state.jumps > JUMPS || ahead >= self.size || ahead - end > state.window / 2 {
            return;
        }
        state.is_near |= state.segments.iter().any(|segment| segment.is_near());
        let keeps_up = state.is_near && !has_waited;
        let most = if keeps_up { NEAR_WINDOW.max(state.window) } else { LARGEST_WINDOW };
        state.window = (state.window * 2).min(most);
        let mut from = ahead;
        let until = end.saturating_add(state.window).next_multiple_of(READ_BLOCK).min(self.size);
        while from < until {
            // At the end of a block, so that a read of the kernel is in one part.
            let stop = (from + PART).next_multiple_of(READ_BLOCK).min(until);
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

    fn start_segment(&self, range: Range<u64>) -> Arc<Segment> {
        let permit = self.budget.take(range.end - range.start);
        self.start_with(range, permit)
    }

    /// Starts to read a range, in a task that ends when no one holds the segment.
    fn start_with(&self, range: Range<u64>, permit: Option<OwnedSemaphorePermit>) -> Arc<Segment> {
        let segment = Arc::new(Segment {
            range: range.clone(),
            asked: Instant::now(),
            arrived: Mutex::new(Arrived {
                blocks: RangeBlocks::new(range.clone(), self.budget.blocks.clone()),
                answered: None,
                failed: None,
                wanted: u64::MAX,
                reading: Vec::new(),
            }),
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
            if let Some(segment) = weak.upgrade() {
                segment.arrived.lock().answered = Some(Instant::now());
            }
            loop {
                let chunk = body.next().await;
                let Some(segment) = weak.upgrade() else { return };
                match chunk {
                    Some(Ok(chunk)) => segment.push(&chunk),
                    Some(Err(error)) => return segment.fail(error),
                    None => {
                        if segment.arrived.lock().blocks.end() < range.end {
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
