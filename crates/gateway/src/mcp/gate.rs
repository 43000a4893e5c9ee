//! The gate in front of the tool: whether a team has it at all, and a person's word where the team
//! wants one. What is decided is the engine's; here the client is kept informed while it waits, and
//! the person at it is asked where the client offers that.

use std::time::Duration;

use cloche_engine::{Caller, Closed, Gate, Pass, ToolCall, Waited, form_text};
use cloche_model::{Approval, ErrorCode, Tool};
use rmcp::{
    RoleServer,
    model::{CallToolResult, InputRequiredResult, InputResponses, JsonObject},
    service::RequestContext,
};
use serde_json::Value;
use tokio::time::Instant;

use super::{
    elicit::{self, Answer, Means},
    progress::Progress,
    result,
    server::Door,
};

/// How often a client hears that its call still waits.
const REMINDER: Duration = Duration::from_secs(10);

/// Where a call stands at the gate.
pub(super) enum Way {
    /// It may run.
    Through(Pass),
    /// It may not, and this is why.
    Stopped(Box<CallToolResult>),
    /// The client is to ask its person and call again.
    AskFirst(Box<InputRequiredResult>),
}

/// One call at the gate.
pub(super) struct Visit<'a> {
    pub(super) door: &'a Door,
    pub(super) caller: &'a Caller,
    pub(super) context: &'a RequestContext<RoleServer>,
    /// What the person at the client said, where they were asked before.
    pub(super) answers: Option<InputResponses>,
    /// What is called.
    pub(super) tool: Tool,
}

/// Whether this caller's team has the tool that runs code.
pub(super) async fn is_open(door: &Door, caller: &Caller) -> bool {
    door.engine.tool_offered(caller, Tool::ExecuteCode).await
}

/// Why it has not, in a sentence.
pub(super) async fn why_closed(door: &Door, caller: &Caller) -> Option<CallToolResult> {
    let closed = door.engine.why_not_offered(caller, Tool::ExecuteCode).await?;
    Some(result::failed(format!("{}: {}", ErrorCode::Forbidden.name(), closed.message)))
}

