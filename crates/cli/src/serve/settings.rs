//! The settings of an operator: defaults, then a file, then the environment and flags; checked
//! once.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use cloche_agent::AgentConfig;
use cloche_egress::EgressSettings;
use cloche_engine::EngineConfig;
use cloche_executor::{ExecutorConfig, MountStorageConfig, PoolSettings};
use cloche_gateway::{GatewayConfig, ServerOptions, TlsIdentity};
use cloche_layers::{Layers, LayersConfig};
use cloche_mounts::VolumeStore;
use cloche_store::KeySource;
use schemars::{JsonSchema, Schema, generate::SchemaSettings};
use serde::Deserialize;

use crate::identity::{DataDirError, ServerNeeds, ServerUser, make_private, make_shared_store};

use super::{
    ServeArguments,
    providers::{AgentFile, read_agent_config},
    trace_export::collector_ca,
};

mod capacity;
mod connections;
mod console;
mod error;
mod gates;
mod layers;
mod log;
mod mcp;
mod memory;
mod metrics;
mod plans;
mod pool;
mod remote;
mod secret_key;
mod storage;
mod threads;
mod tls;
mod tools;
mod units;
mod webhook;

use capacity::CapacityFile;
pub(crate) use capacity::sidecar_capacity;
use connections::ConnectionsFile;
use console::ConsoleSection;
pub(crate) use error::SettingsError;
use gates::{GateFile, gate_config};
pub(crate) use layers::{LayersArguments, LayersFile, absolute_path, layers_config};
pub(super) use log::{LogArguments, LogFormat, LogSettings};
use log::{LogFile, log_settings};
use mcp::McpFile;
use memory::MemoryFile;
use metrics::MetricsFile;
use plans::PlansFile;
use pool::{PoolFile, pool_settings};
pub(super) use remote::RunsOn;
use remote::{RemoteFile, runs_on};
pub(super) use secret_key::SecretKeyArguments;
use secret_key::choose_key_source;
pub(crate) use secret_key::from_environment as secret_key_from_environment;
use threads::{ThreadsFile, homes_config};
use tls::TlsFile;
pub(super) use tls::{TlsArguments, TlsPaths};
use tools::ToolsFile;
use units::parse_size;
use webhook::WebhookFile;

/// The file as written. Unknown keys are errors.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct SettingsFile {
    /// The address to listen on.
    #[schemars(extend("default" = "127.0.0.1:8080", "x-argument" = "listen"))]
    listen: Option<String>,
    /// The directory for all data.
    #[schemars(extend("default" = "cloche-data", "x-argument" = "data_dir"))]
    data_dir: Option<PathBuf>,
    /// The file with the key that seals secrets in the database. It is created at the first start.
    #[schemars(extend("x-default" = "secret.key in the data directory", "x-argument" = "secret_key_file"))]
    secret_key_file: Option<PathBuf>,
    /// The user that a server started as root becomes: a name, or `UID` or `UID:GID`.
    #[schemars(extend("x-default" = "cloche, else 65529", "x-argument" = "user"))]
    user: Option<String>,
    /// The certificate of the port. Without one the port speaks plain HTTP.
    tls: TlsFile,
    /// Walls that may be missing on this host; `cloche doctor` lists them.
    #[schemars(extend("default" = [], "x-argument" = "allow_missing"))]
    allow_missing: Vec<String>,
    /// Seconds that executions may continue after a signal to stop.
    #[schemars(extend("default" = 30, "x-argument" = "grace"))]
    grace_seconds: Option<u64>,
    /// The output that is kept of each stream of an execution.
    #[schemars(extend("default" = "16M"))]
    output: Option<String>,
    /// Cells that are made before they are needed.
    pool: PoolFile,
    /// What the host gives to cells, and how teams share it.
    capacity: CapacityFile,
    /// Deliveries to webhooks.
    webhook: WebhookFile,
    /// The Agent API: limits, prices and providers of models.
    agent: AgentFile,
    /// Web tools for models and for code.
    tools: ToolsFile,
    /// Sidecars that run the code instead of this host.
    remote: RemoteFile,
    /// The console, and who signs in to it.
    console: ConsoleSection,
    /// Approvals of agent tools.
    gates: GateFile,
    /// Threads and their homes.
    threads: ThreadsFile,
    /// Where layers are stored.
    layers: LayersFile,
    /// What teams may store, by plan.
    storage: storage::StorageFile,
    /// What plans allow.
    plans: PlansFile,
    /// The MCP server.
    mcp: McpFile,
    /// Memory budgets that all callers share.
    memory: MemoryFile,
    /// Limits and timeouts of connections.
    connections: ConnectionsFile,
    /// What is logged, and how.
    log: LogFile,
    /// Who may read the metrics.
    metrics: MetricsFile,
    /// What programs with a network can reach.
    network: EgressSettings,
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
    /// The certificate of the port; if absent, it speaks plain HTTP.
    pub(super) tls: Option<TlsPaths>,
    /// The networks of all sandboxes.
    pub(super) network: EgressSettings,
}

