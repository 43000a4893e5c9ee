//! `cloche serve`: the start of the server, on one screen.
//!
//! The spawner starts first, while there are privileges to give it. Then the server becomes its own
//! user and is confined. Then threads, the executor, the store and the entry points start.

use std::{
    collections::BTreeSet,
    error::Error,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use clap::Args;
use cloche_engine::{
    Dispatcher, Engine, EngineConfig, EngineOpenError, LockedDataDir, NullDispatcher,
    RemoteDispatcher,
};
use cloche_executor::{Executor, ExecutorConfig, spawner::SpawnerProcess};
use cloche_gateway::Server;
use cloche_layers::{Layers, LayersConfig};
use cloche_model::{ByteSize, Language, RunLimits};
use cloche_store::{KeySource, SqliteStore};
use tokio::{
    runtime::Runtime,
    signal::unix::{SignalKind, signal},
};
use tokio_util::sync::CancellationToken;

use crate::{
    identity::{self, ServerUser},
    local_dispatcher::LocalDispatcher,
    network::BrokerProcess,
    print_error,
};

mod certificate;
pub(crate) mod descriptors;
mod greeting;
mod heap;
mod providers;
mod settings;
pub(crate) mod tls_reader;
mod trace_export;

use certificate::ServedCertificate;
pub(crate) use greeting::start_logs;
#[cfg(test)]
pub(crate) use settings::compare_settings;
pub(crate) use settings::{
    LayersArguments, LayersFile, SettingsError, absolute_path, layers_config,
    secret_key_from_environment, settings_schema, sidecar_capacity,
};
use settings::{LogArguments, LogFormat, RunsOn, SecretKeyArguments, ServeSettings, TlsArguments};
use trace_export::TraceExport;

/// The arguments of `cloche serve`. Flags override the environment, which overrides the file.
#[derive(Args, Default)]
pub(crate) struct ServeArguments {
    /// The address to listen on [default: 127.0.0.1:8080].
    #[arg(long, env = "CLOCHE_LISTEN", value_name = "ADDR")]
    listen: Option<String>,
    /// The directory for all data [default: cloche-data].
    #[arg(long, env = "CLOCHE_DATA_DIR", value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// A TOML file with more settings.
    #[arg(long, env = "CLOCHE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Start although this wall is missing; see `cloche doctor`.
    #[arg(long, value_delimiter = ',', value_name = "WALL")]
    allow_missing: Vec<String>,
    /// The user that a server started as root becomes [default: cloche, else 65529].
    #[arg(long, env = "CLOCHE_USER", value_name = "NAME|UID[:GID]")]
    user: Option<String>,
    /// Seconds that executions may continue after a signal to stop [default: 30].
    #[arg(long, env = "CLOCHE_GRACE", value_name = "SECONDS")]
    grace: Option<u64>,
    /// Non-public networks to which webhooks may be sent, e.g. 10.1.0.0/16.
    #[arg(long, env = "CLOCHE_WEBHOOK_ALLOW", value_delimiter = ',', value_name = "NETWORK")]
    webhook_allow: Vec<String>,
    /// A PEM file with certificate authorities that webhooks trust besides the host's.
    #[arg(long, env = "CLOCHE_WEBHOOK_CA", value_name = "FILE")]
    webhook_ca: Option<PathBuf>,
    #[command(flatten)]
    layers: LayersArguments,
    #[command(flatten)]
    secret_key: SecretKeyArguments,
    #[command(flatten)]
    tls: TlsArguments,
    /// Sidecars that run the code instead of this host; their key is in SANDBOX_EXECUTOR_API_KEY.
    /// An empty value turns code execution off.
    #[arg(long, env = "SANDBOX_EXECUTOR_URL", value_delimiter = ',', value_name = "URL")]
    executor_url: Option<Vec<String>>,
    /// Seconds that one run at a sidecar may take in total [default: 65].
    #[arg(long, env = "SANDBOX_EXECUTOR_TIMEOUT_SECONDS", value_name = "SECONDS")]
    executor_timeout: Option<u64>,
    /// Run no code on this host; without sidecars, code execution is turned off.
    #[arg(long)]
    no_local_executor: bool,
    #[command(flatten)]
    log: LogArguments,
}

impl ServeArguments {
    /// No argument but a configuration file.
    pub(crate) fn with_file(file: PathBuf) -> Self {
        Self { config: Some(file), ..Self::default() }
    }

    /// The configuration file.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.config.as_deref()
    }
}

pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// Serves until a signal stops it.
pub(crate) fn main(arguments: ServeArguments) -> ExitCode {
    match start_server(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&*error);
            ExitCode::FAILURE
        }
    }
}

/// Where the server with this file and these flags stores layers, if this is its data directory.
pub(crate) fn layers_config_of(
    config: Option<PathBuf>,
    layers: LayersArguments,
    data_dir: &Path,
) -> Result<LayersConfig, SettingsError> {
    let data_dir = Some(data_dir.to_owned());
    let arguments = ServeArguments { config, layers, data_dir, ..ServeArguments::default() };
    Ok(ServeSettings::merge(arguments)?.layers_config())
}

/// Checks the settings, and starts nothing.
pub(crate) fn check_settings(arguments: ServeArguments) -> Result<(), Failure> {
    let mut settings = ServeSettings::merge(arguments)?;
    Ok(settings.network.read_authorities()?)
}

fn start_server(arguments: ServeArguments) -> Result<(), Failure> {
    let restarted = heap::restart_with_settings();
    let log = ServeSettings::log_settings(&arguments)?;
    start_logs(log.format == LogFormat::Json, &log.level);
    if let Err(error) = restarted {
        tracing::warn!(%error, "could not set allocator options; freed memory is returned late");
    }
    let settings = ServeSettings::merge(arguments)?;
    let user = ServerUser::choose(settings.user.as_deref())?;
    identity::set_private_umask();
    settings.make_data_dir(&user)?;
    identity::protect_from_oom();
    let local = match settings.runs_on {
        RunsOn::ThisHost => Some(start_local_processes(&settings)?),
        RunsOn::Sidecars(_) | RunsOn::Nothing => None,
    };
    let certificate = settings.tls.clone().map(ServedCertificate::load).transpose()?;
    let identity = certificate.as_ref().map(ServedCertificate::identity);
    let settings = settings.with_identity(identity);
    let settings = settings.within_descriptors(descriptors::raise_limit());
    identity::confine_process(&user, &settings.server_needs(), &settings.allow_missing)?;
    Runtime::new()?.block_on(serve_requests(local, settings, certificate))
}

/// The processes that the executor of this host needs, and its configuration.
struct LocalProcesses {
    spawner: SpawnerProcess,
    broker: BrokerProcess,
    config: ExecutorConfig,
}

/// Starts the spawner, which keeps its privileges, and the broker, which keeps the host's network.
fn start_local_processes(settings: &ServeSettings) -> Result<LocalProcesses, Failure> {
    let program = std::env::current_exe()?;
    let broker = BrokerProcess::start_supervised(&program, settings.network.clone())?;
    let config = settings.executor_config(program);
    Ok(LocalProcesses { spawner: SpawnerProcess::start(&config)?, broker, config })
}

