//! `cloche doctor`: reports for each wall whether it is present, why it is missing, and how to get
//! it.
//!
//! It builds a real sandbox and runs a real program in each language. Files of the host are read
//! only to explain failures. `walls` judges, `advice` explains, `parked_cells` measures the cells
//! of a pool, `server` tries the confinement of a server, `show` prints.

use std::process::ExitCode;

use clap::Args;
use cloche_executor::{Executor, ExecutorConfig, ExecutorStartError, RunError, RunIo};
use cloche_model::{Language, RunEnding, RunSpec, error_chain};
use serde::Serialize;

mod advice;
mod capacity;
mod container;
mod network;
mod parked_cells;
mod server;
mod show;
mod walls;

use container::ContainerFinding;
use network::NetworkFinding;
use parked_cells::ParkedCells;
use server::ServerFindings;
use walls::{SandboxTrial, Wall};

use crate::print_error;

/// The arguments of `cloche doctor`.
#[derive(Args)]
pub(crate) struct DoctorArguments {
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// The number of concurrent cells to compare the host's limits with [default: as many as fit
    /// into its memory].
    #[arg(long, value_name = "COUNT")]
    cells: Option<u64>,
}

/// Everything that was found out about this host.
#[derive(Serialize)]
struct HostFindings {
    /// Whether no wall is missing.
    ok: bool,
    kernel: String,
    root: bool,
    walls: Vec<Wall>,
    languages: Vec<InterpreterFinding>,
    /// The cost of cells that wait for a job.
    parked: Vec<ParkedCells>,
    /// Whether sandboxes can have a network.
    network: Option<NetworkFinding>,
    /// The confinement of a server, tried in processes that are confined like one.
    server: ServerFindings,
    serve: ServeReadiness,
    /// What an executor with the profile `container` would do, where a wall is missing.
    container: Option<ContainerFinding>,
    /// Remarks that are not about walls.
    notes: Vec<String>,
}

/// A language and its interpreter inside a sandbox.
#[derive(Serialize)]
struct InterpreterFinding {
    language: Language,
    path: Option<String>,
    version: Option<String>,
    /// Why it was not found.
    why: Option<String>,
}

/// Whether a server would start on this host.
#[derive(Serialize)]
struct ServeReadiness {
    /// The missing walls for which it would refuse to start.
    refuses: Vec<String>,
    /// The flag with which it would start anyway. `None` if no flag helps.
    flag: Option<String>,
}

/// Examines this host. Exits with 0 if no wall is missing, 1 if one is, 125 if the host could not
/// be examined.
pub(crate) fn main(arguments: &DoctorArguments) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            print_error(&error);
            return ExitCode::from(125);
        }
    };
    let findings = runtime.block_on(examine_host(arguments.cells));
    if arguments.json {
        show::print_json(&findings);
    } else {
        show::print_table(&findings);
    }
    ExitCode::from(u8::from(!findings.ok))
}

async fn examine_host(cells: Option<u64>) -> HostFindings {
    let (trial, languages, parked, network) = try_sandbox().await;
    let server = server::examine_server();
    let mut walls = walls::judge_walls(&trial);
    let of_server = server::server_walls(&server);
    let mut names = trial.missing_names();
    names.extend(of_server.iter().filter_map(Wall::missing_name));
    walls.extend(of_server);
    let missing: Vec<String> = walls.iter().filter_map(Wall::missing_name).collect();
    let dispensable =
        trial.failed_step.is_none() && trial.refusal.is_none() && server.why.is_none();
    let flag = dispensable.then(|| format!("--allow-missing {}", names.join(",")));
    let refuses = if dispensable { names } else { missing.clone() };
    let container = match missing.is_empty() {
        true => None,
        false => Some(container::examine_container().await),
    };
    HostFindings {
        ok: missing.is_empty(),
        kernel: advice::kernel_release(),
        root: rustix::process::geteuid().is_root(),
        walls,
        languages,
        parked,
        network,
        server,
        serve: ServeReadiness { flag: flag.filter(|_| !refuses.is_empty()), refuses },
        container,
        notes: advice::host_notes().into_iter().chain(capacity::capacity_warnings(cells)).collect(),
    }
}

/// Starts a spawner and runs a program in each language, then parks cells of the languages found.
async fn try_sandbox()
-> (SandboxTrial, Vec<InterpreterFinding>, Vec<ParkedCells>, Option<NetworkFinding>) {
    let mut trial = SandboxTrial::default();
    let mut config = ExecutorConfig::with_program("/proc/self/exe");
    let mut started = Executor::start(config.clone()).await;
    if let Err(ExecutorStartError::Missing(missing)) = started {
        config.allow_missing = missing.iter().map(|(wall, _)| wall.clone()).collect();
        trial.missing = missing;
        started = Executor::start(config.clone()).await;
    }
    let executor = match started {
        Ok(executor) => executor,
        Err(error) => {
            trial.refusal = Some(error_chain(&error));
            return (trial, Vec::new(), Vec::new(), None);
        }
    };
    let mut languages = Vec::new();
    for language in Language::CORE {
        languages.push(probe_interpreter(&executor, language, &mut trial).await);
    }
    executor.stop().await;
    let found = languages.iter().filter(|found| found.path.is_some());
    let found: Vec<Language> = found.map(|found| found.language).collect();
    let parked = parked_cells::measure_parked_cells(&config, &found).await;
    let network = Some(network::examine_network(config).await);
    (trial, languages, parked, network)
}

/// Runs an interpreter in a sandbox and reads its path and version.
async fn probe_interpreter(
    executor: &Executor,
    language: Language,
    trial: &mut SandboxTrial,
) -> InterpreterFinding {
    let code = match language {
        Language::Python => "import sys; print(sys.executable, sys.version.split()[0])",
        Language::Node => "console.log(process.execPath, process.version.slice(1))",
        _ => "echo $BASH ${BASH_VERSION%%[^0-9.]*}",
    };
    let outcome = executor.run(RunSpec::new(language, code), RunIo::default()).await;
    let mut found = InterpreterFinding { language, path: None, version: None, why: None };
    match outcome {
        Ok(outcome) if outcome.ending == RunEnding::Exited(0) => {
            trial.built = true;
            let text = outcome.stdout.to_text_lossy();
            let mut words = text.split_whitespace().map(str::to_owned);
            (found.path, found.version) = (words.next(), words.next());
        }
        Ok(outcome) => {
            trial.built = true;
            found.why =
                Some(format!("it does not start: {}", outcome.stderr.to_text_lossy().trim()));
        }
        Err(error) => {
            found.why = Some(error_chain(&error));
            match error {
                RunError::NoInterpreter(_) => {}
                RunError::Wall { wall, source } => {
                    trial.failed_step = Some((wall, source.to_string()));
                }
                other => trial.refusal = Some(error_chain(&other)),
            }
        }
    }
    found
}
