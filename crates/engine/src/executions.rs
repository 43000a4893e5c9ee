//! Runs in: server (no capabilities).
//!
//! Executions: start, look up, follow, cancel, list. `task` is one execution from its turn on the
//! host to its record.

mod line_splitter;
mod live_execution;
mod replay;
mod task;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use cloche_model::{
    ByteSize, CheckedRequest, DeliveryMode, ErrorCode, ExecuteRequest, Execution, ExecutionStart,
    ExecutionStatus, HomeState, Moment, Team, TraceId,
};
use cloche_store::{BeginOutcome, ExecutionCursor, ExecutionFilter, Store, StoreError};
use parking_lot::RwLock;
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use crate::{
    AdmittedRun, CallPermit, Caller, Dispatcher, EngineConfig, EngineMetrics, Refusal,
    StorageBudgets, Threads, admit,
    admit::{AdmissionControl, ExecutionSlot, TeamSlots},
    clock,
    lifecycle::Lifecycle,
    memory::{MEMORY_WAIT, MemoryBudgets, hold_output},
    null_dispatcher, secrets,
    shared_parts::SharedParts,
    threads,
    webhooks::WebhookSender,
};

pub(crate) use live_execution::LiveExecution;
use live_execution::StopCause;
pub use live_execution::{EventLogReader, ExecutionEvent, ExecutionEventKind};
use task::{EndReason, EndedExecution, UNAVAILABLE};

/// How long executions may take to die once they are stopped.
const LAST_MOMENTS: Duration = Duration::from_secs(5);

/// The executions of every team.
pub struct Executions {
    store: Arc<dyn Store>,
    dispatcher: Arc<dyn Dispatcher>,
    threads: Arc<Threads>,
    storage: Arc<StorageBudgets>,
    webhooks: Arc<WebhookSender>,
    admission: Arc<AdmissionControl>,
    memory: Arc<MemoryBudgets>,
    metrics: Arc<EngineMetrics>,
    lifecycle: Arc<Lifecycle>,
    /// How many each team has under way.
    slots: TeamSlots,
    /// Those under way, with their logs.
    live: RwLock<HashMap<TraceId, Arc<LiveExecution>>>,
    runs: TaskTracker,
    /// The most that is kept of each output stream.
    output: ByteSize,
    /// How long a stream may be silent before it gets a keepalive.
    keepalive: Duration,
}

/// An execution that has begun.
pub struct StartedExecution {
    /// Its id.
    pub trace_id: TraceId,
    live: Arc<LiveExecution>,
    over: oneshot::Receiver<EndedExecution>,
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

    /// Waits for the end; the record of it is durable by then.
    ///
    /// # Errors
    /// When nothing could run it, or we failed to follow it.
    pub async fn wait_until_over(self) -> Result<Arc<Execution>, Refusal> {
        let trace_id = self.trace_id;
        let lost = |error| Refusal::internal(error).with_trace_id(trace_id.clone());
        let EndedExecution { execution, reason } = self.over.await.map_err(lost)?;
        match reason {
            EndReason::NoExecutor => {
                Err(Refusal::new(ErrorCode::Unavailable, UNAVAILABLE).with_trace_id(trace_id))
            }
            EndReason::Outcome | EndReason::NoOutcome => Ok(execution),
        }
    }
}

/// Stops an execution when it is dropped. One that is over stays as it is.
pub struct CancelOnDrop(Arc<LiveExecution>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.stop(StopCause::User);
    }
}

/// The events of an execution from some number on.
pub enum ExecutionEvents {
    /// It is under way; there will be more.
    Live(EventLogReader),
    /// It is over; these are all.
    Over(Vec<ExecutionEvent>),
}

/// Some executions, and where the list goes on.
pub struct LedgerPage {
    /// The executions, newest first, without code and output.
    pub executions: Vec<Execution>,
    /// Where the next page begins, if there is one.
    pub next: Option<ExecutionCursor>,
}

impl Executions {
    pub(crate) fn new(shared: &SharedParts, threads: Arc<Threads>, config: &EngineConfig) -> Self {
        Self {
            store: Arc::clone(&shared.store),
            dispatcher: Arc::clone(&shared.dispatcher),
            storage: Arc::clone(threads.storage()),
            threads,
            webhooks: Arc::clone(&shared.webhooks),
            admission: Arc::clone(&shared.admission),
            memory: Arc::clone(&shared.memory),
            metrics: Arc::clone(&shared.metrics),
            lifecycle: Arc::clone(&shared.lifecycle),
            slots: TeamSlots::default(),
            live: RwLock::default(),
            runs: TaskTracker::new(),
            output: config.output,
            keepalive: config.keepalive,
        }
    }

    /// How many are under way.
    pub(crate) fn running_count(&self) -> usize {
        self.live.read().len()
    }

    /// Lets [`Executions::end_within`] finish once the last one is over.
    pub(crate) fn take_no_more(&self) {
        self.runs.close();
    }

