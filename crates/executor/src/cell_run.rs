//! Taking a cell to its end: the job in, the output out, the deadline, the reason it is over.

use std::{
    io,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use cloche_jail::{
    init::{CellReport, WallName},
    sys::Errno,
};
use cloche_model::{
    ByteSize, HomeWrites, RunEnding, RunLimits, RunOutcome, RunTimings, RunUsage, StreamName,
};
use tokio::{
    io::AsyncWriteExt,
    net::unix::pipe,
    sync::mpsc,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    cell::Cell,
    control_socket::ControlSocket,
    executor::{RunError, RunIo},
    output::OutputCapture,
    spawner::client::SpawnerClient,
};

/// How long a killed cell may take to be dead before we answer without it.
const DEATH_TIMEOUT: Duration = Duration::from_secs(5);

/// What is to be driven.
pub(crate) struct CellRun {
    pub(crate) job: Vec<u8>,
    pub(crate) stdin: Vec<u8>,
    pub(crate) limits: RunLimits,
    pub(crate) io: RunIo,
}

/// How the wait for the main process ended.
enum RunEnd {
    Reported(CellReport),
    /// Pid 1 is gone without a word.
    Lost,
    TimedOut,
    Cancelled,
}

/// A cell that was taken to its end.
pub(crate) struct FinishedRun {
    pub(crate) outcome: RunOutcome,
    /// The home it had when it started, to be read from.
    pub(crate) home: Option<OwnedFd>,
    /// Its control socket: the cell is taken apart when this is closed.
    pub(crate) control: ControlSocket,
}

/// Runs a cell to its end. Takes it: a cell that has run is never used again.
pub(crate) async fn watch_run(
    cell: Cell,
    spawner: &SpawnerClient,
    drive: CellRun,
) -> Result<FinishedRun, RunError> {
    let Cell { id, meter, gone, stdin, stdout, stderr, mut job, mut control } = cell;
    let CellRun { job: bytes, stdin: input, limits, io } = drive;
    let RunIo { output: live, stdin: more_input, cancel, memory, .. } = io;
    let mut stdout = OutputCapture::new(stdout, StreamName::Stdout, limits.output, live.clone());
    let mut stderr = OutputCapture::new(stderr, StreamName::Stderr, limits.output, live);
    stdout.charge_to(memory.as_ref());
    stderr.charge_to(memory.as_ref());
    let started = Instant::now();
    let attached = async {
        // A cell that dies while its job is written says why on the control socket.
        let _ = job.write_all(&bytes).await;
        drop(bytes);
        started.elapsed()
    };
    let feeding = feed_stdin(stdin, input, more_input);
    let waiting = wait_for_end(&mut control, limits.timeout, cancel);
    let end = {
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
    let (end, attach) = end;
    let wall = started.elapsed();
    if matches!(end, RunEnd::TimedOut | RunEnd::Cancelled) {
        spawner.kill_cell(id).await;
        // Either way it is over: gone, or lost with its spawner.
        let _ = timeout(DEATH_TIMEOUT, gone.wait()).await;
    }
    stdout.read_rest().await;
    stderr.read_rest().await;
    // Of a cell that the spawner has killed for kernel memory only the spawner knows why.
    let reading = meter.read().filter(|_| !matches!(end, RunEnd::Lost));
    let used = match reading {
        Some(reading) => reading.into(),
        // The spawner was faster than we, and has read them before it removed the cgroup.
        None => timeout(DEATH_TIMEOUT, gone.wait()).await.unwrap_or_default(),
    };
    let outcome = RunOutcome {
        ending: decide_ending(&end, used.oom_kills)?,
        stdout: stdout.into_kept(),
        stderr: stderr.into_kept(),
        usage: RunUsage { wall, cpu: used.cpu, peak_memory: ByteSize(used.peak) },
        written: HomeWrites::default(),
        timings: RunTimings { attach, run: wall, ..RunTimings::default() },
    };
    Ok(FinishedRun { outcome, home: control.take_home(), control })
}

/// The end, from what pid 1 said and what the cgroup counted.
fn decide_ending(end: &RunEnd, oom_kills: u64) -> Result<RunEnding, RunError> {
    Ok(match end {
        RunEnd::TimedOut => RunEnding::TimedOut,
        RunEnd::Cancelled => RunEnding::Cancelled,
        RunEnd::Reported(CellReport::Exited(0)) => RunEnding::Exited(0),
        _ if oom_kills > 0 => RunEnding::OutOfMemory,
        RunEnd::Reported(CellReport::Exited(code)) => RunEnding::Exited(code.to_le_bytes()[0]),
        RunEnd::Reported(CellReport::Signalled(signal)) => {
            RunEnding::Signalled(signal.to_le_bytes()[0])
        }
        RunEnd::Reported(CellReport::Failed(wall, errno)) => return Err(wall_error(wall, *errno)),
        RunEnd::Reported(CellReport::Ready | CellReport::Alone) | RunEnd::Lost => {
            return Err(RunError::CellLost);
        }
    })
}

/// A wall that could not be built, by its name.
pub(crate) fn wall_error(wall: &WallName, errno: Errno) -> RunError {
    let wall = String::from_utf8_lossy(wall).trim_end_matches('\0').to_owned();
    RunError::Wall { wall, source: io::Error::from_raw_os_error(errno.0) }
}

/// Waits for the end of the main process, the deadline or a cancel, whichever is first.
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
                        // The guest's time begins when its cell does.
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

/// Gives the program its standard input, then closes it.
async fn feed_stdin(
    mut stdin: pipe::Sender,
    input: Vec<u8>,
    more: Option<mpsc::Receiver<Vec<u8>>>,
) {
    // A program that does not read its input is no error.
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
