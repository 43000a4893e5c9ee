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
    next_request_id: u64,
    /// Answers that gave a piece which their client has not come back from, and since when.
    unread_since: HashMap<u64, Instant>,
}

/// Why a connection is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionTimeout {
    /// It has no request.
    Idle,
    /// Its client does not read.
    Stalled,
}

/// A request under way, until its answer was sent or given up.
pub(super) struct RequestInFlight {
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
                next_request_id: 0,
                unread_since: HashMap::new(),
            }),
        }
    }

    /// A request came.
    pub(super) fn begin_request(self: &Arc<Self>) -> RequestInFlight {
        let mut state = self.state.lock();
        state.requests += 1;
        state.served = true;
        state.next_request_id += 1;
        RequestInFlight { watch: Arc::clone(self), id: state.next_request_id }
    }

    /// Waits until the client keeps still for too long.
    pub(super) async fn wait_for_timeout(&self, config: &GatewayConfig) -> ConnectionTimeout {
        loop {
            let (why, due) = self.state.lock().next_deadline(config);
            if due <= Instant::now() {
                return why;
            }
            sleep_until(due).await;
        }
    }
}

impl WatchState {
    /// What would be wrong by when, if nothing happens until then.
    fn next_deadline(&self, config: &GatewayConfig) -> (ConnectionTimeout, Instant) {
        if let Some(since) = self.unread_since.values().min() {
            return (ConnectionTimeout::Stalled, *since + config.write_timeout);
        }
        if self.requests > 0 {
            // Not due, whatever the time: looked at again when it could be.
            let soon = config.idle_timeout.min(config.write_timeout);
            return (
                ConnectionTimeout::Idle,
                Instant::now() + soon.max(std::time::Duration::from_millis(1)),
            );
        }
        let patience = if self.served { config.idle_timeout } else { config.header_timeout };
        (ConnectionTimeout::Idle, self.quiet_since + patience)
    }
}

impl Drop for RequestInFlight {
    fn drop(&mut self) {
        let mut state = self.watch.state.lock();
        state.requests -= 1;
        state.unread_since.remove(&self.id);
        state.quiet_since = Instant::now();
    }
}

/// The body of an answer, which tells the watch how it is taken.
pub(super) struct WatchedBody {
    body: Body,
    request: RequestInFlight,
}

impl WatchedBody {
    pub(super) fn new(body: Body, visit: RequestInFlight) -> Self {
        Self { body, request: visit }
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
        let RequestInFlight { watch, id } = &self.request;
        let mut state = watch.state.lock();
        match &polled {
            Poll::Ready(Some(_)) => drop(state.unread_since.insert(*id, Instant::now())),
            // The client has taken all there was.
            Poll::Ready(None) | Poll::Pending => drop(state.unread_since.remove(id)),
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
    fn due(watch: &ConnectionWatch, begun: Instant) -> (ConnectionTimeout, u64) {
        let (silence, at) = watch.state.lock().next_deadline(&config());
        let after = at.duration_since(begun) + Duration::from_millis(500);
        (silence, after.as_secs())
    }

    #[tokio::test]
    async fn a_connection_without_a_request_is_idle() {
        let begun = Instant::now();
        let watch = Arc::new(ConnectionWatch::new());
        assert_eq!(due(&watch, begun), (ConnectionTimeout::Idle, 10));
        drop(watch.begin_request());
        let quiet = watch.state.lock().quiet_since;
        assert_eq!(due(&watch, quiet), (ConnectionTimeout::Idle, 20));
    }

    #[tokio::test]
    async fn a_request_may_take_its_time_but_its_client_has_to_read() {
        let watch = Arc::new(ConnectionWatch::new());
        let visit = watch.begin_request();
        let (_, at) = watch.state.lock().next_deadline(&config());
        assert!(at > Instant::now(), "a request that goes on is never due");
        let mut body = WatchedBody::new(Body::from("answer"), visit);
        body.frame().await.unwrap().unwrap();
        let given = *watch.state.lock().unread_since.values().next().unwrap();
        assert_eq!(due(&watch, given), (ConnectionTimeout::Stalled, 30));
        assert!(body.frame().await.is_none());
        assert!(watch.state.lock().unread_since.is_empty(), "all of it was taken");
        drop(body);
        assert_eq!(watch.state.lock().requests, 0);
    }

    #[tokio::test]
    async fn an_answer_that_waits_for_its_program_does_not_wait_for_its_client() {
        let watch = Arc::new(ConnectionWatch::new());
        let endless = Body::from_stream(futures::stream::pending::<Result<Bytes, axum::Error>>());
        let mut body = WatchedBody::new(endless, watch.begin_request());
        assert!(futures::poll!(body.frame()).is_pending());
        assert!(watch.state.lock().unread_since.is_empty());
    }
}
