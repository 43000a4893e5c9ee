//! Responses of the Agent API as the engine keeps them for the agent: rows, and whose they are.
//!
//! What a response says is the agent's business; here it is text.

use cloche_model::ResponseId;
use cloche_store::ResponseRow;

use crate::{Caller, Engine, Refusal};

impl Engine {
    /// Adds a response.
    ///
    /// # Errors
    /// When it cannot be written, or its team has used up its storage budget.
    pub async fn create_response(&self, row: ResponseRow) -> Result<(), Refusal> {
        self.inner.host_storage.check_lately()?;
        if let Some(team) = self.inner.store.find_team(row.team.as_str()).await? {
            self.check_budget(&team).await?;
        }
        Ok(self.inner.store.create_response(row).await?)
    }

    /// Replaces what may change of a response that is not over; false if it is.
    ///
    /// # Errors
    /// When it cannot be written.
    pub async fn update_response(&self, row: ResponseRow) -> Result<bool, Refusal> {
        Ok(self.inner.store.update_response(row).await?)
    }

    /// One response of the caller's team, whether or not it was to be stored.
    ///
    /// # Errors
    /// When there is none that the caller may see.
    pub async fn find_response(
        &self,
        caller: &Caller,
        id: &ResponseId,
    ) -> Result<ResponseRow, Refusal> {
        let found = self.inner.store.find_response(&caller.team.id, id).await?;
        found.ok_or_else(|| Refusal::not_found("response"))
    }

    /// The responses that are not over: at the start, those that a restart cut short.
    ///
    /// # Errors
    /// When they cannot be read.
    pub async fn open_responses(&self) -> Result<Vec<ResponseRow>, Refusal> {
        Ok(self.inner.store.open_responses().await?)
    }
}