impl ServeSettings {
    /// The settings of logs alone: they are needed before the others are checked, which may log.
    pub(super) fn log_settings(arguments: &ServeArguments) -> Result<LogSettings, SettingsError> {
        log_settings(&arguments.log, &read_settings_file(arguments.file())?.log)
    }

    pub(super) fn merge(arguments: ServeArguments) -> Result<Self, SettingsError> {
        let mut file = read_settings_file(arguments.file())?;
        log_settings(&arguments.log, &file.log)?;
        file.grace_seconds = arguments.grace.or(file.grace_seconds);
        file.webhook.allow.extend(arguments.webhook_allow);
        file.webhook.extra_ca = arguments.webhook_ca.or(file.webhook.extra_ca);
        file.remote.urls = arguments.executor_url.or(file.remote.urls);
        file.remote.timeout_seconds = arguments.executor_timeout.or(file.remote.timeout_seconds);
        let mut allow_missing = file.allow_missing.clone();
        allow_missing.extend(arguments.allow_missing);
        let listen = arguments.listen.or_else(|| file.listen.clone());
        let listen = check_address(listen.unwrap_or_else(|| "127.0.0.1:8080".to_owned()))?;
        let data_dir = arguments.data_dir.or_else(|| file.data_dir.clone());
        let data_dir = absolute_path(data_dir.unwrap_or_else(|| "cloche-data".into()));
        file.webhook.extra_ca = file.webhook.extra_ca.map(absolute_path);
        let (pool, runs_on) = (
            pool_settings(&file.pool)?,
            runs_on(file.remote.clone(), arguments.no_local_executor)?,
        );
        let mut engine = engine_config(&file)?;
        let parked = matches!(runs_on, RunsOn::ThisHost).then_some(pool.memory);
        engine.admission = file.capacity.to_admission_config(parked)?;
        Ok(Self {
            listen,
            allow_missing,
            pool,
            engine,
            secret_key: choose_key_source(arguments.secret_key, file.secret_key_file.clone()),
            gateway: gateway_config(&file)?,
            agent: read_agent_config(file.agent, file.grace_seconds)?,
            layers: layers_config(file.layers, arguments.layers, &data_dir)?,
            data_dir,
            user: arguments.user.or(file.user),
            runs_on,
            tls: tls::tls_paths(arguments.tls, file.tls)?,
            network: file.network,
        })
    }

