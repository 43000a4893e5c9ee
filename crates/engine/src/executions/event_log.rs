//! Runs in: server (no capabilities).
//!
//! The numbered events of one execution, and where its readers are.
//!
//! Two parts are held. *Kept* events can be replayed after the end: the last 10,000 lines within
//! the limit of their stream, and keepalives. *Passing* lines are beyond that limit; a small window
//! of them is held for the readers that are attached. Both are in the order of their numbers.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    vec,
};

use bytes::Bytes;
use cloche_model::{EventMark, EventOrder, Execution, StreamName};
use tokio::time::Instant;

use super::line_splitter::Line;

/// Lines that a late reader can still read.
const RING: usize = 10_000;
/// What passing lines may take in memory. A longer line is held alone.
const WINDOW: usize = 256 << 10;
/// What an event takes besides its text.
pub(super) const EVENT_COST: usize = 64;
/// The most events handed to a reader at once, and about the most bytes.
const BATCH: usize = 512;
const BATCH_BYTES: usize = 64 << 10;

/// Something that happened in an execution.
#[derive(Clone, Debug)]
pub struct ExecutionEvent {
    /// Its number; they grow by one.
    pub seq: u64,
    /// What happened.
    pub kind: ExecutionEventKind,
}

/// The kinds of events.
#[derive(Clone, Debug)]
pub enum ExecutionEventKind {
    /// It has started. Always the first.
    Started,
    /// A line of output.
    Output(StreamName, Bytes),
    /// A sign of life: nothing else happened for a while.
    Keepalive,
    /// It is over. Always the last.
    Over(Arc<Execution>),
}

impl ExecutionEvent {
    fn text_bytes(&self) -> usize {
        match &self.kind {
            ExecutionEventKind::Output(_, line) => line.len(),
            _ => 0,
        }
    }

    fn cost(&self) -> usize {
        self.text_bytes() + EVENT_COST
    }
}

/// An event that can be replayed.
struct KeptEvent {
    event: ExecutionEvent,
    /// How much of its text the outcome keeps. Less than all of it only in the line at the limit.
    kept: usize,
}

pub(super) struct EventLog {
    kept: VecDeque<KeptEvent>,
    kept_lines: usize,
    passing: VecDeque<ExecutionEvent>,
    passing_cost: usize,
    next_seq: u64,
    /// Kept bytes of each stream whose events were pushed out.
    skipped: [u64; 2],
    /// Bytes of each stream that are beyond its limit.
    beyond: [u64; 2],
    over: Option<ExecutionEvent>,
    readers: HashMap<u64, ReaderPosition>,
    next_reader: u64,
}

/// Where a reader is.
struct ReaderPosition {
    seq: u64,
    /// When its client last took something.
    moved_at: Instant,
    /// The log has given up on it, and it has lost events.
    is_cut_off: bool,
}

/// What a reader gets next.
pub(super) enum NextEvents {
    Some(Vec<ExecutionEvent>),
    NoneYet,
    NoMore,
    CutOff,
}

impl EventLog {
    pub(super) fn new() -> Self {
        Self {
            kept: VecDeque::new(),
            kept_lines: 0,
            passing: VecDeque::new(),
            passing_cost: 0,
            next_seq: 2,
            skipped: [0; 2],
            beyond: [0; 2],
            over: None,
            readers: HashMap::new(),
            next_reader: 0,
        }
    }

    pub(super) fn has_readers(&self) -> bool {
        !self.readers.is_empty()
    }

    pub(super) fn push_keepalive(&mut self) {
        self.push_kept(ExecutionEventKind::Keepalive, 0);
    }

    /// Gives numbers to lines that nothing reads.
    pub(super) fn count_lines(&mut self, lines: u64) {
        self.next_seq += lines;
    }

    pub(super) fn count_bytes_beyond(&mut self, stream: StreamName, bytes: usize) {
        self.beyond[stream as usize] += bytes as u64;
    }

