//! Runs in: server (no capabilities).
//!
//! Counts the bytes of the bodies of each request and its response, for the team and key that the
//! request is authenticated as. Everything that a key sends and
//! gets is counted; this file does not know about executions or files.

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
    extract::{Request, State},
    http::Extensions,
    middleware::Next,
    response::Response,
};
use cloche_engine::UsageAccounts;
use cloche_model::{KeyId, TeamId};
use hyper::body::{Body as HttpBody, Frame, SizeHint};

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
    }
}

/// The layer that puts a counter into every request.
pub(crate) async fn count_transfers(
    State(usage): State<Arc<UsageAccounts>>,
    mut request: Request,
    next: Next,
) -> Response {
    let counter = TransferCounter(Arc::new(CounterState {
        usage,
        owner: OnceLock::new(),
        received: AtomicU64::new(0),
        sent: AtomicU64::new(0),
    }));
    request.extensions_mut().insert(counter.clone());
    let incoming = counter.clone();
    let request = request.map(|body| count_body(body, incoming, BodyDirection::Received));
    let response = next.run(request).await;
    response.map(|body| count_body(body, counter, BodyDirection::Sent))
}

fn count_body(body: Body, counter: TransferCounter, direction: BodyDirection) -> Body {
    if body.is_end_stream() {
        return body;
    }
    Body::new(CountedBody { body, counter, direction })
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
