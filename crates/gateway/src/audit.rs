//! Runs in: server (no capabilities).
//!
//! The log of changes: who changed what, when, from where. A layer puts a note into every request
//! that changes something, the extractors write into it who it is, and the layer records it with
//! the status of the answer. Executions are not changes: the ledger has them.

use std::{convert::Infallible, sync::Arc};

use axum::{
    body::{Body, Bytes},
    extract::{FromRequestParts, MatchedPath, Request, State},
    http::{Extensions, Method, StatusCode, header, request::Parts},
    middleware::Next,
    response::Response,
};
use cloche_engine::{Engine, now};
use cloche_model::{ActorKind, AuditActor, AuditEntry, TeamId};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use serde_json::Value;

use crate::client_address::client_address;

/// Routes that change nothing although their method is not GET, and those whose record is in the
/// ledger.
const UNRECORDED: [&str; 7] = [
    "/mcp",
    "/v1/agent",
    "/v1/files/download_url",
    "/v1/files/list",
    "/v1/files/upload_url",
    "/v1/responses",
    "/v1/sandbox/execute",
];
/// Reads that change something: a browser comes back from an OpenID provider with one.
const RECORDED_READS: [&str; 1] = ["/console/api/oidc/callback"];
/// The most fields of a request that are named.
const MOST_FIELDS: usize = 32;
/// The most characters of a field's name, a name or a target.
const MOST_CHARS: usize = 200;
/// The largest answer whose new id is looked for.
const LARGEST_ANSWER: u64 = 64 << 10;

/// What is known of a change so far. Clones are the same note.
#[derive(Clone, Default)]
struct AuditNote(Arc<Mutex<NotedChange>>);

#[derive(Default)]
struct NotedChange {
    actor: Option<AuditActor>,
    team: Option<TeamId>,
    target: Option<String>,
    fields: Vec<String>,
    status: Option<StatusCode>,
}

/// The notes of a request, for a handler that finds out by itself who it is from.
pub(crate) struct RequestNotes(Extensions);

impl RequestNotes {
    /// Notes who makes the change.
    pub(crate) fn note_actor(&self, actor: AuditActor, team: Option<&TeamId>) {
        note_actor(&self.0, actor, team);
    }

    /// Notes what was changed, and which fields of it.
    pub(crate) fn note_change(&self, target: &str, fields: &[&str]) {
        if let Some(AuditNote(note)) = self.0.get() {
            let mut note = note.lock();
            note.target = Some(target.to_owned());
            note.fields = fields.iter().map(ToString::to_string).collect();
        }
    }

    /// Notes how the change went, where the status of the answer does not say it.
    pub(crate) fn note_status(&self, status: StatusCode) {
        if let Some(AuditNote(note)) = self.0.get() {
            note.lock().status = Some(status);
        }
    }

    /// What else the layers know of the request.
    pub(crate) fn extensions(&self) -> &Extensions {
        &self.0
    }
}

impl<S: Sync> FromRequestParts<S> for RequestNotes {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(parts.extensions.clone()))
    }
}

/// Notes who makes the change.
pub(crate) fn note_actor(extensions: &Extensions, actor: AuditActor, team: Option<&TeamId>) {
    if let Some(AuditNote(note)) = extensions.get() {
        let mut note = note.lock();
        note.actor = Some(actor);
        note.team = team.cloned();
    }
}

/// Notes the team that the change is about.
pub(crate) fn note_team(extensions: &Extensions, team: Option<&TeamId>) {
    if let Some(AuditNote(note)) = extensions.get()
        && team.is_some()
    {
        note.lock().team = team.cloned();
    }
}

/// Notes the names of the fields of a body, never their values.
pub(crate) fn note_fields(extensions: &Extensions, body: &[u8]) {
    let Some(AuditNote(note)) = extensions.get() else { return };
    let fields = serde_json::from_slice::<serde_json::Map<String, Value>>(body);
    let names = fields.unwrap_or_default().into_iter().map(|(name, _)| cut(&name));
    let mut names: Vec<String> = names.collect();
    names.sort();
    names.truncate(MOST_FIELDS);
    note.lock().fields = names;
}