impl Visit<'_> {
    fn stopped(&self, message: String) -> Way {
        let result = match self.tool {
            Tool::ExecuteCode => result::not_allowed(ErrorCode::Forbidden, message),
            Tool::WriteFile => {
                result::failed(format!("{}: {message}", ErrorCode::Forbidden.name()))
            }
        };
        Way::Stopped(Box::new(result))
    }

    /// Waits for whatever the call needs, up to a limit.
    pub(super) async fn pass(&self, arguments: &JsonObject) -> Way {
        let arguments = Value::Object(arguments.clone());
        let call = ToolCall::new(self.tool, &arguments);
        let deadline = Instant::now() + self.door.config.approval_wait;
        loop {
            let anybody = self.door.has_operator() || elicit::means(self.context) != Means::None;
            let gate = match anybody {
                true => self.door.engine.gate(self.caller, &call).await,
                false => self.door.engine.gate_without_people(self.caller, &call).await,
            };
            let approval = match gate {
                Gate::Open(pass) => return Way::Through(pass),
                Gate::Closed(Closed { message, .. }) => return self.stopped(message),
                Gate::Ask(approval) => approval,
            };
            // What does not fit into the form is not decided there.
            let waited = match (self.means().await, form_text(&approval)) {
                (Means::Return, Some(form)) => match self.answered(&approval) {
                    Some(answer) => self.answer(&approval, answer).await,
                    None => return Way::AskFirst(Box::new(elicit::question(&approval, &form))),
                },
                (Means::Request, Some(form)) => self.ask_and_wait(&approval, &form, deadline).await,
                (Means::Return | Means::Request, None) if !self.door.has_operator() => {
                    return self.stopped(NOT_IN_FORM.to_owned());
                }
                _ => self.wait(&approval, deadline).await,
            };
            if let Some(message) = refusal(waited, &approval) {
                return self.stopped(message);
            }
        }
    }

    /// How the person at the client can be asked, if they may.
    async fn means(&self) -> Means {
        let may = self.door.engine.may_elicit(self.caller).await;
        if may { elicit::means(self.context) } else { Means::None }
    }

    /// What the person said when the client was told to ask them.
    fn answered(&self, approval: &Approval) -> Option<Answer> {
        self.answers.as_ref()?.get(approval.id.as_str()).map(elicit::read)
    }

    async fn answer(&self, approval: &Approval, answer: Answer) -> Result<Waited, String> {
        let approve = match answer {
            Answer::Yes => true,
            Answer::No => false,
            Answer::Nothing => return Err("the person who was asked gave no answer".to_owned()),
        };
        let answered =
            self.door.engine.answer_by_elicitation(self.caller, &approval.id, approve).await;
        answered.map_err(|refusal| refusal.message.into_owned())?;
        // What it has come to is read back: someone else may have been faster.
        let engine = &self.door.engine;
        let waited = engine.wait_for_approval(self.caller, &approval.id, Duration::ZERO).await;
        waited.map_err(|refusal| refusal.message.into_owned())
    }

    /// Asks the person at the client while whoever else may answer can do so, too.
    async fn ask_and_wait(
        &self,
        approval: &Approval,
        form: &str,
        deadline: Instant,
    ) -> Result<Waited, String> {
        let wait = self.wait(approval, deadline);
        tokio::pin!(wait);
        tokio::select! {
            waited = &mut wait => waited,
            answer = elicit::ask(self.context, approval, form) => match answer {
                Answer::Nothing if self.door.has_operator() => wait.await,
                answer => self.answer(approval, answer).await,
            },
        }
    }

    /// Waits for an answer, and says so from time to time.
    async fn wait(&self, approval: &Approval, deadline: Instant) -> Result<Waited, String> {
        let mut progress = Progress::wanted(self.context, true);
        loop {
            if let Some(progress) = &mut progress {
                let id = &approval.id;
                let message = format!("waiting for a person to approve {id}");
                progress.say(message).await;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let engine = &self.door.engine;
            let wait = engine.wait_for_approval(self.caller, &approval.id, left.min(REMINDER));
            let waited = tokio::select! {
                waited = wait => waited.map_err(|refusal| refusal.message.into_owned())?,
                () = self.context.ct.cancelled() => return Err("the call was cancelled".to_owned()),
            };
            if waited != Waited::StillPending || left <= REMINDER {
                return Ok(waited);
            }
        }
    }
}

/// The sentence for a call that may not run after all; none where the gate is to be asked again.
fn refusal(waited: Result<Waited, String>, approval: &Approval) -> Option<String> {
    let id = &approval.id;
    match waited {
        Ok(Waited::Approved | Waited::Spent | Waited::Changed) => None,
        Ok(Waited::Denied { by, reason }) => {
            let why = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
            Some(format!("{by} denied this call{why}"))
        }
        Ok(Waited::Expired) => Some(format!("nobody answered in time whether this may run ({id})")),
        Ok(Waited::StillPending) => Some(format!(
            "{}a person has to approve this call first, and nobody has yet: an operator can do so \
             with `cloche approval approve {id}`; then call again with the same arguments",
            why_asked(approval)
        )),
        Err(message) => Some(message),
    }
}

/// Why the person at the client is not asked, or is asked again.
fn why_asked(approval: &Approval) -> String {
    let note = approval.changes.as_ref().and_then(|changes| changes.note.as_deref());
    let again = note.map(|note| format!("{note}; ")).unwrap_or_default();
    match form_text(approval) {
        Some(_) => again,
        None => format!("{again}{NOT_IN_FORM}; "),
    }
}

/// What is said of a call that is too large for a form.
const NOT_IN_FORM: &str = "the inputs of this call, with what changed in its home, do not fit into the \
                           form of a client, so it cannot be approved there: `cloche approval show` and \
                           the admin API show all of it";
