//! The wire format of the audit log.

use cloche_engine::{AuditPage, format_rfc3339};
use cloche_model::{ActorKind, AuditEntry};
use serde::Serialize;
use utoipa::ToSchema;

/// What kind of caller made a change.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ActorKindName {
    /// The holder of the admin token.
    Operator,
    /// A member.
    Member,
    /// The holder of an API key.
    Key,
    /// Someone who is not signed in.
    Anonymous,
}

/// Who made a change.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ActorRecord {
    kind: ActorKindName,
    /// The id of the member or key.
    id: Option<String>,
    name: String,
}

/// A change.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AuditRecord {
    id: i64,
    #[schema(format = DateTime)]
    at: String,
    actor: ActorRecord,
    /// The id of the team that it is about.
    team: Option<String>,
    /// The address of the client.
    address: Option<String>,
    /// The method and the route.
    #[schema(example = "PATCH /v1/admin/sandboxes/{id}")]
    action: String,
    /// What was changed, or the id of what is new.
    target: Option<String>,
    /// The names of the fields of the request.
    fields: Vec<String>,
    /// The status of the answer. From 400 on, nothing was changed.
    status: u16,
}

impl From<AuditEntry> for AuditRecord {
    fn from(entry: AuditEntry) -> Self {
        let kind = match entry.actor.kind {
            ActorKind::Operator => ActorKindName::Operator,
            ActorKind::Member => ActorKindName::Member,
            ActorKind::Key => ActorKindName::Key,
            ActorKind::Anonymous => ActorKindName::Anonymous,
        };
        Self {
            id: entry.seq,
            at: format_rfc3339(entry.at),
            actor: ActorRecord { kind, id: entry.actor.id, name: entry.actor.name },
            team: entry.team.map(Into::into),
            address: entry.address,
            action: entry.action,
            target: entry.target,
            fields: entry.fields,
            status: entry.status,
        }
    }
}

/// A page of the audit log.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AuditList {
    /// Newest first.
    entries: Vec<AuditRecord>,
    /// The `cursor` of the next page; null on the last page.
    next_cursor: Option<String>,
}

impl From<AuditPage> for AuditList {
    fn from(page: AuditPage) -> Self {
        Self {
            entries: page.entries.into_iter().map(Into::into).collect(),
            next_cursor: page.next.map(|next| next.to_string()),
        }
    }
}
