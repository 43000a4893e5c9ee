//! Runs in: server (no capabilities).
//!
//! The beginning of an execution: the request is checked and admitted, the running row is written
//! and takes the thread, and a task runs it. A refusal is in the ledger, too.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use cloche_model::{
    CheckedRequest, DeliveryMode, ErrorCode, ExecuteRequest, Execution, ExecutionStart,
    ExecutionStatus, HomeState, Moment, Team, TraceId,
};
use cloche_store::{BeginOutcome, StoreError};
use sha2::{Digest, Sha256};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    EventLogReader, Executions, LiveExecution, RequestPhases, StopCause,
    phases::PhaseClock,
    task::{EndedExecution, RunFollower, UNAVAILABLE},
};
use crate::{
    AdmittedRun, CallPermit, Caller, CellTools, DispatchError, Refusal, RequestTrace, TakenSignal,
    TracePhase,
    admit::{self, ExecutionSlot},
    clock, null_dispatcher, secrets, threads,
};

/// An execution that has begun.
pub struct StartedExecution {
    /// Its id.
    pub trace_id: TraceId,
    live: Arc<LiveExecution>,
    over: oneshot::Receiver<(EndedExecution, AnswerSignal)>,
    /// Whether an executor has taken the run; absent where that needs no waiting.
    taken: Option<watch::Receiver<bool>>,
}

/// Says that the answer of an execution is out, when the last clone is dropped. The cell is taken
/// apart after that, and the next one made.
#[derive(Clone, Debug)]
pub struct AnswerSignal {
    _guard: Arc<DropGuard>,
}

impl StartedExecution {
    /// Its events from the first on.
    #[must_use]
    pub fn read_events(&self) -> EventLogReader {
        self.live.reader_after(0)
    }

    /// Ties the execution to a value: dropped before the end, it stops the execution.
    #[must_use]
    pub fn cancel_on_drop(&self) -> CancelOnDrop {
        CancelOnDrop(Arc::clone(&self.live))
    }

    /// Waits until an executor has taken the run, so that an answer does not promise a run that
    /// nothing can start. The executor of this host takes every run at once.
    ///
    /// # Errors
    /// When the execution ended before any executor took it. Its record says so, too.
    pub async fn wait_until_taken(mut self) -> Result<Self, Refusal> {
        let Some(mut taken) = self.taken.take() else { return Ok(self) };
        if taken.wait_for(|taken| *taken).await.is_ok() {
            return Ok(self);
        }
        let (ended, answered) = receive_end(self.over, &self.trace_id).await?;
        let (done, over) = oneshot::channel();
        if let Some(refusal) = ended.to_refusal() {
            return Err(refusal);
        }
        // It was cancelled before: its events and its record are the answer.
        let _ = done.send((ended, answered));
        Ok(Self { over, ..self })
    }

    /// Waits for the end; the record of it is durable by then.
    ///
    /// # Errors
    /// When nothing could run it, or we failed to follow it.
    pub async fn wait_until_over(self) -> Result<Arc<Execution>, Refusal> {
        Ok(self.wait_with_phases().await?.0)
    }

    /// Like [`Self::wait_until_over`], with where the time went and a signal to be dropped when the
    /// answer is out.
    ///
    /// # Errors
    /// As for [`Self::wait_until_over`].
    pub async fn wait_with_phases(
        self,
    ) -> Result<(Arc<Execution>, RequestPhases, AnswerSignal), Refusal> {
        let (ended, answered) = receive_end(self.over, &self.trace_id).await?;
        ended.to_refusal().map_or(Ok((ended.execution, ended.phases, answered)), Err)
    }
}

async fn receive_end(
    over: oneshot::Receiver<(EndedExecution, AnswerSignal)>,
    trace_id: &TraceId,
) -> Result<(EndedExecution, AnswerSignal), Refusal> {
    over.await.map_err(|error| Refusal::internal(error).with_trace_id(trace_id.clone()))
}

/// Stops an execution when it is dropped. One that is over stays as it is.
pub struct CancelOnDrop(Arc<LiveExecution>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.stop(StopCause::User);
    }
}

impl Executions {
    /// Checks a request, writes the running row, and starts it. It runs on without a
    /// waiting caller. A refusal is written to the ledger, too.
    ///
    /// # Errors
    /// When it is refused, or cannot be started.
    pub async fn start_execution(
        self: &Arc<Self>,
        caller: &Caller,
        request: ExecuteRequest,
        delivery: DeliveryMode,
    ) -> Result<StartedExecution, Refusal> {
        self.start_with_permit(caller, request, delivery, None).await
    }

