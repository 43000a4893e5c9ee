//! One execution from start to record: follows the run, keeps its log, writes down how it ended.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use cloche_model::{
    CapturedStream, DeliveryStatus, DisplaySeconds, ErrorCode, EventOrder, Execution, ExecutionEnd,
    ExecutionStart, ExecutionStatus, HomeWrites, RunEnding, RunLimits, RunOutcome, RunTimings,
    RunUsage, StreamName, Team, UsageReport,
};
use cloche_store::{ExecutionFinish, ThreadKey};
use tokio::sync::mpsc;

use crate::{
    AdmittedRun, DispatchError, Engine, clock,
    line_splitter::LineSplitter,
    live_execution::{LiveExecution, StopCause},
    record::QUOTA,
};

/// Chunks of output that may wait for the log.
const CHUNKS: usize = 64;

/// How it ended, in the words of the contract.
struct EndStatus {
    status: ExecutionStatus,
    exit_code: i32,
    error: Option<String>,
}

/// What an execution ended by, beyond what its record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndReason {
    /// Its program: there is an outcome.
    Outcome,
    /// Nothing could take the run.
    NoExecutor,
    /// The run failed before it had an outcome.
    NoOutcome,
}

/// An execution that is over, and why.
pub(crate) struct EndedExecution {
    pub(crate) execution: Arc<Execution>,
    pub(crate) reason: EndReason,
}

/// A run that is over, before it is written down.
struct EndedRun {
    reason: EndReason,
    end_status: EndStatus,
    outcome: RunOutcome,
    /// What is kept of standard output, and of standard error.
    heads: [Bytes; 2],
    event_order: EventOrder,
}

impl Engine {
    /// Runs it and records the end. Always gives back how it ended, whatever went wrong.
    pub(crate) async fn run_execution(
        &self,
        run: AdmittedRun,
        start: ExecutionStart,
        team: &Team,
        live: &Arc<LiveExecution>,
    ) -> EndedExecution {
        let limits = run.limits();
        let _lease = self.keep_lease(&start);
        let account = self.inner.memory.outputs.account_for(start.key.as_str());
        let mut run = run.with_output_account(account);
        let (result, mut lines) = match self.find_place(&mut run, live).await {
            // The place is given back when the cell has ended, before the end is recorded.
            Ok(_place) => match self.attach_home(run, &start, team).await {
                Ok(run) => self.follow_run(run, live).await,
                Err(error) => (Err(error), LineSplitter::default()),
            },
            Err(no_place) => (no_place.into_outcome(), LineSplitter::default()),
        };
        let ended = match result {
            Ok(mut outcome) => {
                let heads = [outcome.stdout.take_head(), outcome.stderr.take_head()];
                live.share_output(&heads[0], &heads[1]);
                live.publish_lines(lines.take_rest(StreamName::Stdout, &heads[0])).await;
                live.publish_lines(lines.take_rest(StreamName::Stderr, &heads[1])).await;
                let mut verdict = end_status(&outcome, &limits, live.stopped_by());
                if outcome.written.quota_exceeded && verdict.error.is_none() {
                    verdict.error = Some(QUOTA.to_owned());
                }
                EndedRun {
                    reason: EndReason::Outcome,
                    end_status: verdict,
                    outcome,
                    heads,
                    event_order: live.event_order(),
                }
            }
            Err(error) => {
                live.publish_lines(lines.take_unfinished()).await;
                without_outcome(&error, live)
            }
        };
        let (timings, reason) = (ended.outcome.timings, ended.reason);
        let sealing = Instant::now();
        let execution = self.record_end(start, ended, (&limits, team)).await;
        self.inner.metrics.observe_phases(&timings, timings.seal + sealing.elapsed());
        self.inner.metrics.execution_over(execution.status, execution.start.language);
        EndedExecution { execution: Arc::new(execution), reason }
    }

