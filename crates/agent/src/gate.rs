//! The gates in front of the sandbox tool, as the agent passes them: whether it can be offered at
//! all, and whether one call of it may run. The engine decides; here it is waited for.

use std::time::Duration;

use cloche_engine::{
    ApprovalWaitResult, CallPermit, Caller, Engine, GateDecision, GateRefusalReason, Refusal,
    ToolCall, format_rfc3339,
};
use cloche_model::{AgentTool, Approval, ErrorCode};
use serde_json::json;

use crate::{response::PendingAction, sandbox::SandboxProgram};

/// How long one wait for a person lasts before the gate is asked again.
const PATIENCE: Duration = Duration::from_secs(3600);
/// A pause between two waits, for a wait that ends at once.
const PAUSE: Duration = Duration::from_secs(1);

/// Refuses a response whose tool would be refused anyway, with a sentence that says who can turn it
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

/// The call as a person is asked about it: everything that decides what happens.
pub(crate) fn sandbox_tool_call(program: &SandboxProgram, container: &str) -> ToolCall {
    let arguments = json!({
        "language": program.language.name(),
        "code": program.code,
        "timeout_seconds": program.timeout.as_secs(),
        "thread_id": container,
    });
    ToolCall::new(AgentTool::ExecuteCode, &arguments)
}

/// What is decided about a call for now.
pub(crate) enum GateVerdict {
    /// It may run, once.
    Go(CallPermit),
    /// It may not, and this is what the model is told.
    No(String),
    /// A person has to answer; wait for that, and ask again.
    Wait(Box<Approval>),
}

pub(crate) async fn ask_gate(engine: &Engine, caller: &Caller, call: &ToolCall) -> GateVerdict {
    match engine.approvals().decide_call(caller, call).await {
        GateDecision::Open(pass) => GateVerdict::Go(pass),
        GateDecision::Closed(closed) => GateVerdict::No(closed.message),
        GateDecision::Ask(approval) => GateVerdict::Wait(approval),
    }
}

/// Waits for a person; an error is what the model is told instead.
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
        Ok(ApprovalWaitResult::Expired) => Err("nobody approved this call in time".to_owned()),
        Ok(ApprovalWaitResult::StillPending) => {
            tokio::time::sleep(PAUSE).await;
            Ok(())
        }
        Err(refusal) => Err(refusal.to_string()),
    }
}

/// What the owner of the response is told meanwhile.
pub(crate) fn approval_action(approval: &Approval) -> PendingAction {
    PendingAction {
        approval_id: approval.id.to_string(),
        message: format!(
            "a person has to approve this code before it runs, until {}: an operator of this \
             server can, with `cloche approval approve {}`",
            format_rfc3339(approval.expires_at),
            approval.id
        ),
    }
}
