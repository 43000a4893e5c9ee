//! The routes. Each line names a handler. The handler's own attribute has its path, so the OpenAPI
//! description cannot differ from what is served.

use std::sync::Arc;

use axum::{
    Router,
    extract::FromRef,
    http::StatusCode,
    middleware::from_fn_with_state,
    routing::{any, get},
};
use cloche_agent::Agent;
use cloche_engine::{Engine, MemoryPool};
use tokio_util::sync::CancellationToken;
use utoipa::{
    Modify, OpenApi,
    openapi::{
        OpenApi as Description,
        security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme},
    },
};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    GatewayConfig,
    audit::record_changes,
    console,
    error::ApiError,
    http::{
        admin_token, approvals, audit_log, backups, credentials, docs, execute, execution_files,
        executions, files, gates, health, images, keys, members, responses, sandboxes,
        signed_files, storage, teams, thread_archive, thread_files, threads, usage, usage_rows,
        volumes,
    },
    mcp::{self, McpSessions},
    transfer_counter::count_transfers,
};

/// The state that every handler can use.
#[derive(Clone)]
pub(crate) struct AppState {
    pub(crate) engine: Engine,
    pub(crate) agent: Agent,
    pub(crate) config: GatewayConfig,
    pub(crate) description: Arc<str>,
    pub(crate) mcp: McpSessions,
    pub(crate) readiness: Arc<health::Readiness>,
}

impl FromRef<AppState> for GatewayConfig {
    fn from_ref(state: &AppState) -> Self {
        state.config.clone()
    }
}

impl FromRef<AppState> for MemoryPool {
    fn from_ref(state: &AppState) -> Self {
        state.engine.memory_budgets().bodies.clone()
    }
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Cloche",
        description = "Runs code in a sandbox and returns its output.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    tags(
        (name = "execute", description = "Run code"),
        (name = "executions", description = "Past and running executions"),
        (name = "threads", description = "Homes that outlive executions, and their history"),
        (name = "files", description = "Upload and download of files of a thread"),
        (name = "usage", description = "What a team used, and its monthly allowance"),
        (name = "approvals", description = "Agent tool calls that wait for a person's answer"),
        (name = "agent", description = "Responses of a model that can run code"),
        (name = "admin", description = "Teams, sandboxes, images, keys, credentials, gates and backups"),
        (name = "console", description = "Sign-ins and live figures of the console"),
        (name = "health", description = "Health and metrics for operators")
    ),
    // Listed here, because their path is a wildcard for the router.
    paths(
        execution_files::read_execution_file,
        thread_files::read_thread_file,
        thread_files::write_thread_file
    ),
    modifiers(&SecuritySchemes)
)]
struct ApiDoc;

/// The two kinds of bearer token, and the cookie of the console.
struct SecuritySchemes;

impl Modify for SecuritySchemes {
    fn modify(&self, description: &mut Description) {
        let components = description.components.get_or_insert_default();
        for (name, what) in
            [("api_key", "An API key, `sk-us-…`"), ("admin_token", "The admin token, `ck-admin-…`")]
        {
            let scheme =
                HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(what)).build();
            components.add_security_scheme(name, SecurityScheme::Http(scheme));
        }
        let cookie = ApiKeyValue::with_description(
            "cloche_session",
            "A sign-in to the console. Requests that change something repeat its csrf_token in the \
             header X-Cloche-CSRF",
        );
        components.add_security_scheme("session", SecurityScheme::ApiKey(ApiKey::Cookie(cookie)));
    }
}

fn api_routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::with_openapi(ApiDoc::openapi())
        .routes(routes!(execute::execute))
        .routes(routes!(executions::list))
        .routes(routes!(executions::get))
        .routes(routes!(executions::cancel))
        .routes(routes!(executions::output))
        .routes(routes!(execution_files::list_execution_files))
        .route("/v1/executions/{trace_id}/files/{*path}", get(execution_files::read_execution_file))
        .merge(thread_routes())
        .routes(routes!(files::list_files))
        .routes(routes!(files::sign_upload_url))
        .routes(routes!(files::sign_download_url))
        .routes(routes!(signed_files::download_file, signed_files::upload_file))
        .routes(routes!(responses::create_agent_response))
        .routes(routes!(responses::create_response, responses::list_responses))
        .routes(routes!(responses::get_response))
        .routes(routes!(responses::cancel_response))
        .routes(routes!(responses::list_response_files))
        .routes(routes!(responses::get_response_file))
        .routes(routes!(usage::get_usage))
        .routes(routes!(usage::get_team_usage))
        .routes(routes!(usage_rows::list_usage_rows))
        .routes(routes!(teams::list_teams, teams::create_team))
        .routes(routes!(teams::get_team, teams::update_team, teams::delete_team))
        .routes(routes!(teams::recount_storage))
        .routes(routes!(sandboxes::list_sandboxes, sandboxes::create_sandbox))
        .routes(routes!(
            sandboxes::get_sandbox,
            sandboxes::update_sandbox,
            sandboxes::delete_sandbox
        ))
        .merge(console::api_routes())
        .routes(routes!(members::list_members, members::create_member))
        .routes(routes!(members::get_member, members::update_member, members::remove_member))
        .routes(routes!(audit_log::list_audit))
        .merge(image_routes())
        .merge(storage_routes())
        .merge(operator_routes())
        .routes(routes!(keys::list_keys, keys::create_key))
        .routes(routes!(keys::get_key, keys::update_key, keys::revoke_key))
        .merge(credential_routes())
        .routes(routes!(gates::get_defaults, gates::update_defaults))
        .routes(routes!(gates::list_approvals))
        .routes(routes!(gates::get_approval))
        .routes(routes!(gates::approve_call))
        .routes(routes!(gates::deny_call))
        .routes(routes!(gates::list_decisions))
        .routes(routes!(approvals::list_own_approvals))
        .routes(routes!(approvals::get_own_approval))
        .routes(routes!(approvals::approve_own_call))
        .routes(routes!(approvals::deny_own_call))
        .routes(routes!(health::live))
        .routes(routes!(health::ready))
        .routes(routes!(health::metrics))
        .routes(routes!(docs::description))
        .routes(routes!(docs::page))
}

