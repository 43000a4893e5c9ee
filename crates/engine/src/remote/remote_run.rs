//! Runs in: server (no capabilities).
//!
//! Follows a run at a sidecar to its end: passes its output on, captures it, and stops the run when
//! it is cancelled.

use std::{sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use cloche_model::{
    ByteSize, CapturedStream, HomeWrites, LayerDigest, MemoryAccount, OutputChunk, RunEnding,
    RunOutcome, RunTimings, RunUsage, StreamName,
};
use reqwest::{Method, Response};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    DispatchError,
    sidecar::{JobEvent, JobResult},
};

use super::{RemoteInner, SidecarSlot, events::JobEventStream};

/// How long a sidecar may take to confirm that a run has stopped.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// A run that is followed.
pub(super) struct RemoteRun {
    output: mpsc::Sender<OutputChunk>,
    cancel: CancellationToken,
    cap: u64,
    stdout: CapturedStream,
    stderr: CapturedStream,
    /// A chunk that its reader has no room for yet.
    pending: Option<OutputChunk>,
    /// The sidecar's id of the run, once it has sent it.
    id: Option<String>,
    /// A stop was requested from the sidecar.
    stop_requested: bool,
    /// The layer with what the run wrote, as the sidecar reports it. Not checked yet.
    layer: Option<LayerDigest>,
}

impl RemoteRun {
    pub(super) fn new(
        output: mpsc::Sender<OutputChunk>,
        cancel: CancellationToken,
        cap: ByteSize,
    ) -> Self {
        Self {
            output,
            cancel,
            cap: cap.bytes(),
            stdout: CapturedStream::default(),
            stderr: CapturedStream::default(),
            pending: None,
            id: None,
            stop_requested: false,
            layer: None,
        }
    }

    /// The same, with the output that is kept paid from this account.
    pub(super) fn charged_to(self, memory: Option<&Arc<MemoryAccount>>) -> Self {
        let (stdout, stderr) =
            (CapturedStream::charged_to(memory), CapturedStream::charged_to(memory));
        Self { stdout, stderr, ..self }
    }

    pub(super) fn cancel_token(&self) -> CancellationToken {
        self.cancel.clone()
    }

    /// The outcome of a run that was stopped, with the output received so far.
    pub(super) fn cancelled_outcome(&mut self) -> RunOutcome {
        RunOutcome {
            ending: RunEnding::Cancelled,
            stdout: std::mem::take(&mut self.stdout),
            stderr: std::mem::take(&mut self.stderr),
            usage: RunUsage::default(),
            written: HomeWrites::default(),
            network: None,
            timings: RunTimings::default(),
        }
    }

    /// The layer that the result named.
    pub(super) fn take_layer(&mut self) -> Option<LayerDigest> {
        self.layer.take()
    }

    /// Follows the run until its result, the deadline, or the end of the stream. Dropping the
    /// stream stops the run.
    pub(super) async fn until_over(
        &mut self,
        shared: &Arc<RemoteInner>,
        place: &SidecarSlot,
        response: Response,
        mut deadline: Instant,
    ) -> Result<RunOutcome, DispatchError> {
        let mut events = JobEventStream::new(response);
        let (cancel, output) = (self.cancel.clone(), self.output.clone());
        loop {
            let turn = Instant::now();
            let patience = deadline.min(turn + shared.config.silence);
            let event = tokio::select! {
                biased;
                () = cancel.cancelled(), if !self.stop_requested => {
                    // A run that the sidecar has not named yet is stopped by closing its
                    // connection.
                    if self.id.is_none() {
                        return Ok(self.cancelled_outcome());
                    }
                    self.stop_requested = true;
                    deadline = deadline.min(Instant::now() + STOP_TIMEOUT);
                    self.request_stop(shared, place);
                    continue;
                }
                room = output.reserve(), if self.pending.is_some() => {
                    // The receiver may be gone; the run goes on.
                    if let (Ok(room), Some(chunk)) = (room, self.pending.take()) {
                        room.send(chunk);
                    }
                    // Time in which our own reader held the sidecar up does not count.
                    deadline += turn.elapsed();
                    continue;
                }
                event = tokio::time::timeout_at(patience, events.next()), if self.pending.is_none() => {
                    event.unwrap_or_else(|_| Err("it said nothing for too long".to_owned()))
                }
            };
            let lost = match event.and_then(|event| self.take_event(event)) {
                Ok(None) => continue,
                Ok(Some(StreamEnd::Result(result))) => return self.build_outcome(*result),
                Ok(Some(StreamEnd::Error(error))) => return Err(error),
                Err(_) if self.stop_requested => return Ok(self.cancelled_outcome()),
                Err(why) => why,
            };
            place.mark_down(&lost);
            return Err(DispatchError::Failed(format!("{} was lost: {lost}", place.url)));
        }
    }

