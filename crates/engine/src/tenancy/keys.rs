//! Runs in: server (no capabilities).
//!
//! API keys: created, shown once, changed, revoked at once.

use cloche_model::{ApiKey, Invalid, KeyId, Sandbox, Secret, SecretVars, Team, TeamId, check_name};
use cloche_store::{Revisioned, UpdateOutcome};

use super::{EnvDraft, Tenancy, UPDATE_ATTEMPTS, contended_refusal};
use crate::{
    Caller, Refusal, clock,
    secrets::{self, KEY_PREFIX},
};

/// The most characters of a webhook secret.
const MAX_SECRET_CHARS: usize = 256;

/// The name of the keys by which the console runs code.
const CONSOLE_KEY: &str = "console";

/// A key to be made.
#[derive(Clone, Debug)]
pub struct KeyDraft {
    /// The id or name of its team.
    pub team: String,
    /// The id or name of its sandbox, which must be the team's.
    pub sandbox: String,
    /// The name people use.
    pub name: String,
    /// Environment variables of every run.
    pub env: EnvDraft,
    /// Where results go by default.
    pub webhook_url: Option<String>,
    /// What deliveries are signed with.
    pub webhook_secret: Option<Secret>,
    /// Whether its holder may answer when other keys of the team ask for an approval.
    pub may_approve: bool,
}

impl KeyDraft {
    /// Without environment and webhook.
    pub fn new(
        team: impl Into<String>,
        sandbox: impl Into<String>,
        name: impl Into<String>,
    ) -> Self {
        Self {
            team: team.into(),
            sandbox: sandbox.into(),
            name: name.into(),
            env: EnvDraft::default(),
            webhook_url: None,
            webhook_secret: None,
            may_approve: false,
        }
    }
}

/// What to change of a key; `None` leaves it, `Some(None)` clears it.
#[derive(Clone, Debug, Default)]
pub struct KeyChange {
    /// The name.
    pub name: Option<String>,
    /// The sandbox, by id or name.
    pub sandbox: Option<String>,
    /// Environment variables.
    pub env: Option<EnvDraft>,
    /// The default webhook.
    pub webhook_url: Option<Option<String>>,
    /// The secret that signs.
    pub webhook_secret: Option<Option<Secret>>,
    /// Whether its holder may answer when other keys ask.
    pub may_approve: Option<bool>,
}

/// A key that was just made, with its secret, which is never seen again.
#[derive(Debug)]
pub struct NewKey {
    /// The key.
    pub key: ApiKey,
    /// The secret.
    pub secret: Secret,
}

/// Checks all but the webhook's URL, whose host has to be looked up.
fn check_key(key: &ApiKey) -> Result<(), Invalid> {
    check_name("name", &key.name)?;
    let length = key.webhook_secret.as_ref().map_or(1, |secret| secret.reveal().chars().count());
    if length == 0 || length > MAX_SECRET_CHARS {
        return Err(Invalid::new(format!(
            "webhook_secret must be 1 to {MAX_SECRET_CHARS} characters, got {length}"
        )));
    }
    Ok(())
}

impl Tenancy {
    /// Makes a key.
    ///
    /// # Errors
    /// When a field breaks a rule, or team and sandbox do not belong together.
    pub async fn create_key(&self, draft: KeyDraft) -> Result<NewKey, Refusal> {
        let team = self.find_team(&draft.team).await?;
        let sandbox = self.sandbox_of(&team, &draft.sandbox).await?;
        let secret = secrets::generate_secret(KEY_PREFIX)?;
        let (env, secret_env) = draft.env.into_vars(&SecretVars::new())?;
        let key = ApiKey {
            id: KeyId::from_random(secrets::random_bytes()?),
            team: team.id,
            sandbox: sandbox.id,
            name: draft.name,
            prefix: secrets::visible_prefix(&secret),
            env,
            secret_env,
            webhook_url: draft.webhook_url,
            webhook_secret: draft.webhook_secret,
            may_approve: draft.may_approve,
            created_at: clock::now(),
            revoked_at: None,
        };
        check_key(&key)?;
        if let Some(url) = &key.webhook_url {
            self.webhooks.check_url("webhook_url", url).await?;
        }
        self.store.create_key(&key, &secrets::digest_secret(secret.reveal())).await?;
        Ok(NewKey { key, secret })
    }

    pub(super) async fn sandbox_of(
        &self,
        team: &Team,
        id_or_name: &str,
    ) -> Result<Sandbox, Refusal> {
        let sandboxes = self.store.list_sandboxes(Some(&team.id)).await?;
        sandboxes
            .into_iter()
            .find(|sandbox| sandbox.id.as_str() == id_or_name || sandbox.name == id_or_name)
            .ok_or_else(|| Refusal::not_found("sandbox"))
    }

