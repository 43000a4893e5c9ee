//! The gate in front of the tool: whether a team has it at all, and a person's word where the team
//! wants one. What is decided is the engine's; here the client is kept informed while it waits, and
//! the person at it is asked where the client offers that.

use std::time::Duration;

use cloche_engine::{
    ApprovalWaitResult, CallPermit, Caller, GateDecision, GateRefusal, ToolCall, form_text,
};
use cloche_model::{AgentTool, Approval, ErrorCode};
use rmcp::{
    RoleServer,
    model::{CallToolResult, InputRequiredResult, InputResponses, JsonObject},
    service::RequestContext,
};
use serde_json::Value;
use tokio::time::Instant;

use super::{
    elicit::{self, ElicitSupport, ElicitedAnswer},
    progress::ProgressReporter,
    result,
    server::McpHandler,
};

/// How often a client hears that its call still waits.
const REMINDER: Duration = Duration::from_secs(10);

/// Where a call stands at the gate.
pub(super) enum McpGateOutcome {
    /// It may run.
    Through(CallPermit),
    /// It may not, and this is why.
    Stopped(Box<CallToolResult>),
    /// The client is to ask its person and call again.
    AskFirst(Box<InputRequiredResult>),
}

/// One call at the gate.
pub(super) struct ApprovalFlow<'a> {
    pub(super) handler: &'a McpHandler,
    pub(super) caller: &'a Caller,
    pub(super) context: &'a RequestContext<RoleServer>,
    /// What the person at the client said, where they were asked before.
    pub(super) answers: Option<InputResponses>,
    /// What is called.
    pub(super) tool: AgentTool,
}

/// Whether this caller's team has the tool that runs code.
pub(super) async fn is_open(door: &McpHandler, caller: &Caller) -> bool {
    door.engine.approvals().tool_offered(caller, AgentTool::ExecuteCode).await
}

/// Why it has not, in a sentence.
pub(super) async fn why_closed(door: &McpHandler, caller: &Caller) -> Option<CallToolResult> {
    let closed = door.engine.approvals().why_not_offered(caller, AgentTool::ExecuteCode).await?;
    Some(result::tool_error(format!("{}: {}", ErrorCode::Forbidden.name(), closed.message)))
}

