//! Runs in: server (no capabilities).
//!
//! One execution while it is under way: a numbered log of events. Every reader sees the same events
//! with the same numbers.
//!
//! Keepalives are part of the log and not of a reader's connection, so that numbers never differ. A
//! full log waits for its readers, and the program waits with it. So an attached reader that goes
//! on reading loses no line.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use cloche_model::{EventOrder, Execution, OutputChunk, StreamName, TeamId, TraceId};
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    event_log::{EVENT_COST, EventLog, ExecutionEvent, NextEvents},
    line_splitter::{Line, LineSplitter},
};

/// How long a full log waits for readers that do not keep up.
#[derive(Clone, Copy, Debug)]
struct ReaderPatience {
    /// For one reader, after its client last took something.
    idle: Duration,
    /// For all readers, after the time limit of the execution.
    beyond_timeout: Duration,
    /// For all readers, after the execution was stopped.
    beyond_stop: Duration,
}

const PATIENCE: ReaderPatience = ReaderPatience {
    idle: Duration::from_secs(30),
    beyond_timeout: Duration::from_secs(10),
    beyond_stop: Duration::from_secs(2),
};
/// How many bytes of lines beyond the limit of their stream are passed on in a second. The
/// server splits and encodes each line, so a program that prints endlessly would take a processor.
const FLOOD_RATE: u64 = 32 << 20;

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
    stop: Mutex<Option<(StopCause, Instant)>>,
    patience: ReaderPatience,
    /// The time until which readers may hold the program up.
    holds_end: OnceLock<Instant>,
    log: Mutex<EventLog>,
    /// Something was added to the log.
    added: Notify,
    /// A reader moved on or left, or the execution was stopped.
    moved: Notify,
}

impl LiveExecution {
    pub(crate) fn new(trace_id: TraceId, team: TeamId) -> Arc<Self> {
        Arc::new(Self::with_patience(trace_id, team, PATIENCE))
    }

    fn with_patience(trace_id: TraceId, team: TeamId, patience: ReaderPatience) -> Self {
        Self {
            trace_id,
            team,
            cancel: CancellationToken::new(),
            stop: Mutex::new(None),
            patience,
            holds_end: OnceLock::new(),
            log: Mutex::new(EventLog::new()),
            added: Notify::new(),
            moved: Notify::new(),
        }
    }

    pub(crate) fn cancel_token(&self) -> CancellationToken {
        self.cancel.clone()
    }

    /// Asks for the end; the first cause is kept.
    pub(crate) fn stop(&self, who: StopCause) {
        self.stop.lock().get_or_insert((who, Instant::now()));
        self.cancel.cancel();
        self.moved.notify_waiters();
    }

    pub(crate) fn stopped_by(&self) -> Option<StopCause> {
        self.stop.lock().map(|(cause, _)| cause)
    }

    /// Starts the time limit of the program. Its readers may hold it up for little longer.
    pub(crate) fn start_clock(&self, timeout: Duration) {
        let end = Instant::now().checked_add(timeout.saturating_add(self.patience.beyond_timeout));
        if let Some(end) = end {
            self.holds_end.get_or_init(|| end);
        }
    }

    /// Adds the lines that a chunk completes. Returns whether there were any.
    pub(crate) async fn publish_chunk(
        &self,
        lines: &mut LineSplitter,
        chunk: &OutputChunk,
    ) -> bool {
        let beyond = chunk.bytes.len().saturating_sub(chunk.kept);
        let done = {
            let mut log = self.log.lock();
            log.count_bytes_beyond(chunk.stream, beyond);
            let done = lines.push_chunk(chunk, log.has_readers());
            log.count_lines(done.counted);
            done
        };
        let is_any = !done.lines.is_empty() || done.counted > 0;
        let cost: usize = done
            .lines
            .iter()
            .filter(|line| line.kept == 0)
            .map(|line| line.bytes.len() + EVENT_COST)
            .sum();
        self.publish_lines(done.lines).await;
        if cost > 0 {
            sleep(Duration::from_micros(cost as u64 * 1_000_000 / FLOOD_RATE)).await;
        }
        is_any
    }

    /// Adds lines. Waits when that would push out what a reader has not seen.
    pub(crate) async fn publish_lines(&self, lines: Vec<Line>) {
        let mut lines = lines.into_iter();
        loop {
            // Registered before the log is read, so that no move of a reader is missed.
            let moved = self.moved.notified();
            let idle_since = self.log.lock().push_lines(&mut lines);
            self.added.notify_waiters();
            let Some(idle_since) = idle_since else { return };
            let (deadline, is_over) = self.reader_deadline(idle_since);
            tokio::select! {
                () = moved => {}
                () = sleep_until(deadline) => {
                    let Some(next) = lines.as_slice().first() else { return };
                    let idle_since = if is_over { Instant::now() } else { idle_since };
                    self.log.lock().cut_off_readers(next, idle_since);
                    let trace_id = &self.trace_id;
                    tracing::info!(%trace_id, "a reader was too slow and is cut off");
                }
            }
        }
    }

    /// When to give up on a reader that has taken nothing since `idle_since`, and whether the time
    /// of all readers is over then.
    fn reader_deadline(&self, idle_since: Instant) -> (Instant, bool) {
        let own = idle_since + self.patience.idle;
        let stopped = self.stop.lock().map(|(_, at)| at + self.patience.beyond_stop);
        let holds_end = stopped.into_iter().chain(self.holds_end.get().copied()).min();
        match holds_end {
            Some(end) if end <= own => (end, true),
            _ => (own, false),
        }
    }

