//! The settings of an operator: defaults, then a file, then the environment and flags; checked
//! once.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::Duration,
};

use cloche_agent::AgentConfig;
use cloche_engine::{EngineConfig, GateConfig, HomesConfig, RemoteConfig};
use cloche_executor::{ExecutorConfig, PoolSettings};
use cloche_gateway::{GatewayConfig, ServerOptions};
use cloche_layers::{Layers, LayersConfig};
use cloche_model::{ByteSize, InvalidUnit, Secret};
use cloche_store::KeySource;
use serde::Deserialize;

use crate::identity::{DataDirError, ServerNeeds, ServerUser, make_private};

use super::{
    ServeArguments,
    providers::{AgentFile, ProviderSettingsError},
};

mod capacity;
mod connections;
mod layers;
mod mcp;
mod memory;
mod secret_key;
mod storage;
mod webhook;

use capacity::CapacityFile;
pub(crate) use capacity::sidecar_capacity;
use connections::ConnectionsFile;
pub(super) use layers::LayersArguments;
use layers::LayersFile;
use mcp::McpFile;
use memory::MemoryFile;
pub(super) use secret_key::SecretKeyArguments;
use secret_key::choose_key_source;
pub(crate) use secret_key::from_environment as secret_key_from_environment;
use webhook::{MOST_ATTEMPTS, WebhookFile};

