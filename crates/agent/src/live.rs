//! A response while it is made: what it is now, the events so far, and how it is told to stop.

use std::{sync::Arc, time::Duration};

use cloche_model::{ResponseId, ResponseStatus, TeamId};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{Response, ResponseItem};

/// Something that happened to a response.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResponseEvent {
    /// Its number; the first is 0.
    pub seq: u64,
    /// What happened.
    pub kind: ResponseEventKind,
}

/// What can happen to a response.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResponseEventKind {
    /// It was accepted.
    Created(Response),
    /// Work on it has begun, or goes on.
    InProgress(Response),
    /// There is a new item.
    ItemAdded {
        /// Its place.
        index: usize,
        /// The item as it begins.
        item: ResponseItem,
    },
    /// An item is finished.
    ItemDone {
        /// Its place.
        index: usize,
        /// The item.
        item: ResponseItem,
    },
    /// A message has more text.
    TextDelta {
        /// The message's place.
        index: usize,
        /// The message.
        item_id: String,
        /// The text.
        delta: String,
    },
    /// A message has all its text.
    TextDone {
        /// The message's place.
        index: usize,
        /// The message.
        item_id: String,
        /// The text.
        text: String,
    },
    /// It is over, or waits for someone.
    Completed(Response),
    /// It failed or was cancelled.
    Failed(Response),
}

impl ResponseEventKind {
    /// The last event of a response that has ended like this.
    pub(crate) fn final_event(response: Response) -> Self {
        match response.status {
            ResponseStatus::Failed | ResponseStatus::Cancelled => Self::Failed(response),
            _ => Self::Completed(response),
        }
    }
}

/// Why a response was told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseStopReason {
    /// Its owner wants it.
    User,
    /// It took too long.
    Deadline(Duration),
    /// The server stops.
    Shutdown,
}

/// A response under way.
pub(crate) struct LiveResponse {
    pub(crate) id: ResponseId,
    pub(crate) team: TeamId,
    state: Mutex<LiveResponseState>,
    /// Fires when it has been told to stop.
    pub(crate) stopped: CancellationToken,
    /// Changes with every change of the state.
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

    /// The response as it is now.
    pub(crate) fn response(&self) -> Response {
        self.state.lock().response.clone()
    }

    /// All events so far.
    pub(crate) fn events(&self) -> Vec<ResponseEvent> {
        self.state.lock().events.clone()
    }

    /// Changes the response and says what happened.
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

    /// It has ended like this, and nothing happens to it any more.
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

    /// Tells it to stop; the first reason is the one that counts.
    pub(crate) fn stop(&self, stop: ResponseStopReason) {
        self.state.lock().stop.get_or_insert(stop);
        self.stopped.cancel();
    }

    pub(crate) fn stop_reason(&self) -> Option<ResponseStopReason> {
        self.state.lock().stop
    }

    /// Waits until it is over or somebody has to do something.
    pub(crate) async fn wait_settled(&self) -> Response {
        let mut bell = self.changes.subscribe();
        loop {
            {
                let state = self.state.lock();
                if state.over || state.response.status == ResponseStatus::RequiresAction {
                    return state.response.clone();
                }
            }
            if bell.changed().await.is_err() {
                return self.response();
            }
        }
    }

    /// The events from this number on.
    pub(crate) fn read_events(self: &Arc<Self>, from: u64) -> ResponseEventReader {
        let next = usize::try_from(from).unwrap_or(usize::MAX);
        ResponseEventReader { changes: self.changes.subscribe(), live: Arc::clone(self), next }
    }
}

/// Reads the events of a response that is under way.
pub struct ResponseEventReader {
    live: Arc<LiveResponse>,
    next: usize,
    changes: watch::Receiver<()>,
}

impl ResponseEventReader {
    /// The events since the last time, once there are any; nothing after the last one.
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
