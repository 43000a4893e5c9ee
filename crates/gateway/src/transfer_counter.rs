//! Runs in: server (no capabilities).
//!
//! Around each request: counts the bytes of its body and of its response for the team and key that
//! it is authenticated as, and writes its line when the response has been sent. This file does not
//! know about executions or files.

use std::{
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use axum::{
    body::{Body, Bytes},
    extract::{MatchedPath, Request, State},
    http::{Extensions, HeaderMap, Method},
    middleware::Next,
    response::Response,
};
use cloche_engine::{AnswerSignal, RequestLine, RequestTrace, UsageAccounts};
use cloche_model::{KeyId, TeamId};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use opentelemetry::propagation::Extractor;
use tokio::runtime::Handle;

/// How many bytes of a long body are counted at once.
const STEP: u64 = 1 << 20;

/// The counter of one request. Its clones count together.
#[derive(Clone)]
pub(crate) struct TransferCounter(Arc<CounterState>);

struct CounterState {
    usage: Arc<UsageAccounts>,
    /// The team and the key, once the request is authenticated.
    owner: OnceLock<(TeamId, Option<KeyId>)>,
    received: AtomicU64,
    sent: AtomicU64,
    trace: RequestTrace,
}

/// Routes of probes, which are not worth a line.
const PROBES: [&str; 3] = ["/healthz", "/readyz", "/metrics"];

/// Ends the trace of a request when it is dropped: after the last byte of the response, or when the
/// client has left.
struct RequestEnd {
    trace: RequestTrace,
    method: Method,
    route: Option<MatchedPath>,
    status: Option<u16>,
    /// Says to the executor that the answer is out.
    _answered: Option<AnswerSignal>,
}

/// Ends a request whose response is taken to its last byte. The task that has taken it is about to
/// write it, so the end waits until that task has had its turn.
struct DeferredEnd(Option<RequestEnd>);

impl Drop for DeferredEnd {
    fn drop(&mut self) {
        if let (Some(end), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(async move { drop(end) });
        }
    }
}

impl Drop for RequestEnd {
    fn drop(&mut self) {
        let route = self.route.as_ref().map_or("none", MatchedPath::as_str);
        self.trace.finish_request(&RequestLine {
            method: self.method.as_str(),
            route,
            status: self.status,
            is_probe: PROBES.contains(&route),
        });
    }
}

/// The headers that name the trace of the caller.
struct TraceHeaders<'a>(&'a HeaderMap);

impl Extractor for TraceHeaders<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(|name| name.as_str()).collect()
    }
}

impl CounterState {
    /// Adds what was counted so far to the owner's usage.
    fn report(&self) {
        let Some((team, key)) = self.owner.get() else { return };
        let received = self.received.swap(0, Ordering::Relaxed);
        let sent = self.sent.swap(0, Ordering::Relaxed);
        if received > 0 || sent > 0 {
            self.usage.count_transfer(team, key.as_ref(), received, sent);
        }
    }
}

impl Drop for CounterState {
    fn drop(&mut self) {
        self.report();
    }
}

/// Names the team and key that this request is counted for.
pub(crate) fn set_transfer_owner(extensions: &Extensions, team: &TeamId, key: Option<&KeyId>) {
    if let Some(TransferCounter(state)) = extensions.get() {
        // A request has one caller; a second name would be the same.
        let _ = state.owner.set((team.clone(), key.cloned()));
        state.trace.set_caller(Some(team), key);
    }
}

/// Says that this request came with the admin token.
pub(crate) fn set_admin_owner(extensions: &Extensions) {
    if let Some(TransferCounter(state)) = extensions.get() {
        state.trace.set_caller(None, None);
    }
}

/// The layer that puts a counter into every request.
pub(crate) async fn count_transfers(
    State(usage): State<Arc<UsageAccounts>>,
    mut request: Request,
    next: Next,
) -> Response {
    let trace = RequestTrace::begin(&TraceHeaders(request.headers()));
    let mut end = RequestEnd {
        trace: trace.clone(),
        method: request.method().clone(),
        route: request.extensions().get().cloned(),
        status: None,
        _answered: None,
    };
    let counter = TransferCounter(Arc::new(CounterState {
        usage,
        owner: OnceLock::new(),
        received: AtomicU64::new(0),
        sent: AtomicU64::new(0),
        trace: trace.clone(),
    }));
    request.extensions_mut().insert(counter.clone());
    let incoming = counter.clone();
    let request = request.map(|body| count_body(body, incoming, BodyDirection::Received, None));
    let mut response = trace.serve(next.run(request)).await;
    end.status = Some(response.status().as_u16());
    end._answered = response.extensions_mut().remove();
    response.map(|body| count_body(body, counter, BodyDirection::Sent, Some(end)))
}

fn count_body(
    body: Body,
    counter: TransferCounter,
    direction: BodyDirection,
    end: Option<RequestEnd>,
) -> Body {
    if body.is_end_stream() {
        return body;
    }
    let end = end.map(|end| DeferredEnd(Some(end)));
    Body::new(CountedBody { body, counter, direction, _end: end })
}

#[derive(Clone, Copy)]
enum BodyDirection {
    Received,
    Sent,
}

/// A body whose bytes are counted as they pass.
struct CountedBody {
    body: Body,
    counter: TransferCounter,
    direction: BodyDirection,
    _end: Option<DeferredEnd>,
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        let Poll::Ready(ready) = &polled else { return polled };
        let state = &self.counter.0;
        let counter = match self.direction {
            BodyDirection::Received => &state.received,
            BodyDirection::Sent => &state.sent,
        };
        let data = ready.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
        let length = data.map_or(0, |data| data.len() as u64);
        let counted = counter.fetch_add(length, Ordering::Relaxed) + length;
        // At the end too, so that a client which has read a response finds it counted.
        if counted >= STEP || ready.is_none() || self.body.is_end_stream() {
            state.report();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
