//! Runs in: server (no capabilities).
//!
//! The events of an execution that is over, from its record: the same bytes and the same numbers
//! as in the live log, without what is beyond the limit of a stream.

use std::sync::Arc;

use bytes::Bytes;
use cloche_model::{EventMark, Execution, StreamName};

use super::event_log::{ExecutionEvent, ExecutionEventKind};

/// Every event after this number.
pub(super) fn replay_events(execution: Arc<Execution>, after: u64) -> Vec<ExecutionEvent> {
    let Some(end) = &execution.end else { return Vec::new() };
    let order = &end.event_order;
    let first = order.first_seq.max(2);
    let mut events = vec![ExecutionEvent { seq: 1, kind: ExecutionEventKind::Started }];
    let (stdout, stderr) = (&end.stdout, &end.stderr);
    let mut at = [order.stdout_skipped, order.stderr_skipped];
    let mut seq = first;
    for mark in &order.marks {
        let kind = match mark {
            EventMark::Keepalive => ExecutionEventKind::Keepalive,
            EventMark::LeftOut(count) => {
                seq = seq.saturating_add(*count);
                continue;
            }
            EventMark::Output(stream, length) => {
                let source = if *stream == StreamName::Stdout { stdout } else { stderr };
                let place = &mut at[*stream as usize];
                let line = slice_output(source, *place, u64::from(*length));
                *place += u64::from(*length);
                ExecutionEventKind::Output(*stream, line)
            }
        };
        // A full disk has a shorter record, which has no text for its last lines.
        let is_lost = matches!(&kind, ExecutionEventKind::Output(_, line) if line.is_empty());
        if !is_lost {
            events.push(ExecutionEvent { seq, kind });
        }
        seq += 1;
    }
    events.push(ExecutionEvent { seq, kind: ExecutionEventKind::Over(Arc::clone(&execution)) });
    events.retain(|event| event.seq > after);
    events
}

fn slice_output(source: &Bytes, from: u64, length: u64) -> Bytes {
    let within = |position: u64| usize::try_from(position).unwrap_or(usize::MAX).min(source.len());
    source.slice(within(from)..within(from + length))
}
