//! Runs in: server (no capabilities).
//!
//! Connections and volumes, what may use them, and the bytes that executions read and wrote.

use async_trait::async_trait;
use cloche_model::{
    BindingUser, BoundStorage, KeyId, SandboxId, StorageBinding, StorageId, StorageSource, TeamId,
};

use crate::{Result, UsageFilter};

/// The outcome of an attempt to remove a connection or a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceRemoval {
    /// The row is gone.
    Done,
    /// These use it, as `sandbox NAME` or `key NAME`; nothing was removed.
    InUse(Vec<String>),
    /// There is no such row.
    Missing,
}

/// Bytes that executions read and wrote through one connection or volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageTraffic {
    /// The team.
    pub team: TeamId,
    /// The name of the connection or volume.
    pub name: String,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
}

/// Connections, volumes and bindings.
#[async_trait]
pub trait SourceStore: Send + Sync {
    /// Adds a connection or a volume. A conflict if the team has one of this name.
    async fn create_source(&self, source: &StorageSource) -> Result<()>;
    /// Those of a team, or of all teams, oldest first.
    async fn list_sources(&self, team: Option<&TeamId>) -> Result<Vec<StorageSource>>;
    /// One by its id.
    async fn find_source(&self, id: &StorageId) -> Result<Option<StorageSource>>;
    /// One of a team by its name.
    async fn find_source_by_name(&self, team: &TeamId, name: &str)
    -> Result<Option<StorageSource>>;
    /// Replaces its settings and credentials; false if there is none.
    async fn update_source(&self, source: &StorageSource) -> Result<bool>;
    /// Removes one that no sandbox and no valid key uses.
    async fn remove_source(&self, id: &StorageId) -> Result<SourceRemoval>;

    /// Adds or replaces a binding. A conflict if the two are not of one team, or one is gone.
    async fn bind_source(&self, binding: &StorageBinding) -> Result<()>;
    /// Removes a binding; false if there is none.
    async fn unbind_source(&self, id: &StorageId, user: &BindingUser) -> Result<bool>;
    /// The bindings of a connection or volume, with a name of each user for people.
    async fn list_bindings(&self, id: &StorageId) -> Result<Vec<(StorageBinding, String)>>;
    /// The names of what is bound to a sandbox, in their order.
    async fn sandbox_storage(&self, id: &SandboxId) -> Result<Vec<(String, bool)>>;
    /// What the executions of a key in a sandbox can use, by name.
    async fn bound_storage(&self, sandbox: &SandboxId, key: &KeyId) -> Result<Vec<BoundStorage>>;

    /// Bytes by team and name, in the days of the filter.
    async fn storage_traffic(&self, filter: &UsageFilter) -> Result<Vec<StorageTraffic>>;
}
