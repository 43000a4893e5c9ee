//! Runs in: server (no capabilities).
//!
//! Rows of the Agent API, kept for the agent. What a response says is the agent's business; here it
//! is text that belongs to a team.

use std::sync::Arc;

use cloche_model::{Moment, ResponseId, TeamId};
use cloche_store::{ResponseRow, ResponseSummary, Store};

use crate::{Refusal, StorageBudgets, shared_parts::SharedParts};

/// The responses of every team.
pub struct Responses {
    store: Arc<dyn Store>,
    storage: Arc<StorageBudgets>,
}

impl Responses {
    pub(crate) fn new(shared: &SharedParts, storage: Arc<StorageBudgets>) -> Self {
        Self { store: Arc::clone(&shared.store), storage }
    }

    /// Adds a response.
    ///
    /// # Errors
    /// When it cannot be written, or its team has used up its storage budget.
    pub async fn create_response(&self, row: ResponseRow) -> Result<(), Refusal> {
        self.storage.host().check_lately()?;
        if let Some(team) = self.store.find_team(row.team.as_str()).await? {
            self.storage.check_budget(&team).await?;
        }
        Ok(self.store.create_response(row).await?)
    }

    /// Replaces what may change of a response that is not over; false if it is.
    ///
    /// # Errors
    /// When it cannot be written.
    pub async fn update_response(&self, row: ResponseRow) -> Result<bool, Refusal> {
        Ok(self.store.update_response(row).await?)
    }

    /// One response of a team, whether or not it was to be stored.
    ///
    /// # Errors
    /// When the team has none.
    pub async fn find_response(
        &self,
        team: &TeamId,
        id: &ResponseId,
    ) -> Result<ResponseRow, Refusal> {
        let found = self.store.find_response(team, id).await?;
        found.ok_or_else(|| Refusal::not_found("response"))
    }

    /// Responses of a team, newest first, after a position in the list.
    ///
    /// # Errors
    /// When they cannot be read.
    pub async fn list_responses(
        &self,
        team: &TeamId,
        after: Option<(Moment, ResponseId)>,
        limit: u32,
    ) -> Result<Vec<ResponseSummary>, Refusal> {
        Ok(self.store.list_responses(team, after, limit).await?)
    }

    /// The responses that are not over. At the start, those are the ones that a restart cut short.
    ///
    /// # Errors
    /// When they cannot be read.
    pub async fn open_responses(&self) -> Result<Vec<ResponseRow>, Refusal> {
        Ok(self.store.open_responses().await?)
    }
}
