//! Runs in: server (no capabilities).
//!
//! Teams, sandboxes, keys, credentials, gate settings and the admin token. Everything is checked here, whatever
//! entry point asks.
//!
//! An update is compare-and-set: it is computed from a row and its revision, and computed again if
//! another writer came first. The updates of this process also take turns, so only other processes
//! on the same store can make one stale. Keys are cached until this process changes anything; another
//! process that changes a key is not seen by the cache.

mod bootstrap;
mod credentials;
mod env;
mod gate_settings;
mod key_cache;
mod keys;
mod sandbox_image;
mod sandbox_network;
mod sandboxes;
mod teams;

use std::sync::Arc;

use cloche_model::ErrorCode;
use cloche_store::Store;
use tokio::sync::Mutex;

use crate::{
    Dispatcher, EngineMetrics, Refusal, secrets, shared_parts::SharedParts, webhooks::WebhookSender,
};

use key_cache::unauthorized_refusal;

pub(crate) use key_cache::KeyCache;

pub use bootstrap::BootstrapFile;
pub use credentials::{BindingTarget, CredentialChange, CredentialDraft, CredentialSettings};
pub use env::EnvDraft;
pub use gate_settings::GateChange;
pub use key_cache::Caller;
pub use keys::{KeyChange, KeyDraft, NewKey};
pub use sandbox_network::NetworkChange;
pub use sandboxes::{ResourcesChange, RetentionChange, SandboxChange, SandboxDraft};
pub use teams::{TeamChange, TeamDraft};

/// The name of the setting that holds the digest of the admin token.
pub(crate) const ADMIN_TOKEN: &str = "admin_token_digest";
/// How often an update is computed before it is given up because other writers come first.
const UPDATE_ATTEMPTS: usize = 32;

/// Who may use the server, and how it is set up for them.
pub struct Tenancy {
    store: Arc<dyn Store>,
    key_cache: Arc<KeyCache>,
    /// Says which images and substrates can be used.
    dispatcher: Arc<dyn Dispatcher>,
    /// Checks the addresses of webhooks.
    webhooks: Arc<WebhookSender>,
    metrics: Arc<EngineMetrics>,
    /// Held while a row is read, changed and written.
    updating: Mutex<()>,
}

impl Tenancy {
    pub(crate) fn new(shared: &SharedParts) -> Self {
        Self {
            store: Arc::clone(&shared.store),
            key_cache: Arc::clone(&shared.key_cache),
            dispatcher: Arc::clone(&shared.dispatcher),
            webhooks: Arc::clone(&shared.webhooks),
            metrics: Arc::clone(&shared.metrics),
            updating: Mutex::default(),
        }
    }

    /// The caller that holds this API key.
    ///
    /// # Errors
    /// When the key is unknown or revoked.
    pub async fn find_caller(&self, secret: &str) -> Result<Caller, Refusal> {
        self.key_cache.find_caller(&*self.store, secret).await
    }

    /// Checks an admin token.
    ///
    /// # Errors
    /// When it is not the one.
    pub async fn check_admin_token(&self, token: &str) -> Result<(), Refusal> {
        let known = self.store.read_setting(ADMIN_TOKEN).await?;
        // Digests are compared, so the time this takes says nothing about the token.
        if known.is_some_and(|known| known == secrets::digest_secret(token)) {
            return Ok(());
        }
        Err(Refusal { message: "missing or invalid admin token".into(), ..unauthorized_refusal() })
    }
}

/// Refuses an update that other writers made stale every time.
fn contended_refusal(what: &str) -> Refusal {
    let message = format!("the {what} is being changed by others at the same time; try again");
    Refusal::new(ErrorCode::Conflict, message)
}
