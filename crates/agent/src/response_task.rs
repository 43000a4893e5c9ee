//! The loop of a response: call the model, run the tools it calls, call it again. The loop ends
//! when the model answers, the caller has to act, or a failure occurs.

mod calls;
mod message_writer;
mod web_calls;

use std::{sync::Arc, time::Duration};

use cloche_engine::{Caller, Engine, ResponseRow, now};
use cloche_model::ResponseStatus;
use serde::Serialize;

use crate::{
    ChatMessage, ModelReply, ModelRequest, ModelToolCall, PendingAction, ProviderError,
    ProviderErrorKind, Response, ResponseEventKind, ResponseFailure, ResponseItem, ToolChoice,
    agent::random_name,
    live::{LiveResponse, ResponseStopReason},
    model_chain::ModelChain,
    price::ResponseContainer,
    request::CheckedResponseRequest,
    response::{Conversation, StoredResponse, StoredResponseFile},
};
use message_writer::MessageWriter;

/// The limit on bytes of a response.
const MAX_RESPONSE: usize = 16 << 20;
/// The limit on bytes of the conversation of a chain.
pub(crate) const MAX_CONVERSATION: usize = 8 << 20;

/// The task that produces one response.
pub(crate) struct ResponseTask {
    pub(crate) engine: Engine,
    pub(crate) caller: Caller,
    pub(crate) live: Arc<LiveResponse>,
    pub(crate) order: CheckedResponseRequest,
    pub(crate) chain: ModelChain,
    pub(crate) conversation: Conversation,
    pub(crate) container: Option<ResponseContainer>,
    pub(crate) files: Vec<StoredResponseFile>,
    pub(crate) session_price: f64,
}

impl ResponseTask {
    /// Produces the response, stores its end, and returns its final state.
    pub(crate) async fn run(mut self, longest: Duration) -> Response {
        let live = Arc::clone(&self.live);
        let ended = {
            let mut steps = std::pin::pin!(self.run_steps());
            tokio::select! {
                ended = &mut steps => ended,
                () = tokio::time::sleep(longest) => {
                    live.stop(ResponseStopReason::Deadline(longest));
                    steps.await
                }
            }
        };
        let (status, error) = match (live.stop_reason(), ended) {
            (_, Ok(status)) => (status, None),
            (Some(stop), Err(_)) => stop_outcome(stop),
            (None, Err(failure)) => (ResponseStatus::Failed, Some(failure)),
        };
        self.finish_response(status, error).await
    }

    /// Alternates between model and tools; returns the status of a response that did not fail.
    async fn run_steps(&mut self) -> Result<ResponseStatus, ResponseFailure> {
        self.set_status(ResponseStatus::InProgress, None);
        for step in 0..=self.order.max_steps {
            let choice = match step {
                _ if step == self.order.max_steps => ToolChoice::Never,
                0 => self.order.choice,
                _ if self.order.choice == ToolChoice::Never => ToolChoice::Never,
                _ => ToolChoice::Auto,
            };
            let reply = self.ask_model(choice).await?;
            if reply.calls.is_empty() {
                return Ok(ResponseStatus::Completed);
            }
            if choice == ToolChoice::Never {
                let most = self.order.max_steps;
                let message = format!("the model had no answer after {most} rounds of tool calls");
                return Err(ResponseFailure::new("max_steps", message));
            }
            let waiting = self.run_calls(reply.calls).await?;
            self.check_size()?;
            if waiting {
                return Ok(ResponseStatus::RequiresAction);
            }
            self.save_progress(None).await?;
        }
        Err(ResponseFailure::new("max_steps", "the model had no answer"))
    }

    /// Calls the models once. Adds the reply to the response and to the conversation.
    async fn ask_model(&mut self, choice: ToolChoice) -> Result<ModelReply, ResponseFailure> {
        let max_tokens = self.tokens_left()?;
        let writer = MessageWriter::new(Arc::clone(&self.live));
        let turn = ModelRequest {
            model: "",
            instructions: self.order.instructions.as_deref(),
            messages: &self.conversation,
            tools: &self.order.tools,
            choice,
            max_tokens,
            temperature: self.order.temperature,
            top_p: self.order.top_p,
        };
        let asked = tokio::select! {
            asked = self.chain.ask_models(turn, &writer) => asked,
            () = self.live.stopped.cancelled() => return Err(interrupted_failure()),
        };
        let (mut reply, route) = asked.map_err(|error| provider_failure(&error))?;
        self.live.change(|response| {
            response.model.clone_from(&route.name);
            response.bill.add_tokens(reply.tokens, route.prices);
            ((), Vec::new())
        });
        writer.finish_message();
        if reply.cut && (reply.text.is_empty() || !reply.calls.is_empty()) {
            return Err(cut_short_failure());
        }
        name_calls(&mut reply.calls);
        let (text, calls) = (reply.text.clone(), reply.calls.clone());
        self.conversation.push(ChatMessage::Assistant { text, calls });
        Ok(reply)
    }

    /// The output tokens left of the caller's limit.
    fn tokens_left(&self) -> Result<Option<u32>, ResponseFailure> {
        let Some(most) = self.order.max_tokens else { return Ok(None) };
        let used = self.live.response().bill.tokens.output;
        let left = u64::from(most).saturating_sub(used);
        if left == 0 {
            return Err(cut_short_failure());
        }
        Ok(Some(u32::try_from(left).unwrap_or(u32::MAX)))
    }