    pub(crate) fn publish_keepalive(&self) {
        self.log.lock().push_keepalive();
        self.added.notify_waiters();
    }

    /// The order of what the log holds, and the lines themselves by stream.
    pub(crate) fn event_order(&self) -> EventOrder {
        self.log.lock().event_order()
    }

    /// The lines that can be replayed of a stream, joined, and how many of its bytes are missing.
    pub(crate) fn held_output(&self, stream: StreamName) -> (Vec<u8>, u64) {
        self.log.lock().held_output(stream)
    }

    /// Has the lines of the log share the memory of the streams that they are parts of.
    pub(crate) fn share_output(&self, stdout: &Bytes, stderr: &Bytes) {
        self.log.lock().share_output(stdout, stderr);
    }

    /// Adds the last event.
    pub(crate) fn finish(&self, execution: Arc<Execution>) {
        self.log.lock().finish(execution);
        self.added.notify_waiters();
    }

    /// Reads from after this number on, to the end.
    pub(crate) fn reader_after(self: &Arc<Self>, after: u64) -> EventLogReader {
        let id = self.log.lock().add_reader(after);
        EventLogReader { live: Arc::clone(self), id }
    }
}

/// A reader was too slow: the log has gone on without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the reader was too slow and has lost events; read them again after the last one it has")]
pub struct ReaderCutOff;

/// Reads the events of one execution, past and future.
pub struct EventLogReader {
    live: Arc<LiveExecution>,
    id: u64,
}

impl EventLogReader {
    /// The next events; `None` when the last one was given.
    ///
    /// # Errors
    /// When events were lost because they were not read in time. Nothing more can be read.
    pub async fn next(&mut self) -> Result<Option<Vec<ExecutionEvent>>, ReaderCutOff> {
        loop {
            let added = self.live.added.notified();
            let next = self.live.log.lock().read_next(self.id);
            match next {
                NextEvents::Some(events) => {
                    self.live.moved.notify_waiters();
                    return Ok(Some(events));
                }
                NextEvents::NoMore => return Ok(None),
                NextEvents::CutOff => return Err(ReaderCutOff),
                NextEvents::NoneYet => added.await,
            }
        }
    }

    /// The client has taken a part of the events that were given last.
    pub fn note_progress(&self) {
        self.live.log.lock().note_progress(self.id);
    }
}

impl Drop for EventLogReader {
    fn drop(&mut self) {
        self.live.log.lock().remove_reader(self.id);
        self.live.moved.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_hours(1);
    const SHORT: Duration = Duration::from_millis(20);
    const ENDLESS: ReaderPatience =
        ReaderPatience { idle: LONG, beyond_timeout: LONG, beyond_stop: LONG };

    fn live(patience: ReaderPatience) -> Arc<LiveExecution> {
        let (trace_id, team) = (TraceId::from_random([1; 20]), "team_a".parse().unwrap());
        Arc::new(LiveExecution::with_patience(trace_id, team, patience))
    }

    /// More lines than the log holds.
    fn flood() -> Vec<Line> {
        let line = Line { stream: StreamName::Stdout, bytes: Bytes::from_static(b"a\n"), kept: 2 };
        vec![line; 12_000]
    }

    async fn assert_cut_off(live: &Arc<LiveExecution>, prepare: impl Fn(&LiveExecution)) {
        let mut reader = live.reader_after(0);
        prepare(live);
        live.publish_lines(flood()).await;
        assert_eq!(reader.next().await.unwrap_err(), ReaderCutOff);
    }

    #[tokio::test]
    async fn a_reader_whose_client_takes_nothing_is_cut_off() {
        let live = live(ReaderPatience { idle: SHORT, ..ENDLESS });
        assert_cut_off(&live, |_| {}).await;
        let mut late = live.reader_after(0);
        assert!(late.next().await.unwrap().is_some(), "others go on reading");
    }

    #[tokio::test]
    async fn readers_hold_an_execution_up_only_until_its_time_limit_or_its_stop() {
        let patience = ReaderPatience { beyond_timeout: SHORT, beyond_stop: SHORT, ..ENDLESS };
        assert_cut_off(&live(patience), |live| live.start_clock(SHORT)).await;
        assert_cut_off(&live(patience), |live| live.stop(StopCause::User)).await;
    }

    #[tokio::test]
    async fn a_stop_is_noticed_while_the_log_waits() {
        let live = live(ReaderPatience { beyond_stop: SHORT, ..ENDLESS });
        let mut reader = live.reader_after(0);
        let (publish, stop) = (live.publish_lines(flood()), async {
            live.added.notified().await;
            live.stop(StopCause::Shutdown);
        });
        tokio::join!(stop, publish);
        assert_eq!(reader.next().await.unwrap_err(), ReaderCutOff);
    }

    #[tokio::test]
    async fn a_full_log_waits_for_a_reader_that_goes_on() {
        let live = live(ENDLESS);
        let mut reader = live.reader_after(0);
        let read = async {
            let mut seen = 0;
            while seen < 12_001 {
                let events = reader.next().await.unwrap().unwrap();
                assert_eq!(events[0].seq, seen + 1);
                seen = events.last().unwrap().seq;
            }
        };
        tokio::join!(live.publish_lines(flood()), read);
    }
}
