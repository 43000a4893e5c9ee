//! Runs in: server (no capabilities).
//!
//! When executions had credentials, written at most once a minute for each.

use std::{collections::HashMap, sync::Arc, time::Duration};

use cloche_model::{CredentialId, HeldCredential, Moment};
use cloche_store::Store;
use parking_lot::Mutex;

use crate::{clock, lifecycle::Lifecycle};

/// How exact the last use is.
const EXACTNESS: Duration = Duration::from_secs(60);
/// The most credentials whose last use is remembered; beyond it, all are forgotten.
const REMEMBERED: usize = 10_000;

pub(super) struct CredentialUses {
    store: Arc<dyn Store>,
    noted: Mutex<HashMap<CredentialId, Moment>>,
}

impl CredentialUses {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        Self { store, noted: Mutex::default() }
    }

    /// Notes that an execution has these credentials, off its path.
    pub(super) fn note(&self, held: &[HeldCredential], lifecycle: &Lifecycle) {
        let now = clock::now();
        let due = self.take_due(held, now);
        if due.is_empty() {
            return;
        }
        let store = Arc::clone(&self.store);
        lifecycle.spawn(async move {
            if let Err(error) = store.note_credential_use(due, now).await {
                tracing::warn!(%error, "the last use of a credential was not written");
            }
        });
    }

    fn take_due(&self, held: &[HeldCredential], now: Moment) -> Vec<CredentialId> {
        if held.is_empty() {
            return Vec::new();
        }
        let mut noted = self.noted.lock();
        if noted.len() >= REMEMBERED {
            noted.clear();
        }
        let is_due = |last: Option<&Moment>| {
            last.is_none_or(|last| last.saturating_add(EXACTNESS).0 <= now.0)
        };
        let due = held.iter().map(|held| held.id.clone());
        let due: Vec<_> = due.filter(|id| is_due(noted.get(id))).collect();
        noted.extend(due.iter().map(|id| (id.clone(), now)));
        due
    }
}
