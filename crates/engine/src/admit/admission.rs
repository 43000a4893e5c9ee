//! Runs in: server (no capabilities). Admission by what the host has: executions and transfers get
//! a place, a turn to wait for, or a refusal that says when to ask again.
//!
//! A turn is taken before the running row is written, and the place waited for after it: an execution
//! that waits is in the ledger, can be looked at and cancelled, and its time limit has not begun.

use std::{sync::Arc, time::Duration};

use cloche_model::{
    CapturedStream, ErrorCode, HomeWrites, RunEnding, RunLimits, RunOutcome, RunTimings, RunUsage,
    Team,
};
use tokio::time::{Instant, sleep_until};

use super::{AdmittedRun, FairQueue, HostPlace, PlaceRequest, QueueTicket, fair_queue::QueueFull};
use crate::{
    AdmissionConfig, DispatchError, EngineMetrics, HostShare, PlanWeights, Refusal,
    executions::LiveExecution,
    metrics::{AdmissionMetrics, RequestClass},
};

/// When a request that found the queue full may ask again.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Who may use the host.
pub(crate) struct AdmissionControl {
    runs: FairQueue,
    transfers: FairQueue,
    weights: PlanWeights,
    metrics: AdmissionMetrics,
}

/// Why an execution that waited got no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotAdmitted {
    /// It was cancelled, or the server is shut down.
    Stopped,
    /// It waited for the longest time that it may.
    TooLate(Duration),
}

impl NotAdmitted {
    /// The result of an execution that has not run.
    pub(crate) fn into_outcome(self) -> Result<RunOutcome, DispatchError> {
        match self {
            Self::Stopped => Ok(RunOutcome {
                ending: RunEnding::Cancelled,
                stdout: CapturedStream::from_bytes(Vec::new()),
                stderr: CapturedStream::from_bytes(Vec::new()),
                usage: RunUsage::default(),
                written: HomeWrites::default(),
                network: None,
                mounts: Vec::new(),
                timings: RunTimings::default(),
            }),
            Self::TooLate(waited) => Err(DispatchError::Unavailable(format!(
                "the host was full for {} s",
                waited.as_secs()
            ))),
        }
    }
}

impl AdmissionControl {
    pub(crate) fn new(config: &AdmissionConfig, metrics: &Arc<EngineMetrics>) -> Self {
        Self {
            runs: FairQueue::new(config.runs, config.cells_in_front),
            transfers: FairQueue::new(config.transfers, u64::MAX),
            weights: config.weights,
            metrics: metrics.admission.clone(),
        }
    }

    /// A turn for an execution with these limits.
    pub(crate) fn enter_run(
        &self,
        team: &Team,
        limits: &RunLimits,
    ) -> Result<QueueTicket, Refusal> {
        self.enter_queue(RequestClass::Run, team, HostShare::of_cell(limits))
    }

    /// A place for an upload, an import or an export of this team, once it is its turn.
    pub(crate) async fn enter_transfer(&self, team: &Team) -> Result<HostPlace, Refusal> {
        let class = RequestClass::Transfer;
        let mut waiting = match self.enter_queue(class, team, HostShare::PLACE)? {
            QueueTicket::Granted(place) => return Ok(place),
            QueueTicket::Waiting(waiting) => waiting,
        };
        let longest = self.transfers.longest_wait();
        match tokio::time::timeout(longest, waiting.wait_granted()).await {
            Ok(Some(place)) => {
                self.metrics.note_wait(class, place.waited);
                Ok(place)
            }
            _ => {
                self.metrics.note_refused(class, "timeout");
                Err(host_full_refusal(
                    "the host has been busy with other transfers for too long".to_owned(),
                ))
            }
        }
    }

    /// Brings the gauges up to date.
    pub(crate) fn show_levels(&self) {
        let classes = [(RequestClass::Run, &self.runs), (RequestClass::Transfer, &self.transfers)];
        for (class, queue) in classes {
            let level = queue.level();
            self.metrics.set_level(class, level.running, level.queued);
        }
    }

    /// How many executions wait for a place.
    pub(crate) fn queued_runs(&self) -> usize {
        self.runs.level().queued
    }

    fn enter_queue(
        &self,
        class: RequestClass,
        team: &Team,
        demand: HostShare,
    ) -> Result<QueueTicket, Refusal> {
        let queue = match class {
            RequestClass::Run => &self.runs,
            RequestClass::Transfer => &self.transfers,
        };
        let weight = self.weights.weight_for(team.plan);
        queue.enter(PlaceRequest { team: &team.id, weight, demand }).map_err(|full| {
            let (reason, message) = match full {
                QueueFull::Team(count) => (
                    "team_queue",
                    format!("the host is full and {count} requests of this team wait"),
                ),
                QueueFull::Host(count) => {
                    ("host_queue", format!("the host is full and {count} requests wait"))
                }
            };
            self.metrics.note_refused(class, reason);
            host_full_refusal(message)
        })
    }
}

fn host_full_refusal(why: String) -> Refusal {
    let message = format!("{why}; try again in a few seconds");
    Refusal { retry_after: Some(RETRY_AFTER), ..Refusal::new(ErrorCode::Unavailable, message) }
}

impl AdmissionControl {
    /// Waits for the turn of an execution. Readers of its events get a keepalive at these intervals.
    pub(crate) async fn wait_for_place(
        &self,
        run: &mut AdmittedRun,
        live: &LiveExecution,
        keepalive: Duration,
    ) -> Result<Option<HostPlace>, NotAdmitted> {
        let place = match run.take_ticket() {
            None => return Ok(None),
            Some(QueueTicket::Granted(place)) => place,
            Some(QueueTicket::Waiting(mut waiting)) => {
                let turn = async { waiting.wait_granted().await };
                self.wait_for_turn(turn, live, keepalive).await?
            }
        };
        run.set_cpu_priority(place.cpu_priority());
        Ok(Some(place))
    }

    async fn wait_for_turn(
        &self,
        turn: impl Future<Output = Option<HostPlace>>,
        live: &LiveExecution,
        keepalive: Duration,
    ) -> Result<HostPlace, NotAdmitted> {
        let Self { runs, metrics, .. } = self;
        let stopped = live.cancel_token();
        let began = Instant::now();
        let too_late = began + runs.longest_wait();
        let mut sign_of_life = began + keepalive;
        tokio::pin!(turn);
        loop {
            tokio::select! {
                biased;
                () = stopped.cancelled() => return Err(NotAdmitted::Stopped),
                Some(place) = &mut turn => {
                    metrics.note_wait(RequestClass::Run, place.waited);
                    return Ok(place);
                }
                () = sleep_until(too_late) => {
                    metrics.note_refused(RequestClass::Run, "timeout");
                    return Err(NotAdmitted::TooLate(runs.longest_wait()));
                }
                () = sleep_until(sign_of_life) => {
                    sign_of_life += keepalive;
                    live.publish_keepalive();
                }
            }
        }
    }
}
