//! Runs in: server (no capabilities).
//!
//! One execution on one screen: open its thread, run it, close the thread with its end.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Instant};

use bytes::Bytes;
use cloche_model::{
    CapturedStream, DeliveryStatus, ErrorCode, EventOrder, Execution, ExecutionEnd,
    ExecutionPhases, ExecutionStart, ExecutionStatus, HomeWrites, MountReport, MountUse,
    OutputChunk, RunEnding, RunLimits, RunOutcome, RunTimings, RunUsage, StreamName, Team,
    UsageReport,
};
use cloche_store::ExecutionFinish;
use futures::FutureExt;
use tokio::sync::{mpsc, watch};

use super::{
    Executions, LiveExecution, RequestPhases,
    end_status::{EndStatus, end_status},
    line_splitter::LineSplitter,
    phases::PhaseClock,
};
use crate::{
    AdmittedRun, DispatchError, Refusal, RequestTrace, TracePhase, clock,
    threads::{OpenThread, QUOTA},
};

/// Chunks of output that may wait for the log, while the log waits for a reader.
const CHUNKS: usize = 8;

/// Why an execution ended, beyond what its record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndReason {
    /// The run has an outcome.
    Outcome,
    /// Nothing could take the run; its caller is refused as unavailable.
    NoExecutor,
    /// No executor takes the run as it was asked for; its caller is refused as invalid.
    Refused,
    /// The run failed before it had an outcome.
    NoOutcome,
}

/// An execution that is over, and why.
pub(super) struct EndedExecution {
    pub(super) execution: Arc<Execution>,
    pub(super) reason: EndReason,
    pub(super) phases: RequestPhases,
}

impl EndedExecution {
    /// The refusal for the caller, if the run never began.
    pub(super) fn to_refusal(&self) -> Option<Refusal> {
        let start = &self.execution.start;
        let error = || self.execution.end.as_ref()?.error.clone();
        let refusal = match self.reason {
            EndReason::NoExecutor => Refusal::new(ErrorCode::Unavailable, UNAVAILABLE),
            EndReason::Refused => Refusal::new(ErrorCode::Validation, error().unwrap_or_default()),
            EndReason::Outcome | EndReason::NoOutcome => return None,
        };
        Some(refusal.with_trace_id(start.trace_id.clone()))
    }
}

/// Who follows the run of an execution.
pub(super) struct RunFollower<'a> {
    pub(super) team: &'a Team,
    pub(super) live: &'a Arc<LiveExecution>,
    /// Whether an executor has taken the run, where the answer waits for that.
    pub(super) taken: Option<watch::Receiver<bool>>,
    pub(super) clock: PhaseClock,
    /// Where its phases are noted.
    pub(super) trace: RequestTrace,
}

/// A run that is over, before it is written down.
struct EndedRun {
    reason: EndReason,
    end_status: EndStatus,
    outcome: RunOutcome,
    /// What is kept of standard output, and of standard error.
    heads: [Bytes; 2],
    event_order: EventOrder,
    /// The storage that it had.
    mounts: Vec<MountUse>,
}

impl Executions {
    /// Runs an execution in its thread and records the end. Returns an end whatever went wrong.
    pub(super) async fn run_execution(
        &self,
        mut run: AdmittedRun,
        mut start: ExecutionStart,
        follower: RunFollower<'_>,
    ) -> EndedExecution {
        let RunFollower { team, live, taken, clock, trace } = follower;
        let limits = run.limits();
        let mounts = run.take_mount_uses();
        let account = self.memory.outputs.account_for(start.key.as_str());
        let run = run.with_output_account(account);
        let mut lines = LineSplitter::default();
        let thread = self.threads.open(&start, team);
        let mut ended = match self.run_in_home(run, &thread, (live, &trace), &mut lines).await {
            Ok(outcome) => with_outcome(outcome, lines, &limits, live).await,
            Err(error) => without_outcome(&error, lines, live).await,
        };
        ended.mounts = mounts;
        let (timings, reason) = (ended.outcome.timings, ended.reason);
        let is_refused = matches!(reason, EndReason::NoExecutor | EndReason::Refused);
        if is_refused && taken.is_some_and(|taken| !*taken.borrow()) {
            // The caller got an error instead of the 202, so nothing is delivered.
            start.webhook_url = None;
        }
        let closing = Instant::now();
        let execution = self.record_end(start, ended, thread, &limits).await;
        self.metrics.observe_phases(&timings, timings.seal + closing.elapsed());
        self.metrics.execution_over(execution.status, execution.start.language);
        let committed = closing.checked_sub(timings.seal).unwrap_or(closing);
        trace.end_phase(TracePhase::Commit, committed);
        trace.finish_execution(execution.status);
        self.activity.note_end(&execution);
        let phases = clock.finish(closing, timings);
        EndedExecution { execution: Arc::new(execution), reason, phases }
    }

