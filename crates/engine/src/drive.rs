//! One execution from start to record: follows the run, keeps its log, writes down how it ended.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use cloche_model::{
    Captured, DeliveryStatus, Ending, ErrorCode, Execution, ExecutionEnd, ExecutionStart, Limits,
    Outcome, Score, Seconds, Status, StreamName, Team, Timings, Usage, UsageReport, Written,
};
use cloche_store::{Finish, ThreadKey};
use tokio::sync::mpsc;

use crate::{
    Admitted, DispatchError, Engine, clock,
    lines::Splitter,
    live::{Live, Stop},
    record::QUOTA,
};

/// Chunks of output that may wait for the log.
const CHUNKS: usize = 64;

/// How it ended, in the words of the contract.
struct Verdict {
    status: Status,
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
struct Ended {
    reason: EndReason,
    verdict: Verdict,
    outcome: Outcome,
    /// What is kept of standard output, and of standard error.
    heads: [Bytes; 2],
    score: Score,
}

impl Engine {
    /// Runs it and records the end. Always gives back how it ended, whatever went wrong.
    pub(crate) async fn drive(
        &self,
        run: Admitted,
        start: ExecutionStart,
        team: &Team,
        live: &Arc<Live>,
    ) -> EndedExecution {
        let limits = run.limits();
        let _lease = self.keep_lease(&start);
        let account = self.inner.memory.outputs.account(start.key.as_str());
        let mut run = run.with_output_account(account);
        let (result, mut lines) = match self.find_place(&mut run, live).await {
            // The place is given back when the cell has ended, before the end is recorded.
            Ok(_place) => match self.at_home(run, &start, team).await {
                Ok(run) => self.follow(run, live).await,
                Err(error) => (Err(error), Splitter::default()),
            },
            Err(no_place) => (no_place.outcome(), Splitter::default()),
        };
        let ended = match result {
            Ok(mut outcome) => {
                let heads = [outcome.stdout.take_head(), outcome.stderr.take_head()];
                live.share_output(&heads[0], &heads[1]);
                live.publish(lines.rest(StreamName::Stdout, &heads[0])).await;
                live.publish(lines.rest(StreamName::Stderr, &heads[1])).await;
                let mut verdict = verdict(&outcome, &limits, live.stopped_by());
                if outcome.written.quota_exceeded && verdict.error.is_none() {
                    verdict.error = Some(QUOTA.to_owned());
                }
                Ended { reason: EndReason::Outcome, verdict, outcome, heads, score: live.score() }
            }
            Err(error) => {
                live.publish(lines.unfinished()).await;
                without_outcome(&error, live)
            }
        };
        let (timings, reason) = (ended.outcome.timings, ended.reason);
        let sealing = Instant::now();
        let execution = self.record(start, ended, (&limits, team)).await;
        self.inner.metrics.phases(&timings, timings.seal + sealing.elapsed());
        self.inner.metrics.execution_over(execution.status, execution.start.language);
        EndedExecution { execution: Arc::new(execution), reason }
    }

    /// The run with the home of its thread, if it has one.
    async fn at_home(
        &self,
        run: Admitted,
        start: &ExecutionStart,
        team: &Team,
    ) -> Result<Admitted, DispatchError> {
        let Some(thread) = &start.thread else { return Ok(run) };
        let key = ThreadKey { team: start.team.clone(), id: thread.clone() };
        match self.home(&key, team).await {
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
    async fn follow(
        &self,
        run: Admitted,
        live: &Arc<Live>,
    ) -> (Result<Outcome, DispatchError>, Splitter) {
        let mut lines = Splitter::default();
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
                        let whole = lines.push(&chunk);
                        if !whole.is_empty() {
                            last_event = tokio::time::Instant::now();
                            live.publish(whole).await;
                        }
                    }
                    None => open = false,
                },
                () = tokio::time::sleep_until(last_event + self.inner.config.keepalive) => {
                    last_event = tokio::time::Instant::now();
                    live.keepalive();
                }
            }
        };
        while let Ok(chunk) = chunks.try_recv() {
            live.publish(lines.push(&chunk)).await;
        }
        (result, lines)
    }

    /// Writes the end to the ledger; the caller hears of it only after that.
    async fn record(
        &self,
        start: ExecutionStart,
        ended: Ended,
        (limits, team): (&Limits, &Team),
    ) -> Execution {
        let Ended { verdict, outcome, heads: [stdout, stderr], score, .. } = ended;
        let tail = |stream: &Captured| stream.tail().to_vec();
        let end = ExecutionEnd {
            exit_code: verdict.exit_code,
            stdout_tail: tail(&outcome.stdout),
            stderr_tail: tail(&outcome.stderr),
            stdout,
            stderr,
            stdout_dropped: outcome.stdout.dropped,
            stderr_dropped: outcome.stderr.dropped,
            error: verdict.error,
            usage: usage(&outcome.usage, limits),
            score,
            written: outcome.written,
            completed_at: clock::now(),
        };
        let has_webhook = start.webhook_url.is_some();
        let schedule = &self.inner.config.webhook.schedule;
        let thread = start.thread.clone().map(|id| ThreadKey { team: start.team.clone(), id });
        let finish = Finish {
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
                self.look_after(thread.filter(|_| moved));
            }
            (Err(error), Some(end)) => {
                tracing::error!(%error, trace_id = %execution.start.trace_id, "the end was not written to the ledger");
                execution.status = Status::Failed;
                end.error = Some("the result could not be recorded".to_owned());
            }
            (_, None) => {}
        }
        if has_webhook {
            self.inner.courier.wake();
        }
        execution
    }
}

