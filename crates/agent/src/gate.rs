//! The gates in front of the sandbox tool: whether the tool can be offered, and whether one call
//! may run. The engine decides; this module waits for the decision.

use std::time::Duration;

use cloche_engine::{
    ApprovalWaitResult, CallPermit, Caller, Engine, GateDecision, GateRefusalReason, Refusal,
    ToolCall, format_rfc3339,
};
use cloche_model::{AgentTool, Approval, ErrorCode, PendingApproval, ResponseStatus};
use serde_json::json;

use crate::{WebToolRequest, response::PendingAction, sandbox::SandboxProgram};

/// How long one wait for a person lasts before the gate is queried again.
const PATIENCE: Duration = Duration::from_secs(3600);
/// The pause between two waits, for a wait that returns immediately.
const PAUSE: Duration = Duration::from_secs(1);

/// Refuses a response whose tool would be refused anyway. The message says who can turn the tool
/// on.
pub(crate) async fn check_offered(engine: &Engine, caller: &Caller) -> Result<(), Refusal> {
    match engine.approvals().why_not_offered(caller, AgentTool::ExecuteCode).await {
        None => Ok(()),
        Some(closed) if closed.why == GateRefusalReason::NotWired => {
            Err(Refusal::new(ErrorCode::Unavailable, closed.message))
        }
        Some(closed) => Err(Refusal::new(ErrorCode::Forbidden, closed.message)),
    }
}

/// Refuses a response with a web tool that this server does not offer, or not to this caller.
pub(crate) async fn check_web_tools(
    engine: &Engine,
    caller: &Caller,
    tools: &[WebToolRequest],
) -> Result<(), Refusal> {
    for WebToolRequest { tool, .. } in tools {
        if let Some(why) = engine.web_tools().why_not_offered(caller, *tool).await {
            let code = match engine.web_tools().config().offers(*tool) {
                true => ErrorCode::Forbidden,
                false => ErrorCode::Validation,
            };
            return Err(Refusal::new(code, why));
        }
    }
    Ok(())
}

/// The call in the form that a person approves: everything that decides what happens.
pub(crate) fn sandbox_tool_call(program: &SandboxProgram, container: &str) -> ToolCall {
    let arguments = json!({
        "language": program.language.name(),
        "code": program.code,
        "timeout_seconds": program.timeout.as_secs(),
        "thread_id": container,
    });
    ToolCall::new(AgentTool::ExecuteCode, &arguments)
}

/// The decision about a call for now.
pub(crate) enum GateVerdict {
    /// The call may run, once.
    Go(CallPermit),
    /// The call may not run. The text is the result for the model.
    No(String),
    /// A person must answer. Wait for the answer, then query the gate again.
    Wait(Box<Approval>),
}

pub(crate) async fn ask_gate(engine: &Engine, caller: &Caller, call: &ToolCall) -> GateVerdict {
    match engine.approvals().decide_call(caller, call).await {
        GateDecision::Open(permit) => GateVerdict::Go(permit),
        GateDecision::Closed(closed) => GateVerdict::No(closed.message),
        GateDecision::Ask(approval) => GateVerdict::Wait(approval),
    }
}

/// Waits for a person. An error is the result for the model.
pub(crate) async fn wait_for_person(
    engine: &Engine,
    caller: &Caller,
    approval: &Approval,
) -> Result<(), String> {
    match engine.approvals().wait_for_approval(caller, &approval.id, PATIENCE).await {
        Ok(
            ApprovalWaitResult::Approved
            | ApprovalWaitResult::Denied { .. }
            | ApprovalWaitResult::Spent
            | ApprovalWaitResult::Changed,
        ) => Ok(()),
        Ok(ApprovalWaitResult::Expired) => Err("this call was not approved in time".to_owned()),
        Ok(ApprovalWaitResult::StillPending) => {
            tokio::time::sleep(PAUSE).await;
            Ok(())
        }
        Err(refusal) => Err(refusal.to_string()),
    }
}

/// The status of a response while a call of it waits for a person.
pub(crate) async fn pending_status(
    engine: &Engine,
    caller: &Caller,
    background: bool,
) -> ResponseStatus {
    match engine.approvals().pending_approval(caller, background).await {
        PendingApproval::InProgress => ResponseStatus::InProgress,
        PendingApproval::RequiresAction => ResponseStatus::RequiresAction,
    }
}

/// The action that the owner of the response sees while the call waits.
pub(crate) fn approval_action(approval: &Approval) -> PendingAction {
    let what = if approval.tool.runs_code() { "code" } else { "call" };
    PendingAction {
        approval_id: approval.id.to_string(),
        message: format!(
            "a person must approve this {what} before {}: an operator of this \
             server can approve it with `cloche approval approve {}`",
            format_rfc3339(approval.expires_at),
            approval.id
        ),
    }
}
