//! The benchmark: cold starts beside bare processes, bubblewrap, crun and runc, in one run.
//!
//! Contestants take turns, so that a noisy moment affects all of them and ratios stay fair. The
//! promises are in `docs/SPECIFICATION.md`; this program measures and prints tables.

use std::{
    error::Error, os::unix::process::CommandExt, path::PathBuf, process::Command, process::ExitCode,
};

use clap::Parser;
use cloche_executor::spawner;

mod contestants;
mod figures;
mod history;
mod homes;
mod images;
mod leftovers;
mod memory_store;
mod networks;
mod requests;
mod rounds;
mod runtimes;
mod server;
mod storage;
mod tenants;
mod warm;

/// The result of a benchmark step.
type BenchResult<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Measures cold starts against other sandboxes, and what a thousand runs leave behind.
#[derive(Parser)]
struct BenchArguments {
    /// Only contestants whose name contains this; can be repeated. `leftovers` counts as a name
    /// too.
    #[arg(long)]
    only: Vec<String>,
    /// How often each contestant runs.
    #[arg(long, default_value_t = 200)]
    rounds: usize,
    /// The number of runs of the soak test.
    #[arg(long, default_value_t = 20_000)]
    soak: usize,
    /// The `cloche` binary whose server is measured [default: the one beside this binary].
    #[arg(long, value_name = "PATH")]
    server: Option<PathBuf>,
}

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("__spawner") {
        return spawner::run_spawner().unwrap_or(ExitCode::FAILURE);
    }
    if std::env::args().nth(1).as_deref() == Some(networks::BROKER) {
        return networks::run_broker();
    }
    match measure_all(&BenchArguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_line(&format!("the benchmark failed: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn measure_all(arguments: &BenchArguments) -> Result<(), Box<dyn Error>> {
    hide_hybrid_cgroups();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        rounds::measure_cold_starts(arguments).await?;
        warm::measure_warm_runs(arguments).await.map_err(|error| error.to_string())?;
        homes::measure_homes(arguments).await.map_err(|error| error.to_string())?;
        networks::measure_networks(arguments).await.map_err(|error| error.to_string())?;
        storage::measure_storage(arguments).await.map_err(|error| error.to_string())?;
        Ok::<(), Box<dyn Error>>(())
    })?;
    requests::measure_requests(arguments).map_err(|error| error.to_string())?;
    tenants::measure_tenants(arguments).map_err(|error| error.to_string())?;
    images::measure_images(arguments).map_err(|error| error.to_string())?;
    history::measure_history(arguments).map_err(|error| error.to_string())?;
    Ok(())
}

/// crun 1.8 refuses hosts that have both versions of control groups mounted. In a mount namespace
/// of our own, v2 is unmounted for all contestants.
fn hide_hybrid_cgroups() {
    const DONE: &str = "CLOCHE_BENCH_UNSHARED";
    let unified = "/sys/fs/cgroup/unified";
    let hybrid = std::path::Path::new(unified).join("cgroup.controllers").exists();
    if !hybrid || !rustix::process::geteuid().is_root() || std::env::var_os(DONE).is_some() {
        return;
    }
    print_line(
        "this host has v1 and v2 control groups; v2 is hidden from this benchmark, for crun",
    );
    let script = format!("umount {unified}; exec \"$0\" \"$@\"");
    let Ok(own) = std::env::current_exe() else { return };
    let mut again = Command::new("unshare");
    again.args(["--mount", "sh", "-c", &script]).arg(own).args(std::env::args_os().skip(1));
    // Returns only if there is no unshare; crun is skipped then.
    let _ = again.env(DONE, "1").exec();
}

/// Prints one line.
#[expect(clippy::print_stdout, reason = "a benchmark's output is its purpose")]
pub(crate) fn print_line(line: &str) {
    println!("{line}");
}
