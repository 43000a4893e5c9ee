//! `cloche executor`: the sidecar. It runs code for other servers through the contract's `POST
//! /execute`, and stores nothing but layers of threads in a store that it shares with its server.
//!
//! It starts like the server. The spawner starts first, while there are privileges to give it. Then
//! the sidecar becomes its own user and is confined. Then threads, the executor and the HTTP server
//! start.

mod shared_layers;

use std::{
    env,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use clap::{Args, ValueEnum};
use cloche_engine::sidecar::SidecarConfig;
use cloche_executor::{Executor, ExecutorConfig, PoolSettings, spawner::SpawnerProcess};
use cloche_gateway::{SidecarOptions, SidecarServer};
use cloche_layers::Layers;
use cloche_model::{ByteSize, CpuShare, Language, RunLimits, SandboxShape, Secret};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use shared_layers::{SharedLayers, SharedLayersArguments};

use crate::{
    container_profile::{self, ContainerCells, ExecutorProfile},
    identity::{self, ServerNeeds, ServerUser},
    local_dispatcher::LocalDispatcher,
    print_error,
    serve::{Failure, sidecar_capacity, start_logs, wait_for_signal},
};

/// The variable with the service key. It is never a flag, because other users can read a command
/// line.
const KEY: &str = "SANDBOX_EXECUTOR_SERVICE_API_KEY";
/// Environments in which the key may be empty.
const RELAXED: [&str; 4] = ["development", "dev", "local", "test"];

/// The arguments of `cloche executor`. Flags override the environment.
#[derive(Args)]
pub(crate) struct ExecutorArguments {
    /// The address to listen on. To be reachable from other hosts, use e.g. 0.0.0.0:9099.
    #[arg(
        long,
        env = "SANDBOX_EXECUTOR_LISTEN",
        value_name = "ADDR",
        default_value = "127.0.0.1:9099"
    )]
    listen: String,
    /// The environment name: in development, dev, local and test the service key may be empty.
    #[arg(
        long,
        env = "SANDBOX_EXECUTOR_ENVIRONMENT",
        value_name = "NAME",
        default_value = "production"
    )]
    environment: String,
    /// The default time limit of a job, in milliseconds.
    #[arg(long, env = "SANDBOX_EXECUTOR_DEFAULT_TIMEOUT_MS", value_name = "MS", default_value_t = 30_000,
        value_parser = clap::value_parser!(u64).range(1..=86_400_000))]
    default_timeout_ms: u64,
    /// The maximum time limit of a job, in milliseconds.
    #[arg(long, env = "SANDBOX_EXECUTOR_MAX_TIMEOUT_MS", value_name = "MS", default_value_t = 60_000,
        value_parser = clap::value_parser!(u64).range(1..=86_400_000))]
    max_timeout_ms: u64,
    /// The maximum number of concurrent jobs; more are refused with 429.
    #[arg(long, env = "SANDBOX_EXECUTOR_MAX_CONCURRENT_JOBS", value_name = "N", default_value_t = 4,
        value_parser = clap::value_parser!(u32).range(1..=4096))]
    max_concurrent_jobs: u32,
    /// The maximum memory of a job.
    #[arg(long, env = "SANDBOX_EXECUTOR_MAX_MEMORY", value_name = "SIZE", default_value = "1GiB")]
    max_memory: ByteSize,
    /// The maximum number of cores of a job.
    #[arg(long, env = "SANDBOX_EXECUTOR_MAX_CPUS", value_name = "CORES", default_value = "1")]
    max_cpus: CpuShare,
    /// The maximum number of processes and threads of a job.
    #[arg(long, env = "SANDBOX_EXECUTOR_MAX_PIDS", value_name = "N", default_value_t = 256,
        value_parser = clap::value_parser!(u32).range(8..))]
    max_pids: u32,
    /// The maximum number of bytes in files of a job.
    #[arg(long, env = "SANDBOX_EXECUTOR_MAX_DISK", value_name = "SIZE", default_value = "512MiB")]
    max_disk: ByteSize,
    /// The maximum number of bytes kept of each output stream; the head is kept, the rest is
    /// counted.
    #[arg(long, env = "SANDBOX_EXECUTOR_MAX_OUTPUT", value_name = "SIZE", default_value = "16MiB")]
    max_output: ByteSize,
    /// Memory for the output of all jobs, until their answers are read; output beyond it is
    /// truncated [default: an eighth of the host's memory, 256 MiB to 2 GiB].
    #[arg(long, env = "SANDBOX_EXECUTOR_OUTPUT_MEMORY", value_name = "SIZE")]
    output_memory: Option<ByteSize>,
    /// Memory that the cells of all jobs may reserve together [default: the memory of the host].
    #[arg(long, env = "SANDBOX_EXECUTOR_CAPACITY_MEMORY", value_name = "SIZE")]
    capacity_memory: Option<ByteSize>,
    /// What the executor expects of its surroundings. With `container`, walls may be missing that
    /// an ordinary user in a hardened container cannot have; each is logged with the reason.
    #[arg(long, env = "SANDBOX_EXECUTOR_PROFILE", value_enum, default_value_t)]
    profile: ExecutorProfile,
    /// The directory for the files of jobs where no namespaces are available; it has to be on a
    /// tmpfs. Only for the profile `container`.
    #[arg(long, env = "SANDBOX_EXECUTOR_SCRATCH", value_name = "DIR", default_value = "/tmp")]
    scratch: PathBuf,
    /// The Python packages that programs can import besides the standard library: none, or those
    /// of the host.
    #[arg(long, env = "SANDBOX_EXECUTOR_PYTHON_PACKAGES", value_enum, default_value_t)]
    python_packages: PythonPackages,
    /// Start although this wall is missing; see `cloche doctor`.
    #[arg(long, value_delimiter = ',', value_name = "WALL")]
    allow_missing: Vec<String>,
    /// The user that an executor started as root becomes [default: cloche, else 65529].
    #[arg(long, env = "CLOCHE_USER", value_name = "NAME|UID[:GID]")]
    user: Option<String>,
    /// Seconds that jobs may continue after a signal to stop.
    #[arg(long, env = "SANDBOX_EXECUTOR_GRACE", value_name = "SECONDS", default_value_t = 30)]
    grace: u64,
    /// Write logs as JSON.
    #[arg(long)]
    json_logs: bool,
    #[command(flatten)]
    shared_layers: SharedLayersArguments,
}

