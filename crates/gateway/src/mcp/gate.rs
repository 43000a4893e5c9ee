//! The gate in front of a tool: whether the team has the tool, and a person's approval if the team
//! requires one. The engine decides. This module keeps the client informed while it waits, and asks
//! the person at the client if the client supports it.

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

/// The interval of progress notifications while a call waits.
const REMINDER: Duration = Duration::from_secs(10);

/// The outcome of a call at the gate.
pub(super) enum McpGateOutcome {
    /// The call may run.
    Through(CallPermit),
    /// The call may not run; the result says why.
    Stopped(Box<CallToolResult>),
    /// The client must ask its person and repeat the call.
    AskFirst(Box<InputRequiredResult>),
}

/// One call at the gate.
pub(super) struct ApprovalFlow<'a> {
    pub(super) handler: &'a McpHandler,
    pub(super) caller: &'a Caller,
    pub(super) context: &'a RequestContext<RoleServer>,
    /// The answers from the client, if its person was asked before.
    pub(super) answers: Option<InputResponses>,
    /// The tool that is called.
    pub(super) tool: AgentTool,
}

/// Whether the tool that runs code is offered to this caller's team.
pub(super) async fn is_open(handler: &McpHandler, caller: &Caller) -> bool {
    handler.engine.approvals().tool_offered(caller, AgentTool::ExecuteCode).await
}

/// Why it is not offered, as a tool result.
pub(super) async fn why_closed(handler: &McpHandler, caller: &Caller) -> Option<CallToolResult> {
    let closed = handler.engine.approvals().why_not_offered(caller, AgentTool::ExecuteCode).await?;
    Some(result::tool_error(format!("{}: {}", ErrorCode::Forbidden.name(), closed.message)))
}

impl ApprovalFlow<'_> {
    fn refuse_call(&self, message: String) -> McpGateOutcome {
        let result = match self.tool {
            AgentTool::ExecuteCode => result::not_allowed(ErrorCode::Forbidden, message),
            _ => result::tool_error(format!("{}: {message}", ErrorCode::Forbidden.name())),
        };
        McpGateOutcome::Stopped(Box::new(result))
    }

    /// Waits for the decision and approval that the call needs, up to a limit.
    pub(super) async fn pass_gate(&self, arguments: &JsonObject) -> McpGateOutcome {
        let arguments = Value::Object(arguments.clone());
        let call = ToolCall::new(self.tool, &arguments);
        let deadline = Instant::now() + self.handler.config.approval_wait;
        loop {
            let can_ask = self.handler.has_operator()
                || elicit::elicit_support(self.context) != ElicitSupport::None;
            let gate = match can_ask {
                true => self.handler.engine.approvals().decide_call(self.caller, &call).await,
                false => {
                    self.handler.engine.approvals().decide_without_people(self.caller, &call).await
                }
            };
            let approval = match gate {
                GateDecision::Open(permit) => return McpGateOutcome::Through(permit),
                GateDecision::Closed(GateRefusal { message, .. }) => {
                    return self.refuse_call(message);
                }
                GateDecision::Ask(approval) => approval,
            };
            // A call that does not fit into the form is not decided there.
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

    /// How the person at the client can be asked, if the settings permit it.
    async fn elicit_support(&self) -> ElicitSupport {
        let may = self.handler.engine.approvals().may_elicit(self.caller).await;
        if may { elicit::elicit_support(self.context) } else { ElicitSupport::None }
    }

    /// The person's answer, if the client has asked them.
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
                return Err("the person at the client gave no answer".to_owned());
            }
        };
        let answered = self
            .handler
            .engine
            .approvals()
            .answer_by_elicitation(self.caller, &approval.id, approve)
            .await;
        answered.map_err(|refusal| refusal.message.into_owned())?;
        // The result is read back, because another person may have answered first.
        let engine = &self.handler.engine;
        let waited =
            engine.approvals().wait_for_approval(self.caller, &approval.id, Duration::ZERO).await;
        waited.map_err(|refusal| refusal.message.into_owned())
    }

    /// Asks the person at the client. Other people with permission can answer at the same time.
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

    /// Waits for an answer, with periodic progress notifications.
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

/// The message for a call that may not run; `None` if the gate must be queried again.
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
            Some(format!("the approval {id} was not answered in time, so the call was refused"))
        }
        Ok(ApprovalWaitResult::StillPending) => Some(format!(
            "{}a person must approve this call first: an operator can do so \
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

/// The message for a call that is too large for a form.
const NOT_IN_FORM: &str = "the inputs of this call and the changes in its home do not fit into the \
                           form of a client, so it cannot be approved there: `cloche approval \
                           show` and the admin API show all of it";
