//! An engine with a team or two, in a directory of its own.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use cloche_engine::{
    AdmittedRun, Approver, CallPermit, Caller, DecisionFilter, DispatchError, Dispatcher,
    DispatcherLoad, Engine, EngineConfig, GateChange, GateConfig, GateDecision, GateRefusal,
    KeyDraft, LockedDataDir, SandboxDraft, TeamChange, TeamDraft, ToolCall,
};
use cloche_model::{
    AgentTool, Approval, Decision, DecisionKind, OutputChunk, RunOutcome, TeamPlan, ToolPolicy,
};
use cloche_store::SqliteStore;
use futures::future::BoxFuture;
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Longer than anything takes on a machine with much else to do.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Something that could run code, or the lack of it.
struct Wiring(Arc<AtomicBool>);

impl Dispatcher for Wiring {
    fn dispatch(
        &self,
        _: AdmittedRun,
        _: mpsc::Sender<OutputChunk>,
        _: CancellationToken,
    ) -> BoxFuture<'static, Result<RunOutcome, DispatchError>> {
        Box::pin(async { Err(DispatchError::Unavailable("nothing is run in these tests".into())) })
    }

    fn check_ready(&self) -> Result<(), String> {
        Ok(())
    }

    fn is_wired(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    fn current_load(&self) -> DispatcherLoad {
        DispatcherLoad::default()
    }
}

pub(crate) struct TestEngine {
    pub(crate) engine: Engine,
    pub(crate) wired: Arc<AtomicBool>,
    config: EngineConfig,
    directory: TempDir,
}

impl TestEngine {
    pub(crate) async fn open() -> Self {
        Self::with(GateConfig::default()).await
    }

    pub(crate) async fn with(gates: GateConfig) -> Self {
        let directory = TempDir::new().unwrap();
        let config = EngineConfig { gates, ..EngineConfig::default() };
        let wired = Arc::new(AtomicBool::new(true));
        let engine = start(&directory, &config, &wired).await;
        Self { engine, wired, config, directory }
    }

    /// The engine stops, and another starts on the same directory.
    pub(crate) async fn restart(self) -> Self {
        self.engine.shutdown().await;
        let engine = start(&self.directory, &self.config, &self.wired).await;
        Self { engine, ..self }
    }

    /// A team with a key.
    pub(crate) async fn team(&self, name: &str) -> Caller {
        self.engine.tenancy().create_team(TeamDraft::new(name, TeamPlan::Pro)).await.unwrap();
        self.engine.tenancy().create_sandbox(SandboxDraft::new(name, "s")).await.unwrap();
        self.key(name, false).await
    }

    /// A team whose agents may ask.
    pub(crate) async fn open_team(&self, name: &str) -> Caller {
        let caller = self.team(name).await;
        self.set(name, GateChange { agent_sandbox: Some(Some(true)), ..GateChange::default() })
            .await;
        caller
    }

    /// Another key of a team.
    pub(crate) async fn key(&self, team: &str, may_approve: bool) -> Caller {
        let draft = KeyDraft { may_approve, ..KeyDraft::new(team, "s", "k") };
        let made = self.engine.tenancy().create_key(draft).await.unwrap();
        self.engine.tenancy().find_caller(made.secret.reveal()).await.unwrap()
    }

    pub(crate) async fn set(&self, team: &str, gates: GateChange) {
        let change = TeamChange { gates, ..TeamChange::default() };
        self.engine.tenancy().update_team(team, change).await.unwrap();
    }

    pub(crate) async fn policy(&self, team: &str, policy: Option<ToolPolicy>) {
        self.set(team, GateChange { execute_code: Some(policy), ..GateChange::default() }).await;
    }

    pub(crate) async fn offered(&self, caller: &Caller) -> bool {
        self.engine.approvals().tool_offered(caller, AgentTool::ExecuteCode).await
    }

    pub(crate) async fn asked(&self, caller: &Caller, code: &str) -> Approval {
        match self.engine.approvals().decide_call(caller, &call(code)).await {
            GateDecision::Ask(approval) => *approval,
            other => panic!("no person was asked: {other:?}"),
        }
    }

    pub(crate) async fn opened(&self, caller: &Caller, code: &str) -> CallPermit {
        match self.engine.approvals().decide_call(caller, &call(code)).await {
            GateDecision::Open(pass) => pass,
            other => panic!("it is not open: {other:?}"),
        }
    }

    pub(crate) async fn closed(&self, caller: &Caller, code: &str) -> GateRefusal {
        match self.engine.approvals().decide_call(caller, &call(code)).await {
            GateDecision::Closed(closed) => closed,
            other => panic!("it is not closed: {other:?}"),
        }
    }

    pub(crate) async fn decisions(&self) -> Vec<Decision> {
        let filter = DecisionFilter { limit: 200, ..DecisionFilter::default() };
        let mut decisions = self.engine.approvals().list_decisions(&filter).await.unwrap();
        decisions.reverse();
        decisions
    }

    /// Who decided what since the teams were set up.
    pub(crate) async fn history(&self) -> Vec<(DecisionKind, String)> {
        let decisions = self.decisions().await.into_iter();
        let about = decisions.filter(|decision| decision.kind != DecisionKind::Changed);
        about.map(|decision| (decision.kind, decision.by)).collect()
    }
}

async fn start(directory: &TempDir, config: &EngineConfig, wired: &Arc<AtomicBool>) -> Engine {
    let dispatcher = Arc::new(Wiring(Arc::clone(wired)));
    let data_dir = LockedDataDir::lock(directory.path()).unwrap();
    let store = SqliteStore::open(&directory.path().join("cloche.db")).await.unwrap();
    Engine::open(data_dir, Arc::new(store), dispatcher, config.clone()).await.unwrap()
}

pub(crate) fn call(code: &str) -> ToolCall {
    ToolCall::new(AgentTool::ExecuteCode, &json!({"code": code, "language": "python"}))
}

pub(crate) fn operator() -> Approver {
    Approver::Admin(Some("ada".to_owned()))
}
