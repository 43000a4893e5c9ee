//! The table of routes. Each line names a handler; the handler's own attribute names its path, so
//! that the description cannot differ from what is served.

use std::sync::Arc;

use axum::{
    Router,
    extract::FromRef,
    http::StatusCode,
    routing::{any, get},
};
use cloche_agent::Agent;
use cloche_engine::{Engine, MemoryPool};
use tokio_util::sync::CancellationToken;
use utoipa::{
    Modify, OpenApi,
    openapi::{
        OpenApi as Description,
        security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
    },
};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    GatewayConfig,
    error::ApiError,
    http::{
        approvals, docs, exchange, execute, execution_files, executions, files, gates, health,
        keys, responses, sandboxes, teams, threads, transfer,
    },
    mcp::{self, Sessions},
};

/// What every handler can reach.
#[derive(Clone)]
pub(crate) struct Doors {
    pub(crate) engine: Engine,
    pub(crate) agent: Agent,
    pub(crate) config: GatewayConfig,
    pub(crate) description: Arc<str>,
    pub(crate) mcp: Sessions,
}

impl FromRef<Doors> for GatewayConfig {
    fn from_ref(doors: &Doors) -> Self {
        doors.config.clone()
    }
}

impl FromRef<Doors> for MemoryPool {
    fn from_ref(doors: &Doors) -> Self {
        doors.engine.memory().bodies.clone()
    }
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Cloche",
        description = "Runs code in a sandbox and says what it printed.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    tags(
        (name = "execute", description = "Run code"),
        (name = "executions", description = "What ran, and what runs"),
        (name = "threads", description = "Homes that outlive a run, and every point in time of theirs"),
        (name = "files", description = "Files of a thread, up and down"),
        (name = "approvals", description = "Calls of agents that wait for a person"),
        (name = "agent", description = "Ask a model that can run code"),
        (name = "admin", description = "Teams, sandboxes, keys and gates"),
        (name = "health", description = "For whoever operates the server")
    ),
    // Described here, as its path is a wildcard to the router.
    paths(execution_files::read),
    modifiers(&Schemes)
)]
struct Api;

/// The two kinds of bearer token.
struct Schemes;

impl Modify for Schemes {
    fn modify(&self, description: &mut Description) {
        let components = description.components.get_or_insert_default();
        for (name, what) in
            [("api_key", "An API key, `sk-us-…`"), ("admin_token", "The admin token, `ck-admin-…`")]
        {
            let scheme =
                HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(what)).build();
            components.add_security_scheme(name, SecurityScheme::Http(scheme));
        }
    }
}

fn table() -> OpenApiRouter<Doors> {
    OpenApiRouter::with_openapi(Api::openapi())
        .routes(routes!(execute::execute))
        .routes(routes!(executions::list))
        .routes(routes!(executions::get))
        .routes(routes!(executions::cancel))
        .routes(routes!(executions::output))
        .routes(routes!(execution_files::list))
        .route("/v1/executions/{trace_id}/files/{*path}", get(execution_files::read))
        .routes(routes!(threads::list))
        .routes(routes!(threads::get, threads::delete))
        .routes(routes!(threads::history))
        .routes(routes!(threads::diff))
        .routes(routes!(threads::fork))
        .routes(routes!(threads::rollback))
        .routes(routes!(threads::prune))
        .routes(routes!(exchange::export))
        .routes(routes!(exchange::import))
        .routes(routes!(files::list))
        .routes(routes!(files::upload_url))
        .routes(routes!(files::download_url))
        .routes(routes!(transfer::download, transfer::upload))
        .routes(routes!(responses::agent))
        .routes(routes!(responses::create))
        .routes(routes!(responses::get))
        .routes(routes!(responses::cancel))
        .routes(routes!(responses::files))
        .routes(routes!(responses::content))
        .routes(routes!(teams::list, teams::create))
        .routes(routes!(teams::get, teams::update, teams::delete))
        .routes(routes!(teams::recount))
        .routes(routes!(sandboxes::list, sandboxes::create))
        .routes(routes!(sandboxes::get, sandboxes::update, sandboxes::delete))
        .routes(routes!(keys::list, keys::create))
        .routes(routes!(keys::get, keys::update, keys::revoke))
        .routes(routes!(gates::defaults, gates::update_defaults))
        .routes(routes!(gates::list))
        .routes(routes!(gates::get))
        .routes(routes!(gates::approve))
        .routes(routes!(gates::deny))
        .routes(routes!(gates::decisions))
        .routes(routes!(approvals::list))
        .routes(routes!(approvals::get))
        .routes(routes!(approvals::approve))
        .routes(routes!(approvals::deny))
        .routes(routes!(health::live))
        .routes(routes!(health::ready))
        .routes(routes!(health::metrics))
        .routes(routes!(docs::description))
        .routes(routes!(docs::page))
}

/// The description of the API.
#[must_use]
pub fn description() -> Description {
    table().split_for_parts().1
}

/// Everything that is served.
pub fn router(engine: Engine, agent: Agent, config: GatewayConfig) -> Router {
    router_until((engine, agent), config, CancellationToken::new())
}

/// The same; streams that would never end are ended by `closing`.
pub(crate) fn router_until(
    (engine, agent): (Engine, Agent),
    config: GatewayConfig,
    closing: CancellationToken,
) -> Router {
    let (router, description) = table().split_for_parts();
    let description = description.to_pretty_json().unwrap_or_default().into();
    // Not in the description: this door describes itself, in its own protocol.
    let router = router.route("/mcp", any(mcp::door));
    let mcp = Sessions::new(closing);
    let doors = Doors { engine, agent, config, description, mcp };
    router.fallback(no_route).method_not_allowed_fallback(no_method).with_state(doors)
}

pub(crate) async fn no_route() -> ApiError {
    ApiError::not_found()
}

pub(crate) async fn no_method() -> ApiError {
    let message = "this resource does not have that method".to_owned();
    ApiError::Http(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
}
