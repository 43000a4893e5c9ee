//! The agent as a whole: what it holds, and responses as their owners ask for them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use cloche_engine::{Caller, Engine, Refusal, ResponseRow, now};
use cloche_model::{ErrorCode, Invalid, ResponseId, ResponseStatus};
use futures::FutureExt;
use parking_lot::RwLock;
use serde::de::DeserializeOwned;
use tokio_util::task::TaskTracker;

use crate::{
    AgentConfig, Bill, Event, EventKind, EventReader, Failure, Message, ModelProvider, NewResponse,
    ProviderConfig, Response,
    ask::{Chain, Route},
    gate,
    live::{Live, Stop},
    provider,
    request::Order,
    response::{Conversation, Kept},
    work::{MAX_CONVERSATION, Work, row},
};

/// How long responses may take to end once they are told to.
const LAST_MOMENTS: Duration = Duration::from_secs(10);

/// Everything behind the Agent API. Cheap to clone.
#[derive(Clone)]
pub struct Agent {
    inner: Arc<Inner>,
}

struct Inner {
    engine: Engine,
    config: AgentConfig,
    providers: BTreeMap<String, Provider>,
    live: RwLock<HashMap<ResponseId, Arc<Live>>>,
    tasks: TaskTracker,
    draining: AtomicBool,
}

struct Provider {
    asked: Arc<dyn ModelProvider>,
    config: ProviderConfig,
}

/// Why an agent could not start.
#[derive(Debug, thiserror::Error)]
#[error("cannot prepare the model provider {name}")]
pub struct StartError {
    name: String,
    source: reqwest::Error,
}

/// A response that has begun.
pub struct Begun {
    live: Arc<Live>,
}

impl Begun {
    /// The response as it is now.
    #[must_use]
    pub fn response(&self) -> Response {
        self.live.response()
    }

    /// Its events from the first on.
    #[must_use]
    pub fn events(&self) -> EventReader {
        self.live.read(0)
    }

    /// Waits until it is over, or somebody has to do something.
    pub async fn settled(&self) -> Response {
        self.live.settled().await
    }
}

/// The events of a response.
pub enum Follow {
    /// It is under way; there will be more.
    Live(EventReader),
    /// It is over; these are all.
    Over(Vec<Event>),
}