impl ApprovalFlow<'_> {
    fn refuse_call(&self, message: String) -> McpGateOutcome {
        let result = match self.tool {
            AgentTool::ExecuteCode => result::not_allowed(ErrorCode::Forbidden, message),
            AgentTool::WriteFile => {
                result::tool_error(format!("{}: {message}", ErrorCode::Forbidden.name()))
            }
        };
        McpGateOutcome::Stopped(Box::new(result))
    }

    /// Waits for whatever the call needs, up to a limit.
    pub(super) async fn pass_gate(&self, arguments: &JsonObject) -> McpGateOutcome {
        let arguments = Value::Object(arguments.clone());
        let call = ToolCall::new(self.tool, &arguments);
        let deadline = Instant::now() + self.handler.config.approval_wait;
        loop {
            let anybody = self.handler.has_operator()
                || elicit::elicit_support(self.context) != ElicitSupport::None;
            let gate = match anybody {
                true => self.handler.engine.approvals().decide_call(self.caller, &call).await,
                false => {
                    self.handler.engine.approvals().decide_without_people(self.caller, &call).await
                }
            };
            let approval = match gate {
                GateDecision::Open(pass) => return McpGateOutcome::Through(pass),
                GateDecision::Closed(GateRefusal { message, .. }) => {
                    return self.refuse_call(message);
                }
                GateDecision::Ask(approval) => approval,
            };
            // What does not fit into the form is not decided there.
            let waited = match (self.elicit_support().await, form_text(&approval)) {
                (ElicitSupport::InputRequired, Some(form)) => match self.elicited_answer(&approval)
                {
                    Some(answer) => self.record_answer(&approval, answer).await,
                    None => {
                        return McpGateOutcome::AskFirst(Box::new(elicit::build_input_required(
                            &approval, &form,
                        )));
                    }
                },
                (ElicitSupport::ServerRequest, Some(form)) => {
                    self.ask_and_wait(&approval, &form, deadline).await
                }
                (ElicitSupport::InputRequired | ElicitSupport::ServerRequest, None)
                    if !self.handler.has_operator() =>
                {
                    return self.refuse_call(NOT_IN_FORM.to_owned());
                }
                _ => self.wait_for_answer(&approval, deadline).await,
            };
            if let Some(message) = refusal_message(waited, &approval) {
                return self.refuse_call(message);
            }
        }
    }

    /// How the person at the client can be asked, if they may.
    async fn elicit_support(&self) -> ElicitSupport {
        let may = self.handler.engine.approvals().may_elicit(self.caller).await;
        if may { elicit::elicit_support(self.context) } else { ElicitSupport::None }
    }

    /// What the person said when the client was told to ask them.
    fn elicited_answer(&self, approval: &Approval) -> Option<ElicitedAnswer> {
        self.answers.as_ref()?.get(approval.id.as_str()).map(elicit::parse_elicit_response)
    }

    async fn record_answer(
        &self,
        approval: &Approval,
        answer: ElicitedAnswer,
    ) -> Result<ApprovalWaitResult, String> {
        let approve = match answer {
            ElicitedAnswer::Yes => true,
            ElicitedAnswer::No => false,
            ElicitedAnswer::Nothing => {
                return Err("the person who was asked gave no answer".to_owned());
            }
        };
        let answered = self
            .handler
            .engine
            .approvals()
            .answer_by_elicitation(self.caller, &approval.id, approve)
            .await;
        answered.map_err(|refusal| refusal.message.into_owned())?;
        // What it has come to is read back: someone else may have been faster.
        let engine = &self.handler.engine;
        let waited =
            engine.approvals().wait_for_approval(self.caller, &approval.id, Duration::ZERO).await;
        waited.map_err(|refusal| refusal.message.into_owned())
    }

    /// Asks the person at the client while whoever else may answer can do so, too.
    async fn ask_and_wait(
        &self,
        approval: &Approval,
        form: &str,
        deadline: Instant,
    ) -> Result<ApprovalWaitResult, String> {
        let wait = self.wait_for_answer(approval, deadline);
        tokio::pin!(wait);
        tokio::select! {
            waited = &mut wait => waited,
            answer = elicit::ask_client(self.context, approval, form) => match answer {
                ElicitedAnswer::Nothing if self.handler.has_operator() => wait.await,
                answer => self.record_answer(approval, answer).await,
            },
        }
    }

    /// Waits for an answer, and says so from time to time.
    async fn wait_for_answer(
        &self,
        approval: &Approval,
        deadline: Instant,
    ) -> Result<ApprovalWaitResult, String> {
        let mut progress = ProgressReporter::from_context(self.context, true);
        loop {
            if let Some(progress) = &mut progress {
                let id = &approval.id;
                let message = format!("waiting for a person to approve {id}");
                progress.send_message(message).await;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let engine = &self.handler.engine;
            let wait =
                engine.approvals().wait_for_approval(self.caller, &approval.id, left.min(REMINDER));
            let waited = tokio::select! {
                waited = wait => waited.map_err(|refusal| refusal.message.into_owned())?,
                () = self.context.ct.cancelled() => return Err("the call was cancelled".to_owned()),
            };
            if waited != ApprovalWaitResult::StillPending || left <= REMINDER {
                return Ok(waited);
            }
        }
    }
}

/// The sentence for a call that may not run after all; none where the gate is to be asked again.
fn refusal_message(
    waited: Result<ApprovalWaitResult, String>,
    approval: &Approval,
) -> Option<String> {
    let id = &approval.id;
    match waited {
        Ok(
            ApprovalWaitResult::Approved | ApprovalWaitResult::Spent | ApprovalWaitResult::Changed,
        ) => None,
        Ok(ApprovalWaitResult::Denied { by, reason }) => {
            let why = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
            Some(format!("{by} denied this call{why}"))
        }
        Ok(ApprovalWaitResult::Expired) => {
            Some(format!("nobody answered in time whether this may run ({id})"))
        }
        Ok(ApprovalWaitResult::StillPending) => Some(format!(
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
