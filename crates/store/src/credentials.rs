//! What the store keeps of credentials.

use async_trait::async_trait;
use cloche_model::{Credential, CredentialBinding, CredentialId, Moment, Secret, TeamId};

use crate::Result;

/// Credentials and their bindings. Values are sealed, and read only with the access of a key.
#[async_trait]
pub trait CredentialStore: Send + Sync {
    /// Adds a credential and its bindings. A conflict if the team has one of this name.
    async fn create_credential(&self, credential: &Credential, value: &Secret) -> Result<()>;
    /// The credentials of a team, or of all teams, by name.
    async fn list_credentials(&self, team: Option<&TeamId>) -> Result<Vec<Credential>>;
    /// One credential.
    async fn find_credential(&self, id: &CredentialId) -> Result<Option<Credential>>;
    /// Replaces what is done with a credential, and its value if there is one, but not its
    /// bindings. False if it does not exist.
    async fn update_credential(
        &self,
        credential: &Credential,
        value: Option<&Secret>,
    ) -> Result<bool>;
    /// Removes a credential with its bindings; false if it does not exist.
    async fn delete_credential(&self, id: &CredentialId) -> Result<bool>;
    /// Binds a credential; it may be bound there already.
    async fn bind_credential(&self, id: &CredentialId, to: &CredentialBinding) -> Result<()>;
    /// Removes a binding; false if it does not exist.
    async fn unbind_credential(&self, id: &CredentialId, from: &CredentialBinding) -> Result<bool>;
    /// Records that an execution had these credentials.
    async fn note_credential_use(&self, ids: Vec<CredentialId>, at: Moment) -> Result<()>;
}
