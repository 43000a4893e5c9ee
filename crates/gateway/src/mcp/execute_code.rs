//! One call of `execute_code`: through the gate and the engine, with progress notifications. The
//! execution is cancelled if the client cancels the call.

use std::sync::Arc;

use cloche_engine::{CallPermit, Caller, Refusal, StartedExecution};
use cloche_model::{AgentTool, DeliveryMode, Execution};
use rmcp::{
    RoleServer,
    model::{CallToolRequestParams, CallToolResponse, CallToolResult},
    service::RequestContext,
};

use super::{
    arguments::{self, ExecuteCodeCall, ToolArgumentsError},
    files,
    gate::{ApprovalFlow, McpGateOutcome},
    progress::ProgressReporter,
    result,
    server::{McpHandler, NOTHING_KEPT},
};

/// Runs the code of a call, if its arguments are valid and the gate permits it.
pub(super) async fn call_execute_code(
    handler: &McpHandler,
    caller: &Caller,
    call: CallToolRequestParams,
    context: &RequestContext<RoleServer>,
) -> CallToolResponse {
    let given = call.arguments.unwrap_or_default();
    // Checked before the gate, so that no person has to approve a call that could not run.
    let asked = match arguments::parse_execute_arguments(given) {
        Ok(asked) => asked,
        Err(unusable) => return result::from_arguments_error(unusable).into(),
    };
    if asked.request.thread_id.is_some() && !handler.engine.keeps_homes() {
        let message = format!("thread_id is not available here: {NOTHING_KEPT}");
        return result::from_arguments_error(ToolArgumentsError::Other(message)).into();
    }
    let tool = AgentTool::ExecuteCode;
    let flow = ApprovalFlow { handler, caller, context, answers: call.input_responses, tool };
    match flow.pass_gate(&asked.shown).await {
        McpGateOutcome::Through(permit) => {
            run_code(handler, caller, (asked, permit), context).await.into()
        }
        McpGateOutcome::Stopped(result) => (*result).into(),
        McpGateOutcome::AskFirst(question) => (*question).into(),
    }
}

async fn run_code(
    handler: &McpHandler,
    caller: &Caller,
    (ExecuteCodeCall { request, inert, .. }, permit): (ExecuteCodeCall, CallPermit),
    context: &RequestContext<RoleServer>,
) -> CallToolResult {
    // Progress notifications are streaming, which not every plan includes.
    let progress = ProgressReporter::from_context(context, inert)
        .filter(|_| caller.team.effective_limits().streaming);
    let delivery = if progress.is_some() { DeliveryMode::Streaming } else { DeliveryMode::Inline };
    let started = match handler
        .engine
        .executions()
        .start_permitted_execution(caller, request, delivery, &permit)
        .await
    {
        Ok(started) => started,
        Err(refusal) => return refused_result(&refusal),
    };
    let cancel_on_drop = started.cancel_on_drop();
    if let Err(refusal) =
        handler.engine.approvals().note_execution(&permit, &started.trace_id).await
    {
        crate::error::log_server_fault(&refusal);
    }
    let over = follow_to_end(started, progress);
    tokio::pin!(over);
    let over = tokio::select! {
        over = &mut over => over,
        // The client cancelled the call. The execution is cancelled, and its end is recorded as
        // usual.
        () = context.ct.cancelled() => {
            drop(cancel_on_drop);
            over.await
        }
    };
    match over {
        Ok(execution) => {
            let mut result =
                result::from_execution(&execution, handler.config.output_bytes(), inert);
            files::attach_written_files(handler, caller, &execution, &mut result).await;
            result
        }
        Err(refusal) => refused_result(&refusal),
    }
}

async fn follow_to_end(
    started: StartedExecution,
    progress: Option<ProgressReporter>,
) -> Result<Arc<Execution>, Refusal> {
    if let Some(mut progress) = progress {
        progress.forward_events(started.read_events()).await;
    }
    started.wait_until_over().await
}

fn refused_result(refusal: &Refusal) -> CallToolResult {
    crate::error::log_server_fault(refusal);
    result::from_refusal(refusal)
}