    /// Tells the sidecar, while we go on listening: what is in flight is not lost.
    fn request_stop(&self, shared: &Arc<RemoteInner>, place: &SidecarSlot) {
        let Some(id) = &self.id else { return };
        let path = format!("execute/{id}/cancel");
        let request = shared.request_to(Method::POST, place, &path).timeout(STOP_TIMEOUT);
        tokio::spawn(async move {
            // Where this fails, the connection is closed a little later, and that stops it as well.
            if let Err(error) = request.send().await {
                tracing::warn!(error = %error.without_url(), "a run was not told to stop");
            }
        });
    }

    /// Takes one event in. Gives back the last one.
    fn take_event(&mut self, event: JobEvent) -> Result<Option<StreamEnd>, String> {
        match event {
            JobEvent::Started { id } => {
                let plain =
                    id.len() <= 64 && id.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
                if !plain {
                    return Err("it gave the run a name that is none".to_owned());
                }
                self.id = Some(id);
                Ok(None)
            }
            JobEvent::Output { stream, data } => {
                let bytes = STANDARD.decode(data).map_err(|error| error.to_string())?;
                let kept = self.keep_output(stream, &bytes);
                self.pending = Some(OutputChunk { stream, bytes, kept });
                Ok(None)
            }
            JobEvent::Keepalive => Ok(None),
            JobEvent::Result(result) => Ok(Some(StreamEnd::Result(result))),
            JobEvent::Error { error, message } => {
                Ok(Some(StreamEnd::Error(match error.as_str() {
                    "service_unavailable" => DispatchError::Unavailable(message),
                    "unprocessable" => DispatchError::Impossible(message),
                    _ => DispatchError::Failed(message),
                })))
            }
        }
    }

    fn keep_output(&mut self, stream: StreamName, bytes: &[u8]) -> usize {
        let kept = match stream {
            StreamName::Stdout => &mut self.stdout,
            StreamName::Stderr => &mut self.stderr,
        };
        kept.append_within(bytes, self.cap)
    }

    fn build_outcome(&mut self, mut result: JobResult) -> Result<RunOutcome, DispatchError> {
        let total = |kept: &CapturedStream| kept.bytes.len() as u64 + kept.dropped;
        if (total(&self.stdout), total(&self.stderr)) != (result.stdout_bytes, result.stderr_bytes)
        {
            return Err(DispatchError::Failed("output was lost on the way".to_owned()));
        }
        if result.ending == RunEnding::Cancelled && !self.stop_requested {
            return Err(DispatchError::Failed("the executor was stopped".to_owned()));
        }
        self.layer = result.layer.take();
        Ok(RunOutcome {
            ending: result.ending,
            usage: result.run_usage(),
            timings: result.run_timings(),
            written: result.into_written(),
            ..self.cancelled_outcome()
        })
    }
}

/// How a stream ends.
enum StreamEnd {
    Result(Box<JobResult>),
    Error(DispatchError),
}