async fn serve_requests(
    local: Option<LocalProcesses>,
    settings: ServeSettings,
    certificate: Option<ServedCertificate>,
) -> Result<(), Failure> {
    let traces = TraceExport::start()?;
    // The engine moves the heads of threads and the executor mounts their homes, so both use the
    // same layers.
    let layers = Layers::open(settings.layers_config()).await?;
    layers.claim_store()?;
    let executor = match local {
        Some(LocalProcesses { spawner, broker, config }) => {
            let broker = broker.connect().await;
            if let Err(error) = &broker {
                tracing::error!(%error, "the network broker did not start; no sandbox has a network");
            }
            let (broker, storage) = (broker.ok(), settings.storage_config()?);
            let config = ExecutorConfig { layers: Some(layers.clone()), broker, storage, ..config };
            Some(Executor::with_spawner(spawner, config).await?)
        }
        None => None,
    };
    let dispatcher: Arc<dyn Dispatcher> = match (&executor, &settings.runs_on) {
        (Some(executor), _) => Arc::new(LocalDispatcher::new(executor.clone())),
        (None, RunsOn::Sidecars(remote)) => {
            let remote = RemoteDispatcher::new(remote.clone(), Some(layers.clone()))?;
            // The tools of an agent depend on what the sidecars offer, so that is known first.
            remote.check_sidecars().await;
            Arc::new(remote)
        }
        (None, _) => Arc::new(NullDispatcher),
    };
    let key = settings.secret_key.clone();
    let config = settings.engine_config(layers);
    let engine = open_engine(&settings.data_dir, key, dispatcher, config).await?;
    let server = Server::open(settings.server_options(), engine).await?;
    let server = server.with_agent(settings.agent_config())?;
    match &executor {
        Some(executor) => warm_up(server.engine(), executor).await?,
        None if !server.engine().can_run_code() => tracing::warn!("code execution is turned off"),
        None => {}
    }
    match certificate {
        Some(certificate) => certificate.start_watch()?,
        None => greeting::warn_without_tls(server.address()),
    }
    let image = server.engine().tenancy().find_default_image().await?;
    greeting::print_greeting(&server, &settings, image.as_ref());
    let stop = CancellationToken::new();
    tokio::spawn(wait_for_signal(stop.clone())?);
    server.run(stop).await?;
    if let Some(executor) = executor {
        executor.stop().await;
    }
    if let Some(traces) = traces {
        traces.finish().await;
    }
    Ok(())
}

/// Locks the data directory, opens the store in it, and starts an engine on both. Secrets are
/// sealed with `key`; if absent, with `secret.key` in the directory.
pub(crate) async fn open_engine(
    data_dir: &Path,
    key: Option<KeySource>,
    dispatcher: Arc<dyn Dispatcher>,
    config: EngineConfig,
) -> Result<Engine, EngineOpenError> {
    let data_dir = LockedDataDir::lock(data_dir)?;
    let key = key.unwrap_or_else(|| KeySource::File(data_dir.path().join("secret.key")));
    let database = data_dir.path().join("cloche.db");
    let store = Arc::new(SqliteStore::open_with_key(&database, &key).await?);
    Engine::open(data_dir, store, dispatcher, config).await
}

/// The most teams whose templates are started before the first request; others get theirs with
/// their first runs. Each takes the time and memory of an interpreter.
const MOST_TEAMS_AHEAD: usize = 8;

/// Parks cells for every existing sandbox before the first request.
pub(crate) async fn warm_up(engine: &Engine, executor: &Executor) -> Result<(), Failure> {
    let mut teams = BTreeSet::new();
    for sandbox in engine.tenancy().list_sandboxes(None).await? {
        let team = sandbox.team.as_str();
        if teams.len() < MOST_TEAMS_AHEAD {
            teams.insert(team.to_owned());
        }
        let is_ahead = teams.contains(team);
        let usual = RunLimits::default();
        let limits = sandbox.resources.to_run_limits(usual.timeout, ByteSize::default());
        let Some(shape) = engine.tenancy().load_image(sandbox.shape).await? else { continue };
        if shape.root.is_some() && !executor.runs_images() {
            continue;
        }
        let mut shape = shape.in_group(sandbox.team.as_str());
        shape.tool_client = engine.web_tools().config().offers_any();
        let later = |language: &Language| *language == Language::Python && !is_ahead;
        let can_run = |language: &Language| shape.check_language(*language).is_ok();
        let languages = Language::CORE.into_iter().filter(can_run);
        for language in languages.filter(|language| !later(language)) {
            executor.prewarm_pool(language, &limits, &shape);
        }
    }
    Ok(())
}

/// Cancels `stop` on the first SIGTERM or SIGINT.
pub(crate) fn wait_for_signal(
    stop: CancellationToken,
) -> std::io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping: new work is refused, running work may finish");
        stop.cancel();
    })
}
