//! Runs in: server (no capabilities).
//!
//! The callers of requests, with the images of their sandboxes. Keys are looked up by digest and
//! remembered until anything changes.

use std::{
    collections::HashMap,
    sync::Arc,
    sync::atomic::{AtomicU64, Ordering},
};

use cloche_model::{ApiKey, ErrorCode};
use cloche_store::{KeyAccess, Store};
use parking_lot::RwLock;

use super::sandbox_image::find_root;
use crate::{Refusal, secrets};

/// The most keys that are remembered; beyond it, all are forgotten and looked up again.
const REMEMBERED: usize = 10_000;

/// A caller with a valid key: the key, its team and its sandbox.
pub type Caller = Arc<KeyAccess>;

/// The callers of the keys that were used lately.
#[derive(Default)]
pub(crate) struct KeyCache {
    known: RwLock<HashMap<String, Caller>>,
    /// Counts changes, so that a look-up that began before a change is not remembered after it.
    changes: AtomicU64,
}

impl KeyCache {
    pub(super) async fn find_caller(
        &self,
        store: &dyn Store,
        secret: &str,
    ) -> Result<Caller, Refusal> {
        let digest = secrets::digest_secret(secret);
        if let Some(caller) = self.known.read().get(&digest) {
            return Ok(Arc::clone(caller));
        }
        let before = self.changes.load(Ordering::SeqCst);
        let mut access = store.find_key_access(&digest).await?.ok_or_else(unauthorized_refusal)?;
        access.sandbox.shape.root = find_root(store, &access.sandbox.shape.image).await?;
        let caller = Arc::new(access);
        let mut known = self.known.write();
        if self.changes.load(Ordering::SeqCst) == before {
            if known.len() >= REMEMBERED {
                known.clear();
            }
            known.insert(digest, Arc::clone(&caller));
        }
        Ok(caller)
    }

    /// The caller of a key that a person uses from the console, without its secret. It is not remembered.
    pub(super) async fn caller_of_key(
        &self,
        store: &dyn Store,
        key: ApiKey,
    ) -> Result<Caller, Refusal> {
        let access = store.access_of_key(key).await?;
        let mut access = access.ok_or_else(|| Refusal::not_found("key"))?;
        access.sandbox.shape.root = find_root(store, &access.sandbox.shape.image).await?;
        access.by_person = true;
        Ok(Arc::new(access))
    }

    /// Forgets everything, because a key, a team, a sandbox or an image has changed.
    pub(crate) fn forget_all(&self) {
        let mut known = self.known.write();
        self.changes.fetch_add(1, Ordering::SeqCst);
        known.clear();
    }
}

pub(super) fn unauthorized_refusal() -> Refusal {
    Refusal::new(ErrorCode::Unauthorized, "missing, invalid or revoked API key")
}