    /// Waits for a place on the host, reads the home of the thread, and dispatches the run. The
    /// place is given back when the cell has ended, before the end is recorded.
    async fn run_in_home(
        &self,
        mut run: AdmittedRun,
        thread: &OpenThread,
        (live, trace): (&Arc<LiveExecution>, &RequestTrace),
        lines: &mut LineSplitter,
    ) -> Result<RunOutcome, DispatchError> {
        let queued = Instant::now();
        let _place = match self.admission.wait_for_place(&mut run, live, self.keepalive).await {
            Ok(place) => place,
            Err(not_admitted) => return not_admitted.into_outcome(),
        };
        trace.end_phase(TracePhase::Admission, queued);
        let began = Instant::now();
        let home = thread.home().await?;
        let dispatched = Instant::now();
        let outcome = self.follow_run(run.with_home(home), live, lines).await?;
        let RunTimings { cell, attach, run, .. } = outcome.timings;
        let ready = dispatched + cell + attach;
        trace.note_phase(TracePhase::Pool, began, ready - began);
        trace.note_phase(TracePhase::Run, ready, run);
        Ok(outcome)
    }

    /// Dispatches a run and puts its output into the log, line by line.
    async fn follow_run(
        &self,
        run: AdmittedRun,
        live: &Arc<LiveExecution>,
        lines: &mut LineSplitter,
    ) -> Result<RunOutcome, DispatchError> {
        let (output, mut chunks) = mpsc::channel(CHUNKS);
        live.start_clock(run.limits().timeout);
        // Beside the log, not behind it: deadlines and cancels must not wait while the log waits for
        // a reader. A panic of the executor is an end like others.
        let dispatched = self.dispatcher.dispatch(run, output, live.cancel_token());
        let dispatched = AssertUnwindSafe(dispatched).catch_unwind();
        let publishing = self.publish_output(&mut chunks, live, lines);
        let (result, ()) = tokio::join!(dispatched, publishing);
        result.unwrap_or_else(|_| Err(DispatchError::Failed("the executor panicked".to_owned())))
    }

    /// Puts the output of a run into the log until the run has let go of its end of the channel.
    async fn publish_output(
        &self,
        chunks: &mut mpsc::Receiver<OutputChunk>,
        live: &Arc<LiveExecution>,
        lines: &mut LineSplitter,
    ) {
        let mut last_event = tokio::time::Instant::now();
        loop {
            tokio::select! {
                chunk = chunks.recv() => match chunk {
                    Some(chunk) => {
                        if live.publish_chunk(lines, &chunk).await {
                            last_event = tokio::time::Instant::now();
                        }
                    }
                    None => return,
                },
                () = tokio::time::sleep_until(last_event + self.keepalive) => {
                    last_event = tokio::time::Instant::now();
                    live.publish_keepalive();
                }
            }
        }
    }

