//! Sessions of older protocol versions, separate for each key. A session id of another key is
//! unknown.

use std::{collections::HashMap, sync::Arc};

use cloche_model::{ErrorCode, KeyId};
use parking_lot::Mutex;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use tokio_util::sync::CancellationToken;

use crate::error::ApiError;

/// The limit on sessions of a key. Idle sessions end after five minutes.
const MOST: usize = 256;

/// The sessions of every key.
#[derive(Clone, Default)]
pub(crate) struct McpSessions {
    by_key: Arc<Mutex<HashMap<KeyId, Arc<LocalSessionManager>>>>,
    /// Cancelling this ends every open stream.
    pub(crate) closing: CancellationToken,
}

impl McpSessions {
    pub(crate) fn new(closing: CancellationToken) -> Self {
        Self { closing, ..Self::default() }
    }

    /// The sessions of one key.
    pub(super) fn manager_for_key(&self, key: &KeyId) -> Arc<LocalSessionManager> {
        Arc::clone(self.by_key.lock().entry(key.clone()).or_default())
    }

    /// Like [`Self::manager_for_key`], and refuses if the key's limit on sessions is reached.
    pub(super) async fn manager_with_room(
        &self,
        key: &KeyId,
    ) -> Result<Arc<LocalSessionManager>, ApiError> {
        self.forget_idle(key);
        let own = self.manager_for_key(key);
        if own.sessions.read().await.len() >= MOST {
            let message = format!("this key has {MOST} MCP sessions; end one, or wait");
            return Err(cloche_engine::Refusal::new(ErrorCode::RateLimited, message).into());
        }
        Ok(own)
    }

    /// Removes managers of keys without sessions and without requests in flight.
    fn forget_idle(&self, key: &KeyId) {
        self.by_key.lock().retain(|other, manager| {
            let idle = || manager.sessions.try_read().is_ok_and(|sessions| sessions.is_empty());
            other == key || Arc::strong_count(manager) > 1 || !idle()
        });
    }
}