    /// Waits for what runs, and stops what is left after the grace period.
    pub(crate) async fn end_within(&self, grace: Duration) {
        if tokio::time::timeout(grace, self.runs.wait()).await.is_ok() {
            return;
        }
        let left: Vec<_> = self.live.read().values().cloned().collect();
        tracing::warn!(left = left.len(), "executions are ended, the grace period is over");
        left.iter().for_each(|live| live.stop(StopCause::Shutdown));
        if tokio::time::timeout(LAST_MOMENTS, self.runs.wait()).await.is_err() {
            tracing::error!("some executions did not end; the next start will record them");
        }
    }

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
        self.start_in_home(caller, request, delivery, None).await
    }

    /// The same for a call of an agent that a gate let through. Where a person approved it, the thread
    /// must still be in the state that they saw.
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
        self.start_in_home(caller, request, delivery, permit.home.as_ref()).await
    }

    async fn start_in_home(
        self: &Arc<Self>,
        caller: &Caller,
        request: ExecuteRequest,
        delivery: DeliveryMode,
        home: Option<&HomeState>,
    ) -> Result<StartedExecution, Refusal> {
        self.lifecycle.check_taking_work()?;
        if !self.dispatcher.is_wired() {
            return Err(Refusal::new(ErrorCode::Unavailable, null_dispatcher::SENTENCE));
        }
        let trace_id = TraceId::from_random(secrets::random_bytes()?);
        let mut start = describe_request(caller, &request, delivery, &trace_id);
        match self.begin_execution(caller, request, &mut start, home).await {
            Ok((run, slot)) => Ok(self.spawn_execution(run, slot, start, caller.team.clone())),
            Err(refusal) => {
                if refusal.code != ErrorCode::Internal {
                    self.note_refusal(start, &refusal).await;
                }
                Err(refusal.with_trace_id(trace_id))
            }
        }
    }

    async fn begin_execution(
        &self,
        caller: &Caller,
        request: ExecuteRequest,
        start: &mut ExecutionStart,
        home: Option<&HomeState>,
    ) -> Result<(AdmittedRun, ExecutionSlot), Refusal> {
        let request = request.check()?;
        start.language = Some(request.language);
        start.metadata.clone_from(&request.metadata);
        let (delivery, trace_id) = (start.delivery, &start.trace_id);
        let run = admit::admit_execution(caller, &request, delivery, trace_id, self.output)?;
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
        self.begin_within_budget(&caller.team, start, until, home).await?;
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
        start: ExecutionStart,
        team: Team,
    ) -> StartedExecution {
        let live = LiveExecution::new(start.trace_id.clone(), start.team.clone());
        self.live.write().insert(start.trace_id.clone(), Arc::clone(&live));
        let (done, over) = oneshot::channel();
        let trace_id = start.trace_id.clone();
        let executions = Arc::clone(self);
        let running = Arc::clone(&live);
        self.runs.spawn(async move {
            let ended = executions.run_execution(run, start, &team, &running).await;
            // The slot is free before the end is announced, so that the next request finds it free.
            drop(slot);
            executions.live.write().remove(&running.trace_id);
            running.finish(Arc::clone(&ended.execution));
            let _ = done.send(ended);
        });
        StartedExecution { trace_id, live, over }
    }

    /// One execution of the caller's team.
    ///
    /// # Errors
    /// When there is none that the caller may see.
    pub async fn find_execution(
        &self,
        caller: &Caller,
        trace_id: &TraceId,
    ) -> Result<Execution, Refusal> {
        let store = &self.store;
        let bytes = store.record_bytes(trace_id).await?;
        let memory = &self.memory;
        let reserved = memory.reserve_reply(&caller.key.id, bytes, MEMORY_WAIT).await?;
        let found = store.find_execution(&caller.team.id, trace_id).await?;
        let found = found.ok_or_else(|| Refusal::not_found("execution"))?;
        Ok(hold_output(found, reserved))
    }

    /// Executions of the caller's team.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn list_executions(
        &self,
        caller: &Caller,
        mut filter: ExecutionFilter,
    ) -> Result<LedgerPage, Refusal> {
        let limit = filter.limit as usize;
        filter.limit += 1;
        let mut executions = self.store.list_executions(&caller.team.id, &filter).await?;
        let more = executions.len() > limit;
        executions.truncate(limit);
        let next = executions.last().filter(|_| more).map(|last| ExecutionCursor {
            created_at: last.start.created_at,
            trace_id: last.start.trace_id.clone(),
        });
        Ok(LedgerPage { executions, next })
    }

    /// Asks for an execution to be stopped. `None` if it is being stopped; what it is if it was
    /// over already.
    ///
    /// # Errors
    /// When there is none that the caller may see.
    pub async fn cancel_execution(
        &self,
        caller: &Caller,
        trace_id: &TraceId,
    ) -> Result<Option<ExecutionStatus>, Refusal> {
        if let Some(live) = self.find_live(caller, trace_id) {
            live.stop(StopCause::User);
            return Ok(None);
        }
        Ok(Some(self.find_execution(caller, trace_id).await?.status))
    }

    /// The events of an execution after this number.
    ///
    /// # Errors
    /// When there is none that the caller may see.
    pub async fn execution_events(
        &self,
        caller: &Caller,
        trace_id: &TraceId,
        after: u64,
    ) -> Result<ExecutionEvents, Refusal> {
        if let Some(live) = self.find_live(caller, trace_id) {
            return Ok(ExecutionEvents::Live(live.reader_after(after)));
        }
        let execution = self.find_execution(caller, trace_id).await?;
        Ok(ExecutionEvents::Over(replay::replay_events(Arc::new(execution), after)))
    }

    fn find_live(&self, caller: &Caller, trace_id: &TraceId) -> Option<Arc<LiveExecution>> {
        let live = self.live.read().get(trace_id).cloned()?;
        (live.team == caller.team.id).then_some(live)
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
