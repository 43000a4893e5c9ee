//! `cloche run`: one program in a fresh sandbox, live, with the guest's exit code as ours.
//!
//! `arguments` is the command line as typed, `program` the run it means. `live` copies bytes
//! between the guest and our own streams, and `report` prints how the run ended. The executor
//! builds the sandbox.

use std::{io, process::ExitCode};

use cloche_egress::EgressSettings;
use cloche_executor::{Executor, ExecutorConfig, ExecutorStartError, RunError, RunIo};
use cloche_model::{ByteSize, NetworkPolicy, RunOutcome, RunSpec};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;

mod arguments;
mod live;
mod program;
mod report;

pub(crate) use arguments::{RunArguments, parse_variable};
use program::ResolvedRun;

use crate::{network::BrokerProcess, print_error};

/// Exit code of our own failure: the sandbox could not be built, or the host lacks something.
const OUR_FAULT: u8 = 125;
/// Exit code of a command line that cannot be used.
const USAGE: u8 = 2;
/// Exit code of a closed standard output, as a shell reports SIGPIPE.
const BROKEN_PIPE: u8 = 128 + 13;

/// Walls that only root can build. An ordinary user gets a warning, and the run goes on.
const PRIVILEGED_WALLS: [&str; 5] =
    ["host-uid", "cgroups", "cgroup:memory", "cgroup:pids", "cgroup:cpu"];

/// Why there is no outcome.
#[derive(Debug, thiserror::Error)]
enum RunFailure {
    #[error(transparent)]
    Usage(#[from] program::UsageError),
    #[error(transparent)]
    Start(#[from] ExecutorStartError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error("cannot set up a run")]
    Io(#[from] io::Error),
    #[error("interrupted before the sandbox ended")]
    Abandoned,
}

/// Runs the program.
pub(crate) fn main(arguments: RunArguments) -> ExitCode {
    let run = || {
        let resolved = ResolvedRun::from_arguments(arguments)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let code = runtime.block_on(run_in_sandbox(resolved));
        // The thread that reads standard input may still be blocked; do not wait for it.
        runtime.shutdown_background();
        code
    };
    let code = run().unwrap_or_else(|failure: RunFailure| {
        print_error(&failure);
        match failure {
            RunFailure::Usage(_) | RunFailure::Run(RunError::Job(_)) => USAGE,
            _ => OUR_FAULT,
        }
    });
    ExitCode::from(code)
}

async fn run_in_sandbox(resolved: ResolvedRun) -> Result<u8, RunFailure> {
    let ResolvedRun { spec, json, feeds_stdin, allow_missing } = resolved;
    let mut config = ExecutorConfig::with_program("/proc/self/exe");
    config.allow_missing.clone_from(&allow_missing);
    if !rustix::process::geteuid().is_root() {
        config.allow_missing.extend(PRIVILEGED_WALLS.map(str::to_owned));
    }
    if spec.sandbox.network != NetworkPolicy::Blocked {
        let broker = BrokerProcess::start(&config.program, EgressSettings::default())?;
        config.broker = Some(broker.connect().await?);
    }
    let executor = Executor::start(config).await?;
    report::print_missing_walls(executor.missing_walls(), &allow_missing);
    let stdin = feeds_stdin.then(live::stream_stdin);
    let ended = if json {
        run_with_report(&executor, spec, stdin).await
    } else {
        run_with_live_output(&executor, spec, stdin).await
    };
    executor.stop().await;
    ended
}

/// Runs without live output and prints one JSON object at the end.
async fn run_with_report(
    executor: &Executor,
    spec: RunSpec,
    stdin: Option<mpsc::Receiver<Vec<u8>>>,
) -> Result<u8, RunFailure> {
    let language = spec.language;
    let cancel = CancellationToken::new();
    let io = RunIo { stdin, cancel: cancel.clone(), ..RunIo::default() };
    let (outcome, signal) = until_signalled(executor.run(spec, io), &cancel).await?;
    let code = signal.unwrap_or_else(|| outcome.shell_code());
    report::print_json(language, &outcome, code);
    Ok(code)
}

/// Prints output as it arrives, and explains an unusual end in one sentence.
async fn run_with_live_output(
    executor: &Executor,
    mut spec: RunSpec,
    stdin: Option<mpsc::Receiver<Vec<u8>>>,
) -> Result<u8, RunFailure> {
    let limits = spec.limits;
    // Output is passed on at once, so none is retained.
    spec.limits.output = ByteSize(0);
    let cancel = CancellationToken::new();
    let (output, printer) = live::start_printer(cancel.clone());
    let io = RunIo { output: Some(output), stdin, cancel: cancel.clone(), ..RunIo::default() };
    let (outcome, signal) = until_signalled(executor.run(spec, io), &cancel).await?;
    if let Some(code) = signal {
        return Ok(code);
    }
    if printer.finish().await == live::PrintOutcome::OutputClosed {
        return Ok(BROKEN_PIPE);
    }
    report::print_ending(&outcome, &limits);
    Ok(outcome.shell_code())
}

/// Waits for the outcome. The first signal cancels the run, a second one gives up waiting. Returns
/// the outcome and the exit code for the signal, if there was one.
async fn until_signalled(
    run: impl Future<Output = Result<RunOutcome, RunError>>,
    cancel: &CancellationToken,
) -> Result<(RunOutcome, Option<u8>), RunFailure> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    tokio::pin!(run);
    let mut code = None;
    loop {
        let signal = tokio::select! {
            outcome = &mut run => return Ok((outcome?, code)),
            _ = interrupt.recv() => 2,
            _ = terminate.recv() => 15,
            _ = hang_up.recv() => 1,
        };
        if code.replace(128 + signal).is_some() {
            return Err(RunFailure::Abandoned);
        }
        cancel.cancel();
    }
}