    /// Sets the status of the response while it is in progress.
    fn set_status(&self, status: ResponseStatus, action: Option<PendingAction>) {
        self.live.change(|response| {
            response.status = status;
            response.action = action;
            ((), vec![ResponseEventKind::InProgress(response.clone())])
        });
    }

    fn check_size(&self) -> Result<(), ResponseFailure> {
        let response: usize = self.live.response().output.iter().map(ResponseItem::size).sum();
        let conversation: usize = self.conversation.iter().map(ChatMessage::size).sum();
        if response > MAX_RESPONSE || conversation > MAX_CONVERSATION {
            let message = "the response exceeds the size limit";
            return Err(ResponseFailure::new("response_too_large", message));
        }
        Ok(())
    }

    /// Stores the current state.
    async fn save_progress(&self, over: Option<String>) -> Result<(), ResponseFailure> {
        let kept = StoredResponse {
            response: self.live.response(),
            container: self.container.clone(),
            files: self.files.clone(),
        };
        let row = response_row(&self.caller, &kept, &self.conversation, over)?;
        let saved = self.engine.responses().update_response(row).await;
        let saved = saved
            .map_err(|refusal| ResponseFailure::from_refusal(refusal.code, refusal.to_string()))?;
        if !saved {
            tracing::error!(id = %self.live.id, "the stored response had already ended");
        }
        Ok(())
    }

    /// Stores the final state before any reader sees it.
    async fn finish_response(
        &mut self,
        status: ResponseStatus,
        error: Option<ResponseFailure>,
    ) -> Response {
        let response = Response { status, error, action: None, ..self.live.response() };
        let kept = StoredResponse {
            response,
            container: self.container.clone(),
            files: self.files.clone(),
        };
        if let Err(failure) = self.write_end(&kept).await {
            let error = failure.message;
            tracing::error!(id = %self.live.id, error, "the end of a response could not be stored");
        }
        self.engine.agent_metrics().response_over(status);
        kept.response
    }

    async fn write_end(&self, kept: &StoredResponse) -> Result<(), ResponseFailure> {
        let mut events = self.live.events();
        let kind = ResponseEventKind::final_event(kept.response.clone());
        events.push(crate::ResponseEvent { seq: events.len() as u64, kind });
        let row = response_row(&self.caller, kept, &self.conversation, Some(to_json(&events)?))?;
        let saved = self.engine.responses().update_response(row).await;
        saved
            .map(|_| ())
            .map_err(|refusal| ResponseFailure::from_refusal(refusal.code, refusal.to_string()))
    }
}

/// The row of a response. With events, the response has ended.
pub(crate) fn response_row(
    caller: &Caller,
    kept: &StoredResponse,
    conversation: &[ChatMessage],
    events: Option<String>,
) -> Result<ResponseRow, ResponseFailure> {
    Ok(ResponseRow {
        id: kept.response.id.clone(),
        team: caller.team.id.clone(),
        key: caller.key.id.clone(),
        sandbox: caller.sandbox.id.clone(),
        status: kept.response.status,
        visible: kept.response.store,
        created_at: kept.response.created_at,
        completed_at: events.as_ref().map(|_| now()),
        record: to_json(kept)?,
        conversation: to_json(conversation)?,
        events: events.unwrap_or_default(),
    })
}

/// Serializes a value for the store.
pub(crate) fn to_json<T: Serialize + ?Sized>(value: &T) -> Result<String, ResponseFailure> {
    serde_json::to_string(value)
        .map_err(|error| ResponseFailure::new("internal_error", error.to_string()))
}

/// Ensures that every call has a unique id that all providers accept, because results refer to
/// calls by id.
fn name_calls(calls: &mut [ModelToolCall]) {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    for at in 0..calls.len() {
        let id = &calls[at].id;
        let taken = calls[..at].iter().any(|other| other.id == *id);
        if taken || id.is_empty() || !id.chars().all(plain) {
            calls[at].id = random_name("call_");
        }
        if calls[at].arguments.is_empty() {
            calls[at].arguments.push_str("{}");
        }
    }
}

fn interrupted_failure() -> ResponseFailure {
    ResponseFailure::new("interrupted", "the response was stopped")
}

fn cut_short_failure() -> ResponseFailure {
    ResponseFailure::new(
        "max_output_tokens",
        "the limit on output tokens was reached before the answer",
    )
}

fn deadline_message(longest: Duration) -> String {
    format!("the response took longer than {}s", longest.as_secs())
}

fn stop_outcome(stop: ResponseStopReason) -> (ResponseStatus, Option<ResponseFailure>) {
    match stop {
        ResponseStopReason::User => (ResponseStatus::Cancelled, None),
        ResponseStopReason::Deadline(longest) => {
            let failure = ResponseFailure::new("timeout", deadline_message(longest));
            (ResponseStatus::Failed, Some(failure))
        }
        ResponseStopReason::Shutdown => {
            let message = "the server was shut down before the response was done";
            (ResponseStatus::Failed, Some(ResponseFailure::new("server_shutdown", message)))
        }
    }
}

fn provider_failure(error: &ProviderError) -> ResponseFailure {
    let code = match error.trouble {
        ProviderErrorKind::RateLimited => "model_rate_limited",
        ProviderErrorKind::Overloaded | ProviderErrorKind::Unreachable => "model_unavailable",
        ProviderErrorKind::TimedOut => "model_timeout",
        ProviderErrorKind::Refused => "model_refused",
        ProviderErrorKind::Malformed => "model_malformed",
    };
    ResponseFailure::new(code, error.message.clone())
}
