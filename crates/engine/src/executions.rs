//! Executions as their owners ask for them: start, look, follow, cancel, list.

use std::{collections::BTreeMap, sync::Arc};

use cloche_model::{
    CheckedRequest, Delivery, ErrorCode, ExecuteRequest, Execution, ExecutionStart, HomeState,
    Moment, Status, Team, TraceId,
};
use cloche_store::{Begun, Cursor, ExecutionFilter, StoreError};
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use crate::{
    Admitted, Caller, Engine, Event, Pass, Reader, Refusal, admit,
    admit::Slot,
    clock,
    drive::{EndReason, EndedExecution, UNAVAILABLE},
    live::{Live, Stop},
    memory::{MEMORY_WAIT, hold_output},
    nowhere, replay, secrets,
    storage::over_budget,
    threads,
};

/// An execution that has begun.
pub struct Started {
    /// Its id.
    pub trace_id: TraceId,
    live: Arc<Live>,
    over: oneshot::Receiver<EndedExecution>,
}

impl Started {
    /// Its events from the first on.
    #[must_use]
    pub fn events(&self) -> Reader {
        self.live.read(0)
    }

    /// Ties the execution to whoever holds the leash: dropped before the end, it is stopped.
    #[must_use]
    pub fn leash(&self) -> Leash {
        Leash(Arc::clone(&self.live))
    }

    /// Waits for the end; the record of it is durable by then.
    ///
    /// # Errors
    /// When nothing could run it, or we failed to follow it.
    pub async fn over(self) -> Result<Arc<Execution>, Refusal> {
        let trace_id = self.trace_id;
        let lost = |error| Refusal::internal(error).of(trace_id.clone());
        let EndedExecution { execution, reason } = self.over.await.map_err(lost)?;
        match reason {
            EndReason::NoExecutor => {
                Err(Refusal::new(ErrorCode::Unavailable, UNAVAILABLE).of(trace_id))
            }
            EndReason::Outcome | EndReason::NoOutcome => Ok(execution),
        }
    }
}

/// Stops an execution when it is dropped. What is over stays as it is.
pub struct Leash(Arc<Live>);

impl Drop for Leash {
    fn drop(&mut self) {
        self.0.stop(Stop::User);
    }
}

/// The events of an execution from some number on.
pub enum Output {
    /// It is under way; there will be more.
    Live(Reader),
    /// It is over; these are all.
    Over(Vec<Event>),
}

/// Some executions, and where the list goes on.
pub struct Page {
    /// The executions, newest first, without code and output.
    pub executions: Vec<Execution>,
    /// Where the next page begins, if there is one.
    pub next: Option<Cursor>,
}

impl Engine {
    /// Checks a request, writes the running row, and starts it. It runs on whether or not anybody
    /// waits for it. A refusal is written to the ledger, too.
    ///
    /// # Errors
    /// When it is refused, or cannot be started.
    pub async fn execute(
        &self,
        caller: &Caller,
        request: ExecuteRequest,
        delivery: Delivery,
    ) -> Result<Started, Refusal> {
        self.execute_in(caller, request, delivery, None).await
    }

    /// The same for a call of an agent that a gate let through. Where a person approved it, the thread
    /// must still be in the state that they saw.
    ///
    /// # Errors
    /// As for [`Engine::execute`], or when the thread has changed.
    pub async fn execute_passed(
        &self,
        caller: &Caller,
        request: ExecuteRequest,
        delivery: Delivery,
        pass: &Pass,
    ) -> Result<Started, Refusal> {
        self.execute_in(caller, request, delivery, pass.home.as_ref()).await
    }

    async fn execute_in(
        &self,
        caller: &Caller,
        request: ExecuteRequest,
        delivery: Delivery,
        home: Option<&HomeState>,
    ) -> Result<Started, Refusal> {
        if self.is_draining() {
            return Err(Self::draining_refusal());
        }
        if !self.can_run_code() {
            return Err(Refusal::new(ErrorCode::Unavailable, nowhere::SENTENCE));
        }
        let trace_id = TraceId::from_random(secrets::random()?);
        let mut start = self.describe(caller, &request, delivery, &trace_id);
        match self.begin(caller, request, &mut start, home).await {
            Ok((run, slot)) => Ok(self.launch(run, slot, start, caller.team.clone())),
            Err(refusal) => {
                if refusal.code != ErrorCode::Internal {
                    self.note_refusal(start, &refusal).await;
                }
                Err(refusal.of(trace_id))
            }
        }
    }

