//! Runs in: server (no capabilities).
//!
//! The activity of a connection: how many requests it has, since when it has none, and since when a
//! response waits for its client. An HTTP/2 client can read its socket without accepting data of a
//! stream, so the socket alone does not show this.

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
    /// When the connection started, or its last request ended.
    quiet_since: Instant,
    /// Whether it has had a request.
    served: bool,
    next_request_id: u64,
    /// Responses with a chunk that the client has not accepted yet, and since when.
    unread_since: HashMap<u64, Instant>,
}

/// Why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionTimeout {
    /// It has no request.
    Idle,
    /// Its client does not read.
    Stalled,
}

/// A request in flight, until its response was sent or abandoned.
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

    /// Counts a request until the returned value is dropped.
    pub(super) fn begin_request(self: &Arc<Self>) -> RequestInFlight {
        let mut state = self.state.lock();
        state.requests += 1;
        state.served = true;
        state.next_request_id += 1;
        RequestInFlight { watch: Arc::clone(self), id: state.next_request_id }
    }

    /// Waits until a timeout of the client is reached.
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
    /// The next timeout and its deadline, if nothing changes until then.
    fn next_deadline(&self, config: &GatewayConfig) -> (ConnectionTimeout, Instant) {
        if let Some(since) = self.unread_since.values().min() {
            return (ConnectionTimeout::Stalled, *since + config.write_timeout);
        }
        if self.requests > 0 {
            // Never due while requests are in flight; the deadline only sets the time of the next
            // check.
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

/// The body of a response, which reports to the watch when the client accepts data.
pub(super) struct WatchedBody {
    body: Body,
    request: RequestInFlight,
}

impl WatchedBody {
    pub(super) fn new(body: Body, request: RequestInFlight) -> Self {
        Self { body, request }
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
            // The client has accepted all available data.
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

    /// The next timeout, and its deadline in seconds after `begun`.
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
    async fn a_request_has_no_deadline_but_reading_its_response_has() {
        let watch = Arc::new(ConnectionWatch::new());
        let request = watch.begin_request();
        let (_, at) = watch.state.lock().next_deadline(&config());
        assert!(at > Instant::now(), "a request in flight has no deadline");
        let mut body = WatchedBody::new(Body::from("answer"), request);
        body.frame().await.unwrap().unwrap();
        let given = *watch.state.lock().unread_since.values().next().unwrap();
        assert_eq!(due(&watch, given), (ConnectionTimeout::Stalled, 30));
        assert!(body.frame().await.is_none());
        assert!(watch.state.lock().unread_since.is_empty(), "the client has accepted everything");
        drop(body);
        assert_eq!(watch.state.lock().requests, 0);
    }

    #[tokio::test]
    async fn a_response_that_waits_for_its_program_is_not_stalled() {
        let watch = Arc::new(ConnectionWatch::new());
        let endless = Body::from_stream(futures::stream::pending::<Result<Bytes, axum::Error>>());
        let mut body = WatchedBody::new(endless, watch.begin_request());
        assert!(futures::poll!(body.frame()).is_pending());
        assert!(watch.state.lock().unread_since.is_empty());
    }
}