    /// The run with the home of its thread, if it has one.
    async fn attach_home(
        &self,
        run: AdmittedRun,
        start: &ExecutionStart,
        team: &Team,
    ) -> Result<AdmittedRun, DispatchError> {
        let Some(thread) = &start.thread else { return Ok(run) };
        let key = ThreadKey { team: start.team.clone(), id: thread.clone() };
        match self.thread_home(&key, team).await {
            Ok(home) => Ok(run.with_home(home)),
            Err(refusal) if refusal.code == ErrorCode::QuotaExceeded => {
                Err(DispatchError::Impossible(refusal.message.into_owned()))
            }
            Err(refusal) => {
                tracing::error!(error = %refusal, source = ?refusal.source, %thread, "no home");
                Err(DispatchError::Impossible("the home of this thread cannot be read".to_owned()))
            }
        }
    }

    /// Dispatches it and puts its output into the log, line by line.
    async fn follow_run(
        &self,
        run: AdmittedRun,
        live: &Arc<LiveExecution>,
    ) -> (Result<RunOutcome, DispatchError>, LineSplitter) {
        let mut lines = LineSplitter::default();
        let (output, mut chunks) = mpsc::channel(CHUNKS);
        // In a task of its own: deadlines and cancels must not wait while the log waits for a reader.
        let dispatched = self.inner.dispatcher.dispatch(run, output, live.cancel_token());
        let mut dispatched = tokio::spawn(dispatched);
        let mut open = true;
        let mut last_event = tokio::time::Instant::now();
        let result = loop {
            tokio::select! {
                result = &mut dispatched => break result.unwrap_or_else(|error| {
                    Err(DispatchError::Failed(error.to_string()))
                }),
                chunk = chunks.recv(), if open => match chunk {
                    Some(chunk) => {
                        let whole = lines.push_chunk(&chunk);
                        if !whole.is_empty() {
                            last_event = tokio::time::Instant::now();
                            live.publish_lines(whole).await;
                        }
                    }
                    None => open = false,
                },
                () = tokio::time::sleep_until(last_event + self.inner.config.keepalive) => {
                    last_event = tokio::time::Instant::now();
                    live.publish_keepalive();
                }
            }
        };
        while let Ok(chunk) = chunks.try_recv() {
            live.publish_lines(lines.push_chunk(&chunk)).await;
        }
        (result, lines)
    }

    /// Writes the end to the ledger; the caller hears of it only after that.
    async fn record_end(
        &self,
        start: ExecutionStart,
        ended: EndedRun,
        (limits, team): (&RunLimits, &Team),
    ) -> Execution {
        let EndedRun {
            end_status: verdict,
            outcome,
            heads: [stdout, stderr],
            event_order: score,
            ..
        } = ended;
        let tail = |stream: &CapturedStream| stream.tail().to_vec();
        let end = ExecutionEnd {
            exit_code: verdict.exit_code,
            stdout_tail: tail(&outcome.stdout),
            stderr_tail: tail(&outcome.stderr),
            stdout,
            stderr,
            stdout_dropped: outcome.stdout.dropped,
            stderr_dropped: outcome.stderr.dropped,
            error: verdict.error,
            usage: usage_report(&outcome.usage, limits),
            event_order: score,
            written: outcome.written,
            completed_at: clock::now(),
        };
        let has_webhook = start.webhook_url.is_some();
        let schedule = &self.inner.config.webhook.schedule;
        let thread = start.thread.clone().map(|id| ThreadKey { team: start.team.clone(), id });
        let finish = ExecutionFinish {
            trace_id: start.trace_id.clone(),
            status: verdict.status,
            end: end.clone(),
            thread: thread.clone(),
            moves_head: true,
            webhook_delay: has_webhook.then(|| schedule.first().copied().unwrap_or_default()),
            budget: None,
        };
        let mut execution = Execution {
            start,
            status: verdict.status,
            end: Some(end),
            webhook_status: has_webhook.then_some(DeliveryStatus::Pending),
        };
        match (self.finish_within_budget(finish, team).await, &mut execution.end) {
            (Ok(recorded), Some(end)) => {
                let moved = recorded.thread.is_some() && recorded.end.written.layer.is_some();
                (end.error, end.written) = (recorded.end.error, recorded.end.written);
                self.squash_in_background(thread.filter(|_| moved));
            }
            (Err(error), Some(end)) => {
                tracing::error!(%error, trace_id = %execution.start.trace_id, "the end was not written to the ledger");
                execution.status = ExecutionStatus::Failed;
                end.error = Some("the result could not be recorded".to_owned());
            }
            (_, None) => {}
        }
        if has_webhook {
            self.inner.webhook_sender.wake();
        }
        execution
    }
}

