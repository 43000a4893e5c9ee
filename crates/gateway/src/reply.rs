//! Runs in: server (no capabilities).
//!
//! Responses that may be large: JSON and events, encoded while the client reads, from buffers that
//! all readers share. A client that does not read holds at most one chunk.

use std::{collections::VecDeque, convert::Infallible};

use axum::{
    body::{Body, Bytes},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use cloche_engine::{EventLogReader, ExecutionEvent, ExecutionEvents, JsonPieces, ReaderCutOff};
use cloche_model::TraceId;
use futures::stream;

use crate::api_types::push_event;

/// A JSON response.
pub(crate) fn json_response(status: StatusCode, pieces: JsonPieces) -> Response {
    let kind = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    let body = match pieces.into_small() {
        Ok(bytes) => Body::from(bytes),
        Err(pieces) => Body::from_stream(stream::unfold(pieces, |mut pieces| async move {
            let chunk = pieces.next_chunk()?;
            Some((Ok::<_, Infallible>(chunk), pieces))
        })),
    };
    (status, kind, body).into_response()
}

/// Events as they happen, one JSON object per line. A client that is too slow for the log gets no
/// last event: its response breaks off.
pub(crate) fn ndjson_response(trace_id: TraceId, output: ExecutionEvents) -> Response {
    let (reader, events) = match output {
        ExecutionEvents::Over(events) => (None, events.into()),
        ExecutionEvents::Live(reader) => (Some(reader), VecDeque::new()),
    };
    let lines = EventLines { trace_id, reader, events, pieces: JsonPieces::default() };
    let body = Body::from_stream(stream::unfold(lines, |mut lines| async move {
        let chunk = lines.next_chunk().await.transpose()?;
        Some((chunk, lines))
    }));
    let headers = [
        (header::CONTENT_TYPE, "application/x-ndjson"),
        (header::CACHE_CONTROL, "no-cache"),
        // Tells proxies not to buffer lines.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, body).into_response()
}

/// How many events are serialised at a time. Long ones are escaped only when they are written.
const LINES_PER_CHUNK: usize = 64;

struct EventLines {
    trace_id: TraceId,
    /// The source of further events, if the execution is still running.
    reader: Option<EventLogReader>,
    events: VecDeque<ExecutionEvent>,
    pieces: JsonPieces,
}

impl EventLines {
    /// The next chunk. To be called once the client has taken the one before.
    async fn next_chunk(&mut self) -> Result<Option<Bytes>, ReaderCutOff> {
        if let Some(reader) = &self.reader {
            reader.note_progress();
        }
        loop {
            if let Some(chunk) = self.pieces.next_chunk() {
                return Ok(Some(chunk));
            }
            if self.events.is_empty() {
                let Some(reader) = &mut self.reader else { return Ok(None) };
                let Some(events) = reader.next().await? else { return Ok(None) };
                self.events = events.into();
            }
            let few = self.events.len().min(LINES_PER_CHUNK);
            for event in self.events.drain(..few) {
                push_event(&mut self.pieces, &self.trace_id, &event);
            }
        }
    }
}
