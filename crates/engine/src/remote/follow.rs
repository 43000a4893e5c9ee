//! Follows a run at a sidecar to its end: passes output on, keeps both ends of it, stops it when asked.

use std::{sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use cloche_model::{
    ByteSize, Captured, Ending, MemoryAccount, Outcome, OutputChunk, StreamName, Timings, Usage,
    Written,
};
use reqwest::{Method, Response};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    DispatchError,
    sidecar::{JobEvent, JobResult},
};

use super::{Place, Shared, events::Events};

/// How long a sidecar may take to say that a run it was told to stop has stopped.
const DEATH: Duration = Duration::from_secs(5);

/// A run that is followed.
pub(super) struct Follow {
    output: mpsc::Sender<OutputChunk>,
    cancel: CancellationToken,
    cap: u64,
    stdout: Captured,
    stderr: Captured,
    /// A chunk that its reader has no room for yet.
    pending: Option<OutputChunk>,
    /// By which the sidecar knows it, once it has said so.
    id: Option<String>,
    /// The sidecar was told to stop it.
    told: bool,
}

impl Follow {
    pub(super) fn new(
        output: mpsc::Sender<OutputChunk>,
        cancel: CancellationToken,
        cap: ByteSize,
    ) -> Self {
        Self {
            output,
            cancel,
            cap: cap.bytes(),
            stdout: Captured::default(),
            stderr: Captured::default(),
            pending: None,
            id: None,
            told: false,
        }
    }

    /// The same, with the output that is kept paid from this account.
    pub(super) fn charged_to(self, memory: Option<&Arc<MemoryAccount>>) -> Self {
        let (stdout, stderr) = (Captured::charged_to(memory), Captured::charged_to(memory));
        Self { stdout, stderr, ..self }
    }

    pub(super) fn cancel_token(&self) -> CancellationToken {
        self.cancel.clone()
    }

    /// The outcome of a run that was stopped, as far as we have heard of it.
    pub(super) fn cancelled(&mut self) -> Outcome {
        Outcome {
            ending: Ending::Cancelled,
            stdout: std::mem::take(&mut self.stdout),
            stderr: std::mem::take(&mut self.stderr),
            usage: Usage::default(),
            written: Written::default(),
            timings: Timings::default(),
        }
    }

    /// Until the result, the deadline, or the end of the stream. Letting go of the stream stops the run.
    pub(super) async fn until_over(
        &mut self,
        shared: &Arc<Shared>,
        place: &Place,
        response: Response,
        mut deadline: Instant,
    ) -> Result<Outcome, DispatchError> {
        let mut events = Events::new(response);
        let (cancel, output) = (self.cancel.clone(), self.output.clone());
        loop {
            let patience = deadline.min(Instant::now() + shared.config.silence);
            let event = tokio::select! {
                biased;
                () = cancel.cancelled(), if !self.told => {
                    // A run that the sidecar has not named yet is stopped by closing its connection.
                    if self.id.is_none() {
                        return Ok(self.cancelled());
                    }
                    self.told = true;
                    deadline = deadline.min(Instant::now() + DEATH);
                    self.stop(shared, place);
                    continue;
                }
                room = output.reserve(), if self.pending.is_some() => {
                    // Whoever listened may be gone; the run goes on.
                    if let (Ok(room), Some(chunk)) = (room, self.pending.take()) {
                        room.send(chunk);
                    }
                    continue;
                }
                event = tokio::time::timeout_at(patience, events.next()), if self.pending.is_none() => {
                    event.unwrap_or_else(|_| Err("it said nothing for too long".to_owned()))
                }
            };
            let lost = match event.and_then(|event| self.take(event)) {
                Ok(None) => continue,
                Ok(Some(Last::Result(result))) => return self.outcome(*result),
                Ok(Some(Last::Error(error))) => return Err(error),
                Err(_) if self.told => return Ok(self.cancelled()),
                Err(why) => why,
            };
            place.fail(&lost);
            return Err(DispatchError::Failed(format!("{} was lost: {lost}", place.url)));
        }
    }

    /// Tells the sidecar, while we go on listening: what is in flight is not lost.
    fn stop(&self, shared: &Arc<Shared>, place: &Place) {
        let Some(id) = &self.id else { return };
        let path = format!("execute/{id}/cancel");
        let request = shared.request(Method::POST, place, &path).timeout(DEATH);
        tokio::spawn(async move {
            // Where this fails, the connection is closed a little later, and that stops it as well.
            if let Err(error) = request.send().await {
                tracing::warn!(error = %error.without_url(), "a run was not told to stop");
            }
        });
    }

    /// Takes one event in. Gives back the last one.
    fn take(&mut self, event: JobEvent) -> Result<Option<Last>, String> {
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
                let kept = self.keep(stream, &bytes);
                self.pending = Some(OutputChunk { stream, bytes, kept });
                Ok(None)
            }
            JobEvent::Keepalive => Ok(None),
            JobEvent::Result(result) => Ok(Some(Last::Result(result))),
            JobEvent::Error { error, message } => Ok(Some(Last::Error(match error.as_str() {
                "service_unavailable" => DispatchError::Unavailable(message),
                "unprocessable" => DispatchError::Impossible(message),
                _ => DispatchError::Failed(message),
            }))),
        }
    }

    fn keep(&mut self, stream: StreamName, bytes: &[u8]) -> usize {
        let kept = match stream {
            StreamName::Stdout => &mut self.stdout,
            StreamName::Stderr => &mut self.stderr,
        };
        kept.keep(bytes, self.cap)
    }

    fn outcome(&mut self, result: JobResult) -> Result<Outcome, DispatchError> {
        let total = |kept: &Captured| kept.bytes.len() as u64 + kept.dropped;
        if (total(&self.stdout), total(&self.stderr)) != (result.stdout_bytes, result.stderr_bytes)
        {
            return Err(DispatchError::Failed("output was lost on the way".to_owned()));
        }
        if result.ending == Ending::Cancelled && !self.told {
            return Err(DispatchError::Failed("the executor was stopped".to_owned()));
        }
        Ok(Outcome {
            ending: result.ending,
            usage: result.usage(),
            timings: result.timings(),
            written: result.into_written(),
            ..self.cancelled()
        })
    }
}

/// How a stream ends.
enum Last {
    Result(Box<JobResult>),
    Error(DispatchError),
}