    /// Adds lines until there are no more, or until one would be lost to a reader. Returns since
    /// when the slowest of these readers has taken nothing.
    pub(super) fn push_lines(&mut self, lines: &mut vec::IntoIter<Line>) -> Option<Instant> {
        while let Some(next) = lines.as_slice().first() {
            let waits = self.blocking_readers(next).map(|place| place.moved_at).min();
            if waits.is_some() {
                return waits;
            }
            if let Some(line) = lines.next() {
                self.push_line(line);
            }
        }
        None
    }

    fn push_line(&mut self, line: Line) {
        let kind = ExecutionEventKind::Output(line.stream, line.bytes);
        if line.kept > 0 {
            self.push_kept(kind, line.kept);
            return;
        }
        let event = ExecutionEvent { seq: self.next_seq, kind };
        self.next_seq += 1;
        if !self.has_readers() {
            return;
        }
        self.passing_cost += event.cost();
        self.passing.push_back(event);
        while self.passing_cost > WINDOW && self.passing.len() > 1 {
            let Some(gone) = self.passing.pop_front() else { return };
            self.passing_cost -= gone.cost();
        }
    }

    fn push_kept(&mut self, kind: ExecutionEventKind, kept: usize) {
        self.kept_lines += usize::from(matches!(kind, ExecutionEventKind::Output(..)));
        let event = ExecutionEvent { seq: self.next_seq, kind };
        self.kept.push_back(KeptEvent { event, kept });
        self.next_seq += 1;
        while self.kept_lines > RING || self.kept.len() > 2 * RING {
            let Some(gone) = self.kept.pop_front() else { return };
            if let ExecutionEventKind::Output(stream, _) = gone.event.kind {
                self.kept_lines -= 1;
                self.skipped[stream as usize] += gone.kept as u64;
            }
        }
    }

    /// The readers that have yet to see what this line would push out.
    fn blocking_readers(&self, next: &Line) -> impl Iterator<Item = &ReaderPosition> {
        let pushed_out = self.pushed_out_by(next).unwrap_or(0);
        self.readers.values().filter(move |place| !place.is_cut_off && place.seq < pushed_out)
    }

    /// The number of the last event that this line would push out.
    fn pushed_out_by(&self, next: &Line) -> Option<u64> {
        if next.kept > 0 {
            let is_full = self.kept_lines >= RING;
            return self.kept.front().filter(|_| is_full).map(|first| first.event.seq);
        }
        let mut cost = self.passing_cost + next.bytes.len() + EVENT_COST;
        let mut pushed_out = None;
        for event in self.passing.iter().take_while(|event| {
            let is_over = cost > WINDOW;
            cost = cost.saturating_sub(event.cost());
            is_over
        }) {
            pushed_out = Some(event.seq);
        }
        pushed_out
    }

    /// Cuts off the readers that this line waits for and that have taken nothing since
    /// `idle_since`.
    pub(super) fn cut_off_readers(&mut self, next: &Line, idle_since: Instant) {
        let pushed_out = self.pushed_out_by(next).unwrap_or(0);
        let slow =
            |place: &&mut ReaderPosition| place.seq < pushed_out && place.moved_at <= idle_since;
        self.readers.values_mut().filter(slow).for_each(|place| place.is_cut_off = true);
    }

    pub(super) fn event_order(&self) -> EventOrder {
        let first_seq = self.kept.front().map_or(self.next_seq, |first| first.event.seq);
        let (mut marks, mut expected) = (Vec::with_capacity(self.kept.len()), first_seq);
        for KeptEvent { event, kept } in &self.kept {
            if event.seq > expected {
                marks.push(EventMark::LeftOut(event.seq - expected));
            }
            expected = event.seq + 1;
            marks.push(match &event.kind {
                ExecutionEventKind::Output(stream, _) => {
                    EventMark::Output(*stream, u32::try_from(*kept).unwrap_or(u32::MAX))
                }
                _ => EventMark::Keepalive,
            });
        }
        if self.next_seq > expected {
            marks.push(EventMark::LeftOut(self.next_seq - expected));
        }
        let [stdout_skipped, stderr_skipped] = self.skipped;
        EventOrder { first_seq, stdout_skipped, stderr_skipped, marks }
    }

