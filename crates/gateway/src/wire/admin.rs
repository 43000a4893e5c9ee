//! Teams, sandboxes and keys as operators write and read them.

use std::{collections::BTreeMap, time::Duration};

use cloche_engine::{
    KeyChange, KeyDraft, NewKey, SandboxChange, SandboxDraft, TeamChange, TeamDraft, rfc3339,
};
use cloche_model::{
    ApiKey, ByteSize, Cpus, Invalid, Plan, Resources, Retention, Sandbox, Secret, Team,
};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use super::execute::env_schema;

/// A field that is there, even if it is null; one that is not there is `None`.
#[expect(clippy::option_option, reason = "absent, null and a value are three different wishes")]
fn present<'de, T, D>(deserializer: D) -> Result<Option<Option<T>>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    Option::deserialize(deserializer).map(Some)
}

/// The plans.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PlanName {
    Free,
    Pro,
    Enterprise,
}

impl From<PlanName> for Plan {
    fn from(name: PlanName) -> Self {
        match name {
            PlanName::Free => Self::Free,
            PlanName::Pro => Self::Pro,
            PlanName::Enterprise => Self::Enterprise,
        }
    }
}

/// A team to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateTeam {
    /// Unique.
    #[schema(min_length = 1, max_length = 63, pattern = "^[a-z0-9][a-z0-9-]*$")]
    name: String,
    plan: PlanName,
    /// Instead of the plan's.
    #[schema(minimum = 0)]
    max_concurrency: Option<u32>,
    /// Instead of the plan's.
    #[schema(minimum = 1, maximum = 31_536_000)]
    max_timeout_seconds: Option<u32>,
}

impl From<CreateTeam> for TeamDraft {
    fn from(body: CreateTeam) -> Self {
        Self {
            max_concurrency: body.max_concurrency,
            max_timeout: body.max_timeout_seconds.map(seconds),
            ..Self::new(body.name, body.plan.into())
        }
    }
}

fn seconds(seconds: u32) -> Duration {
    Duration::from_secs(u64::from(seconds.max(1)))
}

/// What to change of a team; null clears a limit.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UpdateTeam {
    #[schema(min_length = 1, max_length = 63, pattern = "^[a-z0-9][a-z0-9-]*$")]
    name: Option<String>,
    plan: Option<PlanName>,
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<u32>, minimum = 0)]
    max_concurrency: Option<Option<u32>>,
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 31_536_000)]
    max_timeout_seconds: Option<Option<u32>>,
}

impl From<UpdateTeam> for TeamChange {
    fn from(body: UpdateTeam) -> Self {
        Self {
            name: body.name,
            plan: body.plan.map(Into::into),
            max_concurrency: body.max_concurrency,
            max_timeout: body.max_timeout_seconds.map(|limit| limit.map(seconds)),
        }
    }
}

/// A team.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TeamRecord {
    id: String,
    name: String,
    plan: String,
    max_concurrency: Option<u32>,
    max_timeout_seconds: Option<u64>,
    created_at: String,
}

impl From<Team> for TeamRecord {
    fn from(team: Team) -> Self {
        Self {
            id: team.id.into(),
            name: team.name,
            plan: team.plan.name().to_owned(),
            max_concurrency: team.max_concurrency,
            max_timeout_seconds: team.max_timeout.map(|limit| limit.as_secs()),
            created_at: rfc3339(team.created_at),
        }
    }
}

/// Every team.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TeamList {
    pub(crate) teams: Vec<TeamRecord>,
}

