//! The start of a response: check the request, find its models, load the previous conversation, and
//! store the response before any work starts.

use std::{
    collections::BTreeSet,
    panic::AssertUnwindSafe,
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use cloche_engine::{Caller, Refusal, now};
use cloche_model::{ErrorCode, Invalid, ResponseId, ResponseStatus};
use futures::FutureExt;

use super::{Agent, StartedResponse, internal_refusal, parse_stored, random_name};
use crate::{
    ChatMessage, NewResponse, Response, ResponseBill, ResponseFailure, gate,
    live::LiveResponse,
    model_chain::{ModelChain, ModelRoute},
    price::ResponseContainer,
    request::CheckedResponseRequest,
    response::{Conversation, StoredResponse},
    response_task::{MAX_CONVERSATION, ResponseTask, response_row},
};

impl Agent {
    /// Checks a request, stores it, and starts the response.
    ///
    /// # Errors
    /// When the request is refused, or the response cannot be stored.
    pub async fn create_response(
        &self,
        caller: &Caller,
        request: NewResponse,
    ) -> Result<StartedResponse, Refusal> {
        if self.inner.draining.load(Ordering::SeqCst) {
            let message = "the server is shutting down; try again in a moment";
            return Err(Refusal::new(ErrorCode::Unavailable, message));
        }
        let team = (&caller.team.id, caller.team.plan);
        self.inner.request_limiter.admit_request(team, Instant::now())?;
        let chain = self.build_chain(&request.model_names()?)?;
        let mut order = request.check()?;
        order.describe_network(&caller.sandbox.shape.network);
        if order.sandbox {
            gate::check_offered(&self.inner.engine, caller).await?;
        }
        gate::check_web_tools(&self.inner.engine, caller, &order.web_tools).await?;
        let (mut conversation, container) =
            self.load_previous(caller, order.previous.as_ref()).await?;
        conversation.extend(order.input.iter().cloned());
        check_conversation(&conversation)?;
        let response = new_response(&order)?;
        let live = self.register_live(caller, response.clone())?;
        let kept = StoredResponse { response, container: container.clone(), files: Vec::new() };
        let row = response_row(caller, &kept, &conversation, None).map_err(internal_refusal)?;
        if let Err(refusal) = self.inner.engine.responses().create_response(row).await {
            self.remove_live(&live);
            return Err(refusal);
        }
        let work = ResponseTask {
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
        self.spawn_task(work);
        Ok(StartedResponse { live })
    }

    fn spawn_task(&self, work: ResponseTask) {
        let (agent, live) = (self.clone(), Arc::clone(&work.live));
        let longest = self.inner.config.longest;
        self.inner.tasks.spawn(async move {
            let made = AssertUnwindSafe(work.run(longest)).catch_unwind().await;
            let response = made.unwrap_or_else(|_| lost_response(&live));
            // The slot is released before readers see the end. A reader that looks up the response
            // afterwards then finds the stored one, which has ended.
            agent.remove_live(&live);
            live.finish(response);
        });
    }

    /// Finds the provider of each model of a chain.
    fn build_chain(&self, models: &[String]) -> Result<ModelChain, Refusal> {
        let route = |name: &String| {
            let (provider, model) = name.split_once('/').unwrap_or_default();
            let Some(found) = self.inner.providers.get(provider) else {
                return Err(self.unknown_provider(provider));
            };
            let config = &found.config;
            Ok(ModelRoute {
                name: name.clone(),
                model: model.to_owned(),
                provider: Arc::clone(&found.client),
                prices: config.model_prices.get(model).copied().unwrap_or(config.prices),
                retries: config.retries,
                backoff: config.backoff,
            })
        };
        let routes = models.iter().map(route).collect::<Result<_, _>>()?;
        Ok(ModelChain::new(routes, self.inner.engine.clone()))
    }

    fn unknown_provider(&self, name: &str) -> Refusal {
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

    /// Loads the conversation and the container of the previous response.
    async fn load_previous(
        &self,
        caller: &Caller,
        id: Option<&ResponseId>,
    ) -> Result<(Conversation, Option<ResponseContainer>), Refusal> {
        let Some(id) = id else { return Ok((Vec::new(), None)) };
        let row = self.inner.engine.responses().find_response(&caller.team.id, id).await?;
        if row.completed_at.is_none() {
            let message = "previous_response_id: that response is still in progress";
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
        let kept: StoredResponse = parse_stored("record", &row.record)?;
        Ok((parse_stored("conversation", &row.conversation)?, kept.container))
    }
}

/// The state of a response whose task panicked. Its row is still open, so the next start closes it.
fn lost_response(live: &LiveResponse) -> Response {
    tracing::error!(id = %live.id, "the task of a response panicked");
    let message = "something went wrong on our side; try again";
    let error = Some(ResponseFailure::new("internal_error", message));
    Response { status: ResponseStatus::Failed, error, action: None, ..live.response() }
}

/// A response in its first state.
fn new_response(order: &CheckedResponseRequest) -> Result<Response, Refusal> {
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
        bill: ResponseBill::default(),
    })
}

/// Checks that every call has one result before the next message. Providers refuse anything else.
fn check_conversation(conversation: &[ChatMessage]) -> Result<(), Invalid> {
    let size: usize = conversation.iter().map(ChatMessage::size).sum();
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
            ChatMessage::Tool { call_id, .. } => {
                if !open.remove(call_id.as_str()) {
                    return Err(Invalid::new(format!(
                        "input: no function call {call_id:?} waits for an output"
                    )));
                }
            }
            ChatMessage::Assistant { calls, .. } => {
                missing(&open)?;
                open.extend(calls.iter().map(|call| call.id.as_str()));
            }
            ChatMessage::User(_) | ChatMessage::System(_) => missing(&open)?,
        }
    }
    missing(&open)
}