    /// Closes the thread with the end of the execution. The end is announced only after that.
    async fn record_end(
        &self,
        start: ExecutionStart,
        ended: EndedRun,
        thread: OpenThread,
        limits: &RunLimits,
    ) -> Execution {
        let status = ended.end_status.status;
        let timings = ended.outcome.timings;
        let mut end = ended.into_execution_end(limits);
        let total = end.completed_at.duration_since(start.created_at);
        end.phases = Some(execution_phases(&timings, total));
        let has_webhook = start.webhook_url.is_some();
        let finish = ExecutionFinish {
            trace_id: start.trace_id.clone(),
            status,
            end: end.clone(),
            thread: None,
            moves_head: true,
            webhook_delay: has_webhook.then(|| self.webhooks.first_delay()),
            budget: None,
        };
        let webhook_status = has_webhook.then_some(DeliveryStatus::Pending);
        let execution = match thread.close(finish).await {
            Ok(recorded) => {
                let (error, written) = (recorded.end.error, recorded.end.written);
                let output_truncated = recorded.end.output_truncated;
                let end = ExecutionEnd { error, written, output_truncated, ..end };
                Execution { start, status, end: Some(end), webhook_status }
            }
            Err(error) => {
                let trace_id = &start.trace_id;
                tracing::error!(%error, %trace_id, "the end was not written to the ledger");
                let error = Some("the result could not be recorded".to_owned());
                let (status, end) = (ExecutionStatus::Failed, ExecutionEnd { error, ..end });
                Execution { start, status, end: Some(end), webhook_status }
            }
        };
        if has_webhook {
            self.webhooks.wake();
        }
        execution
    }
}

impl EndedRun {
    fn into_execution_end(self, limits: &RunLimits) -> ExecutionEnd {
        let Self { end_status, outcome, heads: [stdout, stderr], event_order, mounts, .. } = self;
        let tail = |stream: &CapturedStream| stream.tail().to_vec();
        let mut end = ExecutionEnd {
            exit_code: end_status.exit_code,
            stdout_tail: tail(&outcome.stdout),
            stderr_tail: tail(&outcome.stderr),
            stdout,
            stderr,
            stdout_dropped: outcome.stdout.dropped,
            stderr_dropped: outcome.stderr.dropped,
            error: end_status.error,
            usage: usage_report(&outcome.usage, limits),
            event_order,
            mounts: with_reports(mounts, &outcome.mounts),
            written: outcome.written,
            network: outcome.network,
            completed_at: clock::now(),
            output_truncated: false,
            phases: None,
        };
        end.output_truncated = end.loses_output();
        end
    }
}

/// Where the time went. What no phase accounts for was waiting.
fn execution_phases(timings: &RunTimings, total: std::time::Duration) -> ExecutionPhases {
    let micros = |time: std::time::Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let known = timings.cell + timings.attach + timings.run + timings.seal;
    ExecutionPhases {
        queue: micros(total.saturating_sub(known)),
        cell: micros(timings.cell),
        attach: micros(timings.attach),
        run: micros(timings.run),
        store: micros(timings.seal),
    }
}

/// The mounts with what was read and written there. A fault of the storage is for the log.
fn with_reports(mut mounts: Vec<MountUse>, reports: &[MountReport]) -> Vec<MountUse> {
    for mount in &mut mounts {
        let report = reports.iter().find(|report| report.slug.as_str() == mount.name);
        let Some(report) = report else { continue };
        mount.bytes_read = report.bytes_read;
        mount.bytes_written = report.bytes_written;
        if let Some(error) = &report.first_error {
            let (name, errors) = (&mount.name, report.errors);
            tracing::warn!(name, errors, error, "a storage mount had faults");
        }
    }
    mounts
}

/// The end of a run that has an outcome; the rest of its output goes to the log.
async fn with_outcome(
    mut outcome: RunOutcome,
    mut lines: LineSplitter,
    limits: &RunLimits,
    live: &LiveExecution,
) -> EndedRun {
    let heads = [outcome.stdout.take_head(), outcome.stderr.take_head()];
    live.share_output(&heads[0], &heads[1]);
    live.publish_lines(lines.take_rest(StreamName::Stdout, &heads[0])).await;
    live.publish_lines(lines.take_rest(StreamName::Stderr, &heads[1])).await;
    let mut end_status = end_status(&outcome, limits, live.stopped_by());
    if outcome.written.quota_exceeded && end_status.error.is_none() {
        end_status.error = Some(QUOTA.to_owned());
    }
    if let Some(network) = &outcome.network {
        end_status.blame_network(network);
    }
    let (reason, event_order) = (EndReason::Outcome, live.event_order());
    EndedRun { reason, end_status, outcome, heads, event_order, mounts: Vec::new() }
}

