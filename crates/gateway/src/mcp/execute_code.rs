//! One call of `execute_code`: past the gate, through the engine, with progress on the way and a
//! leash for whoever changes their mind.

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

/// Runs what the arguments say, if they say something that may run.
pub(super) async fn call_execute_code(
    door: &McpHandler,
    caller: &Caller,
    call: CallToolRequestParams,
    context: &RequestContext<RoleServer>,
) -> CallToolResponse {
    let given = call.arguments.unwrap_or_default();
    // Nobody is asked about a call that could not run anyway.
    let asked = match arguments::parse_execute_arguments(given.clone()) {
        Ok(asked) => asked,
        Err(unusable) => return result::from_arguments_error(unusable).into(),
    };
    if asked.request.thread_id.is_some() && !door.engine.keeps_homes() {
        let message = format!("thread_id is not available here: {NOTHING_KEPT}");
        return result::from_arguments_error(ToolArgumentsError::Other(message)).into();
    }
    let tool = AgentTool::ExecuteCode;
    let visit =
        ApprovalFlow { handler: door, caller, context, answers: call.input_responses, tool };
    match visit.pass_gate(&given).await {
        McpGateOutcome::Through(pass) => {
            run_code(door, caller, (asked, pass), context).await.into()
        }
        McpGateOutcome::Stopped(result) => (*result).into(),
        McpGateOutcome::AskFirst(question) => (*question).into(),
    }
}

async fn run_code(
    door: &McpHandler,
    caller: &Caller,
    (ExecuteCodeCall { request, inert }, pass): (ExecuteCodeCall, CallPermit),
    context: &RequestContext<RoleServer>,
) -> CallToolResult {
    // Lines as they come are streaming, and the plan has a say in that.
    let progress = ProgressReporter::from_context(context, inert)
        .filter(|_| caller.team.effective_limits().streaming);
    let delivery = if progress.is_some() { DeliveryMode::Streaming } else { DeliveryMode::Inline };
    let started = match door
        .engine
        .executions()
        .start_permitted_execution(caller, request, delivery, &pass)
        .await
    {
        Ok(started) => started,
        Err(refusal) => return refused_result(&refusal),
    };
    let leash = started.cancel_on_drop();
    if let Err(refusal) = door.engine.approvals().note_execution(&pass, &started.trace_id).await {
        crate::error::log_server_fault(&refusal);
    }
    let over = follow_to_end(started, progress);
    tokio::pin!(over);
    let over = tokio::select! {
        over = &mut over => over,
        // The client no longer waits: the run is ended, and its end is recorded like any other.
        () = context.ct.cancelled() => {
            drop(leash);
            over.await
        }
    };
    match over {
        Ok(execution) => {
            let mut result = result::from_execution(&execution, door.config.output_bytes(), inert);
            files::attach_written_files(door, caller, &execution, &mut result).await;
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
