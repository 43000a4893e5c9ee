//! The loop: the model is asked, what it calls is run, and it is asked again, until it answers, the
//! caller has to do something, or it cannot go on.

mod speech;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use cloche_engine::{Caller, Engine, Pass, ResponseRow, now};
use cloche_model::ResponseStatus;
use serde::Serialize;

use crate::{
    Action, Call, Choice, EventKind, Failure, Item, Message, ProviderError, Reply, Response,
    RunStatus, SandboxCall, Trouble, Turn,
    agent::random_name,
    ask::Chain,
    gate::{self, Verdict},
    live::{Live, Stop},
    price::Container,
    request::Order,
    response::{Conversation, Kept, KeptFile},
    sandbox::{self, Place, Program, Ran},
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
    /// Makes the response, and writes down how it ended.
    pub(crate) async fn run(mut self, longest: Duration) {
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
        self.end(status, error).await;
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

    /// Runs what can be run here; true if the caller has to run something.
    async fn run_calls(&mut self, calls: Vec<Call>) -> Result<bool, Failure> {
        let mut waiting = false;
        for call in calls {
            if self.order.sandbox && call.name == sandbox::NAME {
                let told = self.run_code(&call).await?;
                self.conversation.push(Message::Tool { call_id: call.id, text: told });
            } else if self.order.tools.iter().any(|tool| tool.name == call.name) {
                self.hand_over(call);
                waiting = true;
            } else {
                let text = "there is no tool of that name".to_owned();
                self.conversation.push(Message::Tool { call_id: call.id, text });
            }
        }
        Ok(waiting)
    }

    /// A function that only the caller can run.
    fn hand_over(&self, call: Call) {
        self.live.change(|response| {
            let item = Item::Function {
                id: random_name("fc_"),
                call_id: call.id,
                name: call.name,
                arguments: call.arguments,
            };
            let index = response.output.len();
            response.output.push(item.clone());
            let added = EventKind::ItemAdded { index, item: item.clone() };
            ((), vec![added, EventKind::ItemDone { index, item }])
        });
    }

    /// One call of the sandbox, from its announcement to its result; gives back what the model is
    /// told.
    async fn run_code(&mut self, call: &Call) -> Result<String, Failure> {
        let program = sandbox::program(&call.arguments, &self.caller);
        let container = self.container.get_or_insert_with(|| Container::new(random_name("")));
        let shown = SandboxCall {
            call_id: call.id.clone(),
            container_id: container.id.clone(),
            language: program
                .as_ref()
                .map_or("python", |program| program.language.name())
                .to_owned(),
            code: program.as_ref().map_or_else(|_| String::new(), |program| program.code.clone()),
            status: RunStatus::InProgress,
            results: Vec::new(),
        };
        let index = self.live.change(|response| {
            let (index, item) = (response.output.len(), Item::Sandbox(shown.clone()));
            response.output.push(item.clone());
            (index, vec![EventKind::ItemAdded { index, item }])
        });
        let ran = match program {
            Ok(program) => self.run_program(call, &program).await,
            Err(why) => Ok(Ran::not(&why)),
        };
        let (ran, failure) = match ran {
            Ok(ran) => (ran, None),
            Err(failure) => (Ran::not(&failure.message), Some(failure)),
        };
        self.show(
            index,
            SandboxCall { status: ran.result.status, results: vec![ran.result], ..shown },
        );
        match failure {
            Some(failure) => Err(failure),
            None if self.live.stopped.is_cancelled() => Err(interrupted()),
            None => Ok(ran.told),
        }
    }

    async fn run_program(&mut self, call: &Call, program: &Program) -> Result<Ran, Failure> {
        let pass = match self.pass(program).await? {
            Ok(pass) => pass,
            Err(why) => return Ok(Ran::not(&why)),
        };
        let Some(container) = &mut self.container else { return Ok(Ran::not("no container")) };
        let metadata = BTreeMap::from([
            ("response_id".to_owned(), self.live.id.to_string()),
            ("call_id".to_owned(), call.id.clone()),
        ]);
        let place = Place {
            engine: &self.engine,
            caller: &self.caller,
            container: &container.id,
            metadata,
            stopped: &self.live.stopped,
        };
        let ran = sandbox::run(place, program).await?;
        if let Some(trace_id) = &ran.trace_id {
            if let Err(error) = self.engine.ran(&pass, trace_id).await {
                tracing::error!(%error, %trace_id, "a decision was not told what it let run");
            }
            let sessions = container.used(Duration::from_millis(ran.result.duration_ms));
            let price = self.session_price;
            self.live.change(|response| {
                response.bill.sandbox_invocations += 1;
                for _ in 0..sessions {
                    response.bill.sandbox_cost += price;
                }
                ((), Vec::new())
            });
        }
        Ok(ran)
    }

    /// The right to run a program, or why there is none. While a person is waited for, the response
    /// says so.
    async fn pass(&mut self, program: &Program) -> Result<Result<Pass, String>, Failure> {
        let container = self.container.as_ref().map_or("", |container| &container.id);
        let call = gate::call(program, container);
        loop {
            let approval = match gate::ask(&self.engine, &self.caller, &call).await {
                Verdict::Go(pass) => return Ok(Ok(pass)),
                Verdict::No(why) => return Ok(Err(why)),
                Verdict::Wait(approval) => approval,
            };
            self.stand(ResponseStatus::RequiresAction, Some(gate::action(&approval)));
            self.save(None).await?;
            let waited = tokio::select! {
                waited = gate::wait(&self.engine, &self.caller, &approval) => waited,
                () = self.live.stopped.cancelled() => return Err(interrupted()),
            };
            self.stand(ResponseStatus::InProgress, None);
            if let Err(why) = waited {
                return Ok(Err(why));
            }
        }
    }

    /// Says where the response stands while it is under way.
    fn stand(&self, status: ResponseStatus, action: Option<Action>) {
        self.live.change(|response| {
            response.status = status;
            response.action = action;
            ((), vec![EventKind::InProgress(response.clone())])
        });
    }

    /// Puts the result of a call in its place.
    fn show(&self, index: usize, call: SandboxCall) {
        self.live.change(|response| {
            let item = Item::Sandbox(call);
            if let Some(place) = response.output.get_mut(index) {
                place.clone_from(&item);
            }
            ((), vec![EventKind::ItemDone { index, item }])
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

    /// The end: said to whoever listens once it is durable.
    async fn end(&mut self, status: ResponseStatus, error: Option<Failure>) {
        let response = Response { status, error, action: None, ..self.live.response() };
        let kind = match status {
            ResponseStatus::Failed | ResponseStatus::Cancelled => {
                EventKind::Failed(response.clone())
            }
            _ => EventKind::Completed(response.clone()),
        };
        let kept = Kept { response, container: self.container.clone(), files: self.files.clone() };
        if let Err(failure) = self.write_end(&kept, kind.clone()).await {
            tracing::error!(id = %self.live.id, error = failure.message, "the end of a response was not written");
        }
        self.live.change(|shown| {
            *shown = kept.response;
            ((), vec![kind])
        });
    }

    async fn write_end(&self, kept: &Kept, kind: EventKind) -> Result<(), Failure> {
        let mut events = self.live.events();
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
