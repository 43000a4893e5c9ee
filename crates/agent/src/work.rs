//! The loop: the model is asked, what it calls is run, and it is asked again, until it answers, the
//! caller has to do something, or it cannot go on.

mod calls;
mod speech;

use std::{sync::Arc, time::Duration};

use cloche_engine::{Caller, Engine, ResponseRow, now};
use cloche_model::ResponseStatus;
use serde::Serialize;

use crate::{
    Action, Call, Choice, EventKind, Failure, Item, Message, ProviderError, Reply, Response,
    Trouble, Turn,
    agent::random_name,
    ask::Chain,
    live::{Live, Stop},
    price::Container,
    request::Order,
    response::{Conversation, Kept, KeptFile},
};
use speech::Speech;

/// The most bytes of a response.
const MAX_RESPONSE: usize = 16 << 20;
/// The most bytes of the conversation of a chain.
pub(crate) const MAX_CONVERSATION: usize = 8 << 20;

/// A response that is being made.
pub(crate) struct Work {
    pub(crate) engine: Engine,
    pub(crate) caller: Caller,
    pub(crate) live: Arc<Live>,
    pub(crate) order: Order,
    pub(crate) chain: Chain,
    pub(crate) conversation: Conversation,
    pub(crate) container: Option<Container>,
    pub(crate) files: Vec<KeptFile>,
    pub(crate) session_price: f64,
}

impl Work {
    /// Makes the response, writes down how it ended, and gives back what is to be said then.
    pub(crate) async fn run(mut self, longest: Duration) -> Response {
        let live = Arc::clone(&self.live);
        let ended = {
            let mut steps = std::pin::pin!(self.steps());
            tokio::select! {
                ended = &mut steps => ended,
                () = tokio::time::sleep(longest) => {
                    live.stop(Stop::Deadline(longest));
                    steps.await
                }
            }
        };
        let (status, error) = match (live.stop_reason(), ended) {
            (_, Ok(status)) => (status, None),
            (Some(stop), Err(_)) => stopped(stop),
            (None, Err(failure)) => (ResponseStatus::Failed, Some(failure)),
        };
        self.end(status, error).await
    }

    /// Rounds of asking and running; gives back how it ended well.
    async fn steps(&mut self) -> Result<ResponseStatus, Failure> {
        self.stand(ResponseStatus::InProgress, None);
        for step in 0..=self.order.max_steps {
            let choice = match step {
                _ if step == self.order.max_steps => Choice::Never,
                0 => self.order.choice,
                _ if self.order.choice == Choice::Never => Choice::Never,
                _ => Choice::Auto,
            };
            let reply = self.ask(choice).await?;
            if reply.calls.is_empty() {
                return Ok(ResponseStatus::Completed);
            }
            if choice == Choice::Never {
                let most = self.order.max_steps;
                let message = format!("the model had no answer after {most} rounds of tool calls");
                return Err(Failure::new("max_steps", message));
            }
            let waiting = self.run_calls(reply.calls).await?;
            self.check_size()?;
            if waiting {
                return Ok(ResponseStatus::RequiresAction);
            }
            self.save(None).await?;
        }
        Err(Failure::new("max_steps", "the model had no answer"))
    }

    /// Asks the models once; what they say is in the response and in the conversation afterwards.
    async fn ask(&mut self, choice: Choice) -> Result<Reply, Failure> {
        let max_tokens = self.tokens_left()?;
        let speech = Speech::new(Arc::clone(&self.live));
        let turn = Turn {
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
            asked = self.chain.ask(turn, &speech) => asked,
            () = self.live.stopped.cancelled() => return Err(interrupted()),
        };
        let (mut reply, route) = asked.map_err(|error| unanswered(&error))?;
        self.live.change(|response| {
            response.model.clone_from(&route.name);
            response.bill.add_tokens(reply.tokens, route.prices);
            ((), Vec::new())
        });
        speech.end();
        if reply.cut && (reply.text.is_empty() || !reply.calls.is_empty()) {
            return Err(cut_short());
        }
        name_calls(&mut reply.calls);
        let (text, calls) = (reply.text.clone(), reply.calls.clone());
        self.conversation.push(Message::Assistant { text, calls });
        Ok(reply)
    }

    /// What is left of the tokens that the caller granted.
    fn tokens_left(&self) -> Result<Option<u32>, Failure> {
        let Some(most) = self.order.max_tokens else { return Ok(None) };
        let used = self.live.response().bill.tokens.output;
        let left = u64::from(most).saturating_sub(used);
        if left == 0 {
            return Err(cut_short());
        }
        Ok(Some(u32::try_from(left).unwrap_or(u32::MAX)))
    }

