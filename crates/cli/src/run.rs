//! `cloche run`: one program in a fresh sandbox, live, with the guest's exit code as ours.
//!
//! What was typed is `arguments`, what was meant is `program`; `live` carries bytes between the
//! guest and our own streams, `report` says how it ended. It builds no box itself.

use std::{io, process::ExitCode};

use cloche_executor::{Executor, ExecutorConfig, ExecutorStartError, RunError, RunIo};
use cloche_model::{ByteSize, RunOutcome, RunSpec};
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

use crate::print_error;

/// Our own failure: the sandbox could not be built, or the host lacks something.
const OUR_FAULT: u8 = 125;
/// Something was asked for that cannot be.
const USAGE: u8 = 2;
/// As a shell reports a program that wrote to a pipe nobody reads any more.
const BROKEN_PIPE: u8 = 128 + 13;

/// Walls that only a privileged user can build: an ordinary one is told, and goes on.
const PRIVILEGED_WALLS: [&str; 5] =
    ["host-uid", "cgroups", "cgroup:memory", "cgroup:pids", "cgroup:cpu"];

/// Why there is no outcome to report.
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
    #[error("left without waiting for the sandbox to end")]
    Abandoned,
}

/// Runs the program.
pub(crate) fn main(arguments: RunArguments) -> ExitCode {
    let run = || {
        let meant = ResolvedRun::from_arguments(arguments)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let code = runtime.block_on(run_in_sandbox(meant));
        // A thread of its own may still be waiting for our standard input: not worth a wait.
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

async fn run_in_sandbox(meant: ResolvedRun) -> Result<u8, RunFailure> {
    let ResolvedRun { spec, json, feeds_stdin, allow_missing } = meant;
    let mut config = ExecutorConfig::with_program("/proc/self/exe");
    config.allow_missing.clone_from(&allow_missing);
    if !rustix::process::geteuid().is_root() {
        config.allow_missing.extend(PRIVILEGED_WALLS.map(str::to_owned));
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

/// Runs silently and prints one JSON object at the end.
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

/// Passes output on as it arrives, and explains an unusual end in a sentence.
async fn run_with_live_output(
    executor: &Executor,
    mut spec: RunSpec,
    stdin: Option<mpsc::Receiver<Vec<u8>>>,
) -> Result<u8, RunFailure> {
    let limits = spec.limits;
    // Everything is passed on, so nothing has to be kept.
    spec.limits.output = ByteSize(0);
    let cancel = CancellationToken::new();
    let (output, printer) = live::start_printer(cancel.clone());
    let io = RunIo { output: Some(output), stdin, cancel: cancel.clone(), ..RunIo::default() };
    let (outcome, signal) = until_signalled(executor.run(spec, io), &cancel).await?;
    if let Some(code) = signal {
        return Ok(code);
    }
    if printer.finish().await == live::PrintOutcome::NobodyReads {
        return Ok(BROKEN_PIPE);
    }
    report::print_ending(&outcome, &limits);
    Ok(outcome.shell_code())
}

/// Waits for the outcome. The first signal cancels the run; a second one leaves without it.
/// With the outcome comes the exit code that the signal asks for.
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
