//! `/mcp`: the Streamable HTTP transport. Authenticates the caller, limits the body, and passes the
//! request to the library.
//!
//! Three kinds of requests arrive: requests of a session that was started with `initialize`,
//! requests of newer protocol versions, which are self-contained, and requests of clients that call
//! tools without a session.

use axum::{
    Json,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use cloche_engine::Caller;
use http_body_util::BodyExt;
use rmcp::transport::streamable_http_server::{
    SessionManager, StreamableHttpServerConfig, StreamableHttpService,
    session::never::NeverSessionManager,
};
use serde_json::Value;

use super::{
    message::{self, InvalidJsonRpc, JsonRpcHead},
    server::{CallerSource, McpHandler},
};
use crate::{auth::ApiKeyAuth, body, error::ApiError, origin, router::AppState};

const SESSION: &str = "mcp-session-id";
const JSON_AND_EVENT_STREAM: HeaderValue =
    HeaderValue::from_static("application/json, text/event-stream");

/// Handles every request to `/mcp`.
pub(crate) async fn handle_mcp_request(
    State(state): State<AppState>,
    request: Request,
) -> Response {
    dispatch_mcp_request(state, request).await.unwrap_or_else(IntoResponse::into_response)
}

async fn dispatch_mcp_request(state: AppState, request: Request) -> Result<Response, ApiError> {
    let (mut parts, body) = request.into_parts();
    origin::check_origin(&parts.headers, &state.config.mcp.origins)?;
    let ApiKeyAuth(caller) = ApiKeyAuth::from_key(&mut parts, &state).await?;
    // The library logs requests, and the key must not be logged.
    parts.headers.remove(header::AUTHORIZATION);
    let in_session = parts.headers.contains_key(SESSION);
    if parts.method != Method::POST {
        return Ok(
            handle_in_session(&state, caller, Request::from_parts(parts, Body::empty())).await
        );
    }
    let pool = &state.engine.memory_budgets().bodies;
    // The memory is held until there is a response, or a stream of responses.
    let (bytes, _memory) = body::read_within_limits(&parts, body, &state.config, pool).await?;
    let JsonRpcHead { method, id } = match message::parse_head(&bytes) {
        Ok(head) => head,
        Err(why) => return Ok((StatusCode::BAD_REQUEST, Json(why.to_json())).into_response()),
    };
    widen_accept_header(&mut parts.headers);
    let starts_session = method.as_deref() == Some("initialize");
    let request = Request::from_parts(parts, Body::from(bytes.clone()));
    if starts_session && !in_session {
        state.mcp.manager_with_room(&caller.key.id).await?;
    }
    let answer = match in_session || starts_session {
        true => handle_in_session(&state, caller, request).await,
        false => handle_stateless(&state, caller, request).await,
    };
    Ok(wrap_plain_error(answer, (bytes, id)).await)
}

/// Converts plain-text errors of the library to JSON-RPC errors, because clients cannot parse
/// anything else.
async fn wrap_plain_error(answer: Response, (bytes, id): (Bytes, Value)) -> Response {
    let (mut parts, body) = answer.into_parts();
    let kind = parts.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let plain = kind.is_none_or(|kind| kind.starts_with("text/plain"));
    if !(parts.status.is_client_error() && plain) {
        return Response::from_parts(parts, body);
    }
    // The message comes from the library.
    let text = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let error =
        InvalidJsonRpc::from_library_error(&bytes, id, &String::from_utf8_lossy(&text)).to_json();
    for name in [header::CONTENT_TYPE, header::CONTENT_LENGTH] {
        parts.headers.remove(name);
    }
    (parts.status, parts.headers, Json(error)).into_response()
}

/// A client that accepts anything accepts both types of responses.
fn widen_accept_header(headers: &mut HeaderMap) {
    if headers.get(header::ACCEPT).is_none_or(|accept| accept == "*/*") {
        headers.insert(header::ACCEPT, JSON_AND_EVENT_STREAM);
    }
}

async fn handle_in_session(state: &AppState, caller: Caller, request: Request) -> Response {
    let manager = state.mcp.manager_for_key(&caller.key.id);
    let config = StreamableHttpServerConfig::default().with_legacy_session_mode(true);
    run_mcp_service(state, caller, (manager, config), request).await
}

async fn handle_stateless(state: &AppState, caller: Caller, request: Request) -> Response {
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true);
    run_mcp_service(state, caller, (NeverSessionManager::default().into(), config), request).await
}

async fn run_mcp_service<M: SessionManager>(
    state: &AppState,
    caller: Caller,
    (manager, config): (std::sync::Arc<M>, StreamableHttpServerConfig),
    mut request: Request,
) -> Response {
    request.extensions_mut().insert(caller);
    let handler = McpHandler {
        engine: state.engine.clone(),
        config: state.config.mcp.clone(),
        caller_source: CallerSource::PerRequest,
    };
    // Hosts are not checked: a server does not know all its host names, and every request has a
    // key.
    let config = config
        .disable_allowed_hosts()
        .with_max_request_body_bytes(usize::MAX)
        .with_cancellation_token(state.mcp.closing.clone());
    let service = StreamableHttpService::new(move || Ok(handler.clone()), manager, config);
    service.handle(request).await.map(Body::new)
}