    /// The kept lines that are held of a stream, joined, and how many bytes of it are not among
    /// them.
    pub(super) fn held_output(&self, wanted: StreamName) -> (Vec<u8>, u64) {
        let lines = self.kept.iter().filter_map(|held| match &held.event.kind {
            ExecutionEventKind::Output(stream, line) if *stream == wanted => {
                Some(&line[..held.kept])
            }
            _ => None,
        });
        let missing = self.skipped[wanted as usize] + self.beyond[wanted as usize];
        (lines.collect::<Vec<_>>().concat(), missing)
    }

    /// Replaces the kept lines by slices of the whole streams, so that no byte is held twice.
    pub(super) fn share_output(&mut self, stdout: &Bytes, stderr: &Bytes) {
        let mut at = self.skipped;
        for KeptEvent { event, kept } in &mut self.kept {
            let ExecutionEventKind::Output(stream, line) = &mut event.kind else { continue };
            let source = if *stream == StreamName::Stdout { stdout } else { stderr };
            let from = usize::try_from(at[*stream as usize]).unwrap_or(usize::MAX);
            at[*stream as usize] += *kept as u64;
            let to = from.saturating_add(line.len());
            if source.get(from..to).is_some_and(|same| same == &line[..]) {
                *line = source.slice(from..to);
            }
        }
    }

    pub(super) fn finish(&mut self, execution: Arc<Execution>) {
        let kind = ExecutionEventKind::Over(execution);
        self.over = Some(ExecutionEvent { seq: self.next_seq, kind });
    }

    pub(super) fn add_reader(&mut self, after: u64) -> u64 {
        let id = self.next_reader;
        self.next_reader += 1;
        let place = ReaderPosition { seq: after, moved_at: Instant::now(), is_cut_off: false };
        self.readers.insert(id, place);
        id
    }

    pub(super) fn remove_reader(&mut self, id: u64) {
        self.readers.remove(&id);
        if self.readers.is_empty() {
            (self.passing, self.passing_cost) = (VecDeque::new(), 0);
        }
    }

    /// The client of a reader has taken something.
    pub(super) fn note_progress(&mut self, id: u64) {
        if let Some(place) = self.readers.get_mut(&id) {
            place.moved_at = Instant::now();
        }
    }

    /// Moves a reader on by the next events.
    pub(super) fn read_next(&mut self, id: u64) -> NextEvents {
        let Some(place) = self.readers.get(&id).filter(|place| !place.is_cut_off) else {
            return NextEvents::CutOff;
        };
        let events = self.events_after(place.seq);
        let Some(last) = events.last().map(|last| last.seq) else {
            return if self.over.is_some() { NextEvents::NoMore } else { NextEvents::NoneYet };
        };
        if let Some(place) = self.readers.get_mut(&id) {
            (place.seq, place.moved_at) = (last, Instant::now());
        }
        NextEvents::Some(events)
    }

