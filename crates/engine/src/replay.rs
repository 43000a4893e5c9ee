//! The events of an execution that is over, from its record: the same bytes and the same numbers
//! as the live log gave.

use std::sync::Arc;

use bytes::Bytes;
use cloche_model::{Beat, Execution, StreamName};

use crate::live::{Event, EventKind};

/// Every event after this number.
pub(crate) fn events(execution: Arc<Execution>, after: u64) -> Vec<Event> {
    let Some(end) = &execution.end else { return Vec::new() };
    let score = &end.score;
    let first = score.first_seq.max(2);
    let mut events = vec![Event { seq: 1, kind: EventKind::Started }];
    let (stdout, stderr) = (&end.stdout, &end.stderr);
    let mut at = [score.stdout_skipped, score.stderr_skipped];
    for (seq, beat) in (first..).zip(&score.beats) {
        let kind = match beat {
            Beat::Keepalive => EventKind::Keepalive,
            Beat::Output(stream, length) => {
                let source = if *stream == StreamName::Stdout { stdout } else { stderr };
                let place = &mut at[*stream as usize];
                let line = cut(source, *place, u64::from(*length));
                *place += u64::from(*length);
                EventKind::Output(*stream, line)
            }
        };
        events.push(Event { seq, kind });
    }
    let last = first + score.beats.len() as u64;
    events.push(Event { seq: last, kind: EventKind::Over(Arc::clone(&execution)) });
    events.retain(|event| event.seq > after);
    events
}

fn cut(source: &Bytes, from: u64, length: u64) -> Bytes {
    let within = |position: u64| usize::try_from(position).unwrap_or(usize::MAX).min(source.len());
    source.slice(within(from)..within(from + length))
}
