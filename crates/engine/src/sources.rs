//! Runs in: server (no capabilities).
//!
//! Storage connections and volumes of teams, and what may use them. `storage` beside this module is
//! about budgets.
//!
//! Changes take turns in this process, which alone uses the store. A change is seen by the next
//! execution, because the remembered callers are forgotten.

mod bindings;
mod connection_check;
mod connections;
mod volume_files;
mod volumes;

use std::sync::Arc;

use cloche_model::{StorageSource, Team};
use cloche_mounts::VolumeStore;
use cloche_store::Store;
use tokio::sync::Mutex;

use crate::{Refusal, shared_parts::SharedParts, tenancy::KeyCache};

use bindings::in_use_refusal;
pub(crate) use bindings::{SandboxStorage, check_mount_substrate};

pub use bindings::NamedBinding;
pub use connection_check::{CheckStep, ConnectionCheck};
pub use connections::{ConnectionChange, ConnectionDraft};
pub use volume_files::{VolumeAccess, VolumeFile};
pub use volumes::VolumeState;

/// Connections, volumes and bindings.
pub struct StorageSources {
    store: Arc<dyn Store>,
    key_cache: Arc<KeyCache>,
    volumes: Arc<VolumeStore>,
    /// Held while a row is read, changed and written.
    updating: Mutex<()>,
}

impl StorageSources {
    pub(crate) fn new(shared: &SharedParts, volumes: Arc<VolumeStore>) -> Self {
        Self {
            store: Arc::clone(&shared.store),
            key_cache: Arc::clone(&shared.key_cache),
            volumes,
            updating: Mutex::default(),
        }
    }

    async fn find_team(&self, id_or_name: &str) -> Result<Team, Refusal> {
        let team = self.store.find_team(id_or_name).await?;
        team.ok_or_else(|| Refusal::not_found("team"))
    }

    /// The connections and volumes of a team (by id or name), or of all.
    ///
    /// # Errors
    /// When there is no such team.
    pub async fn list(&self, team: Option<&str>) -> Result<Vec<StorageSource>, Refusal> {
        let team = match team {
            Some(team) => Some(self.find_team(team).await?.id),
            None => None,
        };
        Ok(self.store.list_sources(team.as_ref()).await?)
    }

    /// A connection or volume by its id, or by its name in a team.
    ///
    /// # Errors
    /// When there is none.
    pub async fn find(&self, id_or_name: &str, team: &str) -> Result<StorageSource, Refusal> {
        // Names have no underscore and ids have one, so the two cannot be confused.
        let found = match id_or_name.parse() {
            Ok(id) => self.store.find_source(&id).await?,
            Err(_) => {
                let team = self.find_team(team).await?;
                self.store.find_source_by_name(&team.id, id_or_name).await?
            }
        };
        found.ok_or_else(|| Refusal::not_found("storage connection or volume"))
    }
}
