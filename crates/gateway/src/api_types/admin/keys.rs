//! The wire format of keys.

use std::collections::BTreeMap;

use cloche_engine::{KeyChange, KeyDraft, NewKey, format_rfc3339};
use cloche_model::{ApiKey, Secret, env::show_level};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    super::execute::webhook_url_schema,
    env::{EnvBody, draft, env_body_schema},
    present,
};

/// A request to create a key.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateKey {
    /// The id or name of its team.
    team: String,
    /// The id or name of its sandbox.
    sandbox: String,
    #[schema(min_length = 1, max_length = 63, pattern = "^[a-z0-9][a-z0-9-]*$")]
    name: String,
    /// Environment variables for every execution.
    #[schema(schema_with = env_body_schema)]
    env_vars: Option<EnvBody>,
    /// The default URL for results. HTTPS only.
    #[schema(schema_with = webhook_url_schema)]
    webhook_url: Option<String>,
    /// The secret that signs deliveries.
    #[schema(value_type = Option<String>, min_length = 1, max_length = 256)]
    webhook_secret: Option<Secret>,
    /// Whether its holder may answer approvals that other keys of the team request.
    may_approve: Option<bool>,
}

impl From<CreateKey> for KeyDraft {
    fn from(body: CreateKey) -> Self {
        Self {
            env: draft(body.env_vars.unwrap_or_default()),
            webhook_url: body.webhook_url,
            webhook_secret: body.webhook_secret,
            may_approve: body.may_approve.unwrap_or(false),
            ..Self::new(body.team, body.sandbox, body.name)
        }
    }
}

/// A new admin token. It is not shown again.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct NewAdminToken {
    /// The token.
    admin_token: String,
}

impl NewAdminToken {
    pub(crate) fn new(token: &Secret) -> Self {
        Self { admin_token: token.reveal().to_owned() }
    }
}

/// Changes to a key; null clears the webhook.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UpdateKey {
    /// The id or name of its sandbox.
    sandbox: Option<String>,
    #[schema(min_length = 1, max_length = 63, pattern = "^[a-z0-9][a-z0-9-]*$")]
    name: Option<String>,
    #[schema(schema_with = env_body_schema)]
    env_vars: Option<EnvBody>,
    #[serde(default, deserialize_with = "present")]
    #[schema(schema_with = webhook_url_schema)]
    webhook_url: Option<Option<String>>,
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<String>, min_length = 1, max_length = 256)]
    webhook_secret: Option<Option<Secret>>,
    /// Whether its holder may answer approvals that other keys of the team request.
    may_approve: Option<bool>,
}

impl From<UpdateKey> for KeyChange {
    fn from(body: UpdateKey) -> Self {
        Self {
            name: body.name,
            sandbox: body.sandbox,
            env: body.env_vars.map(draft),
            webhook_url: body.webhook_url,
            webhook_secret: body.webhook_secret,
            may_approve: body.may_approve,
        }
    }
}

/// A key, without its secret.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct KeyRecord {
    id: String,
    team_id: String,
    sandbox_id: String,
    name: String,
    /// The first characters of the secret.
    prefix: String,
    /// Environment variables; secret values are shown as stars.
    env_vars: BTreeMap<String, String>,
    /// The names of the secret variables.
    secret_env_vars: Vec<String>,
    webhook_url: Option<String>,
    /// Whether deliveries are signed.
    webhook_signed: bool,
    /// Whether its holder may answer approvals that other keys of the team request.
    may_approve: bool,
    created_at: String,
    revoked_at: Option<String>,
}

impl From<ApiKey> for KeyRecord {
    fn from(key: ApiKey) -> Self {
        Self {
            id: key.id.into(),
            team_id: key.team.into(),
            sandbox_id: key.sandbox.into(),
            name: key.name,
            prefix: key.prefix,
            secret_env_vars: key.secret_env.keys().cloned().collect(),
            env_vars: show_level(key.env, &key.secret_env),
            webhook_url: key.webhook_url,
            webhook_signed: key.webhook_secret.is_some(),
            may_approve: key.may_approve,
            created_at: format_rfc3339(key.created_at),
            revoked_at: key.revoked_at.map(format_rfc3339),
        }
    }
}

/// A key that was just created.
#[derive(Serialize, ToSchema)]
pub(crate) struct CreatedKey {
    /// The secret. It is shown only this once.
    #[schema(example = "sk-us-…")]
    key: String,
    #[serde(flatten)]
    record: KeyRecord,
}

impl From<NewKey> for CreatedKey {
    fn from(made: NewKey) -> Self {
        Self { key: made.secret.reveal().to_owned(), record: made.key.into() }
    }
}

/// A list of keys.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct KeyList {
    pub(crate) keys: Vec<KeyRecord>,
}
