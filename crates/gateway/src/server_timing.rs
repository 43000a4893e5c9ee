//! Runs in: server (no capabilities).
//!
//! The `Server-Timing` header of an execution: where the time of its request went, from its head to
//! its response. The phases follow each other without a gap. Decides nothing by them.

use std::{
    convert::Infallible,
    fmt::Write,
    time::{Duration, Instant},
};

use axum::{
    extract::FromRequestParts,
    http::{Extensions, HeaderMap, HeaderName, HeaderValue, request::Parts},
};
use cloche_engine::RequestPhases;

const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// When the head of a request had been read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestArrival(Instant);

impl RequestArrival {
    /// Notes that the head of a request has been read.
    pub(crate) fn note(extensions: &mut Extensions) {
        extensions.insert(Self(Instant::now()));
    }

    /// Adds the header to the response of an execution.
    pub(crate) fn describe(self, phases: &RequestPhases, headers: &mut HeaderMap) {
        let read = phases.asked_at.saturating_duration_since(self.0);
        let mut text = String::with_capacity(160);
        push_phase(&mut text, "read", read);
        for (name, time) in phases.durations() {
            push_phase(&mut text, name, time);
        }
        push_phase(&mut text, "answer", phases.over_at.elapsed());
        if let Ok(value) = HeaderValue::try_from(text) {
            headers.insert(SERVER_TIMING, value);
        }
    }
}

impl<S: Sync> FromRequestParts<S> for RequestArrival {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get().copied().unwrap_or_else(|| Self(Instant::now())))
    }
}

/// Appends a phase and its time in milliseconds.
fn push_phase(text: &mut String, name: &str, time: Duration) {
    let separator = if text.is_empty() { "" } else { ", " };
    // Writing to a string cannot fail.
    let _ = write!(text, "{separator}{name};dur={:.3}", time.as_secs_f64() * 1000.0);
}