fn end_status(
    outcome: &RunOutcome,
    limits: &RunLimits,
    stopped_by: Option<StopCause>,
) -> EndStatus {
    let plain = |status, exit_code| EndStatus { status, exit_code, error: None };
    match outcome.ending {
        RunEnding::Exited(0) => plain(ExecutionStatus::Success, 0),
        RunEnding::Exited(code) => plain(ExecutionStatus::Failed, i32::from(code)),
        RunEnding::Signalled(signal) => plain(ExecutionStatus::Failed, 128 + i32::from(signal)),
        RunEnding::TimedOut => EndStatus {
            status: ExecutionStatus::Timeout,
            exit_code: -1,
            error: Some(format!("execution timed out after {}", DisplaySeconds(limits.timeout))),
        },
        RunEnding::OutOfMemory => EndStatus {
            status: ExecutionStatus::Oom,
            exit_code: 137,
            error: Some("memory_limit_exceeded".to_owned()),
        },
        RunEnding::Cancelled => stopped_status(stopped_by),
    }
}

fn stopped_status(by: Option<StopCause>) -> EndStatus {
    let (status, error) = match by {
        Some(StopCause::Shutdown) => {
            (ExecutionStatus::Failed, "the server was shut down before the execution ended")
        }
        Some(StopCause::User) | None => (ExecutionStatus::Cancelled, "Cancelled by user"),
    };
    EndStatus { status, exit_code: -1, error: Some(error.to_owned()) }
}

/// What the record says when nothing could take the run.
pub(crate) const UNAVAILABLE: &str = "no executor is available to run the code";

/// The end of a run that has no outcome: what the log still holds is all that is known.
fn without_outcome(error: &DispatchError, live: &LiveExecution) -> EndedRun {
    tracing::error!(%error, trace_id = %live.trace_id, "an execution had no outcome");
    let (reason, error) = match error {
        DispatchError::Unavailable(_) => (EndReason::NoExecutor, UNAVAILABLE),
        DispatchError::Impossible(why) => (EndReason::NoOutcome, why.as_str()),
        DispatchError::Failed(_) => (EndReason::NoOutcome, "the sandbox failed to run the code"),
    };
    let score = EventOrder { stdout_skipped: 0, stderr_skipped: 0, ..live.event_order() };
    let heads =
        [StreamName::Stdout, StreamName::Stderr].map(|stream| live.held_output(stream).into());
    let outcome = RunOutcome {
        ending: RunEnding::Cancelled,
        stdout: CapturedStream::default(),
        stderr: CapturedStream::default(),
        usage: RunUsage::default(),
        written: HomeWrites::default(),
        timings: RunTimings::default(),
    };
    let verdict =
        EndStatus { status: ExecutionStatus::Failed, exit_code: -1, error: Some(error.to_owned()) };
    EndedRun { reason, end_status: verdict, outcome, heads, event_order: score }
}

/// Minutes × cores × GiB, in millionths.
fn usage_report(usage: &RunUsage, limits: &RunLimits) -> UsageReport {
    let millis = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let credits = usage.wall.as_micros()
        * u128::from(limits.cpus.millicores())
        * u128::from(limits.memory.bytes())
        / (1 << 30)
        / 60_000;
    UsageReport {
        wall_ms: millis(usage.wall),
        cpu_ms: millis(usage.cpu),
        peak_memory_bytes: usage.peak_memory.bytes(),
        micro_credits: u64::try_from(credits).unwrap_or(u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cloche_model::{ByteSize, CpuShare};

    use super::*;

    #[test]
    fn a_credit_is_a_minute_at_one_core_and_one_gibibyte() {
        let used = |seconds| RunUsage { wall: Duration::from_secs(seconds), ..RunUsage::default() };
        let limits = RunLimits::default();
        assert_eq!(usage_report(&used(60), &limits).micro_credits, 1_000_000);
        let large = RunLimits { cpus: CpuShare::from_cores(2), memory: ByteSize::gib(4), ..limits };
        assert_eq!(usage_report(&used(30), &large).micro_credits, 4_000_000);
    }
}
