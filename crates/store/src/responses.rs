//! Responses of the Agent API, as the store keeps them.

use async_trait::async_trait;
use cloche_model::{KeyId, Moment, ResponseId, ResponseStatus, SandboxId, TeamId};

use crate::Result;

/// A response of the Agent API. The three texts are the agent's own and never looked into here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseRow {
    /// Its id.
    pub id: ResponseId,
    /// Whose it is.
    pub team: TeamId,
    /// The key that asked.
    pub key: KeyId,
    /// The sandbox its code runs in; its retention is the response's.
    pub sandbox: SandboxId,
    /// Where it stands.
    pub status: ResponseStatus,
    /// Whether it can be retrieved by its id.
    pub visible: bool,
    /// When it was accepted.
    pub created_at: Moment,
    /// When it was over; nothing changes after that.
    pub completed_at: Option<Moment>,
    /// What its owner sees.
    pub record: String,
    /// What was said so far, for a response that continues it.
    pub conversation: String,
    /// The events of its stream, once it is over.
    pub events: String,
}

/// Responses of the Agent API.
#[async_trait]
pub trait ResponseStore: Send + Sync {
    /// Adds a response.
    async fn create_response(&self, row: ResponseRow) -> Result<()>;
    /// Replaces what may change of a response that is not over; false if it is, or is not there.
    async fn update_response(&self, row: ResponseRow) -> Result<bool>;
    /// One response of a team, whether or not it can be retrieved.
    async fn find_response(&self, team: &TeamId, id: &ResponseId) -> Result<Option<ResponseRow>>;
    /// Those that are not over, whoever's they are.
    async fn open_responses(&self) -> Result<Vec<ResponseRow>>;
    /// Deletes what is older than its sandbox's retention; gives back how many.
    async fn prune_responses(&self, now: Moment) -> Result<u64>;
}