impl Agent {
    /// An agent that runs code through this engine.
    ///
    /// # Errors
    /// When a provider cannot be prepared.
    pub fn new(engine: Engine, config: AgentConfig) -> Result<Self, StartError> {
        let mut providers = BTreeMap::new();
        for (name, config) in &config.providers {
            let failed = |source| StartError { name: name.clone(), source };
            let asked = provider::connect(config).map_err(failed)?;
            providers.insert(name.clone(), Provider { asked, config: config.clone() });
        }
        let (live, tasks) = (RwLock::default(), TaskTracker::new());
        let draining = AtomicBool::new(false);
        let inner = Inner { engine, config, providers, live, tasks, draining };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Ends what a restart cut short; gives back how many responses that were.
    ///
    /// # Errors
    /// When the store cannot be read or written.
    pub async fn recover(&self) -> Result<usize, Refusal> {
        let open = self.inner.engine.open_responses().await?;
        for row in &open {
            let message = "the server was restarted while this response was being made";
            let failure = Failure::new("server_restarted", message);
            let mut kept: Kept = read("record", &row.record)?;
            kept.response.status = ResponseStatus::Failed;
            kept.response.error = Some(failure);
            let events = vec![Event { seq: 0, kind: EventKind::Failed(kept.response.clone()) }];
            let over = ResponseRow {
                status: ResponseStatus::Failed,
                completed_at: Some(now()),
                record: write(&kept)?,
                events: write(&events)?,
                ..row.clone()
            };
            self.inner.engine.update_response(over).await?;
        }
        if !open.is_empty() {
            tracing::warn!(ended = open.len(), "responses that a restart cut short have failed");
        }
        Ok(open.len())
    }

    /// Checks a request, writes it down, and begins.
    ///
    /// # Errors
    /// When it is refused, or cannot be begun.
    pub async fn create(&self, caller: &Caller, request: NewResponse) -> Result<Begun, Refusal> {
        if self.inner.draining.load(Ordering::SeqCst) {
            let message = "the server is shutting down; try again in a moment";
            return Err(Refusal::new(ErrorCode::Unavailable, message));
        }
        let chain = self.chain(&request.models()?)?;
        let order = request.check()?;
        if order.sandbox {
            gate::check_offered(&self.inner.engine, caller).await?;
        }
        let (mut conversation, container) = self.previous(caller, order.previous.as_ref()).await?;
        conversation.extend(order.input.iter().cloned());
        check_conversation(&conversation)?;
        let response = accepted(&order)?;
        let live = self.enter(caller, response.clone())?;
        let kept = Kept { response, container: container.clone(), files: Vec::new() };
        let row = row(caller, &kept, &conversation, None).map_err(internal)?;
        if let Err(refusal) = self.inner.engine.create_response(row).await {
            self.leave(&live);
            return Err(refusal);
        }
        let work = Work {
            engine: self.inner.engine.clone(),
            caller: Arc::clone(caller),
            live: Arc::clone(&live),
            order,
            chain,
            conversation,
            container,
            files: Vec::new(),
            session_price: self.inner.config.session_price,
        };
        self.spawn(work);
        Ok(Begun { live })
    }

    fn spawn(&self, work: Work) {
        let (agent, live) = (self.clone(), Arc::clone(&work.live));
        let longest = self.inner.config.longest;
        self.inner.tasks.spawn(async move {
            if AssertUnwindSafe(work.run(longest)).catch_unwind().await.is_err() {
                // Its row is still open, so the next start ends it there, too.
                tracing::error!(id = %live.id, "a response was lost to a panic");
                live.change(|response| {
                    response.status = ResponseStatus::Failed;
                    let message = "something went wrong on our side; try again";
                    response.error = Some(Failure::new("internal_error", message));
                    ((), vec![EventKind::Failed(response.clone())])
                });
            }
            live.finish();
            agent.leave(&live);
        });
    }

    /// The models of a chain, each at its provider.
    fn chain(&self, models: &[String]) -> Result<Chain, Refusal> {
        let route = |name: &String| {
            let (provider, model) = name.split_once('/').unwrap_or_default();
            let Some(found) = self.inner.providers.get(provider) else {
                return Err(self.no_provider(provider));
            };
            let config = &found.config;
            Ok(Route {
                name: name.clone(),
                model: model.to_owned(),
                provider: Arc::clone(&found.asked),
                prices: config.model_prices.get(model).copied().unwrap_or(config.prices),
                retries: config.retries,
                backoff: config.backoff,
            })
        };
        Ok(Chain::new(models.iter().map(route).collect::<Result<_, _>>()?))
    }

    fn no_provider(&self, name: &str) -> Refusal {
        let known: Vec<_> = self.inner.providers.keys().map(String::as_str).collect();
        let shown: String = name.chars().take(64).collect();
        if known.is_empty() {
            let message = "no such model: this server has no model providers; its operator can add \
                           one as [agent.providers.NAME] to its configuration";
            return Refusal::new(ErrorCode::NotFound, message);
        }
        let known = known.join(", ");
        let message = format!("no such model: there is no provider {shown:?}, only: {known}");
        Refusal::new(ErrorCode::NotFound, message)
    }

    /// What was said before, and the container it was said in.
    async fn previous(
        &self,
        caller: &Caller,
        id: Option<&ResponseId>,
    ) -> Result<(Conversation, Option<crate::price::Container>), Refusal> {
        let Some(id) = id else { return Ok((Vec::new(), None)) };
        let row = self.inner.engine.response(caller, id).await?;
        if row.completed_at.is_none() {
            let message = "previous_response_id: that response is still under way";
            return Err(Refusal::new(ErrorCode::Conflict, message));
        }
        if !matches!(row.status, ResponseStatus::Completed | ResponseStatus::RequiresAction) {
            let message = format!(
                "previous_response_id: only a completed response can be continued, and that one \
                 is {}",
                row.status
            );
            return Err(Invalid::new(message).into());
        }
        let kept: Kept = read("record", &row.record)?;
        Ok((read("conversation", &row.conversation)?, kept.container))
    }

    /// Takes a place among the responses under way.
    fn enter(&self, caller: &Caller, response: Response) -> Result<Arc<Live>, Refusal> {
        let mut live = self.inner.live.write();
        let team = &caller.team.id;
        let limit = self.inner.config.at_once;
        if live.values().filter(|live| live.team == *team).count() >= limit {
            let message = format!("{limit} responses of this team are under way already");
            return Err(Refusal::new(ErrorCode::RateLimited, message));
        }
        let new = Live::new(team.clone(), response);
        live.insert(new.id.clone(), Arc::clone(&new));
        Ok(new)
    }

    fn leave(&self, live: &Live) {
        self.inner.live.write().remove(&live.id);
    }

    fn live_of(&self, caller: &Caller, id: &ResponseId) -> Option<Arc<Live>> {
        let live = self.inner.live.read().get(id).cloned()?;
        (live.team == caller.team.id).then_some(live)
    }

    /// A response of the caller's team, if it was to be stored.
    ///
    /// # Errors
    /// When there is none that the caller may see.
    pub async fn retrieve(&self, caller: &Caller, id: &ResponseId) -> Result<Response, Refusal> {
        if let Some(live) = self.live_of(caller, id) {
            let response = live.response();
            return if response.store { Ok(response) } else { Err(none()) };
        }
        Ok(self.stored(caller, id).await?.0.response)
    }

    /// The events of a response after this number; all of them without one.
    ///
    /// # Errors
    /// When there is none that the caller may see.
    pub async fn follow(
        &self,
        caller: &Caller,
        id: &ResponseId,
        after: Option<u64>,
    ) -> Result<Follow, Refusal> {
        let from = after.map_or(0, |after| after.saturating_add(1));
        if let Some(live) = self.live_of(caller, id) {
            return if live.response().store {
                Ok(Follow::Live(live.read(from)))
            } else {
                Err(none())
            };
        }
        let (_, row) = self.stored(caller, id).await?;
        let mut events: Vec<Event> = read("events", &row.events)?;
        events.retain(|event| event.seq >= from);
        Ok(Follow::Over(events))
    }

    /// Tells a response to stop. `None` if it is being stopped; what it is if it was over already.
    ///
    /// # Errors
    /// When there is none that the caller may see.
    pub async fn cancel(
        &self,
        caller: &Caller,
        id: &ResponseId,
    ) -> Result<Option<ResponseStatus>, Refusal> {
        if let Some(live) = self.live_of(caller, id) {
            live.stop(Stop::User);
            return Ok(None);
        }
        Ok(Some(self.stored(caller, id).await?.0.response.status))
    }

    /// A response that is over and can be seen.
    pub(crate) async fn stored(
        &self,
        caller: &Caller,
        id: &ResponseId,
    ) -> Result<(Kept, ResponseRow), Refusal> {
        let row = self.inner.engine.response(caller, id).await?;
        if !row.visible {
            return Err(none());
        }
        Ok((read("record", &row.record)?, row))
    }

    /// Takes nothing new, gives what is under way a little time, then ends it.
    pub async fn shutdown(&self) {
        self.inner.draining.store(true, Ordering::SeqCst);
        self.inner.tasks.close();
        if tokio::time::timeout(self.inner.config.linger, self.inner.tasks.wait()).await.is_ok() {
            return;
        }
        let left: Vec<_> = self.inner.live.read().values().cloned().collect();
        tracing::warn!(left = left.len(), "responses are ended, the server stops");
        left.iter().for_each(|live| live.stop(Stop::Shutdown));
        if tokio::time::timeout(LAST_MOMENTS, self.inner.tasks.wait()).await.is_err() {
            tracing::error!("some responses did not end; the next start will record them");
        }
    }
}

/// A response as it begins.
fn accepted(order: &Order) -> Result<Response, Refusal> {
    let id: ResponseId = random_name("resp_").parse()?;
    Ok(Response {
        id,
        created_at: now(),
        status: ResponseStatus::Queued,
        model: order.models.first().cloned().unwrap_or_default(),
        background: order.background,
        store: order.store,
        previous: order.previous.clone(),
        output: Vec::new(),
        error: None,
        action: None,
        bill: Bill::default(),
    })
}

/// Every call has one result, given before anything else is said: providers refuse anything else.
fn check_conversation(conversation: &[Message]) -> Result<(), Invalid> {
    let size: usize = conversation.iter().map(Message::size).sum();
    if size > MAX_CONVERSATION {
        return Err(Invalid::new(format!(
            "the conversation must be at most 8 MB, and has {size} bytes with this input"
        )));
    }
    let mut open: BTreeSet<&str> = BTreeSet::new();
    let missing = |open: &BTreeSet<&str>| match open.first() {
        Some(id) => {
            Err(Invalid::new(format!("input: the call {id:?} needs its function_call_output")))
        }
        None => Ok(()),
    };
    for message in conversation {
        match message {
            Message::Tool { call_id, .. } => {
                if !open.remove(call_id.as_str()) {
                    return Err(Invalid::new(format!(
                        "input: no function call {call_id:?} waits for an output"
                    )));
                }
            }
            Message::Assistant { calls, .. } => {
                missing(&open)?;
                open.extend(calls.iter().map(|call| call.id.as_str()));
            }
            Message::User(_) | Message::System(_) => missing(&open)?,
        }
    }
    missing(&open)
}

fn none() -> Refusal {
    Refusal::not_found("response")
}

fn internal(failure: Failure) -> Refusal {
    Refusal {
        source: Some(failure.message.into()),
        ..Refusal::new(ErrorCode::Internal, "something went wrong on our side; try again")
    }
}

fn read<T: DeserializeOwned>(what: &str, text: &str) -> Result<T, Refusal> {
    serde_json::from_str(text)
        .map_err(|error| internal(Failure::new("internal_error", format!("{what}: {error}"))))
}

fn write<T: serde::Serialize>(value: &T) -> Result<String, Refusal> {
    crate::work::json(value).map_err(internal)
}

/// A name that nobody has: the prefix and 20 random letters and digits.
pub(crate) fn random_name(prefix: &str) -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let mut bytes = [0; 20];
    // Without a source of randomness nothing on this machine works.
    if let Err(error) = getrandom::fill(&mut bytes) {
        tracing::error!(%error, "no random numbers can be had");
    }
    let letters = bytes.map(|byte| char::from(ALPHABET[usize::from(byte % 32)]));
    format!("{prefix}{}", String::from_iter(letters))
}
