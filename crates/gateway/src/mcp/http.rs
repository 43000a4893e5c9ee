//! `/mcp`: the transport called Streamable HTTP. Lets in whoever has a key, bounds what is read, and
//! hands the rest to the library.
//!
//! Three kinds of request arrive here: those of a session that was begun with `initialize`, those of
//! newer versions that say all they need each time, and those of clients that just call.

use std::borrow::Cow;

use axum::{
    Json,
    body::Body,
    extract::{FromRequestParts, Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use cloche_engine::Caller;
use rmcp::transport::streamable_http_server::{
    SessionManager, StreamableHttpServerConfig, StreamableHttpService,
    session::never::NeverSessionManager,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    origin,
    server::{Door, Who},
};
use crate::{auth::Key, body, error::ApiError, router::Doors};

const SESSION: &str = "mcp-session-id";
const BOTH: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");

/// What has to be known of a message to send it the right way.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    jsonrpc: Option<Cow<'a, str>>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
}

/// Everything that is asked of `/mcp`.
pub(crate) async fn door(State(doors): State<Doors>, request: Request) -> Response {
    serve(doors, request).await.unwrap_or_else(IntoResponse::into_response)
}

async fn serve(doors: Doors, request: Request) -> Result<Response, ApiError> {
    let (mut parts, body) = request.into_parts();
    origin::check(&parts.headers, &doors.config.mcp.origins)?;
    let Key(caller) = Key::from_request_parts(&mut parts, &doors).await?;
    // The library writes to the log what it is asked; the key has no business there.
    parts.headers.remove(header::AUTHORIZATION);
    let in_session = parts.headers.contains_key(SESSION);
    if parts.method != Method::POST {
        return Ok(session(&doors, caller, Request::from_parts(parts, Body::empty())).await);
    }
    let bytes = body::bounded(&parts.headers, body, &doors.config).await?;
    let method = match envelope(&bytes) {
        Ok(method) => method,
        Err(response) => return Ok(*response),
    };
    accept_what_is_meant(&mut parts.headers);
    let begins = method.as_deref() == Some("initialize");
    let request = Request::from_parts(parts, Body::from(bytes));
    if begins && !in_session {
        doors.mcp.with_room(&caller.key.id).await?;
    }
    match in_session || begins {
        true => Ok(session(&doors, caller, request).await),
        false => Ok(alone(&doors, caller, request).await),
    }
}

/// The name of the method; the protocol's own error for what is no message.
fn envelope(bytes: &[u8]) -> Result<Option<String>, Box<Response>> {
    let refuse = |code: i32, message: &str| {
        let error: Value = json!({"code": code, "message": message});
        let body = json!({"jsonrpc": "2.0", "id": null, "error": error});
        Box::new((StatusCode::BAD_REQUEST, Json(body)).into_response())
    };
    if body::is_deep(bytes) {
        return Err(refuse(-32700, "the message is nested too deeply"));
    }
    match bytes.trim_ascii_start().first() {
        Some(b'{') => {}
        Some(b'[') => return Err(refuse(-32600, "send messages one by one, not as a list")),
        _ => return Err(refuse(-32700, "the body is not a JSON object")),
    }
    match serde_json::from_slice::<Envelope<'_>>(bytes) {
        Ok(Envelope { jsonrpc: Some(version), method }) if version == "2.0" => {
            Ok(method.map(Cow::into_owned))
        }
        Ok(_) => Err(refuse(-32600, "this is no JSON-RPC 2.0 message")),
        Err(error) => Err(refuse(-32700, &format!("the body is not JSON: {error}"))),
    }
}

/// Whoever takes anything takes both of the types that an answer can have.
fn accept_what_is_meant(headers: &mut HeaderMap) {
    if headers.get(header::ACCEPT).is_none_or(|accept| accept == "*/*") {
        headers.insert(header::ACCEPT, BOTH);
    }
}

async fn session(doors: &Doors, caller: Caller, request: Request) -> Response {
    let manager = doors.mcp.of(&caller.key.id);
    let config = StreamableHttpServerConfig::default().with_legacy_session_mode(true);
    handle(doors, caller, (manager, config), request).await
}

async fn alone(doors: &Doors, caller: Caller, request: Request) -> Response {
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true);
    handle(doors, caller, (NeverSessionManager::default().into(), config), request).await
}

async fn handle<M: SessionManager>(
    doors: &Doors,
    caller: Caller,
    (manager, config): (std::sync::Arc<M>, StreamableHttpServerConfig),
    mut request: Request,
) -> Response {
    request.extensions_mut().insert(caller);
    let door = Door {
        engine: doors.engine.clone(),
        config: doors.config.mcp.clone(),
        who: Who::OfRequest,
    };
    // Hosts are not checked: a server does not know all its names, and every request has a key.
    let config = config
        .disable_allowed_hosts()
        .with_max_request_body_bytes(usize::MAX)
        .with_cancellation_token(doors.mcp.closing.clone());
    let service = StreamableHttpService::new(move || Ok(door.clone()), manager, config);
    service.handle(request).await.map(Body::new)
}