/// A setting that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SettingsError {
    #[error("cannot read the configuration file {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("the configuration file {path} is invalid")]
    Parse { path: PathBuf, source: Box<toml::de::Error> },
    #[error("{name} in the configuration")]
    Unit { name: &'static str, source: InvalidUnit },
    #[error("webhook.allow in the configuration: {0:?} is not a network such as 10.1.0.0/16")]
    Network(String),
    #[error(transparent)]
    Provider(#[from] ProviderSettingsError),
    #[error("threads.squash_depth in the configuration must be 2 or more")]
    SquashDepth,
    #[error("layers.endpoint, region, prefix or a key variable is set but layers.bucket is not")]
    Bucket,
    #[error("connections in the configuration: {0} is not a time from 0.05 to 3600 seconds")]
    Timeout(f64),
    #[error("webhook.schedule_seconds in the configuration: {0} is not a time from 0 to a day")]
    Schedule(f64),
    #[error("webhook.attempts in the configuration: {0} is not a number from 1 to {MOST_ATTEMPTS}")]
    Attempts(usize),
    #[error("webhook in the configuration: set attempts or schedule_seconds, not both")]
    TwoSchedules,
    #[error("capacity.{0} in the configuration: {1} is out of range")]
    Capacity(&'static str, f64),
}

/// The file as written. Unknown keys are errors.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct SettingsFile {
    listen: Option<String>,
    data_dir: Option<PathBuf>,
    secret_key_file: Option<PathBuf>,
    user: Option<String>,
    allow_missing: Vec<String>,
    grace_seconds: Option<u64>,
    output: Option<String>,
    pool: PoolFile,
    capacity: CapacityFile,
    webhook: WebhookFile,
    agent: AgentFile,
    remote: RemoteFile,
    gates: GateFile,
    threads: ThreadsFile,
    layers: LayersFile,
    storage: storage::StorageFile,
    mcp: McpFile,
    memory: MemoryFile,
    connections: ConnectionsFile,
}

/// Sidecars that run the code. Their key is not in the file but in the environment.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RemoteFile {
    urls: Vec<String>,
    timeout_seconds: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PoolFile {
    floor: Option<usize>,
    ceiling: Option<usize>,
    memory: Option<String>,
    template_forks: Option<u32>,
    template_age_seconds: Option<u64>,
    idle_seconds: Option<u64>,
}

/// The gates in front of agent tools. Settings of teams are not here.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct GateFile {
    approval_seconds: Option<u64>,
    pending_per_team: Option<u32>,
    waiting_per_team: Option<usize>,
    keep_days: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ThreadsFile {
    /// The maximum size of a home, whatever the plan allows.
    bytes: Option<String>,
    entries: Option<u64>,
    squash_depth: Option<usize>,
    url_seconds: Option<u64>,
    upload: Option<String>,
}

/// The resulting settings.
pub(crate) struct ServeSettings {
    pub(crate) listen: String,
    pub(crate) data_dir: PathBuf,
    /// The user that a server started as root becomes.
    pub(super) user: Option<String>,
    pub(super) allow_missing: Vec<String>,
    pool: PoolSettings,
    engine: EngineConfig,
    /// What seals the secrets in the database; if absent, `secret.key` in the data directory.
    pub(super) secret_key: Option<KeySource>,
    agent: AgentConfig,
    gateway: GatewayConfig,
    layers: LayersConfig,
    pub(super) runs_on: RunsOn,
}

/// Where code runs.
pub(crate) enum RunsOn {
    /// On an executor of this process.
    ThisHost,
    /// On sidecars.
    Sidecars(RemoteConfig),
    /// Nowhere: code execution is turned off.
    Nothing,
}

impl ServeSettings {
    pub(super) fn merge(arguments: ServeArguments) -> Result<Self, SettingsError> {
        let mut file =
            arguments.config.as_deref().map(read_settings_file).transpose()?.unwrap_or_default();
        file.grace_seconds = arguments.grace.or(file.grace_seconds);
        file.webhook.allow.extend(arguments.webhook_allow);
        file.webhook.extra_ca = arguments.webhook_ca.or(file.webhook.extra_ca);
        let urls = arguments.executor_url.into_iter().filter(|url| !url.trim().is_empty());
        let urls: Vec<_> = urls.collect();
        if !urls.is_empty() {
            file.remote.urls = urls;
        }
        file.remote.timeout_seconds = arguments.executor_timeout.or(file.remote.timeout_seconds);
        let mut allow_missing = file.allow_missing.clone();
        allow_missing.extend(arguments.allow_missing);
        let listen = arguments.listen.or_else(|| file.listen.clone());
        let data_dir = arguments.data_dir.or_else(|| file.data_dir.clone());
        let data_dir = absolute_path(data_dir.unwrap_or_else(|| "cloche-data".into()));
        file.webhook.extra_ca = file.webhook.extra_ca.map(absolute_path);
        let (pool, runs_on) =
            (pool_settings(&file.pool)?, runs_on(file.remote.clone(), arguments.no_local_executor));
        let mut engine = engine_config(&file)?;
        let parked = matches!(runs_on, RunsOn::ThisHost).then_some(pool.memory);
        engine.admission = file.capacity.to_admission_config(parked)?;
        Ok(Self {
            listen: listen.unwrap_or_else(|| "127.0.0.1:8080".to_owned()),
            allow_missing,
            pool,
            engine,
            secret_key: choose_key_source(arguments.secret_key, file.secret_key_file.clone()),
            gateway: gateway_config(&file)?,
            agent: read_agent_config(file.agent, file.grace_seconds)?,
            layers: layers::layers_config(file.layers, arguments.layers, &data_dir)?,
            data_dir,
            user: arguments.user.or(file.user),
            runs_on,
        })
    }

    /// Makes the data directory private, and creates the directory of unpacked layers in it. That
    /// directory must exist before the spawner starts, and must belong to the user that unpacks
    /// layers.
    pub(super) fn make_data_dir(&self, user: &ServerUser) -> Result<(), DataDirError> {
        make_private(&self.data_dir, user)?;
        let unpacked = self.layers_dir().join("cache");
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&unpacked);
        made.map_err(|source| DataDirError::Io { path: unpacked, source })?;
        make_private(&self.data_dir, user)
    }

    /// The files that the confined server uses.
    pub(super) fn server_needs(&self) -> ServerNeeds {
        ServerNeeds {
            data_dir: Some(self.data_dir.clone()),
            reads: self.engine.webhook.extra_ca.iter().cloned().collect(),
            runs_cells: matches!(self.runs_on, RunsOn::ThisHost),
        }
    }

    /// The executor's settings.
    pub(super) fn executor_config(&self, program: PathBuf) -> ExecutorConfig {
        let mut config = ExecutorConfig::with_program(program);
        config.unpacked_layers = Some(self.layers_dir().join("cache"));
        config.allow_missing.clone_from(&self.allow_missing);
        config.pool = Some(self.pool.clone());
        config
    }

    /// Limits the connections to what the limit of open files allows.
    pub(super) fn within_descriptors(mut self, limit: u64) -> Self {
        let connections = super::descriptors::connections_within(limit, self.gateway.connections);
        self.gateway.connections = connections;
        self.gateway.per_loopback = self.gateway.per_loopback.min(connections);
        self
    }

    /// The directory of packed and unpacked layers.
    pub(super) fn layers_dir(&self) -> PathBuf {
        self.data_dir.join("layers")
    }

    pub(super) fn agent_config(&self) -> AgentConfig {
        self.agent.clone()
    }

    /// The configuration of layers.
    pub(super) fn layers_config(&self) -> LayersConfig {
        self.layers.clone()
    }

    pub(super) fn engine_config(&self, layers: Layers) -> EngineConfig {
        let mut engine = self.engine.clone();
        engine.homes.layers = Some(layers);
        engine
    }

    pub(super) fn server_options(&self) -> ServerOptions {
        ServerOptions {
            data_dir: self.data_dir.clone(),
            listen: self.listen.clone(),
            gateway: self.gateway.clone(),
        }
    }
}