    /// The next events for a reader that has seen `after`.
    fn events_after(&self, after: u64) -> Vec<ExecutionEvent> {
        let mut events = Vec::new();
        if after < 1 {
            events.push(ExecutionEvent { seq: 1, kind: ExecutionEventKind::Started });
        }
        let from = self.kept.partition_point(|held| held.event.seq <= after);
        let mut kept = self.kept.range(from..).map(|held| &held.event).peekable();
        let from = self.passing.partition_point(|event| event.seq <= after);
        let mut passing = self.passing.range(from..).peekable();
        let mut bytes = 0;
        while events.len() < BATCH && bytes < BATCH_BYTES {
            let is_kept_next = match (kept.peek(), passing.peek()) {
                (Some(one), Some(other)) => one.seq < other.seq,
                (one, _) => one.is_some(),
            };
            let next = if is_kept_next { kept.next() } else { passing.next() };
            let Some(event) = next else {
                events.extend(self.over.iter().filter(|over| over.seq > after).cloned());
                break;
            };
            bytes += event.text_bytes();
            events.push(event.clone());
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str, is_kept: bool) -> Line {
        let bytes = Bytes::from(text.to_owned());
        let kept = if is_kept { bytes.len() } else { 0 };
        Line { stream: StreamName::Stdout, bytes, kept }
    }

    fn push(log: &mut EventLog, lines: Vec<Line>) -> usize {
        let mut lines = lines.into_iter();
        log.push_lines(&mut lines);
        lines.len()
    }

    fn numbers(log: &mut EventLog, reader: u64) -> Vec<u64> {
        match log.read_next(reader) {
            NextEvents::Some(events) => events.iter().map(|event| event.seq).collect(),
            _ => Vec::new(),
        }
    }

    #[test]
    fn kept_and_passing_lines_are_read_in_the_order_of_their_numbers() {
        let mut log = EventLog::new();
        let reader = log.add_reader(0);
        let lines = vec![line("a\n", true), line("b\n", false), line("c\n", true)];
        assert_eq!(push(&mut log, lines), 0);
        assert_eq!(numbers(&mut log, reader), [1, 2, 3, 4]);
        let order = log.event_order();
        assert_eq!(order.to_string(), "2:0:0:o2,x1,o2");
        assert!(order.leaves_out_events());
    }

    #[test]
    fn lines_without_a_reader_have_numbers_and_take_no_memory() {
        let mut log = EventLog::new();
        assert_eq!(push(&mut log, vec![line("a\n", true), line("b\n", false)]), 0);
        log.count_lines(3);
        assert!(log.passing.is_empty());
        assert_eq!(log.event_order().to_string(), "2:0:0:o2,x4");
        let reader = log.add_reader(0);
        assert_eq!(numbers(&mut log, reader), [1, 2]);
    }

    #[test]
    fn a_full_window_waits_for_the_reader_that_needs_it() {
        let mut log = EventLog::new();
        let reader = log.add_reader(0);
        let flood = || (0..8).map(|_| line(&"x".repeat(64 << 10), false)).collect::<Vec<_>>();
        assert!(push(&mut log, flood()) > 0, "the window is full");
        let held = log.passing.len() as u64;
        assert!(log.passing_cost <= WINDOW + (64 << 10));
        let mut read = Vec::new();
        loop {
            let some = numbers(&mut log, reader);
            if some.is_empty() {
                break;
            }
            read.extend(some);
        }
        assert_eq!(read, (1..=held + 1).collect::<Vec<_>>());
        assert_eq!(push(&mut log, flood().split_off(5)), 0, "there is room again");
        log.remove_reader(reader);
        assert!(log.passing.is_empty());
    }

    #[test]
    fn a_reader_that_is_cut_off_holds_nothing_up_and_gets_no_more() {
        let mut log = EventLog::new();
        let (slow, fast) = (log.add_reader(0), log.add_reader(0));
        let lines = |count| (0..count).map(|_| line("a\n", true)).collect::<Vec<_>>();
        assert_eq!(push(&mut log, lines(RING)), 0);
        while !numbers(&mut log, fast).is_empty() {}
        assert_eq!(push(&mut log, lines(1)), 1);
        log.cut_off_readers(&line("a\n", true), Instant::now());
        assert_eq!(push(&mut log, lines(1)), 0);
        assert!(matches!(log.read_next(slow), NextEvents::CutOff));
        assert_eq!(numbers(&mut log, fast).len(), 1);
    }

    #[test]
    fn a_batch_of_long_lines_is_small() {
        let mut log = EventLog::new();
        let lines = (0..10).map(|_| line(&"x".repeat(40_000), true)).collect();
        assert_eq!(push(&mut log, lines), 0);
        let reader = log.add_reader(1);
        assert_eq!(numbers(&mut log, reader), [2, 3]);
    }
}