    /// The same for a call of an agent that a gate let through. Where a person approved it, the
    /// thread must still be in the state that they saw.
    ///
    /// # Errors
    /// As for [`Executions::start_execution`], or when the thread has changed.
    pub async fn start_permitted_execution(
        self: &Arc<Self>,
        caller: &Caller,
        request: ExecuteRequest,
        delivery: DeliveryMode,
        permit: &CallPermit,
    ) -> Result<StartedExecution, Refusal> {
        self.start_with_permit(caller, request, delivery, Some(permit)).await
    }

    async fn start_with_permit(
        self: &Arc<Self>,
        caller: &Caller,
        request: ExecuteRequest,
        delivery: DeliveryMode,
        permit: Option<&CallPermit>,
    ) -> Result<StartedExecution, Refusal> {
        let clock = PhaseClock::start();
        self.lifecycle.check_taking_work()?;
        let trace_id = TraceId::from_random(secrets::random_bytes()?);
        let mut start = describe_request(caller, &request, delivery, &trace_id);
        let home = permit.and_then(|permit| permit.home.as_ref());
        let trace = RequestTrace::current_or_detached();
        trace.set_execution(&start.team, &start.key, &trace_id);
        match self.begin_execution((caller, &trace), request, &mut start, home).await {
            Ok((run, slot)) => {
                let offers = self.web_tools.as_ref().map(|tools| tools.config().offers_any());
                let run = run
                    .with_tool_client(offers.unwrap_or(false))
                    .with_cell_tools(self.open_cell_tools(caller, &trace_id, permit));
                let follow = (caller.team.clone(), clock.note_begun());
                Ok(self.spawn_execution(run, slot, (start, trace), follow))
            }
            Err(refusal) => {
                if refusal.code != ErrorCode::Internal {
                    self.note_refusal(start, &refusal).await;
                }
                Err(refusal.with_trace_id(trace_id))
            }
        }
    }

    /// The web tools that the code of an execution may call; none where it may call none.
    fn open_cell_tools(
        &self,
        caller: &Caller,
        trace_id: &TraceId,
        permit: Option<&CallPermit>,
    ) -> Option<Arc<CellTools>> {
        let of_response = permit.map(|permit| permit.web_tools.clone()).unwrap_or_default();
        let of_response = (&of_response.tools[..], of_response.response);
        CellTools::open(self.web_tools.as_ref()?, caller, trace_id, of_response)
    }

    async fn begin_execution(
        &self,
        (caller, trace): (&Caller, &RequestTrace),
        request: ExecuteRequest,
        start: &mut ExecutionStart,
        home: Option<&HomeState>,
    ) -> Result<(AdmittedRun, ExecutionSlot), Refusal> {
        let began = Instant::now();
        if !self.dispatcher.is_wired() {
            // The operator turned it off, so asking again does not help.
            let off = Refusal::new(ErrorCode::Unavailable, null_dispatcher::SENTENCE);
            return Err(off.without_retry());
        }
        let request = request.check()?;
        start.language = Some(request.language);
        start.metadata.clone_from(&request.metadata);
        let (delivery, trace_id) = (start.delivery, &start.trace_id);
        let run = admit::admit_execution(caller, &request, delivery, trace_id, self.output)?;
        let needs = run.needs(request.thread.is_some());
        self.dispatcher.check_run(&needs).map_err(|error| refuse_run(&error, trace_id))?;
        self.usage.check_allowance(&caller.team).await?;
        if start.delivery == DeliveryMode::Webhook {
            start.webhook_url = self.webhook_url(caller, &request).await?;
        }
        if request.thread.is_some() {
            self.threads.layers()?;
            self.storage.host().check_lately()?;
        }
        let slot = self.slots.take(caller)?;
        // A turn before the row, so that what may not even wait has no running row; the code itself
        // starts after both.
        let ticket = self.admission.enter_run(&caller.team, &run.limits())?;
        let run = run.with_ticket(ticket);
        if caller.sandbox.retention.code && !self.storage.host().is_short() {
            start.code = Some(request.code.into_bytes());
        }
        let until = start.created_at.saturating_add(self.threads.lease());
        trace.end_phase(TracePhase::Admission, began);
        let began = Instant::now();
        self.begin_within_budget(&caller.team, start, until, home).await?;
        trace.end_phase(TracePhase::Ledger, began);
        self.credential_uses.note(&caller.credentials, &self.lifecycle);
        Ok((run, slot))
    }