/// Threads: their history and files.
fn thread_routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(threads::list_threads))
        .routes(routes!(threads::get_thread, threads::delete_thread))
        .routes(routes!(threads::list_thread_history))
        .routes(routes!(threads::diff_thread))
        .routes(routes!(thread_files::list_thread_files))
        .route(
            "/v1/threads/{thread_id}/files/{*path}",
            get(thread_files::read_thread_file).put(thread_files::write_thread_file),
        )
        .routes(routes!(threads::fork_thread))
        .routes(routes!(threads::rollback_thread))
        .routes(routes!(threads::prune_thread))
        .routes(routes!(thread_archive::export_thread))
        .routes(routes!(thread_archive::import_thread))
}

/// Images.
fn image_routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(images::list_images))
        .routes(routes!(images::pull_image))
        .routes(routes!(images::import_image))
        .routes(routes!(images::prune_images))
        .routes(routes!(images::get_image, images::remove_image))
}

/// Credentials and what may use them.
fn credential_routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(credentials::list_credentials, credentials::create_credential))
        .routes(routes!(
            credentials::get_credential,
            credentials::update_credential,
            credentials::remove_credential
        ))
        .routes(routes!(credentials::bind_credential))
        .routes(routes!(credentials::unbind_credential))
}

/// Connections, volumes and what may use them.
fn storage_routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(storage::list_connections, storage::create_connection))
        .routes(routes!(
            storage::get_connection,
            storage::update_connection,
            storage::remove_connection
        ))
        .routes(routes!(storage::check_connection))
        .routes(routes!(storage::bind_storage))
        .routes(routes!(storage::unbind_storage))
        .routes(routes!(volumes::list_volumes, volumes::create_volume))
        .routes(routes!(volumes::get_volume, volumes::update_volume, volumes::remove_volume))
}

/// What operators do with the whole server.
fn operator_routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(admin_token::rotate_admin_token))
        .routes(routes!(backups::begin_backup))
        .routes(routes!(backups::end_backup))
        .routes(routes!(backups::read_backup_database))
        .routes(routes!(backups::read_backup_layer))
        .routes(routes!(backups::read_backup_volume))
}

/// The OpenAPI description of the API.
#[must_use]
pub fn describe_api() -> Description {
    api_routes().split_for_parts().1
}

/// Builds the router with all routes.
pub fn build_router(engine: Engine, agent: Agent, config: GatewayConfig) -> Router {
    build_router_until((engine, agent), config, CancellationToken::new())
}

/// Like [`build_router`]; cancelling `closing` ends streams that would never end by themselves.
pub(crate) fn build_router_until(
    (engine, agent): (Engine, Agent),
    config: GatewayConfig,
    closing: CancellationToken,
) -> Router {
    let (router, description) = api_routes().split_for_parts();
    let description = description.to_pretty_json().unwrap_or_default().into();
    // Not in the OpenAPI description: MCP describes itself in its own protocol.
    let router = router.route("/mcp", any(mcp::handle_mcp_request));
    let router = router.merge(console::page_routes());
    let mcp = McpSessions::new(closing);
    let counted = from_fn_with_state(Arc::clone(engine.usage()), count_transfers);
    let recorded = from_fn_with_state(engine.clone(), record_changes);
    let readiness = Arc::default();
    let state = AppState { engine, agent, config, description, mcp, readiness };
    let router = router.fallback(no_route).method_not_allowed_fallback(no_method);
    router.with_state(state).layer(recorded).layer(counted)
}

pub(crate) async fn no_route() -> ApiError {
    ApiError::not_found()
}

pub(crate) async fn no_method() -> ApiError {
    let message = "this resource does not have that method".to_owned();
    ApiError::Http(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
}
