//! Runs in: server (no capabilities).
//!
//! Executions: look up, follow, cancel, list. `begin` starts one, `task` is one execution from its
//! turn on the host to its record.

mod begin;
mod credential_uses;
mod end_status;
mod event_log;
mod line_splitter;
mod live_execution;
mod phases;
mod replay;
mod task;

use std::{collections::HashMap, sync::Arc, time::Duration};

use cloche_model::{ByteSize, Execution, ExecutionStatus, TeamId, TraceId};
use cloche_store::{ExecutionCursor, ExecutionFilter, Store};
use parking_lot::RwLock;
use tokio_util::task::TaskTracker;

use crate::{
    Activity, Caller, Dispatcher, EngineConfig, EngineMetrics, Refusal, StorageBudgets, Threads,
    UsageAccounts, WebTools,
    admit::{AdmissionControl, TeamSlots},
    lifecycle::Lifecycle,
    memory::{MEMORY_WAIT, MemoryBudgets, hold_output},
    shared_parts::SharedParts,
    webhooks::WebhookSender,
};

pub use begin::{AnswerSignal, CancelOnDrop, StartedExecution};
use credential_uses::CredentialUses;
pub use event_log::{ExecutionEvent, ExecutionEventKind};
pub(crate) use live_execution::LiveExecution;
use live_execution::StopCause;
pub use live_execution::{EventLogReader, ReaderCutOff};
pub use phases::RequestPhases;

/// How long executions may take to die once they are stopped.
const LAST_MOMENTS: Duration = Duration::from_secs(5);

/// The executions of every team.
pub struct Executions {
    store: Arc<dyn Store>,
    dispatcher: Arc<dyn Dispatcher>,
    threads: Arc<Threads>,
    storage: Arc<StorageBudgets>,
    usage: Arc<UsageAccounts>,
    webhooks: Arc<WebhookSender>,
    admission: Arc<AdmissionControl>,
    memory: Arc<MemoryBudgets>,
    metrics: Arc<EngineMetrics>,
    lifecycle: Arc<Lifecycle>,
    /// The web tools that code can call, once they are there.
    web_tools: Option<Arc<WebTools>>,
    credential_uses: CredentialUses,
    /// Figures and events for the console.
    activity: Arc<Activity>,
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

/// Whose executions someone may see and cancel.
#[derive(Clone, Debug)]
pub struct ExecutionReader {
    /// Those of one team; `None` is all teams.
    pub team: Option<TeamId>,
    /// Who takes the memory that the records need.
    pub holder: String,
}

impl From<&Caller> for ExecutionReader {
    fn from(caller: &Caller) -> Self {
        Self { team: Some(caller.team.id.clone()), holder: caller.key.id.to_string() }
    }
}

impl Executions {
    pub(crate) fn new(
        shared: &SharedParts,
        storage: Arc<StorageBudgets>,
        threads: Arc<Threads>,
        config: &EngineConfig,
    ) -> Self {
        Self {
            store: Arc::clone(&shared.store),
            dispatcher: Arc::clone(&shared.dispatcher),
            storage,
            usage: Arc::clone(&shared.usage),
            threads,
            webhooks: Arc::clone(&shared.webhooks),
            admission: Arc::clone(&shared.admission),
            memory: Arc::clone(&shared.memory),
            metrics: Arc::clone(&shared.metrics),
            lifecycle: Arc::clone(&shared.lifecycle),
            web_tools: None,
            credential_uses: CredentialUses::new(Arc::clone(&shared.store)),
            activity: Arc::clone(&shared.activity),
            slots: TeamSlots::default(),
            live: RwLock::default(),
            runs: TaskTracker::new(),
            output: config.output,
            keepalive: config.keepalive,
        }
    }

    /// The same, whose code can call web tools.
    pub(crate) fn with_web_tools(self, web_tools: Arc<WebTools>) -> Self {
        Self { web_tools: Some(web_tools), ..self }
    }

    /// How many are under way.
    pub(crate) fn running_count(&self) -> usize {
        self.live.read().len()
    }

    /// How many of a team are under way; of all teams without one.
    #[must_use]
    pub fn running_of(&self, team: Option<&TeamId>) -> usize {
        let live = self.live.read();
        match team {
            Some(team) => live.values().filter(|live| live.team == *team).count(),
            None => live.len(),
        }
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

    /// One execution of the caller's team.
    ///
    /// # Errors
    /// When there is none that the caller may see.
    pub async fn find_execution(
        &self,
        reader: impl Into<ExecutionReader>,
        trace_id: &TraceId,
    ) -> Result<Execution, Refusal> {
        let (store, reader) = (&self.store, reader.into());
        let bytes = store.record_bytes(trace_id).await?;
        let memory = &self.memory;
        let reserved = memory.reserve_reply(&reader.holder, bytes, MEMORY_WAIT).await?;
        let found = match &reader.team {
            Some(team) => store.find_execution(team, trace_id).await?,
            None => store.find_execution_of_any_team(trace_id).await?,
        };
        let found = found.ok_or_else(|| Refusal::not_found("execution"))?;
        Ok(hold_output(found, reserved))
    }

    /// Executions of the caller's team.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn list_executions(
        &self,
        reader: impl Into<ExecutionReader>,
        mut filter: ExecutionFilter,
    ) -> Result<LedgerPage, Refusal> {
        let team = reader.into().team;
        let limit = filter.limit as usize;
        filter.limit += 1;
        let mut executions = self.store.list_executions(team.as_ref(), &filter).await?;
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
        reader: impl Into<ExecutionReader>,
        trace_id: &TraceId,
    ) -> Result<Option<ExecutionStatus>, Refusal> {
        let reader = reader.into();
        if let Some(live) = self.find_live(&reader, trace_id) {
            live.stop(StopCause::User);
            return Ok(None);
        }
        Ok(Some(self.find_execution(reader, trace_id).await?.status))
    }

    /// The events of an execution after this number.
    ///
    /// # Errors
    /// When there is none that the caller may see.
    pub async fn execution_events(
        &self,
        reader: impl Into<ExecutionReader>,
        trace_id: &TraceId,
        after: u64,
    ) -> Result<ExecutionEvents, Refusal> {
        let reader = reader.into();
        if let Some(live) = self.find_live(&reader, trace_id) {
            return Ok(ExecutionEvents::Live(live.reader_after(after)));
        }
        let execution = self.find_execution(reader, trace_id).await?;
        Ok(ExecutionEvents::Over(replay::replay_events(Arc::new(execution), after)))
    }

    fn find_live(
        &self,
        reader: &ExecutionReader,
        trace_id: &TraceId,
    ) -> Option<Arc<LiveExecution>> {
        let live = self.live.read().get(trace_id).cloned()?;
        reader.team.as_ref().is_none_or(|team| *team == live.team).then_some(live)
    }
}