/// A body with the settings of a sandbox. Both have the same ones, and neither may flatten the
/// other: serde would then let unknown fields pass.
macro_rules! sandbox_body {
    ($(#[$doc:meta])* $name:ident { $($head:tt)* }) => {
        $(#[$doc])*
        #[derive(Debug, Deserialize, ToSchema)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct $name {
            $($head)*
            /// Only `host` in this build.
            #[schema(example = "host")]
            image: Option<String>,
            /// Only `blocked` in this build.
            #[schema(example = "blocked")]
            network: Option<String>,
            /// Cores.
            #[schema(minimum = 0.01, maximum = 4096)]
            cpu: Option<f64>,
            #[schema(minimum = 16, maximum = 1_048_576)]
            memory_mb: Option<u32>,
            #[schema(minimum = 1, maximum = 1_048_576)]
            disk_mb: Option<u32>,
            #[schema(minimum = 8, maximum = 4_194_304)]
            pids: Option<u32>,
            /// For every execution.
            #[schema(schema_with = env_schema)]
            env_vars: Option<BTreeMap<String, String>>,
            /// Python modules that are imported before the code comes.
            preload: Option<Vec<String>>,
            /// Whether interpreters may be forked from a shared template.
            template: Option<bool>,
            /// Storage connections; none can be given in this build.
            storage: Option<Vec<String>>,
            /// Whether the ledger keeps the code, or only its digest.
            retain_code: Option<bool>,
            /// Days until records are deleted; null for never.
            #[serde(default, deserialize_with = "present")]
            #[schema(value_type = Option<u32>, minimum = 1, maximum = 36_500)]
            retention_days: Option<Option<u32>>,
        }

        impl $name {
            /// The settings, given what the sandbox has now.
            fn settings(
                self,
                resources: Resources,
                retention: Retention,
            ) -> Result<SandboxChange, Invalid> {
                let mib = |mib: Option<u32>, now| mib.map_or(now, |mib| ByteSize::mib(mib.into()));
                Ok(SandboxChange {
                    name: None,
                    image: self.image,
                    network: self.network,
                    preload: self.preload,
                    template: self.template,
                    storage: self.storage,
                    env: self.env_vars,
                    resources: Some(Resources {
                        cpus: cpus(self.cpu)?.unwrap_or(resources.cpus),
                        memory: mib(self.memory_mb, resources.memory),
                        disk: mib(self.disk_mb, resources.disk),
                        pids: self.pids.unwrap_or(resources.pids),
                    }),
                    retention: Some(Retention {
                        code: self.retain_code.unwrap_or(retention.code),
                        days: self.retention_days.unwrap_or(retention.days),
                    }),
                })
            }
        }
    };
}

sandbox_body!(
    /// What to change of a sandbox; what is absent stays.
    UpdateSandbox {
        #[schema(min_length = 1, max_length = 63, pattern = "^[a-z0-9][a-z0-9-]*$")]
        name: Option<String>,
    }
);
sandbox_body!(
    /// A sandbox to be made; what is absent has its default.
    CreateSandbox {
        /// The id or name of its team.
        team: String,
        #[schema(min_length = 1, max_length = 63, pattern = "^[a-z0-9][a-z0-9-]*$")]
        name: String,
    }
);

impl UpdateSandbox {
    /// The change, given what the sandbox has now.
    pub(crate) fn change(
        mut self,
        resources: Resources,
        retention: Retention,
    ) -> Result<SandboxChange, Invalid> {
        let name = self.name.take();
        Ok(SandboxChange { name, ..self.settings(resources, retention)? })
    }
}

impl CreateSandbox {
    pub(crate) fn draft(self) -> Result<SandboxDraft, Invalid> {
        let draft = SandboxDraft::new(self.team.clone(), self.name.clone());
        let settings = self.settings(Resources::default(), Retention::default())?;
        Ok(SandboxDraft { settings, ..draft })
    }
}

fn cpus(cores: Option<f64>) -> Result<Option<Cpus>, Invalid> {
    let Some(cores) = cores else { return Ok(None) };
    let invalid = |_| Invalid::new("cpu must be between 0.01 and 4096 cores");
    cores.to_string().parse().map(Some).map_err(invalid)
}

/// A sandbox.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SandboxRecord {
    id: String,
    team_id: String,
    name: String,
    image: String,
    network: String,
    cpu: f64,
    memory_mb: u64,
    disk_mb: u64,
    pids: u32,
    env_vars: BTreeMap<String, String>,
    preload: Vec<String>,
    template: bool,
    storage: Vec<String>,
    retain_code: bool,
    retention_days: Option<u32>,
    created_at: String,
}