    /// Writes the running row. A team at its budget is pruned by its policy first.
    async fn begin_within_budget(
        &self,
        team: &Team,
        start: &ExecutionStart,
        until: Moment,
        home: Option<&HomeState>,
    ) -> Result<(), Refusal> {
        let (store, budget) = (&self.store, self.storage.budget_of(team));
        let begin = || async {
            let start = start.clone();
            match home.cloned() {
                Some(home) => store.begin_approved_execution(start, until, budget, home).await,
                None => store.begin_execution(start, until, budget).await,
            }
        };
        for is_pruned in [false, true] {
            if is_pruned {
                self.storage.make_room(team, 1).await?;
            }
            let mut begun = begin().await;
            if matches!(begun, Err(StoreError::Full)) && self.storage.host().release_ballast() {
                begun = begin().await;
            }
            match begun? {
                BeginOutcome::Started => return Ok(()),
                BeginOutcome::ThreadBusy => return Err(threads::thread_busy_refusal()),
                BeginOutcome::ThreadChanged => return Err(threads::thread_changed_refusal()),
                BeginOutcome::OverBudget => {}
            }
        }
        let refusal = self.storage.over_budget(team);
        // The contract's status for every limit of a plan. Asking again soon does not help.
        Err(Refusal { code: ErrorCode::RateLimited, ..refusal })
    }

    /// Where the result goes: the URL of the request, else that of the key, else none.
    async fn webhook_url(
        &self,
        caller: &Caller,
        request: &CheckedRequest,
    ) -> Result<Option<String>, Refusal> {
        let url = request.webhook_url.clone().or_else(|| caller.key.webhook_url.clone());
        if let Some(url) = &url {
            self.webhooks.check_url("webhook_url", url).await?;
        }
        Ok(url)
    }

    async fn note_refusal(&self, mut start: ExecutionStart, refusal: &Refusal) {
        start.code = None;
        start.webhook_url = None;
        self.metrics.execution_over(ExecutionStatus::Blocked, start.language);
        self.activity.note_refusal(&start);
        let error = format!("{}: {}", refusal.code.name(), refusal.message);
        let trace_id = start.trace_id.clone();
        if let Err(error) = self.store.record_refusal(start, &error).await {
            tracing::error!(%error, %trace_id, "a refusal was not written to the ledger");
        }
    }

    fn spawn_execution(
        self: &Arc<Self>,
        run: AdmittedRun,
        slot: ExecutionSlot,
        (start, trace): (ExecutionStart, RequestTrace),
        (team, clock): (Team, PhaseClock),
    ) -> StartedExecution {
        let live = LiveExecution::new(start.trace_id.clone(), start.team.clone());
        self.live.write().insert(start.trace_id.clone(), Arc::clone(&live));
        self.activity.note_start(&start);
        let (done, over) = oneshot::channel();
        let trace_id = start.trace_id.clone();
        let (run, taken) = if self.dispatcher.takes_at_once() {
            (run, None)
        } else {
            let (signal, taken) = TakenSignal::new();
            (run.with_signal(signal), Some(taken))
        };
        let answered = CancellationToken::new();
        let run = run.with_answer_signal(answered.clone());
        let never_taken = taken.clone();
        let executions = Arc::clone(self);
        let running = Arc::clone(&live);
        self.runs.spawn(async move {
            let answered = AnswerSignal { _guard: Arc::new(answered.drop_guard()) };
            let follow =
                RunFollower { team: &team, live: &running, taken: never_taken, clock, trace };
            let ended = executions.run_execution(run, start, follow).await;
            // The slot is free before the end is announced, so that the next request finds it free.
            drop(slot);
            executions.live.write().remove(&running.trace_id);
            running.finish(Arc::clone(&ended.execution));
            // Who answers drops the signal. If nobody does, it is dropped here.
            let _ = done.send((ended, answered));
        });
        StartedExecution { trace_id, live, over, taken }
    }
}

/// The refusal of a run that no executor takes. What is wrong with which executor is for the log.
fn refuse_run(error: &DispatchError, trace_id: &TraceId) -> Refusal {
    match error {
        DispatchError::Refused(why) | DispatchError::Impossible(why) => {
            Refusal::new(ErrorCode::Validation, why.clone())
        }
        DispatchError::Unavailable(_) | DispatchError::Failed(_) => {
            tracing::error!(%error, %trace_id, "no executor can take an execution");
            Refusal::new(ErrorCode::Unavailable, UNAVAILABLE)
        }
    }
}

/// What is known of a request before it is checked. The code is kept only once it is accepted:
/// a refused one may be of any size.
fn describe_request(
    caller: &Caller,
    request: &ExecuteRequest,
    delivery: DeliveryMode,
    trace_id: &TraceId,
) -> ExecutionStart {
    ExecutionStart {
        trace_id: trace_id.clone(),
        team: caller.team.id.clone(),
        key: caller.key.id.clone(),
        sandbox: caller.sandbox.id.clone(),
        language: request.language.as_deref().and_then(|name| name.parse().ok()),
        thread: request.thread_id.as_deref().and_then(|thread| thread.parse().ok()),
        delivery,
        webhook_url: None,
        metadata: BTreeMap::new(),
        code_digest: hex::encode(Sha256::digest(request.code.as_bytes())),
        code_bytes: request.code.len() as u64,
        code: None,
        created_at: clock::now(),
    }
}