    /// What is known of a request before it is checked. The code is kept only once it is accepted:
    /// a refused one may be of any size.
    fn describe(
        &self,
        caller: &Caller,
        request: &ExecuteRequest,
        delivery: Delivery,
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

    async fn begin(
        &self,
        caller: &Caller,
        request: ExecuteRequest,
        start: &mut ExecutionStart,
        home: Option<&HomeState>,
    ) -> Result<(Admitted, Slot), Refusal> {
        let inner = &self.inner;
        let request = request.check()?;
        start.language = Some(request.language);
        start.metadata.clone_from(&request.metadata);
        let run = admit::admit(caller, &request, start.delivery, &start.trace_id, &inner.config)?;
        if start.delivery == Delivery::Webhook {
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
        let until = start.created_at.plus(inner.config.lease);
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
                Some(home) => store.begin_approved(start, until, budget, home).await,
                None => store.begin(start, until, budget).await,
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
                Begun::Started => return Ok(()),
                Begun::ThreadBusy => return Err(threads::busy()),
                Begun::ThreadChanged => return Err(threads::changed()),
                Begun::OverBudget => {}
            }
        }
        let refusal = over_budget(team, budget.unwrap_or_default());
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
            self.inner.courier.check("webhook_url", url).await?;
        }
        Ok(url)
    }

    async fn note_refusal(&self, mut start: ExecutionStart, refusal: &Refusal) {
        start.code = None;
        start.webhook_url = None;
        self.inner.metrics.execution_over(Status::Blocked, start.language);
        let error = format!("{}: {}", refusal.code.name(), refusal.message);
        let trace_id = start.trace_id.clone();
        if let Err(error) = self.inner.store.refuse(start, &error).await {
            tracing::error!(%error, %trace_id, "a refusal was not written to the ledger");
        }
    }

    fn launch(&self, run: Admitted, slot: Slot, start: ExecutionStart, team: Team) -> Started {
        let live = Live::new(start.trace_id.clone(), start.team.clone());
        self.inner.live.write().insert(start.trace_id.clone(), Arc::clone(&live));
        let (done, over) = oneshot::channel();
        let trace_id = start.trace_id.clone();
        let engine = self.clone();
        let driven = Arc::clone(&live);
        self.inner.runs.spawn(async move {
            let ended = engine.drive(run, start, &team, &driven).await;
            // The place is free before anyone hears of the end, so that whoever asks next finds it.
            drop(slot);
            engine.inner.live.write().remove(&driven.trace_id);
            driven.finish(Arc::clone(&ended.execution));
            let _ = done.send(ended);
        });
        Started { trace_id, live, over }
    }

    /// One execution of the caller's team.
    ///
    /// # Errors
    /// When there is none that the caller may see.
    pub async fn execution(
        &self,
        caller: &Caller,
        trace_id: &TraceId,
    ) -> Result<Execution, Refusal> {
        let store = &self.inner.store;
        let bytes = store.record_bytes(trace_id).await?;
        let memory = &self.inner.memory;
        let reserved = memory.reserve_reply(&caller.key.id, bytes, MEMORY_WAIT).await?;
        let found = store.execution(&caller.team.id, trace_id).await?;
        let found = found.ok_or_else(|| Refusal::not_found("execution"))?;
        Ok(hold_output(found, reserved))
    }

    /// Executions of the caller's team.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn executions(
        &self,
        caller: &Caller,
        mut filter: ExecutionFilter,
    ) -> Result<Page, Refusal> {
        let limit = filter.limit as usize;
        filter.limit += 1;
        let mut executions = self.inner.store.executions(&caller.team.id, &filter).await?;
        let more = executions.len() > limit;
        executions.truncate(limit);
        let next = executions.last().filter(|_| more).map(|last| Cursor {
            created_at: last.start.created_at,
            trace_id: last.start.trace_id.clone(),
        });
        Ok(Page { executions, next })
    }

    /// Asks for an execution to be stopped. `None` if it is being stopped; what it is if it was
    /// over already.
    ///
    /// # Errors
    /// When there is none that the caller may see.
    pub async fn cancel(
        &self,
        caller: &Caller,
        trace_id: &TraceId,
    ) -> Result<Option<Status>, Refusal> {
        if let Some(live) = self.live_of(caller, trace_id) {
            live.stop(Stop::User);
            return Ok(None);
        }
        Ok(Some(self.execution(caller, trace_id).await?.status))
    }

    /// The events of an execution after this number.
    ///
    /// # Errors
    /// When there is none that the caller may see.
    pub async fn output(
        &self,
        caller: &Caller,
        trace_id: &TraceId,
        after: u64,
    ) -> Result<Output, Refusal> {
        if let Some(live) = self.live_of(caller, trace_id) {
            return Ok(Output::Live(live.read(after)));
        }
        let execution = self.execution(caller, trace_id).await?;
        Ok(Output::Over(replay::events(Arc::new(execution), after)))
    }

    fn live_of(&self, caller: &Caller, trace_id: &TraceId) -> Option<Arc<Live>> {
        let live = self.inner.live.read().get(trace_id).cloned()?;
        (live.team == caller.team.id).then_some(live)
    }
}
