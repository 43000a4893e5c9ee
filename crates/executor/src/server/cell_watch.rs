//! Runs in: server (no capabilities). Watches a cell to its end: writes the job, reads the output,
//! enforces the deadline, and decides how the run ended.

use std::{
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use cloche_jail::report::CellReport;
use cloche_model::{
    ByteSize, CapturedStream, HomeWrites, RunEnding, RunLimits, RunOutcome, RunTimings, RunUsage,
    StreamName,
};
use tokio::{
    io::AsyncWriteExt,
    net::unix::pipe,
    sync::mpsc,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    cell::Cell,
    cell_meter::CellMeter,
    control_socket::ControlSocket,
    job_socket::CellJobSocket,
    output::{OutputCapture, OutputPipe},
    run::RunIo,
    run_error::RunError,
    spawner_client::SpawnerClient,
    storage_mounts::StorageMounts,
};
use crate::protocol::{CellId, CellUsage};

/// How long the outcome waits for a killed cell to be gone.
const DEATH_TIMEOUT: Duration = Duration::from_secs(5);

/// What a cell is given.
pub(crate) struct CellInput<'a> {
    pub(crate) job: Vec<u8>,
    pub(crate) stdin: Vec<u8>,
    pub(crate) limits: RunLimits,
    pub(crate) io: RunIo,
    /// What is mounted in it, which ends before a cell that is killed.
    pub(crate) storage: Option<&'a mut StorageMounts>,
}

/// How the wait for the main process ended.
enum RunEnd {
    Reported(CellReport),
    /// Pid 1 is gone without a report.
    Lost,
    TimedOut,
    Cancelled,
}

/// A run whose program has ended. Its cell still exists.
pub(crate) struct FinishedRun {
    pub(crate) outcome: RunOutcome,
    /// When the program had ended, or was stopped.
    pub(crate) ended: Instant,
    /// The home that the cell came with. With a thread, another home is mounted over it.
    pub(crate) cell_home: Option<OwnedFd>,
    /// The control socket of the cell, which pid 1 takes apart after `release`.
    pub(crate) control: ControlSocket,
    pub(crate) remains: CellRemains,
}

/// What the server still holds of a cell whose program has ended. Closing it takes a dozen system
/// calls, which nobody has to wait for.
pub(crate) struct CellRemains {
    _job: CellJobSocket,
    _pipes: [OutputPipe; 2],
    _meter: CellMeter,
}

/// Runs a cell to its end. Takes the cell by value: a cell that has run is never used again.
pub(crate) async fn watch_cell(
    cell: Cell,
    spawner: &SpawnerClient,
    input: CellInput<'_>,
) -> Result<FinishedRun, RunError> {
    let Cell { id, meter, exit, stdin, stdout, stderr, mut job, mut control } = cell;
    let CellInput { job: job_bytes, stdin: stdin_bytes, limits, io, storage } = input;
    let RunIo { output: live, stdin: more_stdin, cancel, memory, .. } = io;
    let mut stdout = OutputCapture::new(stdout, StreamName::Stdout, limits.output, live.clone());
    let mut stderr = OutputCapture::new(stderr, StreamName::Stderr, limits.output, live);
    stdout.charge_to(memory.as_ref());
    stderr.charge_to(memory.as_ref());
    let started = Instant::now();
    let attached = async {
        // If the cell dies while its job is written, the control socket says why.
        let _ = job.send_job(&job_bytes).await;
        drop(job_bytes);
        started.elapsed()
    };
    let feeding = feed_stdin(stdin, stdin_bytes, more_stdin);
    let waiting = wait_for_end(&mut control, limits.timeout, cancel);
    let (end, attach) = {
        tokio::pin!(feeding, waiting, attached);
        let (mut attach, mut fed) = (None, false);
        loop {
            tokio::select! {
                biased;
                taken = &mut attached, if attach.is_none() => attach = Some(taken),
                end = &mut waiting => break (end, attach.unwrap_or_default()),
                () = &mut feeding, if !fed => fed = true,
                () = stdout.read_until_end() => {}
                () = stderr.read_until_end() => {}
            }
        }
    };
    let wall = started.elapsed();
    if matches!(end, RunEnd::TimedOut | RunEnd::Cancelled) {
        stop_cell(id, spawner, storage).await;
        // The cell is gone, or lost with its spawner. After the timeout the outcome goes out
        // anyway.
        let _ = timeout(DEATH_TIMEOUT, exit.wait()).await;
    } else if let (RunEnd::Reported(_), Some(storage)) = (&end, storage) {
        storage.begin_finish();
    }
    stdout.read_rest().await;
    stderr.read_rest().await;
    // Of a cell that the spawner has killed for kernel memory only the spawner knows why.
    let reading = meter.read().filter(|_| !matches!(end, RunEnd::Lost));
    let used = match reading {
        Some(reading) => reading.into(),
        // The spawner has removed the cgroup. It read the gauges before.
        None => timeout(DEATH_TIMEOUT, exit.wait()).await.unwrap_or_default(),
    };
    let ([stdout, stderr], pipes) = take_streams([stdout, stderr]);
    let outcome = RunOutcome {
        ending: decide_ending(&end, &used, &control.words())?,
        stdout,
        stderr,
        usage: RunUsage { wall, cpu: used.cpu, peak_memory: ByteSize(used.peak) },
        written: HomeWrites::default(),
        network: None,
        mounts: Vec::new(),
        timings: RunTimings { attach, run: wall, ..RunTimings::default() },
    };
    let remains = CellRemains { _job: job, _pipes: pipes, _meter: meter };
    let (ended, cell_home) = (started + wall, control.take_home());
    Ok(FinishedRun { outcome, ended, cell_home, control, remains })
}