/// The error in the record when nothing could take the run.
pub(super) const UNAVAILABLE: &str = "no executor is available to run the code";

/// The end of a run that has no outcome: what the log still holds is all that is known.
async fn without_outcome(
    error: &DispatchError,
    mut lines: LineSplitter,
    live: &LiveExecution,
) -> EndedRun {
    live.publish_lines(lines.take_unfinished()).await;
    tracing::error!(%error, trace_id = %live.trace_id, "an execution had no outcome");
    let (reason, error) = match error {
        DispatchError::Unavailable(_) => (EndReason::NoExecutor, UNAVAILABLE),
        DispatchError::Refused(why) => (EndReason::Refused, why.as_str()),
        DispatchError::Impossible(why) => (EndReason::NoOutcome, why.as_str()),
        DispatchError::Failed(_) => (EndReason::NoOutcome, "the sandbox failed to run the code"),
    };
    let event_order = EventOrder { stdout_skipped: 0, stderr_skipped: 0, ..live.event_order() };
    let held = [StreamName::Stdout, StreamName::Stderr].map(|stream| live.held_output(stream));
    let [stdout, stderr] = [held[0].1, held[1].1].map(CapturedStream::without_bytes);
    let heads = held.map(|(output, _)| output.into());
    let outcome = RunOutcome {
        ending: RunEnding::Cancelled,
        stdout,
        stderr,
        usage: RunUsage::default(),
        written: HomeWrites::default(),
        network: None,
        mounts: Vec::new(),
        timings: RunTimings::default(),
    };
    let end_status =
        EndStatus { status: ExecutionStatus::Failed, exit_code: -1, error: Some(error.to_owned()) };
    EndedRun { reason, end_status, outcome, heads, event_order, mounts: Vec::new() }
}

/// Minutes × (cores + GiB) / 2, in millionths of a credit. See
/// `docs/decisions/0026-credits-and-usage.md`.
fn usage_report(usage: &RunUsage, limits: &RunLimits) -> UsageReport {
    // Rounded up: a program that has run has taken time.
    let millis = |time: std::time::Duration| {
        u64::try_from(time.as_micros().div_ceil(1000)).unwrap_or(u64::MAX)
    };
    const GIB: u128 = 1 << 30;
    let (millicores, bytes) = (limits.cpus.millicores(), limits.memory.bytes());
    let milli_units = (u128::from(millicores) * GIB + 1000 * u128::from(bytes)) / 2;
    let credits = usage.wall.as_micros() * milli_units / (60_000 * GIB);
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
    fn a_run_of_less_than_a_millisecond_has_taken_one() {
        let used = |micros| RunUsage { wall: Duration::from_micros(micros), ..RunUsage::default() };
        let millis = |micros| usage_report(&used(micros), &RunLimits::default()).wall_ms;
        assert_eq!([0, 700, 1000, 1001].map(millis), [0, 1, 1, 2]);
    }

    #[test]
    fn a_credit_is_a_minute_at_one_core_and_one_gibibyte() {
        let used = |seconds| RunUsage { wall: Duration::from_secs(seconds), ..RunUsage::default() };
        let limits = RunLimits::default();
        assert_eq!(usage_report(&used(60), &limits).micro_credits, 1_000_000);
        let twice = RunLimits { cpus: CpuShare::from_cores(2), memory: ByteSize::gib(2), ..limits };
        assert_eq!(usage_report(&used(60), &twice).micro_credits, 2_000_000);
        let large = RunLimits { cpus: CpuShare::from_cores(2), memory: ByteSize::gib(4), ..limits };
        assert_eq!(usage_report(&used(30), &large).micro_credits, 1_500_000);
        let small = RunLimits { memory: ByteSize::mib(256), ..limits };
        assert_eq!(usage_report(&used(60), &small).micro_credits, 625_000);
    }
}
