//! The agent: its state, and the operations on responses that callers use.

mod begin;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use cloche_engine::outgoing_http::OutgoingHttpError;
use cloche_engine::{Caller, Engine, Refusal, ResponseRow, now};
use cloche_model::{ErrorCode, ResponseId, ResponseStatus, TeamId};
use parking_lot::RwLock;
use serde::de::DeserializeOwned;
use tokio_util::task::TaskTracker;

use crate::{
    AgentConfig, ModelProvider, ProviderConfig, Response, ResponseEvent, ResponseEventKind,
    ResponseEventReader, ResponseFailure,
    live::{LiveResponse, ResponseStopReason},
    provider,
    request_limit::RequestLimiter,
    response::StoredResponse,
};

/// How long responses may take to end after they are stopped at shutdown.
const LAST_MOMENTS: Duration = Duration::from_secs(10);

/// Everything behind the Agent API. Cheap to clone.
#[derive(Clone)]
pub struct Agent {
    inner: Arc<AgentInner>,
}

struct AgentInner {
    engine: Engine,
    config: AgentConfig,
    providers: BTreeMap<String, ConfiguredProvider>,
    live: RwLock<HashMap<ResponseId, Arc<LiveResponse>>>,
    request_limiter: RequestLimiter,
    tasks: TaskTracker,
    draining: AtomicBool,
}

struct ConfiguredProvider {
    client: Arc<dyn ModelProvider>,
    config: ProviderConfig,
}

/// The error of starting an agent.
#[derive(Debug, thiserror::Error)]
#[error("cannot prepare the model provider {name}")]
pub struct AgentStartError {
    name: String,
    source: OutgoingHttpError,
}

/// A response that has started.
pub struct StartedResponse {
    live: Arc<LiveResponse>,
}

impl StartedResponse {
    /// The response in its current state.
    #[must_use]
    pub fn response(&self) -> Response {
        self.live.response()
    }

    /// Its events, starting with the first.
    #[must_use]
    pub fn events(&self) -> ResponseEventReader {
        self.live.read_events(0)
    }

    /// Waits until it has ended or requires action.
    pub async fn wait_settled(&self) -> Response {
        self.live.wait_settled().await
    }
}

/// The events of a response.
pub enum ResponseEvents {
    /// The response is in progress; more events follow.
    Live(ResponseEventReader),
    /// The response has ended; these are all its events.
    Over(Vec<ResponseEvent>),
}

