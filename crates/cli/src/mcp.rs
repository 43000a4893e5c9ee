//! `cloche mcp`: the tools of the MCP server on standard input and output, for clients that start
//! their servers themselves.
//!
//! Runs code on this machine, or forwards everything to a running server. Standard output carries
//! only the protocol.

use std::{env, path::PathBuf, process::ExitCode};

use clap::Args;
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
};
use tokio::{runtime::Runtime, sync::oneshot};

use crate::{print_error, serve::start_logs};

mod endpoint;
mod local;
mod proxy;
mod sse_decoder;

/// The arguments of `cloche mcp`.
#[derive(Args)]
pub(crate) struct McpArguments {
    /// Forward everything to the server at this address; the key is in CLOCHE_API_KEY, or in the
    /// bootstrap.json of --data-dir.
    #[arg(long, env = "CLOCHE_URL", value_name = "URL")]
    url: Option<String>,
    /// A PEM file with certificate authorities that the server's certificate may come from, besides
    /// the host's.
    #[arg(long, env = "CLOCHE_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// The directory for threads [default: cloche/mcp in the user's state directory].
    #[arg(long, env = "CLOCHE_DATA_DIR", value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Ask the person at the client about every call; without it, every call is allowed.
    #[arg(long, conflicts_with = "url")]
    ask: bool,
    /// Start although this wall is missing; see `cloche doctor`.
    #[arg(long, value_delimiter = ',', value_name = "WALL")]
    allow_missing: Vec<String>,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Serves one client until it closes our standard input.
pub(crate) fn main(arguments: McpArguments) -> ExitCode {
    start_logs(false, "warn");
    let ended = match &arguments.url {
        Some(url) => proxy_to_server(url, &arguments),
        None => local::serve_stdio(arguments),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&*error);
            ExitCode::FAILURE
        }
    }
}

fn proxy_to_server(url: &str, arguments: &McpArguments) -> Result<(), Failure> {
    let (directory, ca) = (arguments.data_dir.as_deref(), arguments.ca.as_deref());
    let remote = endpoint::McpEndpoint::find(url, directory, ca)?;
    let runtime = Runtime::new()?;
    runtime.block_on(proxy::run_proxy(remote))?;
    // A read of standard input may still wait for a line that never comes.
    runtime.shutdown_background();
    Ok(())
}

/// Waits until standard output is closed by its reader. Waits forever if that cannot be detected.
async fn wait_for_closed_stdout() {
    let (sender, closed) = oneshot::channel();
    // A thread that may wait forever, because the runtime would have to own the descriptor.
    std::thread::spawn(move || {
        let output = std::io::stdout();
        let mut watched = [PollFd::new(&output, PollFlags::empty())];
        while let Err(Errno::INTR) = poll(&mut watched, None) {}
        if watched[0].revents().intersects(PollFlags::ERR | PollFlags::HUP) {
            // The receiver may have been dropped.
            let _ = sender.send(());
        }
    });
    if closed.await.is_err() {
        std::future::pending().await
    }
}

/// The state directory, if the user has a home.
fn state_directory() -> Option<PathBuf> {
    let set = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")))?;
    Some(state.join("cloche/mcp"))
}