fn verdict(outcome: &Outcome, limits: &Limits, stopped_by: Option<Stop>) -> Verdict {
    let plain = |status, exit_code| Verdict { status, exit_code, error: None };
    match outcome.ending {
        Ending::Exited(0) => plain(Status::Success, 0),
        Ending::Exited(code) => plain(Status::Failed, i32::from(code)),
        Ending::Signalled(signal) => plain(Status::Failed, 128 + i32::from(signal)),
        Ending::TimedOut => Verdict {
            status: Status::Timeout,
            exit_code: -1,
            error: Some(format!("execution timed out after {}", Seconds(limits.timeout))),
        },
        Ending::OutOfMemory => Verdict {
            status: Status::Oom,
            exit_code: 137,
            error: Some("memory_limit_exceeded".to_owned()),
        },
        Ending::Cancelled => stopped(stopped_by),
    }
}

fn stopped(by: Option<Stop>) -> Verdict {
    let (status, error) = match by {
        Some(Stop::Shutdown) => {
            (Status::Failed, "the server was shut down before the execution ended")
        }
        Some(Stop::User) | None => (Status::Cancelled, "Cancelled by user"),
    };
    Verdict { status, exit_code: -1, error: Some(error.to_owned()) }
}

/// What the record says when nothing could take the run.
pub(crate) const UNAVAILABLE: &str = "no executor is available to run the code";

/// The end of a run that has no outcome: what the log still holds is all that is known.
fn without_outcome(error: &DispatchError, live: &Live) -> Ended {
    tracing::error!(%error, trace_id = %live.trace_id, "an execution had no outcome");
    let (reason, error) = match error {
        DispatchError::Unavailable(_) => (EndReason::NoExecutor, UNAVAILABLE),
        DispatchError::Impossible(why) => (EndReason::NoOutcome, why.as_str()),
        DispatchError::Failed(_) => (EndReason::NoOutcome, "the sandbox failed to run the code"),
    };
    let score = Score { stdout_skipped: 0, stderr_skipped: 0, ..live.score() };
    let heads = [StreamName::Stdout, StreamName::Stderr].map(|stream| live.held(stream).into());
    let outcome = Outcome {
        ending: Ending::Cancelled,
        stdout: Captured::default(),
        stderr: Captured::default(),
        usage: Usage::default(),
        written: Written::default(),
        timings: Timings::default(),
    };
    let verdict = Verdict { status: Status::Failed, exit_code: -1, error: Some(error.to_owned()) };
    Ended { reason, verdict, outcome, heads, score }
}

/// Minutes × cores × GiB, in millionths.
fn usage(usage: &Usage, limits: &Limits) -> UsageReport {
    let millis = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let credits = usage.wall.as_micros()
        * u128::from(limits.cpus.milli())
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

    use cloche_model::{ByteSize, Cpus};

    use super::*;

    #[test]
    fn a_credit_is_a_minute_at_one_core_and_one_gibibyte() {
        let used = |seconds| Usage { wall: Duration::from_secs(seconds), ..Usage::default() };
        let limits = Limits::default();
        assert_eq!(usage(&used(60), &limits).micro_credits, 1_000_000);
        let large = Limits { cpus: Cpus::cores(2), memory: ByteSize::gib(4), ..limits };
        assert_eq!(usage(&used(30), &large).micro_credits, 4_000_000);
    }
}