impl From<Sandbox> for SandboxRecord {
    fn from(sandbox: Sandbox) -> Self {
        let resources = sandbox.resources;
        Self {
            id: sandbox.id.into(),
            team_id: sandbox.team.into(),
            name: sandbox.name,
            image: sandbox.shape.image,
            network: match sandbox.shape.network {
                cloche_model::Network::Blocked => "blocked".to_owned(),
            },
            cpu: f64::from(resources.cpus.milli()) / 1000.0,
            memory_mb: resources.memory.bytes() >> 20,
            disk_mb: resources.disk.bytes() >> 20,
            pids: resources.pids,
            env_vars: sandbox.env,
            preload: sandbox.shape.preload,
            template: sandbox.shape.template,
            storage: Vec::new(),
            retain_code: sandbox.retention.code,
            retention_days: sandbox.retention.days,
            created_at: rfc3339(sandbox.created_at),
        }
    }
}

/// Sandboxes.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SandboxList {
    pub(crate) sandboxes: Vec<SandboxRecord>,
}

/// A key to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateKey {
    /// The id or name of its team.
    team: String,
    /// The id or name of its sandbox.
    sandbox: String,
    #[schema(min_length = 1, max_length = 63, pattern = "^[a-z0-9][a-z0-9-]*$")]
    name: String,
    /// For every execution.
    #[schema(schema_with = env_schema)]
    env_vars: Option<BTreeMap<String, String>>,
    /// Where results go by default. HTTPS only.
    #[schema(max_length = 2048)]
    webhook_url: Option<String>,
    /// What deliveries are signed with.
    #[schema(value_type = Option<String>, min_length = 1, max_length = 256)]
    webhook_secret: Option<Secret>,
}

impl From<CreateKey> for KeyDraft {
    fn from(body: CreateKey) -> Self {
        Self {
            env: body.env_vars.unwrap_or_default(),
            webhook_url: body.webhook_url,
            webhook_secret: body.webhook_secret,
            ..Self::new(body.team, body.sandbox, body.name)
        }
    }
}

/// What to change of a key; null clears the webhook.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UpdateKey {
    /// The id or name of its sandbox.
    sandbox: Option<String>,
    #[schema(min_length = 1, max_length = 63, pattern = "^[a-z0-9][a-z0-9-]*$")]
    name: Option<String>,
    #[schema(schema_with = env_schema)]
    env_vars: Option<BTreeMap<String, String>>,
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<String>, max_length = 2048)]
    webhook_url: Option<Option<String>>,
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<String>, min_length = 1, max_length = 256)]
    webhook_secret: Option<Option<Secret>>,
}

impl From<UpdateKey> for KeyChange {
    fn from(body: UpdateKey) -> Self {
        Self {
            name: body.name,
            sandbox: body.sandbox,
            env: body.env_vars,
            webhook_url: body.webhook_url,
            webhook_secret: body.webhook_secret,
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
    /// How the secret begins.
    prefix: String,
    env_vars: BTreeMap<String, String>,
    webhook_url: Option<String>,
    /// Whether deliveries are signed.
    webhook_signed: bool,
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
            env_vars: key.env,
            webhook_url: key.webhook_url,
            webhook_signed: key.webhook_secret.is_some(),
            created_at: rfc3339(key.created_at),
            revoked_at: key.revoked_at.map(rfc3339),
        }
    }
}

/// A key that was just made.
#[derive(Serialize, ToSchema)]
pub(crate) struct CreatedKey {
    /// The secret. It is shown this once.
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

/// Keys.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct KeyList {
    pub(crate) keys: Vec<KeyRecord>,
}
