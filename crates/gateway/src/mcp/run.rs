//! One call of `execute_code`: past the gate, through the engine, with progress on the way and a
//! leash for whoever changes their mind.

use std::sync::Arc;

use cloche_engine::{Caller, Pass, Refusal, Started};
use cloche_model::{Delivery, Execution, Tool};
use rmcp::{
    RoleServer,
    model::{CallToolRequestParams, CallToolResponse, CallToolResult},
    service::RequestContext,
};

use super::{
    arguments::{self, Asked, Unusable},
    files,
    gate::{Visit, Way},
    progress::Progress,
    result,
    server::{Door, NOTHING_KEPT},
};

/// Runs what the arguments say, if they say something that may run.
pub(super) async fn execute(
    door: &Door,
    caller: &Caller,
    call: CallToolRequestParams,
    context: &RequestContext<RoleServer>,
) -> CallToolResponse {
    let given = call.arguments.unwrap_or_default();
    // Nobody is asked about a call that could not run anyway.
    let asked = match arguments::execute(given.clone()) {
        Ok(asked) => asked,
        Err(unusable) => return result::unusable(unusable).into(),
    };
    if asked.request.thread_id.is_some() && !door.engine.keeps_homes() {
        let message = format!("thread_id is not available here: {NOTHING_KEPT}");
        return result::unusable(Unusable::Other(message)).into();
    }
    let tool = Tool::ExecuteCode;
    let visit = Visit { door, caller, context, answers: call.input_responses, tool };
    match visit.pass(&given).await {
        Way::Through(pass) => run(door, caller, (asked, pass), context).await.into(),
        Way::Stopped(result) => (*result).into(),
        Way::AskFirst(question) => (*question).into(),
    }
}

async fn run(
    door: &Door,
    caller: &Caller,
    (Asked { request, inert }, pass): (Asked, Pass),
    context: &RequestContext<RoleServer>,
) -> CallToolResult {
    // Lines as they come are streaming, and the plan has a say in that.
    let progress = Progress::wanted(context, inert).filter(|_| caller.team.allowance().streaming);
    let delivery = if progress.is_some() { Delivery::Streaming } else { Delivery::Inline };
    let started = match door.engine.execute_passed(caller, request, delivery, &pass).await {
        Ok(started) => started,
        Err(refusal) => return refused(&refusal),
    };
    let leash = started.leash();
    if let Err(refusal) = door.engine.ran(&pass, &started.trace_id).await {
        crate::error::log_if_ours(&refusal);
    }
    let over = follow(started, progress);
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
            let mut result = result::of(&execution, door.config.output_bytes(), inert);
            files::attach(door, caller, &execution, &mut result).await;
            result
        }
        Err(refusal) => refused(&refusal),
    }
}

async fn follow(started: Started, progress: Option<Progress>) -> Result<Arc<Execution>, Refusal> {
    if let Some(mut progress) = progress {
        progress.follow(started.events()).await;
    }
    started.over().await
}

fn refused(refusal: &Refusal) -> CallToolResult {
    crate::error::log_if_ours(refusal);
    result::refused(refusal)
}
