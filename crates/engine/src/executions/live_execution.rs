//! Runs in: server (no capabilities).
//!
//! One execution while it is under way: a numbered log of events. Every reader sees the same events
//! with the same numbers.
//!
//! Keepalives are part of the log and not of a reader's connection, so that numbers never differ.
//! The log holds the last 10,000 lines; an attached reader that keeps up loses none.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
    vec,
};

use bytes::Bytes;
use cloche_model::{EventMark, EventOrder, Execution, StreamName, TeamId, TraceId};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::line_splitter::Line;

/// Lines that a late reader can still read.
const RING: usize = 10_000;
/// The most events handed to a reader at once.
const BATCH: usize = 512;
/// How long a full log waits for a reader that is attached, once for each reader.
const PATIENCE: Duration = Duration::from_millis(250);

/// Something that happened in an execution.
#[derive(Clone, Debug)]
pub struct ExecutionEvent {
    /// Its number; they grow by one.
    pub seq: u64,
    /// What it was.
    pub kind: ExecutionEventKind,
}

/// What can happen.
#[derive(Clone, Debug)]
pub enum ExecutionEventKind {
    /// It has started. Always the first.
    Started,
    /// A line of output.
    Output(StreamName, Bytes),
    /// Nothing, for a while.
    Keepalive,
    /// It is over. Always the last.
    Over(Arc<Execution>),
}

/// Why it was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopCause {
    User,
    Shutdown,
}

/// An execution that is under way.
pub(crate) struct LiveExecution {
    pub(crate) trace_id: TraceId,
    pub(crate) team: TeamId,
    cancel: CancellationToken,
    stop: Mutex<Option<StopCause>>,
    log: Mutex<EventLog>,
    /// Something was added to the log.
    added: Notify,
    /// A reader moved on or left.
    moved: Notify,
}

struct EventLog {
    ring: VecDeque<ExecutionEvent>,
    lines: usize,
    next_seq: u64,
    /// Bytes of each stream that were pushed out.
    skipped: [u64; 2],
    over: Option<ExecutionEvent>,
    readers: HashMap<u64, ReaderPosition>,
    next_reader: u64,
}

/// Where a reader is.
struct ReaderPosition {
    seq: u64,
    /// It was waited for once, in vain.
    late: bool,
}

impl LiveExecution {
    pub(crate) fn new(trace_id: TraceId, team: TeamId) -> Arc<Self> {
        Arc::new(Self {
            trace_id,
            team,
            cancel: CancellationToken::new(),
            stop: Mutex::new(None),
            log: Mutex::new(EventLog::new()),
            added: Notify::new(),
            moved: Notify::new(),
        })
    }

    pub(crate) fn cancel_token(&self) -> CancellationToken {
        self.cancel.clone()
    }

    /// Asks for the end; the first cause is kept.
    pub(crate) fn stop(&self, who: StopCause) {
        self.stop.lock().get_or_insert(who);
        self.cancel.cancel();
    }

    pub(crate) fn stopped_by(&self) -> Option<StopCause> {
        *self.stop.lock()
    }

    /// Adds lines. Waits, but not for long, when that would push out what a reader has not seen.
    pub(crate) async fn publish_lines(&self, lines: Vec<Line>) {
        let mut lines = lines.into_iter();
        while lines.len() > 0 {
            if self.log.lock().push_lines(&mut lines) {
                self.wait_for_readers().await;
            }
        }
        self.added.notify_waiters();
    }

    async fn wait_for_readers(&self) {
        self.added.notify_waiters();
        let caught_up = async {
            loop {
                let moved = self.moved.notified();
                if !self.log.lock().would_lose() {
                    return;
                }
                moved.await;
            }
        };
        if tokio::time::timeout(PATIENCE, caught_up).await.is_err() {
            self.log.lock().give_up_on_readers();
        }
    }

    pub(crate) fn publish_keepalive(&self) {
        self.log.lock().push_event(ExecutionEventKind::Keepalive);
        self.added.notify_waiters();
    }

    /// The order of what the log holds, and the lines themselves by stream.
    pub(crate) fn event_order(&self) -> EventOrder {
        self.log.lock().event_order()
    }

    /// The lines that the log holds of a stream, joined.
    pub(crate) fn held_output(&self, wanted: StreamName) -> Vec<u8> {
        let log = self.log.lock();
        let lines = log.ring.iter().filter_map(|event| match &event.kind {
            ExecutionEventKind::Output(stream, line) if *stream == wanted => Some(&line[..]),
            _ => None,
        });
        lines.collect::<Vec<_>>().concat()
    }

    /// Has the lines of the log share the memory of the streams that they are parts of.
    pub(crate) fn share_output(&self, stdout: &Bytes, stderr: &Bytes) {
        let mut log = self.log.lock();
        let mut at = log.skipped;
        for event in &mut log.ring {
            let ExecutionEventKind::Output(stream, line) = &mut event.kind else { continue };
            let source = if *stream == StreamName::Stdout { stdout } else { stderr };
            let from = usize::try_from(at[*stream as usize]).unwrap_or(usize::MAX);
            at[*stream as usize] += line.len() as u64;
            let to = from.saturating_add(line.len());
            if source.get(from..to).is_some_and(|same| same == &line[..]) {
                *line = source.slice(from..to);
            }
        }
    }