    /// Makes the data directory private, and creates the directory of unpacked layers in it. That
    /// directory must exist before the spawner starts, and must belong to the user that unpacks
    /// layers.
    pub(super) fn make_data_dir(&self, user: &ServerUser) -> Result<(), DataDirError> {
        make_private(&self.data_dir, user)?;
        if let Some(path) = self.layers.shared_dir() {
            make_shared_store(path, user)?;
        }
        let unpacked = self.layers_dir().join("cache");
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&unpacked);
        made.map_err(|source| DataDirError::Io { path: unpacked, source })?;
        make_private(&self.data_dir, user)
    }

    /// The files that the confined server uses.
    pub(super) fn server_needs(&self) -> ServerNeeds {
        ServerNeeds {
            data_dir: Some(self.data_dir.clone()),
            reads: self.engine.webhook.extra_ca.iter().cloned().chain(collector_ca()).collect(),
            writes: self.layers.shared_dir().into_iter().map(Path::to_owned).collect(),
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

    /// The directories of volumes and of files that are being written to buckets. The confined
    /// server makes them, so that they belong to it.
    pub(super) fn storage_config(&self) -> io::Result<MountStorageConfig> {
        let spool = self.data_dir.join("spool");
        let volumes = VolumeStore::open(self.data_dir.join("volumes"))?;
        MountStorageConfig::with_spool(volumes, spool)
    }

    /// Limits the connections to what the limit of open files allows.
    pub(super) fn within_descriptors(mut self, limit: u64) -> Self {
        let connections = super::descriptors::connections_within(limit, self.gateway.connections);
        self.gateway.connections = connections;
        self.gateway.per_loopback = self.gateway.per_loopback.min(connections);
        self
    }

    /// Serves this certificate.
    pub(super) fn with_identity(mut self, identity: Option<Arc<TlsIdentity>>) -> Self {
        self.gateway.tls = identity;
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

/// The schema of the file: every key with its meaning and default.
pub(crate) fn settings_schema() -> Schema {
    let inline = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    inline.into_generator().into_root_schema_for::<SettingsFile>()
}

/// Reads the file; without one every setting has its default.
fn read_settings_file(path: Option<&Path>) -> Result<SettingsFile, SettingsError> {
    let Some(path) = path else { return Ok(SettingsFile::default()) };
    let text = fs::read_to_string(path)
        .map_err(|source| SettingsError::Read { path: path.to_owned(), source })?;
    toml::from_str(&text)
        .map_err(|source| SettingsError::Parse { path: path.to_owned(), source: Box::new(source) })
}

/// Checks the form of an address to listen on. A name is looked up when the server listens.
fn check_address(listen: String) -> Result<String, SettingsError> {
    let port = listen.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port);
    match port.map(str::parse::<u16>) {
        Some(Ok(_)) => Ok(listen),
        _ => Err(SettingsError::Listen(listen)),
    }
}

fn gateway_config(file: &SettingsFile) -> Result<GatewayConfig, SettingsError> {
    let gateway = GatewayConfig { mcp: file.mcp.to_config()?, ..GatewayConfig::default() };
    let gateway = file.connections.apply(gateway)?;
    let metrics = file.metrics.to_access(|name| std::env::var(name).ok())?;
    Ok(GatewayConfig { body: file.memory.largest_body(gateway.body)?, metrics, ..gateway })
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
    engine.allowances = file.plans.to_allowances()?;
    engine.console = file.console.to_config(|name| std::env::var(name).ok())?;
    engine.web_tools = file.tools.to_config(|name| std::env::var(name).ok())?;
    Ok(engine)
}

/// The settings without a file and those of this file, as text.
#[cfg(test)]
pub(crate) fn compare_settings(text: &str) -> (String, String) {
    let read = |text: &str| {
        let file: SettingsFile = toml::from_str(text).unwrap();
        let layers =
            layers_config(LayersFile::default(), LayersArguments::default(), "/d".as_ref());
        let admission =
            file.capacity.to_admission_config(Some(cloche_model::ByteSize::gib(2))).unwrap();
        format!(
            "{:#?}",
            (
                pool_settings(&file.pool).unwrap(),
                engine_config(&file).unwrap(),
                gateway_config(&file).unwrap(),
                admission,
                layers.unwrap(),
                read_agent_config(file.agent, file.grace_seconds).unwrap(),
                file.network,
            )
        )
    };
    // A section that turns something on is there in both.
    (read("[tools.fetch]\n"), read(text))
}

#[cfg(test)]
mod tests {
    use cloche_model::ByteSize;

    use super::*;

    #[test]
    fn an_unknown_key_is_an_error() {
        let error = toml::from_str::<SettingsFile>("listne = \"127.0.0.1:1\"").unwrap_err();
        assert!(error.to_string().contains("listne"), "{error}");
    }

    #[test]
    fn an_address_to_listen_on_has_a_host_and_a_port() {
        for listen in ["127.0.0.1:0", "[::1]:8080", "localhost:80"] {
            assert_eq!(check_address(listen.to_owned()).unwrap(), listen);
        }
        for listen in ["", "x", "8080", ":8080", "127.0.0.1", "127.0.0.1:", "127.0.0.1:70000"] {
            assert!(check_address(listen.to_owned()).is_err(), "{listen}");
        }
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