/// Which Python packages programs can import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum PythonPackages {
    /// The standard library only.
    #[default]
    None,
    /// Those of the host, too.
    Host,
}

/// A setting that cannot be used.
#[derive(Debug, thiserror::Error)]
enum SidecarSettingsError {
    #[error(
        "{KEY} is empty: every client that reaches this port could run code. Set it to a secret that \
         the clients of this executor know. It may be empty only if SANDBOX_EXECUTOR_ENVIRONMENT is \
         development, dev, local or test (it is {0:?})"
    )]
    NoKey(String),
    #[error("{KEY} is not text")]
    KeyIsNoText,
    #[error(
        "the default time limit of {default} ms is more than the maximum of {most} ms; set \
         SANDBOX_EXECUTOR_DEFAULT_TIMEOUT_MS and SANDBOX_EXECUTOR_MAX_TIMEOUT_MS to fit"
    )]
    Timeouts { default: u64, most: u64 },
    #[error(
        "a shared layer store needs user namespaces, which this container does not allow: cells \
         without them cannot mount homes. Allow user namespaces, or start without a layer store"
    )]
    ContainedLayers,
}

/// Runs jobs until a signal stops it.
pub(crate) fn main(arguments: ExecutorArguments) -> ExitCode {
    match start_sidecar(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&*error);
            ExitCode::FAILURE
        }
    }
}

fn start_sidecar(mut arguments: ExecutorArguments) -> Result<(), Failure> {
    start_logs(arguments.json_logs, "info");
    let shared = SharedLayers::from_arguments(std::mem::take(&mut arguments.shared_layers))?;
    let mut config = ExecutorConfig {
        allow_missing: arguments.allow_missing.clone(),
        pool: Some(PoolSettings::default()),
        names_files: true,
        unpacked_layers: shared.as_ref().map(SharedLayers::unpacked),
        hides_packages: arguments.python_packages == PythonPackages::None,
        ..ExecutorConfig::with_program(env::current_exe()?)
    };
    let mut capacity = sidecar_capacity(PoolSettings::default().memory)?;
    capacity.memory = arguments.capacity_memory.map_or(capacity.memory, ByteSize::bytes);
    let user = ServerUser::choose(arguments.user.as_deref())?;
    let (profile, scratch) = (arguments.profile, arguments.scratch.clone());
    let mut options = sidecar_options(arguments)?;
    options.sidecar.capacity = capacity;
    if profile == ExecutorProfile::Container {
        let cells = ContainerCells::choose(&config, &scratch)?;
        cells.apply_to(&mut config);
        if config.contained.is_some() && shared.is_some() {
            return Err(Box::new(SidecarSettingsError::ContainedLayers));
        }
        if let Some(why) = &cells.why {
            tracing::warn!(why, "profile container: cells have no namespaces here");
        }
    }
    identity::set_private_umask();
    shared.as_ref().map_or(Ok(()), |shared| shared.make_directories(&user))?;
    identity::protect_from_oom();
    let process = SpawnerProcess::start(&config)?;
    // The homes of contained cells have paths, so Landlock can allow to read them.
    let reads = config.contained.iter().filter_map(|path| path.parent().map(Path::to_owned));
    let reads = reads.collect();
    let runs_cells = config.contained.is_none();
    let needs = ServerNeeds { runs_cells, reads, ..ServerNeeds::default() };
    let needs = match &shared {
        Some(shared) => shared.add_needs(needs),
        None => needs,
    };
    identity::confine_process(&user, &needs, &config.allow_missing)?;
    Runtime::new()?.block_on(async {
        let layers = match shared {
            Some(shared) => Some(Layers::open(shared.config).await?),
            None => None,
        };
        options.sidecar.layers.clone_from(&layers);
        serve_jobs(process, ExecutorConfig { layers, ..config }, options).await
    })
}

