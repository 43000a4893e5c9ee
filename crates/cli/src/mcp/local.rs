//! Without a server: an engine and an executor of our own, until the client disconnects.

use std::{
    env,
    fs::{DirBuilder, File},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use cloche_engine::{Caller, Engine, EngineConfig, GateChange, TeamChange};
use cloche_executor::{Executor, ExecutorConfig, PoolSettings, spawner::SpawnerProcess};
use cloche_gateway::{McpConfig, serve_mcp};
use cloche_layers::{LayerBounds, Layers, LayersConfig, StoreConfig};
use cloche_model::{ByteSize, ToolPolicy};
use tokio::{
    runtime::Runtime,
    signal::unix::{SignalKind, signal},
};

use super::{Failure, McpArguments, state_directory, wait_for_closed_stdout};
use crate::{
    local_dispatcher::LocalDispatcher,
    serve::{open_engine, secret_key_from_environment, warm_up},
};

/// How long running code may continue after the client has disconnected.
const GRACE: Duration = Duration::ZERO;
/// The limit of the disk space of unpacked homes.
const CACHE: ByteSize = ByteSize::gib(2);

/// Why the local state cannot be used.
#[derive(Debug, thiserror::Error)]
enum LocalError {
    #[error("{} has no bootstrap.json; remove the directory to start again", .0.display())]
    NoKey(PathBuf),
    #[error("cannot create a temporary directory in {}", .0.display())]
    Temporary(PathBuf, #[source] std::io::Error),
}

/// The directory of this engine's state. A temporary one is removed at the end.
struct McpStateDir {
    path: PathBuf,
    temporary: bool,
    /// The lock on the directory, held until we exit.
    _claim: Option<File>,
}

impl Drop for McpStateDir {
    fn drop(&mut self) {
        if self.temporary
            && let Err(error) = std::fs::remove_dir_all(&self.path)
        {
            let path = self.path.display();
            tracing::warn!(%error, %path, "could not remove a temporary directory");
        }
    }
}

/// Serves the client at standard input and output.
pub(super) fn serve_stdio(arguments: McpArguments) -> Result<(), Failure> {
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    let state_dir = choose_state_dir(arguments.data_dir)?;
    let mut config = ExecutorConfig::with_program(env::current_exe()?);
    let unpacked = std::path::absolute(state_dir.path.join("layers/cache"))?;
    DirBuilder::new().recursive(true).mode(0o700).create(&unpacked)?;
    config.unpacked_layers = Some(unpacked);
    config.allow_missing = arguments.allow_missing;
    config.pool = Some(PoolSettings { floor: 1, ceiling: 4, ..PoolSettings::default() });
    let process = SpawnerProcess::start(&config)?;
    cloche_jail::privileges::drop_all_capabilities()?;
    let runtime = Runtime::new()?;
    let policy = if arguments.ask { ToolPolicy::Ask } else { ToolPolicy::Allow };
    let ended = runtime.block_on(serve_client(process, config, (state_dir, policy)));
    // A read of standard input may still wait for a line that never comes.
    runtime.shutdown_background();
    ended
}

async fn serve_client(
    process: SpawnerProcess,
    config: ExecutorConfig,
    (state_dir, policy): (McpStateDir, ToolPolicy),
) -> Result<(), Failure> {
    let layers = Layers::open(LayersConfig {
        dir: state_dir.path.join("layers"),
        store: StoreConfig::Local,
        cache_bytes: CACHE,
        bounds: LayerBounds::default(),
    })
    .await?;
    let config = ExecutorConfig { layers: Some(layers.clone()), ..config };
    let executor = Executor::with_spawner(process, config).await?;
    let mut config = EngineConfig { grace: GRACE, ..EngineConfig::default() };
    config.homes.layers = Some(layers);
    let local = Arc::new(LocalDispatcher::new(executor.clone()));
    let key = secret_key_from_environment();
    let engine = open_engine(&state_dir.path, key, local, config).await?;
    let caller = find_owner(&engine, &state_dir.path).await?;
    open_gates(&engine, &caller, policy).await?;
    warm_up(&engine, &executor).await?;
    let pipe = (tokio::io::stdin(), tokio::io::stdout());
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let conversation = serve_mcp(engine.clone(), caller, McpConfig::default(), pipe);
    let ended = tokio::select! {
        ended = conversation => ended,
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        () = wait_for_closed_stdout() => Ok(()),
    };
    engine.shutdown().await;
    executor.stop().await;
    drop(state_dir);
    Ok(ended?)
}

/// Chooses the named directory, else the user's own, else a temporary one: several clients may each
/// start a server, and only one can use the user's directory.
fn choose_state_dir(named: Option<PathBuf>) -> Result<McpStateDir, LocalError> {
    if let Some(path) = named {
        return Ok(McpStateDir { path, temporary: false, _claim: None });
    }
    if let Some(path) = state_directory()
        && let Some(claim) = claim_directory(&path)
    {
        return Ok(McpStateDir { path, temporary: false, _claim: Some(claim) });
    }
    tracing::info!("threads are kept only until the client disconnects");
    make_temporary_dir()
}

/// Locks the user's directory, unless another client holds the lock.
fn claim_directory(path: &Path) -> Option<File> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).ok()?;
    let claim = File::create(path.join("client.lock")).ok()?;
    claim.try_lock().ok()?;
    Some(claim)
}

/// Creates a directory that only we can read. It must not exist before.
fn make_temporary_dir() -> Result<McpStateDir, LocalError> {
    let path = env::temp_dir().join(format!("cloche-mcp-{}", std::process::id()));
    let made = DirBuilder::new().mode(0o700).create(&path);
    made.map_err(|error| LocalError::Temporary(env::temp_dir(), error))?;
    Ok(McpStateDir { path, temporary: true, _claim: None })
}

/// The caller with the key of the directory.
async fn find_owner(engine: &Engine, directory: &Path) -> Result<Caller, Failure> {
    let made = engine.tenancy().ensure_bootstrap(directory, "stdio:").await?;
    let bootstrap = made.ok_or_else(|| LocalError::NoKey(directory.to_owned()))?;
    Ok(engine.tenancy().find_caller(bootstrap.api_key.reveal()).await?)
}

/// Starting this command is the consent, so the gate allows calls by the policy.
async fn open_gates(engine: &Engine, caller: &Caller, policy: ToolPolicy) -> Result<(), Failure> {
    let gates = GateChange {
        agent_sandbox: Some(Some(true)),
        execute_code: Some(Some(policy)),
        elicitation: Some(Some(true)),
        ..GateChange::default()
    };
    let change = TeamChange { gates, ..TeamChange::default() };
    engine.tenancy().update_team(caller.team.id.as_str(), change).await?;
    Ok(())
}
