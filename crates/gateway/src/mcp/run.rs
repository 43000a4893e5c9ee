//! One call of `execute_code`: past the gate, through the engine, with progress on the way and a
//! leash for whoever changes their mind.

use cloche_engine::{Caller, Refusal, Started};
use cloche_model::Delivery;
use rmcp::{RoleServer, model::CallToolResult, service::RequestContext};

use super::{
    arguments::{self, Asked},
    progress::Progress,
    result,
    server::Door,
};

/// Runs what the arguments say.
pub(super) async fn execute(
    door: &Door,
    caller: &Caller,
    asked: Asked,
    context: &RequestContext<RoleServer>,
) -> CallToolResult {
    let Asked { request, inert } = asked;
    // Lines as they come are streaming, and the plan has a say in that.
    let progress = Progress::wanted(context, inert).filter(|_| caller.team.allowance().streaming);
    let delivery = if progress.is_some() { Delivery::Streaming } else { Delivery::Inline };
    let started = match door.engine.execute(caller, request, delivery).await {
        Ok(started) => started,
        Err(refusal) => return refused(&refusal),
    };
    let leash = started.leash();
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
        Ok(execution) => result::of(&execution, door.config.output_bytes(), inert),
        Err(refusal) => refused(&refusal),
    }
}

async fn follow(
    started: Started,
    progress: Option<Progress>,
) -> Result<std::sync::Arc<cloche_model::Execution>, Refusal> {
    if let Some(mut progress) = progress {
        progress.follow(started.events()).await;
    }
    started.over().await
}

fn refused(refusal: &Refusal) -> CallToolResult {
    crate::error::log_if_ours(refusal);
    result::refused(refusal)
}

/// Reads the arguments, or says what is wrong with them.
pub(super) fn read(
    arguments: Option<rmcp::model::JsonObject>,
) -> Result<Asked, Box<CallToolResult>> {
    arguments::execute(arguments).map_err(|unusable| Box::new(result::unusable(unusable)))
}
