//! The wire format of sandboxes.

use std::collections::BTreeMap;

use cloche_engine::{
    NetworkChange, ResourcesChange, RetentionChange, SandboxChange, SandboxDraft, format_rfc3339,
};
use cloche_model::{ByteSize, CpuShare, Invalid, Sandbox, env::show_level};
use serde::{Deserialize, Serialize};
use utoipa::{
    ToSchema,
    openapi::schema::{ArrayBuilder, ObjectBuilder, Schema, SchemaType, Type},
};

use super::{
    super::{
        network::{NetworkLimitsBody, NetworkLimitsRecord, network_allow_schema},
        number::{whole, whole_or_null},
    },
    env::{EnvBody, draft, env_body_schema},
};

/// Defines a body with the settings of a sandbox. Both bodies have the same settings. Flattening
/// one into the other would make serde accept unknown fields.
macro_rules! sandbox_body {
    ($(#[$doc:meta])* $name:ident { $($head:tt)* }) => {
        $(#[$doc])*
        #[derive(Debug, Deserialize, ToSchema)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct $name {
            $($head)*
            /// `host`, or the name or digest of an image that was pulled or imported. A name is
            /// resolved to the digest that it has now.
            #[schema(example = "host", max_length = 255, pattern = "^([a-z0-9]+([.-][a-z0-9]+)*\
(:[1-9][0-9]{0,3})?/)?[a-z0-9]+([._-][a-z0-9]+)*(/[a-z0-9]+([._-][a-z0-9]+)*)*\
(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?$")]
            image: Option<String>,
            /// What programs can reach beyond their own loopback: nothing, the public internet,
            /// or what `network_allow` names of it.
            #[schema(example = "blocked", pattern = "^(blocked|unrestricted|allowlist)$")]
            network: Option<String>,
            /// The rules of an allowlist; they replace those that it has. A host name without a
            /// port means 80 and 443.
            #[schema(schema_with = network_allow_schema)]
            network_allow: Option<Vec<String>>,
            /// Replaces all limits of the network.
            network_limits: Option<NetworkLimitsBody>,
            /// The number of cores.
            #[schema(minimum = 0.01, maximum = 4096)]
            cpu: Option<f64>,
            #[serde(default, deserialize_with = "whole")]
            #[schema(minimum = 16, maximum = 1_048_576)]
            memory_mb: Option<u32>,
            #[serde(default, deserialize_with = "whole")]
            #[schema(minimum = 1, maximum = 1_048_576)]
            disk_mb: Option<u32>,
            #[serde(default, deserialize_with = "whole")]
            #[schema(minimum = 8, maximum = 4_194_304)]
            pids: Option<u32>,
            /// Environment variables for every execution.
            #[schema(schema_with = env_body_schema)]
            env_vars: Option<EnvBody>,
            /// Python modules that are imported before the code arrives.
            #[schema(schema_with = preload_schema)]
            preload: Option<Vec<String>>,
            /// Whether interpreters may be forked from a shared template.
            template: Option<bool>,
            /// `strict` is for hostile tenants: no template, no network sockets, fewer system
            /// calls.
            #[schema(example = "standard", pattern = "^(standard|strict)$")]
            profile: Option<String>,
            /// Storage connections; must be empty in this build.
            #[schema(max_items = 0)]
            storage: Option<Vec<String>>,
            /// Whether the ledger keeps the code, or only its digest.
            retain_code: Option<bool>,
            /// Days until records are deleted; null for never.
            #[serde(default, deserialize_with = "whole_or_null")]
            #[schema(value_type = Option<u32>, minimum = 1, maximum = 36_500)]
            retention_days: Option<Option<u32>>,
        }

        impl $name {
            /// The settings; absent ones are left unchanged.
            fn settings(self) -> Result<SandboxChange, Invalid> {
                let mib = |mib: u32| ByteSize::mib(mib.into());
                Ok(SandboxChange {
                    name: None,
                    image: self.image,
                    network: NetworkChange {
                        policy: self.network,
                        allow: self.network_allow,
                        limits: self.network_limits.map(Into::into),
                    },
                    preload: self.preload,
                    template: self.template,
                    profile: self.profile,
                    storage: self.storage,
                    env: self.env_vars.map(draft),
                    resources: ResourcesChange {
                        cpus: cpus(self.cpu)?,
                        memory: self.memory_mb.map(mib),
                        disk: self.disk_mb.map(mib),
                        pids: self.pids,
                    },
                    retention: RetentionChange {
                        code: self.retain_code,
                        days: self.retention_days,
                    },
                })
            }
        }
    };
}

sandbox_body!(
    /// Changes to a sandbox; absent fields are left unchanged.
    UpdateSandbox {
        #[schema(min_length = 1, max_length = 63, pattern = "^[a-z0-9][a-z0-9-]*$")]
        name: Option<String>,
    }
);
sandbox_body!(
    /// A request to create a sandbox; absent fields get their defaults.
    CreateSandbox {
        /// The id or name of its team.
        team: String,
        #[schema(min_length = 1, max_length = 63, pattern = "^[a-z0-9][a-z0-9-]*$")]
        name: String,
    }
);

impl UpdateSandbox {
    pub(crate) fn into_change(mut self) -> Result<SandboxChange, Invalid> {
        let name = self.name.take();
        Ok(SandboxChange { name, ..self.settings()? })
    }
}

impl CreateSandbox {
    pub(crate) fn into_draft(self) -> Result<SandboxDraft, Invalid> {
        let draft = SandboxDraft::new(self.team.clone(), self.name.clone());
        let settings = self.settings()?;
        Ok(SandboxDraft { settings, ..draft })
    }
}

fn preload_schema() -> Schema {
    let module = ObjectBuilder::new()
        .schema_type(Type::String)
        .max_length(Some(128))
        .pattern(Some("^[A-Za-z_][A-Za-z0-9_]*(\\.[A-Za-z_][A-Za-z0-9_]*)*$"));
    let mut array = ArrayBuilder::new().items(module).max_items(Some(50)).build();
    array.schema_type = SchemaType::from_iter([Type::Array, Type::Null]);
    Schema::Array(array)
}

fn cpus(cores: Option<f64>) -> Result<Option<CpuShare>, Invalid> {
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
    network_allow: Vec<String>,
    network_limits: NetworkLimitsRecord,
    cpu: f64,
    memory_mb: u64,
    disk_mb: u64,
    pids: u32,
    /// Environment variables; secret values are shown as stars.
    env_vars: BTreeMap<String, String>,
    /// The names of the secret variables.
    secret_env_vars: Vec<String>,
    preload: Vec<String>,
    template: bool,
    profile: String,
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
            network: sandbox.shape.network.name().to_owned(),
            network_allow: sandbox.shape.network.rules().iter().map(ToString::to_string).collect(),
            network_limits: sandbox.shape.network_limits.into(),
            cpu: f64::from(resources.cpus.millicores()) / 1000.0,
            memory_mb: resources.memory.bytes() >> 20,
            disk_mb: resources.disk.bytes() >> 20,
            pids: resources.pids,
            secret_env_vars: sandbox.secret_env.keys().cloned().collect(),
            env_vars: show_level(sandbox.env, &sandbox.secret_env),
            preload: sandbox.shape.preload,
            template: sandbox.shape.template,
            profile: sandbox.shape.profile.name().to_owned(),
            storage: Vec::new(),
            retain_code: sandbox.retention.code,
            retention_days: sandbox.retention.days,
            created_at: format_rfc3339(sandbox.created_at),
        }
    }
}

/// A list of sandboxes.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SandboxList {
    pub(crate) sandboxes: Vec<SandboxRecord>,
}