    /// Says where the response stands while it is under way.
    fn stand(&self, status: ResponseStatus, action: Option<Action>) {
        self.live.change(|response| {
            response.status = status;
            response.action = action;
            ((), vec![EventKind::InProgress(response.clone())])
        });
    }

    fn check_size(&self) -> Result<(), Failure> {
        let response: usize = self.live.response().output.iter().map(Item::size).sum();
        let conversation: usize = self.conversation.iter().map(Message::size).sum();
        if response > MAX_RESPONSE || conversation > MAX_CONVERSATION {
            let message = "the response has become larger than is accepted";
            return Err(Failure::new("response_too_large", message));
        }
        Ok(())
    }

    /// Writes down how far it has come.
    async fn save(&self, over: Option<String>) -> Result<(), Failure> {
        let kept = Kept {
            response: self.live.response(),
            container: self.container.clone(),
            files: self.files.clone(),
        };
        let row = row(&self.caller, &kept, &self.conversation, over)?;
        let saved = self.engine.update_response(row).await;
        let saved = saved.map_err(|refusal| Failure::refused(refusal.code, refusal.to_string()))?;
        if !saved {
            tracing::error!(id = %self.live.id, "a response was over before it ended");
        }
        Ok(())
    }

    /// The end, made durable before anyone hears of it.
    async fn end(&mut self, status: ResponseStatus, error: Option<Failure>) -> Response {
        let response = Response { status, error, action: None, ..self.live.response() };
        let kept = Kept { response, container: self.container.clone(), files: self.files.clone() };
        if let Err(failure) = self.write_end(&kept).await {
            tracing::error!(id = %self.live.id, error = failure.message, "the end of a response was not written");
        }
        self.engine.agent_metrics().response_over(status);
        kept.response
    }

    async fn write_end(&self, kept: &Kept) -> Result<(), Failure> {
        let mut events = self.live.events();
        let kind = EventKind::over(kept.response.clone());
        events.push(crate::Event { seq: events.len() as u64, kind });
        let row = row(&self.caller, kept, &self.conversation, Some(json(&events)?))?;
        let saved = self.engine.update_response(row).await;
        saved.map(|_| ()).map_err(|refusal| Failure::refused(refusal.code, refusal.to_string()))
    }
}

/// The row of a response. Where the events are given, it is over.
pub(crate) fn row(
    caller: &Caller,
    kept: &Kept,
    conversation: &[Message],
    events: Option<String>,
) -> Result<ResponseRow, Failure> {
    Ok(ResponseRow {
        id: kept.response.id.clone(),
        team: caller.team.id.clone(),
        key: caller.key.id.clone(),
        sandbox: caller.sandbox.id.clone(),
        status: kept.response.status,
        visible: kept.response.store,
        created_at: kept.response.created_at,
        completed_at: events.as_ref().map(|_| now()),
        record: json(kept)?,
        conversation: json(conversation)?,
        events: events.unwrap_or_default(),
    })
}

/// What the agent keeps, as text.
pub(crate) fn json<T: Serialize + ?Sized>(value: &T) -> Result<String, Failure> {
    serde_json::to_string(value).map_err(|error| Failure::new("internal_error", error.to_string()))
}

/// Results are matched by id, so every call needs one of its own that any provider accepts.
fn name_calls(calls: &mut [Call]) {
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

fn interrupted() -> Failure {
    Failure::new("interrupted", "the response was stopped")
}

fn cut_short() -> Failure {
    Failure::new("max_output_tokens", "the limit on output tokens was reached before the answer")
}

fn stopped(stop: Stop) -> (ResponseStatus, Option<Failure>) {
    match stop {
        Stop::User => (ResponseStatus::Cancelled, None),
        Stop::Deadline(longest) => {
            let message = format!("the response took longer than {}s", longest.as_secs());
            (ResponseStatus::Failed, Some(Failure::new("timeout", message)))
        }
        Stop::Shutdown => {
            let message = "the server was shut down before the response was done";
            (ResponseStatus::Failed, Some(Failure::new("server_shutdown", message)))
        }
    }
}

fn unanswered(error: &ProviderError) -> Failure {
    let code = match error.trouble {
        Trouble::RateLimited => "model_rate_limited",
        Trouble::Overloaded | Trouble::Unreachable => "model_unavailable",
        Trouble::TimedOut => "model_timeout",
        Trouble::Refused => "model_refused",
        Trouble::Malformed => "model_malformed",
    };
    Failure::new(code, error.message.clone())
}
