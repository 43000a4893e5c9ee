//! `cloche serve`: the API on a port, with everything it needs in one directory.

use std::{path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use clap::Args;
use cloche_engine::{Bootstrap, EngineConfig, Local, WebhookConfig};
use cloche_executor::{Config, Executor, PoolSettings};
use cloche_gateway::{GatewayConfig, Server, ServerOptions};
use cloche_model::{Language, Limits, SandboxShape};
use ipnet::IpNet;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// What `cloche serve` takes.
#[derive(Args)]
pub(crate) struct ServeArguments {
    /// Where to listen.
    #[arg(long, env = "CLOCHE_LISTEN", default_value = "127.0.0.1:8080")]
    listen: String,
    /// Where everything is kept.
    #[arg(long, env = "CLOCHE_DATA_DIR", default_value = "cloche-data")]
    data_dir: PathBuf,
    /// Walls that may be missing on this host, by the names `cloche doctor` gives them.
    #[arg(long, value_delimiter = ',')]
    allow_missing: Vec<String>,
    /// Seconds that executions may go on after a signal to stop.
    #[arg(long, env = "CLOCHE_GRACE", default_value_t = 30)]
    grace: u64,
    /// Networks that webhooks may go to although they are not public, e.g. 10.1.0.0/16.
    #[arg(long, env = "CLOCHE_WEBHOOK_ALLOW", value_delimiter = ',')]
    webhook_allow: Vec<IpNet>,
    /// A PEM file with authorities that webhooks trust besides the host's.
    #[arg(long, env = "CLOCHE_WEBHOOK_CA")]
    webhook_ca: Option<PathBuf>,
}

/// Serves until a signal comes.
#[expect(clippy::print_stderr, reason = "this is the terminal's edge")]
pub(crate) fn main(arguments: ServeArguments) -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("CLOCHE_LOG")
                .unwrap_or_else(|_| "info".into()),
        )
        .with_writer(std::io::stderr)
        .init();
    let served = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(Into::into)
        .and_then(|runtime| runtime.block_on(serve(arguments)));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cloche: {error}");
            let mut cause = error.source();
            while let Some(error) = cause {
                eprintln!("  because {error}");
                cause = error.source();
            }
            ExitCode::from(2)
        }
    }
}

async fn serve(arguments: ServeArguments) -> Result<(), Box<dyn std::error::Error>> {
    let executor = Executor::start(Config {
        allow_missing: arguments.allow_missing,
        pool: Some(PoolSettings::default()),
        ..Config::with_program(std::env::current_exe()?)
    })
    .await?;
    for language in Language::ALL {
        executor.prepare(language, &Limits::default(), &SandboxShape::default());
    }
    let options = ServerOptions {
        data_dir: arguments.data_dir,
        listen: arguments.listen,
        engine: EngineConfig {
            grace: Duration::from_secs(arguments.grace),
            webhook: WebhookConfig {
                allow: arguments.webhook_allow,
                extra_ca: arguments.webhook_ca,
                ..WebhookConfig::default()
            },
            ..EngineConfig::default()
        },
        gateway: GatewayConfig::default(),
    };
    let server = Server::open(options, Arc::new(Local::new(executor.clone()))).await?;
    if let Some(bootstrap) = server.bootstrap() {
        greet(bootstrap);
    }
    let shutdown = CancellationToken::new();
    let stop = shutdown.clone();
    let (mut interrupt, mut terminate) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        tracing::info!("stopping");
        stop.cancel();
    });
    server.run(shutdown).await?;
    executor.stop().await;
    Ok(())
}

/// A line that works when it is pasted.
#[expect(clippy::print_stderr, reason = "this is the terminal's edge")]
fn greet(bootstrap: &Bootstrap) {
    eprintln!(
        "\nTry it:\n\n  curl -s {}/v1/sandbox/execute -H 'Authorization: Bearer {}' \\\n    \
         -H 'Content-Type: application/json' -d '{{\"code\": \"print(6 * 7)\"}}'\n",
        bootstrap.url,
        bootstrap.api_key.reveal()
    );
}
