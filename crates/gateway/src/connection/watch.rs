//! Runs in: server (no capabilities).
//!
//! What a connection is doing: how many requests it has, since when it has none, and since when an
//! answer waits for its client to take more. A client of HTTP/2 can read its socket and still take
//! nothing of an answer, so the socket alone does not tell.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::body::{Body, Bytes};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

use crate::GatewayConfig;

/// Watches one connection.
pub(super) struct ConnectionWatch {
    state: Mutex<WatchState>,
}

struct WatchState {
    requests: usize,
    /// When the connection began, or its last request ended.
    quiet_since: Instant,
    /// It had a request.
    served: bool,
    next_visit: u64,
    /// Answers that gave a piece which their client has not come back from, and since when.
    given: HashMap<u64, Instant>,
}

/// Why a connection is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Silence {
    /// It has no request.
    Idle,
    /// Its client does not read.
    Stalled,
}

/// A request under way, until its answer was sent or given up.
pub(super) struct RequestVisit {
    watch: Arc<ConnectionWatch>,
    id: u64,
}

impl ConnectionWatch {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::new(WatchState {
                requests: 0,
                quiet_since: Instant::now(),
                served: false,
                next_visit: 0,
                given: HashMap::new(),
            }),
        }
    }

    /// A request came.
    pub(super) fn enter(self: &Arc<Self>) -> RequestVisit {
        let mut state = self.state.lock();
        state.requests += 1;
        state.served = true;
        state.next_visit += 1;
        RequestVisit { watch: Arc::clone(self), id: state.next_visit }
    }

    /// Waits until the client keeps still for too long.
    pub(super) async fn silence(&self, config: &GatewayConfig) -> Silence {
        loop {
            let (why, due) = self.state.lock().deadline(config);
            if due <= Instant::now() {
                return why;
            }
            sleep_until(due).await;
        }
    }
}

impl WatchState {
    /// What would be wrong by when, if nothing happens until then.
    fn deadline(&self, config: &GatewayConfig) -> (Silence, Instant) {
        if let Some(since) = self.given.values().min() {
            return (Silence::Stalled, *since + config.write_timeout);
        }
        if self.requests > 0 {
            // Not due, whatever the time: looked at again when it could be.
            let soon = config.idle_timeout.min(config.write_timeout);
            return (Silence::Idle, Instant::now() + soon.max(std::time::Duration::from_millis(1)));
        }
        let patience = if self.served { config.idle_timeout } else { config.header_timeout };
        (Silence::Idle, self.quiet_since + patience)
    }
}

impl Drop for RequestVisit {
    fn drop(&mut self) {
        let mut state = self.watch.state.lock();
        state.requests -= 1;
        state.given.remove(&self.id);
        state.quiet_since = Instant::now();
    }
}

/// The body of an answer, which tells the watch how it is taken.
pub(super) struct WatchedBody {
    body: Body,
    visit: RequestVisit,
}

impl WatchedBody {
    pub(super) fn new(body: Body, visit: RequestVisit) -> Self {
        Self { body, visit }
    }
}

impl HttpBody for WatchedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        let RequestVisit { watch, id } = &self.visit;
        let mut state = watch.state.lock();
        match &polled {
            Poll::Ready(Some(_)) => drop(state.given.insert(*id, Instant::now())),
            // The client has taken all there was.
            Poll::Ready(None) | Poll::Pending => drop(state.given.remove(id)),
        }
        drop(state);
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http_body_util::BodyExt;

    use super::*;

    fn config() -> GatewayConfig {
        GatewayConfig {
            header_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(20),
            write_timeout: Duration::from_secs(30),
            ..GatewayConfig::default()
        }
    }

    /// What would be wrong, and in how many seconds from the beginning.
    fn due(watch: &ConnectionWatch, begun: Instant) -> (Silence, u64) {
        let (silence, at) = watch.state.lock().deadline(&config());
        let after = at.duration_since(begun) + Duration::from_millis(500);
        (silence, after.as_secs())
    }

    #[tokio::test]
    async fn a_connection_without_a_request_is_idle() {
        let begun = Instant::now();
        let watch = Arc::new(ConnectionWatch::new());
        assert_eq!(due(&watch, begun), (Silence::Idle, 10));
        drop(watch.enter());
        let quiet = watch.state.lock().quiet_since;
        assert_eq!(due(&watch, quiet), (Silence::Idle, 20));
    }

    #[tokio::test]
    async fn a_request_may_take_its_time_but_its_client_has_to_read() {
        let watch = Arc::new(ConnectionWatch::new());
        let visit = watch.enter();
        let (_, at) = watch.state.lock().deadline(&config());
        assert!(at > Instant::now(), "a request that goes on is never due");
        let mut body = WatchedBody::new(Body::from("answer"), visit);
        body.frame().await.unwrap().unwrap();
        let given = *watch.state.lock().given.values().next().unwrap();
        assert_eq!(due(&watch, given), (Silence::Stalled, 30));
        assert!(body.frame().await.is_none());
        assert!(watch.state.lock().given.is_empty(), "all of it was taken");
        drop(body);
        assert_eq!(watch.state.lock().requests, 0);
    }

    #[tokio::test]
    async fn an_answer_that_waits_for_its_program_does_not_wait_for_its_client() {
        let watch = Arc::new(ConnectionWatch::new());
        let endless = Body::from_stream(futures::stream::pending::<Result<Bytes, axum::Error>>());
        let mut body = WatchedBody::new(endless, watch.enter());
        assert!(futures::poll!(body.frame()).is_pending());
        assert!(watch.state.lock().given.is_empty());
    }
}