async fn serve_jobs(
    process: SpawnerProcess,
    config: ExecutorConfig,
    options: SidecarOptions,
) -> Result<(), Failure> {
    let executor = Executor::with_spawner(process, config).await?;
    for (wall, why) in executor.missing_walls() {
        let acceptable = container_profile::reason_for(wall);
        tracing::warn!(wall, why, acceptable, "a wall is missing");
    }
    let usual = RunLimits::default();
    let most = options.sidecar.most;
    let limits = RunLimits {
        memory: usual.memory.min(most.memory),
        cpus: usual.cpus.min(most.cpus),
        pids: usual.pids.min(most.pids),
        disk: usual.disk.min(most.disk),
        ..usual
    };
    for language in Language::CORE {
        executor.prewarm_pool(language, &limits, &SandboxShape::default());
    }
    let server =
        SidecarServer::open(options, Arc::new(LocalDispatcher::new(executor.clone()))).await?;
    print_address(&server);
    let stop = CancellationToken::new();
    tokio::spawn(wait_for_signal(stop.clone())?);
    server.run(stop).await?;
    executor.stop().await;
    Ok(())
}

#[expect(clippy::print_stdout, reason = "this is the terminal's edge")]
fn print_address(server: &SidecarServer) {
    println!("cloche executor is listening on http://{}", server.address());
}

fn sidecar_options(arguments: ExecutorArguments) -> Result<SidecarOptions, SidecarSettingsError> {
    let (default, most) = (arguments.default_timeout_ms, arguments.max_timeout_ms);
    if default > most {
        return Err(SidecarSettingsError::Timeouts { default, most });
    }
    let key = match env::var(KEY) {
        Ok(key) => Some(key),
        Err(env::VarError::NotPresent) => None,
        Err(env::VarError::NotUnicode(_)) => return Err(SidecarSettingsError::KeyIsNoText),
    };
    let usual = SidecarConfig::default();
    Ok(SidecarOptions {
        sidecar: SidecarConfig {
            key: check_key(key, &arguments.environment)?,
            default_timeout: Duration::from_millis(default),
            most: RunLimits {
                timeout: Duration::from_millis(most),
                memory: arguments.max_memory,
                cpus: arguments.max_cpus,
                pids: arguments.max_pids,
                disk: arguments.max_disk,
                output: arguments.max_output,
            },
            jobs: arguments.max_concurrent_jobs as usize,
            outputs: arguments.output_memory.unwrap_or(usual.outputs),
            grace: Duration::from_secs(arguments.grace),
            ..usual
        },
        listen: arguments.listen,
    })
}

/// Returns the key. It may be missing only in environments that allow it.
fn check_key(
    key: Option<String>,
    environment: &str,
) -> Result<Option<Secret>, SidecarSettingsError> {
    let key = key.map(|key| key.trim().to_owned()).filter(|key| !key.is_empty());
    let relaxed = RELAXED.iter().any(|name| environment.trim().eq_ignore_ascii_case(name));
    if key.is_none() && !relaxed {
        return Err(SidecarSettingsError::NoKey(environment.to_owned()));
    }
    if key.is_none() {
        tracing::warn!("{KEY} is empty: every client that reaches this port can run code");
    }
    Ok(key.map(Secret::new))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_key_is_allowed_only_in_development_environments() {
        let ok = |key: Option<&str>, name| check_key(key.map(ToOwned::to_owned), name).is_ok();
        for name in ["development", "dev", "local", "test", "TEST"] {
            assert!(ok(None, name) && ok(Some(" "), name) && ok(Some("k"), name), "{name}");
        }
        for name in ["", "production", "staging", "prod", "testing", "dev2"] {
            assert!(!ok(None, name) && !ok(Some(""), name) && !ok(Some("  "), name), "{name}");
            assert!(ok(Some("k"), name), "{name}");
        }
    }
}
