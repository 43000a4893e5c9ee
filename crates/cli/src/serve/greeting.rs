//! What a started server prints on the terminal, and the set-up of its logs.

use std::{
    io::{self, IsTerminal},
    net::SocketAddr,
    path::Path,
};

use cloche_gateway::Server;
use cloche_model::{DEFAULT_IMAGE, HOST_IMAGE, ImageReference};
use tracing_subscriber::EnvFilter;

use super::settings::{RunsOn, ServeSettings};

/// Sends logs to standard error. `RUST_LOG` sets the level.
pub(crate) fn start_logs(json: bool, usual: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(usual));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    let logs = logs.with_ansi(io::stderr().is_terminal());
    if json {
        logs.json().init();
    } else {
        logs.init();
    }
}

/// Warns that others on the network can read keys, code and results.
pub(super) fn warn_without_tls(address: SocketAddr) {
    if !address.ip().to_canonical().is_loopback() {
        tracing::warn!(
            %address,
            "keys, code and results are sent without encryption; use --tls-cert and --tls-key, or \
             listen on a loopback address behind a proxy that speaks TLS"
        );
    }
}

/// Prints the address, the file with the keys, and a first request to paste.
#[expect(clippy::print_stdout, reason = "this is the terminal's edge")]
pub(super) fn print_greeting(
    server: &Server,
    settings: &ServeSettings,
    image: Option<&ImageReference>,
) {
    let file = settings.data_dir.join("bootstrap.json");
    let address = format!("{}://{}", server.scheme(), server.address());
    println!("cloche is listening on {address}");
    println!("{}", where_code_runs(&settings.runs_on));
    if !matches!(settings.runs_on, RunsOn::Nothing) {
        println!("{}", which_image(&settings.runs_on, image));
    }
    let Some(bootstrap) = server.bootstrap() else {
        println!(
            "{} is missing; with its admin token in CLOCHE_ADMIN_TOKEN, \
             `cloche key create NAME --url {address}` creates a new key",
            file.display(),
        );
        return;
    };
    println!("its keys are in {}; the API is described at {}/docs", file.display(), bootstrap.url);
    // If standard output is a file, a printed key would stay in the logs.
    if bootstrap.first_start && io::stdout().is_terminal() {
        println!("the API key is {} (shown this once)", bootstrap.api_key.reveal());
    }
    println!(
        "\nTry it:\n\n  curl -s {}/v1/sandbox/execute \\\n    -H \"Authorization: Bearer $(grep -o \
         'sk-us-[^\"]*' {})\" \\\n    -H 'Content-Type: application/json' \\\n    \
         -d '{{\"code\": \"print(6 * 7)\"}}'\n",
        bootstrap.url,
        shell_quoted(&file),
    );
}

/// The line about gate 1. A single binary differs from the contract: without an address it runs
/// code itself, and only an empty address turns code execution off.
fn where_code_runs(runs_on: &RunsOn) -> String {
    match runs_on {
        RunsOn::ThisHost => {
            "code runs on this host, because SANDBOX_EXECUTOR_URL is not set; set it to an empty \
             value to turn code execution off"
                .to_owned()
        }
        RunsOn::Sidecars(remote) => {
            format!("code runs on the sidecars at {}", remote.urls.join(", "))
        }
        RunsOn::Nothing => {
            "code execution is turned off, because SANDBOX_EXECUTOR_URL is empty or \
             --no-local-executor is set"
                .to_owned()
        }
    }
}

/// The line about the image of new sandboxes.
fn which_image(runs_on: &RunsOn, image: Option<&ImageReference>) -> String {
    match (image, runs_on) {
        (Some(image), _) => format!("new sandboxes get the image {image}"),
        (None, RunsOn::ThisHost) => format!(
            "new sandboxes get the image {HOST_IMAGE}, the programs of this host; for the default \
             image run `make image`, then `cloche image import target/images/default --name \
             {DEFAULT_IMAGE}`"
        ),
        (None, _) => format!("new sandboxes get the image {HOST_IMAGE}, the programs of a sidecar"),
    }
}

/// Quotes a path as one word of a shell.
fn shell_quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', "'\\''"))
}
