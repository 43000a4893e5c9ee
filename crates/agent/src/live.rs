//! A response in progress: its current state, its events so far, and its cancellation.

use std::{sync::Arc, time::Duration};

use cloche_engine::{FetchedPage, SearchHit};
use cloche_model::{ResponseId, ResponseStatus, TeamId};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{Response, ResponseItem};

/// An event of a response.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResponseEvent {
    /// Its sequence number; the first is 0.
    pub seq: u64,
    /// The kind of event.
    pub kind: ResponseEventKind,
}

/// The kinds of events of a response.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResponseEventKind {
    /// The response was accepted.
    Created(Response),
    /// Work on the response has started or resumed.
    InProgress(Response),
    /// An item was added.
    ItemAdded {
        /// Its index in the output.
        index: usize,
        /// The item in its first state.
        item: ResponseItem,
    },
    /// An item is complete.
    ItemDone {
        /// Its index in the output.
        index: usize,
        /// The item.
        item: ResponseItem,
    },
    /// Text was appended to a message.
    TextDelta {
        /// The index of the message.
        index: usize,
        /// The id of the message.
        item_id: String,
        /// The appended text.
        delta: String,
    },
    /// The text of a message is complete.
    TextDone {
        /// The index of the message.
        index: usize,
        /// The id of the message.
        item_id: String,
        /// The full text.
        text: String,
    },
    /// The model starts to search, or to read pages.
    ReasoningStarted,
    /// A search was begun.
    SearchQueries {
        /// What is searched for.
        queries: Vec<String>,
    },
    /// A search has results.
    SearchResults {
        /// The results.
        results: Vec<SearchHit>,
    },
    /// Pages are being read.
    FetchQueries {
        /// Their URLs.
        urls: Vec<String>,
    },
    /// Pages were read.
    FetchResults {
        /// The pages.
        pages: Vec<FetchedPage>,
    },
    /// The search, or the reading, is over.
    ReasoningStopped,
    /// The response has ended, or requires action.
    Completed(Response),
    /// The response failed or was cancelled.
    Failed(Response),
}

impl ResponseEventKind {
    /// The last event of a response that has ended in this state.
    pub(crate) fn final_event(response: Response) -> Self {
        match response.status {
            ResponseStatus::Failed | ResponseStatus::Cancelled => Self::Failed(response),
            _ => Self::Completed(response),
        }
    }
}

/// Why a response was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseStopReason {
    /// Its owner cancelled it.
    User,
    /// It exceeded the longest duration.
    Deadline(Duration),
    /// The server is shutting down.
    Shutdown,
}

/// A response in progress.
pub(crate) struct LiveResponse {
    pub(crate) id: ResponseId,
    pub(crate) team: TeamId,
    state: Mutex<LiveResponseState>,
    /// Cancelled when the response is to stop.
    pub(crate) stopped: CancellationToken,
    /// Notified with every change of the state.
    changes: watch::Sender<()>,
}

struct LiveResponseState {
    response: Response,
    events: Vec<ResponseEvent>,
    stop: Option<ResponseStopReason>,
    over: bool,
}

impl LiveResponse {
    pub(crate) fn new(team: TeamId, response: Response) -> Arc<Self> {
        let events =
            vec![ResponseEvent { seq: 0, kind: ResponseEventKind::Created(response.clone()) }];
        Arc::new(Self {
            id: response.id.clone(),
            team,
            state: Mutex::new(LiveResponseState { response, events, stop: None, over: false }),
            stopped: CancellationToken::new(),
            changes: watch::Sender::new(()),
        })
    }

    /// The response in its current state.
    pub(crate) fn response(&self) -> Response {
        self.state.lock().response.clone()
    }

    /// All events so far.
    pub(crate) fn events(&self) -> Vec<ResponseEvent> {
        self.state.lock().events.clone()
    }

    /// Changes the response and appends the events of the change.
    pub(crate) fn change<T>(
        &self,
        change: impl FnOnce(&mut Response) -> (T, Vec<ResponseEventKind>),
    ) -> T {
        let mut state = self.state.lock();
        let (value, kinds) = change(&mut state.response);
        for kind in kinds {
            let seq = state.events.len() as u64;
            state.events.push(ResponseEvent { seq, kind });
        }
        drop(state);
        self.changes.send_replace(());
        value
    }

    /// Sets the final state and appends the last event.
    pub(crate) fn finish(&self, response: Response) {
        let mut state = self.state.lock();
        let seq = state.events.len() as u64;
        state
            .events
            .push(ResponseEvent { seq, kind: ResponseEventKind::final_event(response.clone()) });
        state.response = response;
        state.over = true;
        drop(state);
        self.changes.send_replace(());
    }

    /// Stops the response; the first reason is kept.
    pub(crate) fn stop(&self, stop: ResponseStopReason) {
        self.state.lock().stop.get_or_insert(stop);
        self.stopped.cancel();
    }

    pub(crate) fn stop_reason(&self) -> Option<ResponseStopReason> {
        self.state.lock().stop
    }

    /// Waits until the response has ended or requires action.
    pub(crate) async fn wait_settled(&self) -> Response {
        let mut changes = self.changes.subscribe();
        loop {
            {
                let state = self.state.lock();
                if state.over || state.response.status == ResponseStatus::RequiresAction {
                    return state.response.clone();
                }
            }
            if changes.changed().await.is_err() {
                return self.response();
            }
        }
    }

    /// Reads the events from this sequence number on.
    pub(crate) fn read_events(self: &Arc<Self>, from: u64) -> ResponseEventReader {
        let next = usize::try_from(from).unwrap_or(usize::MAX);
        ResponseEventReader { changes: self.changes.subscribe(), live: Arc::clone(self), next }
    }
}

/// Reads the events of a response in progress.
pub struct ResponseEventReader {
    live: Arc<LiveResponse>,
    next: usize,
    changes: watch::Receiver<()>,
}

impl ResponseEventReader {
    /// Returns the events since the last call, once there are any; `None` after the last event.
    pub async fn next(&mut self) -> Option<Vec<ResponseEvent>> {
        loop {
            {
                let state = self.live.state.lock();
                if let Some(events @ [_, ..]) = state.events.get(self.next..) {
                    self.next = state.events.len();
                    return Some(events.to_vec());
                }
                if state.over {
                    return None;
                }
            }
            self.changes.changed().await.ok()?;
        }
    }
}