/// What is kept of each stream, and its pipe.
fn take_streams(captures: [OutputCapture; 2]) -> ([CapturedStream; 2], [OutputPipe; 2]) {
    let [(stdout, stdout_pipe), (stderr, stderr_pipe)] = captures.map(OutputCapture::into_parts);
    ([stdout, stderr], [stdout_pipe, stderr_pipe])
}

/// Stops a cell: its storage first, so that what it has transferred is known.
async fn stop_cell(cell: CellId, spawner: &SpawnerClient, storage: Option<&mut StorageMounts>) {
    if let Some(storage) = storage {
        storage.stop().await;
    }
    spawner.kill_cell(cell).await;
}

/// Decides how the run ended, from the report of pid 1, the OOM kills of the cgroup, and what the
/// spawner killed the cell for.
fn decide_ending(end: &RunEnd, used: &CellUsage, words: &str) -> Result<RunEnding, RunError> {
    const SIGKILL: u8 = 9;
    Ok(match end {
        RunEnd::TimedOut => RunEnding::TimedOut,
        RunEnd::Cancelled => RunEnding::Cancelled,
        RunEnd::Reported(CellReport::Exited(0)) => RunEnding::Exited(0),
        RunEnd::Reported(CellReport::KernelMemory) => RunEnding::OutOfMemory,
        _ if used.oom_kills > 0 => RunEnding::OutOfMemory,
        RunEnd::Lost if used.too_many_processes => RunEnding::Signalled(SIGKILL),
        RunEnd::Reported(CellReport::Exited(code)) => RunEnding::Exited(code.to_le_bytes()[0]),
        RunEnd::Reported(CellReport::Signalled(signal)) => {
            RunEnding::Signalled(signal.to_le_bytes()[0])
        }
        RunEnd::Reported(CellReport::Failed(wall, errno)) => {
            return Err(RunError::from_wall(wall, *errno, words));
        }
        RunEnd::Reported(CellReport::Ready | CellReport::Alone | CellReport::Words(_))
        | RunEnd::Lost => return Err(RunError::CellLost),
    })
}

/// Waits for the end of the main process, the deadline or a cancel.
async fn wait_for_end(
    control: &mut ControlSocket,
    limit: Duration,
    cancel: CancellationToken,
) -> RunEnd {
    let reports = async {
        let deadline = sleep(limit);
        tokio::pin!(deadline);
        loop {
            tokio::select! {
                biased;
                report = control.next_report() => match report {
                    Some(CellReport::Ready) => {
                        // The time of the guest begins when its cell is ready.
                        deadline.as_mut().reset(tokio::time::Instant::now() + limit);
                    }
                    Some(report) => return RunEnd::Reported(report),
                    None => return RunEnd::Lost,
                },
                () = &mut deadline => return RunEnd::TimedOut,
            }
        }
    };
    tokio::select! {
        end = reports => end,
        () = cancel.cancelled() => RunEnd::Cancelled,
    }
}

/// Writes the standard input of the program, then closes it.
async fn feed_stdin(stdin: OwnedFd, input: Vec<u8>, more: Option<mpsc::Receiver<Vec<u8>>>) {
    if input.is_empty() && more.is_none() {
        return;
    }
    let Ok(mut stdin) = pipe::Sender::from_owned_fd(stdin) else { return };
    // It is no error if the program does not read its input.
    if stdin.write_all(&input).await.is_err() {
        return;
    }
    let Some(mut more) = more else { return };
    while let Some(bytes) = more.recv().await {
        if stdin.write_all(&bytes).await.is_err() {
            return;
        }
    }
}