    /// The keys of a team (by id or name), or of all.
    ///
    /// # Errors
    /// When there is no such team.
    pub async fn list_keys(&self, team: Option<&str>) -> Result<Vec<ApiKey>, Refusal> {
        let team = match team {
            Some(team) => Some(self.find_team(team).await?.id),
            None => None,
        };
        Ok(self.store.list_keys(team.as_ref()).await?)
    }

    /// One key.
    ///
    /// # Errors
    /// When there is none.
    pub async fn find_key(&self, id: &str) -> Result<ApiKey, Refusal> {
        let missing = || Refusal::not_found("key");
        let id = id.parse().map_err(|_| missing())?;
        self.store.find_key(&id).await?.ok_or_else(missing)
    }

    /// Changes a key; the next request sees it.
    ///
    /// # Errors
    /// When there is none, or a field breaks a rule.
    pub async fn update_key(&self, id: &str, change: KeyChange) -> Result<ApiKey, Refusal> {
        // The host of a webhook is looked up before the lock is taken: a resolver can be slow.
        if let Some(Some(url)) = &change.webhook_url {
            self.webhooks.check_url("webhook_url", url).await?;
        }
        let missing = || Refusal::not_found("key");
        let id = id.parse().map_err(|_| missing())?;
        let _turn = self.updating.lock().await;
        for _ in 0..UPDATE_ATTEMPTS {
            let read = self.store.key_for_update(&id).await?;
            let Revisioned { row: key, revision } = read.ok_or_else(missing)?;
            let update =
                Revisioned { row: self.apply_change(key, change.clone()).await?, revision };
            let outcome = self.store.update_key(&update).await?;
            self.key_cache.forget_all();
            match outcome {
                UpdateOutcome::Done => return Ok(update.row),
                UpdateOutcome::Stale => {}
                UpdateOutcome::Missing => return Err(missing()),
            }
        }
        Err(contended_refusal("key"))
    }

    /// Applies a change to a key and checks the whole.
    async fn apply_change(&self, mut key: ApiKey, change: KeyChange) -> Result<ApiKey, Refusal> {
        if let Some(sandbox) = change.sandbox {
            let team = self.find_team(key.team.as_str()).await?;
            key.sandbox = self.sandbox_of(&team, &sandbox).await?.id;
        }
        key.name = change.name.unwrap_or(key.name);
        if let Some(env) = change.env {
            (key.env, key.secret_env) = env.into_vars(&key.secret_env)?;
        }
        key.webhook_url = change.webhook_url.unwrap_or(key.webhook_url);
        key.webhook_secret = change.webhook_secret.unwrap_or(key.webhook_secret);
        key.may_approve = change.may_approve.unwrap_or(key.may_approve);
        check_key(&key)?;
        Ok(key)
    }

    /// The caller that uses this key without its secret, for someone who is signed in.
    ///
    /// # Errors
    /// When there is none, it is revoked, or it belongs to another team than this one.
    pub async fn key_caller(&self, team: Option<&TeamId>, id: &str) -> Result<Caller, Refusal> {
        let key = self.find_key(id).await?;
        let is_usable = key.revoked_at.is_none() && team.is_none_or(|team| *team == key.team);
        if !is_usable {
            return Err(Refusal::not_found("key"));
        }
        self.key_cache.caller_of_key(&*self.store, key).await
    }

    /// The caller that runs code in a sandbox from the console. The key of its executions is made
    /// at the first use, and can be seen and revoked like every other; nobody has its secret.
    ///
    /// # Errors
    /// When there is no such sandbox, or it belongs to another team than this one.
    pub async fn console_caller(&self, team: Option<&TeamId>, id: &str) -> Result<Caller, Refusal> {
        let sandbox = self.find_sandbox(id).await?;
        if team.is_some_and(|team| *team != sandbox.team) {
            return Err(Refusal::not_found("sandbox"));
        }
        let _turn = self.updating.lock().await;
        let keys = self.store.list_keys(Some(&sandbox.team)).await?;
        let made = keys.into_iter().find(|key| {
            key.name == CONSOLE_KEY && key.sandbox == sandbox.id && key.revoked_at.is_none()
        });
        let key = match made {
            Some(key) => key,
            None => {
                let draft = KeyDraft::new(sandbox.team.as_str(), sandbox.id.as_str(), CONSOLE_KEY);
                self.create_key(draft).await?.key
            }
        };
        self.key_cache.caller_of_key(&*self.store, key).await
    }

    /// Revokes a key: the next request with it is refused.
    ///
    /// # Errors
    /// When there is none.
    pub async fn revoke_key(&self, id: &str) -> Result<ApiKey, Refusal> {
        let key = self.find_key(id).await?;
        self.store.revoke_key(&key.id, clock::now()).await?;
        self.key_cache.forget_all();
        self.find_key(id).await
    }
}