/// Makes a path absolute, because the server leaves its start directory.
fn absolute_path(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

fn runs_on(file: RemoteFile, no_local: bool) -> RunsOn {
    if file.urls.is_empty() {
        return if no_local { RunsOn::Nothing } else { RunsOn::ThisHost };
    }
    let key = std::env::var("SANDBOX_EXECUTOR_API_KEY").ok().filter(|key| !key.is_empty());
    let usual = RemoteConfig::default();
    RunsOn::Sidecars(RemoteConfig {
        urls: file.urls,
        key: key.map(Secret::new),
        timeout: file.timeout_seconds.map_or(usual.timeout, Duration::from_secs),
        ..usual
    })
}

fn read_settings_file(path: &Path) -> Result<SettingsFile, SettingsError> {
    let text = fs::read_to_string(path)
        .map_err(|source| SettingsError::Read { path: path.to_owned(), source })?;
    toml::from_str(&text)
        .map_err(|source| SettingsError::Parse { path: path.to_owned(), source: Box::new(source) })
}

fn parse_size(
    name: &'static str,
    text: &Option<String>,
) -> Result<Option<ByteSize>, SettingsError> {
    let parsed = text.as_ref().map(|text| text.parse()).transpose();
    parsed.map_err(|source| SettingsError::Unit { name, source })
}

fn pool_settings(file: &PoolFile) -> Result<PoolSettings, SettingsError> {
    let usual = PoolSettings::default();
    let seconds = |value: Option<u64>, usual| value.map_or(usual, Duration::from_secs);
    Ok(PoolSettings {
        floor: file.floor.unwrap_or(usual.floor),
        ceiling: file.ceiling.unwrap_or(usual.ceiling),
        memory: parse_size("pool.memory", &file.memory)?.unwrap_or(usual.memory),
        template_forks: file.template_forks.unwrap_or(usual.template_forks),
        template_age: seconds(file.template_age_seconds, usual.template_age),
        idle: seconds(file.idle_seconds, usual.idle),
    })
}

fn gateway_config(file: &SettingsFile) -> Result<GatewayConfig, SettingsError> {
    let gateway = GatewayConfig { mcp: file.mcp.to_config()?, ..GatewayConfig::default() };
    let gateway = file.connections.apply(gateway)?;
    Ok(GatewayConfig { body: file.memory.largest_body(gateway.body)?, ..gateway })
}

fn engine_config(file: &SettingsFile) -> Result<EngineConfig, SettingsError> {
    let mut engine = EngineConfig::default();
    engine.output = parse_size("output", &file.output)?.unwrap_or(engine.output);
    engine.grace = file.grace_seconds.map_or(engine.grace, Duration::from_secs);
    engine.webhook = file.webhook.to_config()?;
    engine.memory = file.memory.to_config()?;
    engine.gates = gate_config(&file.gates);
    engine.homes = homes_config(&file.threads)?;
    engine.storage = storage::storage_config(&file.storage)?;
    Ok(engine)
}

fn read_agent_config(file: AgentFile, grace: Option<u64>) -> Result<AgentConfig, SettingsError> {
    let mut agent = file.into_config(|name| std::env::var(name).ok())?;
    // Responses do not outlive the grace period of their executions.
    let grace = grace.map_or(agent.linger, Duration::from_secs);
    agent.linger = agent.linger.min(grace);
    Ok(agent)
}

fn gate_config(file: &GateFile) -> GateConfig {
    let usual = GateConfig::default();
    let days = |days| Duration::from_hours(24 * u64::from(days));
    GateConfig {
        lifetime: file.approval_seconds.map_or(usual.lifetime, Duration::from_secs),
        pending: file.pending_per_team.unwrap_or(usual.pending),
        waiting: file.waiting_per_team.unwrap_or(usual.waiting),
        keep: file.keep_days.map_or(usual.keep, days),
    }
}

fn homes_config(file: &ThreadsFile) -> Result<HomesConfig, SettingsError> {
    let mut homes = HomesConfig::default();
    homes.cap.bytes = parse_size("threads.bytes", &file.bytes)?.unwrap_or(homes.cap.bytes);
    homes.cap.inodes = file.entries.unwrap_or(homes.cap.inodes);
    homes.upload = parse_size("threads.upload", &file.upload)?.unwrap_or(homes.upload);
    homes.url_expiry = file.url_seconds.map_or(homes.url_expiry, Duration::from_secs);
    homes.squash_depth = file.squash_depth.unwrap_or(homes.squash_depth);
    if homes.squash_depth < 2 {
        return Err(SettingsError::SquashDepth);
    }
    Ok(homes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_key_is_an_error() {
        let error = toml::from_str::<SettingsFile>("listne = \"127.0.0.1:1\"").unwrap_err();
        assert!(error.to_string().contains("listne"), "{error}");
    }

    #[test]
    fn the_settings_file_is_read_from_toml() {
        let text = "grace_seconds = 5\n[pool]\nfloor = 1\nmemory = \"64M\"\n[webhook]\nallow = [\"127.0.0.0/8\"]\n\
            [gates]\napproval_seconds = 60\n";
        let file: SettingsFile = toml::from_str(text).unwrap();
        assert_eq!(pool_settings(&file.pool).unwrap().memory, ByteSize::mib(64));
        assert_eq!(engine_config(&file).unwrap().grace, Duration::from_secs(5));
        assert_eq!(engine_config(&file).unwrap().gates.lifetime, Duration::from_mins(1));
    }
}
