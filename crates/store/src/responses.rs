//! Responses of the Agent API, as rows.

use async_trait::async_trait;
use cloche_model::{KeyId, Moment, ResponseId, ResponseStatus, SandboxId, TeamId};

use crate::Result;

/// A response of the Agent API. The three texts are written and read only by the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseRow {
    /// Its id.
    pub id: ResponseId,
    /// The team.
    pub team: TeamId,
    /// The key that created it.
    pub key: KeyId,
    /// The sandbox in which its code runs. Its retention applies to the response.
    pub sandbox: SandboxId,
    /// Its status.
    pub status: ResponseStatus,
    /// Whether it can be retrieved by its id.
    pub visible: bool,
    /// The time it was accepted.
    pub created_at: Moment,
    /// The time it ended. It does not change after that.
    pub completed_at: Option<Moment>,
    /// The response as its owner sees it.
    pub record: String,
    /// The conversation so far, for a response that continues it.
    pub conversation: String,
    /// The events of its stream, written when it ends.
    pub events: String,
}

/// What a list shows of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseSummary {
    /// Its id.
    pub id: ResponseId,
    /// The key that created it.
    pub key: KeyId,
    /// The sandbox in which its code runs.
    pub sandbox: SandboxId,
    /// Its status.
    pub status: ResponseStatus,
    /// The model, if the record names one.
    pub model: Option<String>,
    /// The time it was accepted.
    pub created_at: Moment,
    /// The time it ended.
    pub completed_at: Option<Moment>,
}

/// Responses of the Agent API.
#[async_trait]
pub trait ResponseStore: Send + Sync {
    /// Adds a response.
    async fn create_response(&self, row: ResponseRow) -> Result<()>;
    /// Replaces the mutable parts of a response that has not ended. Returns false if it has ended
    /// or does not exist.
    async fn update_response(&self, row: ResponseRow) -> Result<bool>;
    /// One response of a team, visible or not.
    async fn find_response(&self, team: &TeamId, id: &ResponseId) -> Result<Option<ResponseRow>>;
    /// Visible responses of a team, newest first, after this position in the list.
    async fn list_responses(
        &self,
        team: &TeamId,
        after: Option<(Moment, ResponseId)>,
        limit: u32,
    ) -> Result<Vec<ResponseSummary>>;
    /// The responses of all teams that have not ended.
    async fn open_responses(&self) -> Result<Vec<ResponseRow>>;
    /// Deletes responses older than the retention of their sandbox. Returns their number.
    async fn prune_responses(&self, now: Moment) -> Result<u64>;
}