impl Agent {
    /// Creates an agent that runs code through this engine.
    ///
    /// # Errors
    /// When a provider cannot be prepared.
    pub fn new(engine: Engine, config: AgentConfig) -> Result<Self, AgentStartError> {
        let mut providers = BTreeMap::new();
        for (name, config) in &config.providers {
            let failed = |source| AgentStartError { name: name.clone(), source };
            let asked = provider::connect_provider(config).map_err(failed)?;
            providers
                .insert(name.clone(), ConfiguredProvider { client: asked, config: config.clone() });
        }
        let (live, tasks) = (RwLock::default(), TaskTracker::new());
        let draining = AtomicBool::new(false);
        let request_limiter = RequestLimiter::new(config.requests_per_minute);
        let inner =
            AgentInner { engine, config, providers, live, request_limiter, tasks, draining };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Marks responses as failed that a restart interrupted; returns their number.
    ///
    /// # Errors
    /// When the store cannot be read or written.
    pub async fn recover_responses(&self) -> Result<usize, Refusal> {
        let open = self.inner.engine.responses().open_responses().await?;
        for row in &open {
            let message = "the server was restarted while this response was being made";
            let failure = ResponseFailure::new("server_restarted", message);
            let mut kept: StoredResponse = parse_stored("record", &row.record)?;
            kept.response.break_off(failure);
            let events = vec![ResponseEvent {
                seq: 0,
                kind: ResponseEventKind::Failed(kept.response.clone()),
            }];
            let over = ResponseRow {
                status: ResponseStatus::Failed,
                completed_at: Some(now()),
                record: serialize_stored(&kept)?,
                events: serialize_stored(&events)?,
                ..row.clone()
            };
            self.inner.engine.responses().update_response(over).await?;
            self.inner.engine.agent_metrics().response_over(ResponseStatus::Failed);
        }
        if !open.is_empty() {
            tracing::warn!(
                ended = open.len(),
                "responses interrupted by a restart were marked as failed"
            );
        }
        Ok(open.len())
    }

    /// Adds a response to those in progress, if the team's limit allows it.
    fn register_live(
        &self,
        caller: &Caller,
        response: Response,
    ) -> Result<Arc<LiveResponse>, Refusal> {
        let mut live = self.inner.live.write();
        let team = &caller.team.id;
        let limit = self.inner.config.at_once;
        if live.values().filter(|live| live.team == *team).count() >= limit {
            let message = format!("{limit} responses of this team are in progress already");
            return Err(Refusal::new(ErrorCode::RateLimited, message));
        }
        let new = LiveResponse::new(team.clone(), response);
        live.insert(new.id.clone(), Arc::clone(&new));
        Ok(new)
    }

    fn remove_live(&self, live: &LiveResponse) {
        self.inner.live.write().remove(&live.id);
    }

    fn find_live(&self, team: &TeamId, id: &ResponseId) -> Option<Arc<LiveResponse>> {
        let live = self.inner.live.read().get(id).cloned()?;
        (live.team == *team).then_some(live)
    }

    /// Returns a response of a team, unless it was created with `store: false`.
    ///
    /// # Errors
    /// When there is none that the team may see.
    pub async fn retrieve_response(
        &self,
        team: &TeamId,
        id: &ResponseId,
    ) -> Result<Response, Refusal> {
        if let Some(live) = self.find_live(team, id) {
            let response = live.response();
            return if response.store { Ok(response) } else { Err(response_not_found()) };
        }
        Ok(self.load_stored(team, id).await?.0.response)
    }

    /// Returns the events of a response after this sequence number; all events without one.
    ///
    /// # Errors
    /// When there is none that the team may see.
    pub async fn follow_response(
        &self,
        team: &TeamId,
        id: &ResponseId,
        after: Option<u64>,
    ) -> Result<ResponseEvents, Refusal> {
        let from = after.map_or(0, |after| after.saturating_add(1));
        if let Some(live) = self.find_live(team, id) {
            return if live.response().store {
                Ok(ResponseEvents::Live(live.read_events(from)))
            } else {
                Err(response_not_found())
            };
        }
        let (_, row) = self.load_stored(team, id).await?;
        let mut events: Vec<ResponseEvent> = parse_stored("events", &row.events)?;
        events.retain(|event| event.seq >= from);
        Ok(ResponseEvents::Over(events))
    }

    /// Cancels a response. Returns `None` if it is being cancelled, or its status if it has already
    /// ended.
    ///
    /// # Errors
    /// When there is none that the team may see.
    pub async fn cancel_response(
        &self,
        team: &TeamId,
        id: &ResponseId,
    ) -> Result<Option<ResponseStatus>, Refusal> {
        if let Some(live) = self.find_live(team, id) {
            live.stop(ResponseStopReason::User);
            return Ok(None);
        }
        Ok(Some(self.load_stored(team, id).await?.0.response.status))
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.inner.engine
    }

    /// Loads a response that has ended and that the team may see.
    pub(crate) async fn load_stored(
        &self,
        team: &TeamId,
        id: &ResponseId,
    ) -> Result<(StoredResponse, ResponseRow), Refusal> {
        let row = self.inner.engine.responses().find_response(team, id).await?;
        if !row.visible {
            return Err(response_not_found());
        }
        Ok((parse_stored("record", &row.record)?, row))
    }

    /// Refuses new responses, waits `linger` for those in progress, then stops them.
    pub async fn shutdown(&self) {
        self.inner.draining.store(true, Ordering::SeqCst);
        self.inner.tasks.close();
        if tokio::time::timeout(self.inner.config.linger, self.inner.tasks.wait()).await.is_ok() {
            return;
        }
        let left: Vec<_> = self.inner.live.read().values().cloned().collect();
        tracing::warn!(
            left = left.len(),
            "stopping responses in progress, because the server shuts down"
        );
        left.iter().for_each(|live| live.stop(ResponseStopReason::Shutdown));
        if tokio::time::timeout(LAST_MOMENTS, self.inner.tasks.wait()).await.is_err() {
            tracing::error!("some responses did not end; the next start will record them");
        }
    }
}

fn response_not_found() -> Refusal {
    Refusal::not_found("response")
}

fn internal_refusal(failure: ResponseFailure) -> Refusal {
    Refusal {
        source: Some(failure.message.into()),
        ..Refusal::new(ErrorCode::Internal, "something went wrong on our side; try again")
    }
}

fn parse_stored<T: DeserializeOwned>(what: &str, text: &str) -> Result<T, Refusal> {
    serde_json::from_str(text).map_err(|error| {
        internal_refusal(ResponseFailure::new("internal_error", format!("{what}: {error}")))
    })
}

fn serialize_stored<T: serde::Serialize>(value: &T) -> Result<String, Refusal> {
    crate::response_task::to_json(value).map_err(internal_refusal)
}

/// A unique name: the prefix and 20 random letters and digits.
pub(crate) fn random_name(prefix: &str) -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let mut bytes = [0; 20];
    // A machine without a source of randomness is unusable, so this error is only logged.
    if let Err(error) = getrandom::fill(&mut bytes) {
        tracing::error!(%error, "could not read random bytes from the kernel");
    }
    let letters = bytes.map(|byte| char::from(ALPHABET[usize::from(byte % 32)]));
    format!("{prefix}{}", String::from_iter(letters))
}