    /// Adds the last event.
    pub(crate) fn finish(&self, execution: Arc<Execution>) {
        let mut log = self.log.lock();
        log.over =
            Some(ExecutionEvent { seq: log.next_seq, kind: ExecutionEventKind::Over(execution) });
        drop(log);
        self.added.notify_waiters();
    }

    /// Reads from after this number on, to the end.
    pub(crate) fn reader_after(self: &Arc<Self>, after: u64) -> EventLogReader {
        let mut log = self.log.lock();
        let id = log.next_reader;
        log.next_reader += 1;
        log.readers.insert(id, ReaderPosition { seq: after, late: false });
        drop(log);
        EventLogReader { live: Arc::clone(self), id }
    }
}

impl EventLog {
    fn new() -> Self {
        Self {
            ring: VecDeque::new(),
            lines: 0,
            next_seq: 2,
            skipped: [0; 2],
            over: None,
            readers: HashMap::new(),
            next_reader: 0,
        }
    }

    fn push_event(&mut self, kind: ExecutionEventKind) {
        if matches!(kind, ExecutionEventKind::Output(..)) {
            self.lines += 1;
        }
        self.ring.push_back(ExecutionEvent { seq: self.next_seq, kind });
        self.next_seq += 1;
        while self.lines > RING || self.ring.len() > 2 * RING {
            let Some(gone) = self.ring.pop_front() else { return };
            if let ExecutionEventKind::Output(stream, line) = gone.kind {
                self.lines -= 1;
                self.skipped[stream as usize] += line.len() as u64;
            }
        }
    }

    /// Adds lines until there are no more, or until one would be lost; true if so.
    fn push_lines(&mut self, lines: &mut vec::IntoIter<Line>) -> bool {
        while lines.len() > 0 {
            if self.would_lose() {
                return true;
            }
            if let Some((stream, line)) = lines.next() {
                self.push_event(ExecutionEventKind::Output(stream, line));
            }
        }
        false
    }

    /// Whether one more line would push out something that an attached reader has yet to see.
    fn would_lose(&self) -> bool {
        let Some(front) = self.ring.front().filter(|_| self.lines >= RING) else { return false };
        self.readers.values().any(|place| !place.late && place.seq < front.seq)
    }

    fn give_up_on_readers(&mut self) {
        let Some(front) = self.ring.front().map(|event| event.seq) else { return };
        for place in self.readers.values_mut().filter(|place| place.seq < front) {
            place.late = true;
        }
    }

    fn event_order(&self) -> EventOrder {
        let beats = self.ring.iter().map(|event| match &event.kind {
            ExecutionEventKind::Output(stream, line) => {
                EventMark::Output(*stream, u32::try_from(line.len()).unwrap_or(u32::MAX))
            }
            _ => EventMark::Keepalive,
        });
        EventOrder {
            first_seq: self.ring.front().map_or(self.next_seq, |event| event.seq),
            stdout_skipped: self.skipped[StreamName::Stdout as usize],
            stderr_skipped: self.skipped[StreamName::Stderr as usize],
            marks: beats.collect(),
        }
    }

    /// The next events for a reader that has seen `after`.
    fn events_after(&self, after: u64) -> Vec<ExecutionEvent> {
        let mut events = Vec::new();
        if after < 1 {
            events.push(ExecutionEvent { seq: 1, kind: ExecutionEventKind::Started });
        }
        let first = self.ring.front().map_or(0, |event| event.seq);
        // Numbers in the log have no gaps, so a number is also a position.
        let skip = usize::try_from((after + 1).saturating_sub(first)).unwrap_or(usize::MAX);
        events.extend(self.ring.iter().skip(skip).take(BATCH).cloned());
        let last = self.ring.back().map_or(1, |event| event.seq);
        let at_end = events.last().map_or(after, |event| event.seq) >= last;
        if at_end && let Some(over) = self.over.as_ref().filter(|over| over.seq > after) {
            events.push(over.clone());
        }
        events
    }
}

/// Reads the events of one execution, past and future.
pub struct EventLogReader {
    live: Arc<LiveExecution>,
    id: u64,
}

impl EventLogReader {
    /// The next events; `None` when the last one was given.
    pub async fn next(&mut self) -> Option<Vec<ExecutionEvent>> {
        loop {
            let added = self.live.added.notified();
            {
                let mut log = self.live.log.lock();
                let after = log.readers.get(&self.id).map_or(0, |place| place.seq);
                let events = log.events_after(after);
                if let Some(last) = events.last() {
                    let seq = last.seq;
                    if let Some(place) = log.readers.get_mut(&self.id) {
                        place.seq = seq;
                    }
                    drop(log);
                    self.live.moved.notify_waiters();
                    return Some(events);
                }
                if log.over.is_some() {
                    return None;
                }
            }
            added.await;
        }
    }
}

impl Drop for EventLogReader {
    fn drop(&mut self) {
        self.live.log.lock().readers.remove(&self.id);
        self.live.moved.notify_waiters();
    }
}
