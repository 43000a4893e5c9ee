//! `cloche serve`: the server. Start-up, on one screen.
//!
//! The spawner first, while there are privileges to give it; then ours are dropped; then threads,
//! the executor, the store and the doors.

use std::{error::Error, path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use clap::Args;
use cloche_engine::Local;
use cloche_executor::{Config, Executor, spawner::Process};
use cloche_gateway::Server;
use cloche_model::{ByteSize, Language};
use tokio::{
    runtime::Runtime,
    signal::unix::{SignalKind, signal},
};
use tokio_util::sync::CancellationToken;

use crate::complain;

mod greeting;
mod providers;
mod settings;

use settings::Settings;

/// What `cloche serve` takes; flags win over the environment, the environment over the file.
#[derive(Args)]
pub(crate) struct ServeArguments {
    /// The address to listen on [default: 127.0.0.1:8080].
    #[arg(long, env = "CLOCHE_LISTEN", value_name = "ADDR")]
    listen: Option<String>,
    /// Where everything is kept [default: cloche-data].
    #[arg(long, env = "CLOCHE_DATA_DIR", value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// A TOML file with more settings.
    #[arg(long, env = "CLOCHE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Start although this wall is missing; see `cloche doctor`.
    #[arg(long, value_delimiter = ',', value_name = "WALL")]
    allow_missing: Vec<String>,
    /// Seconds that executions may go on after a signal to stop [default: 30].
    #[arg(long, env = "CLOCHE_GRACE", value_name = "SECONDS")]
    grace: Option<u64>,
    /// Networks that webhooks may go to although they are not public, e.g. 10.1.0.0/16.
    #[arg(long, env = "CLOCHE_WEBHOOK_ALLOW", value_delimiter = ',', value_name = "NETWORK")]
    webhook_allow: Vec<String>,
    /// A PEM file with authorities that webhooks trust besides the host's.
    #[arg(long, env = "CLOCHE_WEBHOOK_CA", value_name = "FILE")]
    webhook_ca: Option<PathBuf>,
    /// Write logs as JSON.
    #[arg(long)]
    json_logs: bool,
}

type Failure = Box<dyn Error + Send + Sync>;

/// Serves until it is told to stop.
pub(crate) fn main(arguments: ServeArguments) -> ExitCode {
    match start(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&*error);
            ExitCode::FAILURE
        }
    }
}

fn start(arguments: ServeArguments) -> Result<(), Failure> {
    greeting::start_logs(arguments.json_logs);
    let settings = Settings::merge(arguments)?;
    let executor = settings.executor(std::env::current_exe()?)?;
    let process = Process::start(&executor.program, &executor.spawner_args)?;
    cloche_jail::privileges::drop_all()?;
    Runtime::new()?.block_on(serve(process, executor, settings))
}

async fn serve(process: Process, config: Config, settings: Settings) -> Result<(), Failure> {
    let executor = Executor::attach(process, config).await?;
    let dispatcher = Arc::new(Local::new(executor.clone()));
    let server = Server::open(settings.server(), dispatcher).await?;
    let server = server.with_agent(settings.agent())?;
    warm_up(&server, &executor).await?;
    greeting::show(&server, &settings);
    let stop = CancellationToken::new();
    tokio::spawn(wait_for_signal(stop.clone())?);
    server.run(stop).await?;
    executor.stop().await;
    Ok(())
}

/// Has cells parked for every sandbox there is, before the first request.
async fn warm_up(server: &Server, executor: &Executor) -> Result<(), Failure> {
    for sandbox in server.engine().sandboxes(None).await? {
        let limits = sandbox.resources.limits(Duration::MAX, ByteSize::default());
        for language in Language::ALL {
            executor.prepare(language, &limits, &sandbox.shape);
        }
    }
    Ok(())
}

/// Ends gracefully on the first SIGTERM or SIGINT.
fn wait_for_signal(stop: CancellationToken) -> std::io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping: no new work is taken, what runs may end");
        stop.cancel();
    })
}
