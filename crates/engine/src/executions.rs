//! Executions as their owners ask for them: start, look, follow, cancel, list.

use std::{collections::BTreeMap, sync::Arc};

use cloche_model::{
    CheckedRequest, DeliveryMode, ErrorCode, ExecuteRequest, Execution, ExecutionStart,
    ExecutionStatus, HomeState, Moment, Team, TraceId,
};
use cloche_store::{BeginOutcome, ExecutionCursor, ExecutionFilter, StoreError};
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use crate::{
    AdmittedRun, CallPermit, Caller, Engine, EventLogReader, ExecutionEvent, Refusal, admit,
    admit::ExecutionSlot,
    clock,
    execution_task::{EndReason, EndedExecution, UNAVAILABLE},
    live_execution::{LiveExecution, StopCause},
    memory::{MEMORY_WAIT, hold_output},
    null_dispatcher, replay, secrets,
    storage::over_budget_refusal,
    threads,
};

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

    /// Ties the execution to whoever holds the leash: dropped before the end, it is stopped.
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

/// Stops an execution when it is dropped. What is over stays as it is.
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

impl Engine {
    /// Checks a request, writes the running row, and starts it. It runs on whether or not anybody
    /// waits for it. A refusal is written to the ledger, too.
    ///
    /// # Errors
    /// When it is refused, or cannot be started.
    pub async fn start_execution(
        &self,
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
    /// As for [`Engine::execute`], or when the thread has changed.
    pub async fn start_permitted_execution(
        &self,
        caller: &Caller,
        request: ExecuteRequest,
        delivery: DeliveryMode,
        pass: &CallPermit,
    ) -> Result<StartedExecution, Refusal> {
        self.start_in_home(caller, request, delivery, pass.home.as_ref()).await
    }

    async fn start_in_home(
        &self,
        caller: &Caller,
        request: ExecuteRequest,
        delivery: DeliveryMode,
        home: Option<&HomeState>,
    ) -> Result<StartedExecution, Refusal> {
        if self.is_draining() {
            return Err(Self::draining_refusal());
        }
        if !self.can_run_code() {
            return Err(Refusal::new(ErrorCode::Unavailable, null_dispatcher::SENTENCE));
        }
        let trace_id = TraceId::from_random(secrets::random_bytes()?);
        let mut start = self.describe_request(caller, &request, delivery, &trace_id);
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

    /// What is known of a request before it is checked. The code is kept only once it is accepted:
    /// a refused one may be of any size.
    fn describe_request(
        &self,
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

    async fn begin_execution(
        &self,
        caller: &Caller,
        request: ExecuteRequest,
        start: &mut ExecutionStart,
        home: Option<&HomeState>,
    ) -> Result<(AdmittedRun, ExecutionSlot), Refusal> {
        let inner = &self.inner;
        let request = request.check()?;
        start.language = Some(request.language);
        start.metadata.clone_from(&request.metadata);
        let run = admit::admit_execution(
            caller,
            &request,
            start.delivery,
            &start.trace_id,
            &inner.config,
        )?;
        if start.delivery == DeliveryMode::Webhook {
            start.webhook_url = self.webhook_url(caller, &request).await?;
        }
        if request.thread.is_some() {
            self.layers()?;
            inner.host_storage.check_lately()?;
        }
        let slot = inner.slots.take(caller)?;
        // A turn before the row, so that what may not even wait has no running row; the code itself
        // starts after both.
        let ticket = inner.admission.enter_run(&caller.team, &run.limits())?;
        let run = run.with_ticket(ticket);
        if caller.sandbox.retention.code && !inner.host_storage.is_short() {
            start.code = Some(request.code.into_bytes());
        }
        let until = start.created_at.saturating_add(inner.config.lease);
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
        let (store, budget) = (&self.inner.store, self.storage_budget(team));
        let begin = || async {
            let start = start.clone();
            match home.cloned() {
                Some(home) => store.begin_approved_execution(start, until, budget, home).await,
                None => store.begin_execution(start, until, budget).await,
            }
        };
        for is_pruned in [false, true] {
            if is_pruned {
                self.make_room(team, 1).await?;
            }
            let mut begun = begin().await;
            if matches!(begun, Err(StoreError::Full)) && self.inner.host_storage.release_ballast() {
                begun = begin().await;
            }
            match begun? {
                BeginOutcome::Started => return Ok(()),
                BeginOutcome::ThreadBusy => return Err(threads::thread_busy_refusal()),
                BeginOutcome::ThreadChanged => return Err(threads::thread_changed_refusal()),
                BeginOutcome::OverBudget => {}
            }
        }
        let refusal = over_budget_refusal(team, budget.unwrap_or_default());
        // The contract's status for every limit of a plan. Asking again soon does not help.
        Err(Refusal { code: ErrorCode::RateLimited, ..refusal })
    }

    /// Where the result goes: what the request says, else what the key says, else nowhere.
    async fn webhook_url(
        &self,
        caller: &Caller,
        request: &CheckedRequest,
    ) -> Result<Option<String>, Refusal> {
        let url = request.webhook_url.clone().or_else(|| caller.key.webhook_url.clone());
        if let Some(url) = &url {
            self.inner.webhook_sender.check_url("webhook_url", url).await?;
        }
        Ok(url)
    }

    async fn note_refusal(&self, mut start: ExecutionStart, refusal: &Refusal) {
        start.code = None;
        start.webhook_url = None;
        self.inner.metrics.execution_over(ExecutionStatus::Blocked, start.language);
        let error = format!("{}: {}", refusal.code.name(), refusal.message);
        let trace_id = start.trace_id.clone();
        if let Err(error) = self.inner.store.record_refusal(start, &error).await {
            tracing::error!(%error, %trace_id, "a refusal was not written to the ledger");
        }
    }

    fn spawn_execution(
        &self,
        run: AdmittedRun,
        slot: ExecutionSlot,
        start: ExecutionStart,
        team: Team,
    ) -> StartedExecution {
        let live = LiveExecution::new(start.trace_id.clone(), start.team.clone());
        self.inner.live.write().insert(start.trace_id.clone(), Arc::clone(&live));
        let (done, over) = oneshot::channel();
        let trace_id = start.trace_id.clone();
        let engine = self.clone();
        let driven = Arc::clone(&live);
        self.inner.runs.spawn(async move {
            let ended = engine.run_execution(run, start, &team, &driven).await;
            // The place is free before anyone hears of the end, so that whoever asks next finds it.
            drop(slot);
            engine.inner.live.write().remove(&driven.trace_id);
            driven.finish(Arc::clone(&ended.execution));
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
        let store = &self.inner.store;
        let bytes = store.record_bytes(trace_id).await?;
        let memory = &self.inner.memory;
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
        let mut executions = self.inner.store.list_executions(&caller.team.id, &filter).await?;
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
        let live = self.inner.live.read().get(trace_id).cloned()?;
        (live.team == caller.team.id).then_some(live)
    }
}