fn cut(text: &str) -> String {
    text.chars().take(MOST_CHARS).collect()
}

/// The layer that records changes.
pub(crate) async fn record_changes(
    State(engine): State<Engine>,
    mut request: Request,
    next: Next,
) -> Response {
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let Some(route) = route.filter(|route| is_recorded(request.method(), route)) else {
        return next.run(request).await;
    };
    let note = AuditNote::default();
    request.extensions_mut().insert(note.clone());
    let address = client_address(request.headers(), request.extensions());
    let action = format!("{} {route}", request.method());
    let named = named_in_path(&route, request.uri().path());
    let response = next.run(request).await;
    let status = response.status();
    let (response, made) = find_new_id(response).await;
    let noted = std::mem::take(&mut *note.0.lock());
    // A request without any identity is noise, unless it is an attempt to sign in, which notes one.
    let Some(actor) = noted.actor else { return response };
    let entry = AuditEntry {
        seq: 0,
        at: now(),
        actor: AuditActor { name: cut(&actor.name), ..actor },
        team: noted.team,
        address: address.map(|address| address.to_string()),
        action,
        target: noted.target.or(named).or(made).map(|target| cut(&target)),
        fields: noted.fields,
        status: noted.status.unwrap_or(status).as_u16(),
    };
    engine.console().record_change(entry).await;
    response
}

fn is_recorded(method: &Method, route: &str) -> bool {
    let changes = !method.is_safe() || RECORDED_READS.contains(&route);
    changes && !UNRECORDED.contains(&route)
}

/// The values of the variable segments of a path.
fn named_in_path(route: &str, path: &str) -> Option<String> {
    let segments = route.split('/').zip(path.split('/'));
    let named: Vec<&str> =
        segments.filter(|(name, _)| name.starts_with('{')).map(|(_, value)| value).collect();
    // A token in a path is a secret.
    let is_secret = route.contains("{token}");
    (!named.is_empty() && !is_secret).then(|| named.join("/"))
}

/// The id of something new, from a small answer.
async fn find_new_id(response: Response) -> (Response, Option<String>) {
    let length = response.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    let exact = hyper::body::Body::size_hint(response.body()).exact();
    let is_small = length.or(exact).is_some_and(|length| length <= LARGEST_ANSWER);
    if response.status() != StatusCode::CREATED || !is_small {
        return (response, None);
    }
    let (head, body) = response.into_parts();
    let bytes = body.collect().await.map(|body| body.to_bytes()).unwrap_or_else(|_| Bytes::new());
    let answer = serde_json::from_slice::<Value>(&bytes).unwrap_or_default();
    let id = ["id", "thread_id"].iter().find_map(|name| answer[*name].as_str());
    let id = id.map(str::to_owned);
    (Response::from_parts(head, Body::from(bytes)), id)
}

/// An attempt to sign in with this name.
pub(crate) fn unknown_actor(name: &str) -> AuditActor {
    AuditActor { kind: ActorKind::Anonymous, id: None, name: name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_the_variable_parts_of_a_path_except_for_tokens() {
        let target = |route, path| named_in_path(route, path);
        assert_eq!(target("/v1/admin/keys", "/v1/admin/keys"), None);
        assert_eq!(target("/v1/admin/keys/{id}", "/v1/admin/keys/key_a").unwrap(), "key_a");
        assert_eq!(target("/v1/files/transfer/{token}", "/v1/files/transfer/abc"), None);
    }

    #[test]
    fn changes_are_recorded_and_executions_are_not() {
        assert!(is_recorded(&Method::POST, "/v1/admin/keys"));
        assert!(is_recorded(&Method::DELETE, "/console/api/session"));
        assert!(is_recorded(&Method::GET, "/console/api/oidc/callback"));
        assert!(!is_recorded(&Method::GET, "/v1/admin/keys"));
        assert!(!is_recorded(&Method::POST, "/v1/sandbox/execute"));
    }
}
