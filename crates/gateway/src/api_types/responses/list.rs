//! Runs in: server (no capabilities).
//!
//! The wire format of lists of responses.

use cloche_engine::{ResponseSummary, format_rfc3339};
use serde::Serialize;
use utoipa::ToSchema;

/// What a list shows of a response.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ResponseListItem {
    id: String,
    /// As in the response itself.
    status: String,
    model: Option<String>,
    key_id: String,
    sandbox_id: String,
    #[schema(format = DateTime)]
    created_at: String,
    #[schema(format = DateTime)]
    completed_at: Option<String>,
}

impl From<ResponseSummary> for ResponseListItem {
    fn from(summary: ResponseSummary) -> Self {
        Self {
            id: summary.id.into(),
            status: summary.status.to_string(),
            model: summary.model,
            key_id: summary.key.into(),
            sandbox_id: summary.sandbox.into(),
            created_at: format_rfc3339(summary.created_at),
            completed_at: summary.completed_at.map(format_rfc3339),
        }
    }
}

/// A page of responses.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ResponseList {
    /// Newest first.
    responses: Vec<ResponseListItem>,
    /// The `cursor` of the next page; null on the last page.
    next_cursor: Option<String>,
}

impl ResponseList {
    /// A page of this length, of a list that is longer by one if another page follows.
    pub(crate) fn new(mut found: Vec<ResponseSummary>, limit: usize) -> Self {
        let more = found.len() > limit;
        found.truncate(limit);
        let last = found.last().filter(|_| more);
        let next_cursor = last.map(|last| format!("{}.{}", last.created_at.0, last.id));
        Self { responses: found.into_iter().map(Into::into).collect(), next_cursor }
    }
}
