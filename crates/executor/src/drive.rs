//! Taking a cell to its end: the job in, the output out, the deadline, the reason it is over.

use std::{
    io,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use cloche_jail::{
    init::{Report, WallName},
    sys::Errno,
};
use cloche_model::{ByteSize, Ending, Limits, Outcome, StreamName, Timings, Usage, Written};
use tokio::{
    io::AsyncWriteExt,
    net::unix::pipe,
    sync::mpsc,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    cell::Cell,
    control::Control,
    executor::{RunError, RunIo},
    output::Capture,
    spawner::client::Spawner,
};

/// How long a killed cell may take to be dead before we answer without it.
const DEATH: Duration = Duration::from_secs(5);

/// What is to be driven.
pub(crate) struct Drive {
    pub(crate) job: Vec<u8>,
    pub(crate) stdin: Vec<u8>,
    pub(crate) limits: Limits,
    pub(crate) io: RunIo,
}

/// How the wait for the main process ended.
enum End {
    Reported(Report),
    /// Pid 1 is gone without a word.
    Lost,
    TimedOut,
    Cancelled,
}

/// A cell that was taken to its end.
pub(crate) struct Driven {
    pub(crate) outcome: Outcome,
    /// The home it had when it started, to be read from.
    pub(crate) home: Option<OwnedFd>,
    /// Its control socket: the cell is taken apart when this is closed.
    pub(crate) control: Control,
}

/// Runs a cell to its end. Takes it: a cell that has run is never used again.
pub(crate) async fn drive(cell: Cell, spawner: &Spawner, drive: Drive) -> Result<Driven, RunError> {
    let Cell { id, meter, gone, stdin, stdout, stderr, mut job, mut control } = cell;
    let Drive { job: bytes, stdin: input, limits, io } = drive;
    let RunIo { output: live, stdin: more_input, cancel, memory, .. } = io;
    let mut stdout = Capture::new(stdout, StreamName::Stdout, limits.output, live.clone());
    let mut stderr = Capture::new(stderr, StreamName::Stderr, limits.output, live);
    stdout.charge_to(memory.as_ref());
    stderr.charge_to(memory.as_ref());
    let started = Instant::now();
    let attached = async {
        // A cell that dies while its job is written says why on the control socket.
        let _ = job.write_all(&bytes).await;
        drop(bytes);
        started.elapsed()
    };
    let feeding = feed(stdin, input, more_input);
    let waiting = wait(&mut control, limits.timeout, cancel);
    let end = {
        tokio::pin!(feeding, waiting, attached);
        let (mut attach, mut fed) = (None, false);
        loop {
            tokio::select! {
                biased;
                taken = &mut attached, if attach.is_none() => attach = Some(taken),
                end = &mut waiting => break (end, attach.unwrap_or_default()),
                () = &mut feeding, if !fed => fed = true,
                () = stdout.read() => {}
                () = stderr.read() => {}
            }
        }
    };
    let (end, attach) = end;
    let wall = started.elapsed();
    if matches!(end, End::TimedOut | End::Cancelled) {
        spawner.kill(id).await;
        // Either way it is over: gone, or lost with its spawner.
        let _ = timeout(DEATH, gone.wait()).await;
    }
    stdout.rest().await;
    stderr.rest().await;
    let used = match meter.read() {
        Some(reading) => reading.into(),
        // The spawner was faster than we, and has read them before it removed the cgroup.
        None => timeout(DEATH, gone.wait()).await.unwrap_or_default(),
    };
    let outcome = Outcome {
        ending: ending(&end, used.oom_kills)?,
        stdout: stdout.into_kept(),
        stderr: stderr.into_kept(),
        usage: Usage { wall, cpu: used.cpu, peak_memory: ByteSize(used.peak) },
        written: Written::default(),
        timings: Timings { attach, run: wall, ..Timings::default() },
    };
    Ok(Driven { outcome, home: control.take_home(), control })
}

/// The end, from what pid 1 said and what the cgroup counted.
fn ending(end: &End, oom_kills: u64) -> Result<Ending, RunError> {
    Ok(match end {
        End::TimedOut => Ending::TimedOut,
        End::Cancelled => Ending::Cancelled,
        End::Reported(Report::Exited(0)) => Ending::Exited(0),
        _ if oom_kills > 0 => Ending::OutOfMemory,
        End::Reported(Report::Exited(code)) => Ending::Exited(code.to_le_bytes()[0]),
        End::Reported(Report::Signalled(signal)) => Ending::Signalled(signal.to_le_bytes()[0]),
        End::Reported(Report::Failed(wall, errno)) => return Err(wall_error(wall, *errno)),
        End::Reported(Report::Ready | Report::Alone) | End::Lost => return Err(RunError::CellLost),
    })
}

/// A wall that could not be built, by its name.
pub(crate) fn wall_error(wall: &WallName, errno: Errno) -> RunError {
    let wall = String::from_utf8_lossy(wall).trim_end_matches('\0').to_owned();
    RunError::Wall { wall, source: io::Error::from_raw_os_error(errno.0) }
}

/// Waits for the end of the main process, the deadline or a cancel, whichever is first.
async fn wait(control: &mut Control, limit: Duration, cancel: CancellationToken) -> End {
    let reports = async {
        let deadline = sleep(limit);
        tokio::pin!(deadline);
        loop {
            tokio::select! {
                biased;
                report = control.report() => match report {
                    Some(Report::Ready) => {
                        // The guest's time begins when its cell does.
                        deadline.as_mut().reset(tokio::time::Instant::now() + limit);
                    }
                    Some(report) => return End::Reported(report),
                    None => return End::Lost,
                },
                () = &mut deadline => return End::TimedOut,
            }
        }
    };
    tokio::select! {
        end = reports => end,
        () = cancel.cancelled() => End::Cancelled,
    }
}

/// Gives the program its standard input, then closes it.
async fn feed(mut stdin: pipe::Sender, input: Vec<u8>, more: Option<mpsc::Receiver<Vec<u8>>>) {
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
