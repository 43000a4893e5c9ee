//! Teams, sandboxes, keys and gate settings, with the real store: what one server changes is not lost
//! when another server changes the same row at the same time.
#![allow(clippy::unwrap_used, reason = "a set-up that fails is a test that fails")]

use std::{path::Path, sync::Arc};

use cloche_engine::{
    Engine, EngineConfig, GateChange, KeyChange, KeyDraft, LockedDataDir, NullDispatcher,
    ResourcesChange, SandboxChange, SandboxDraft, TeamChange, TeamDraft,
};
use cloche_model::{ByteSize, DecisionKind, ErrorCode, TeamPlan};
use cloche_store::SqliteStore;
use tempfile::TempDir;

/// How often both change the same row.
const ROUNDS: u32 = 20;

/// Two engines, each with a data directory and a store handle of its own, on one database.
struct TwoServers {
    one: Engine,
    two: Engine,
    _directory: TempDir,
}

impl TwoServers {
    async fn start() -> Self {
        let directory = TempDir::new().unwrap();
        let one = open_engine(directory.path(), "one").await;
        let two = open_engine(directory.path(), "two").await;
        one.tenancy().create_team(TeamDraft::new("acme", TeamPlan::Enterprise)).await.unwrap();
        one.tenancy().create_sandbox(SandboxDraft::new("acme", "s")).await.unwrap();
        Self { one, two, _directory: directory }
    }

    async fn stop(self) {
        self.one.shutdown().await;
        self.two.shutdown().await;
    }
}

async fn open_engine(directory: &Path, name: &str) -> Engine {
    let data_dir = LockedDataDir::lock(&directory.join(name)).unwrap();
    let store = SqliteStore::open(&directory.join("cloche.db")).await.unwrap();
    let config = EngineConfig::default();
    Engine::open(data_dir, Arc::new(store), Arc::new(NullDispatcher), config).await.unwrap()
}

#[tokio::test]
async fn two_servers_that_change_one_team_lose_no_update() {
    let servers = TwoServers::start().await;
    let (one, two) = (servers.one.tenancy(), servers.two.tenancy());
    for round in 1..=ROUNDS {
        let concurrency =
            TeamChange { max_concurrency: Some(Some(round)), ..TeamChange::default() };
        let gates =
            GateChange { agent_sandbox: Some(Some(round % 2 == 0)), ..GateChange::default() };
        let storage = TeamChange {
            storage: Some(Some(ByteSize(u64::from(round)))),
            gates,
            ..TeamChange::default()
        };
        let (first, second) =
            tokio::join!(one.update_team("acme", concurrency), two.update_team("acme", storage));
        first.unwrap();
        second.unwrap();
        let team = one.find_team("acme").await.unwrap();
        assert_eq!(team.max_concurrency, Some(round));
        assert_eq!(team.storage, Some(ByteSize(u64::from(round))));
        assert_eq!(team.gates.agent_sandbox, Some(round % 2 == 0));
    }
    // Each change of the gates is one decision, however often it was computed.
    let filter = cloche_engine::DecisionFilter { limit: 100, ..Default::default() };
    let decisions = servers.one.approvals().list_decisions(&filter).await.unwrap();
    assert_eq!(decisions.len(), ROUNDS as usize);
    assert!(decisions.iter().all(|decision| decision.kind == DecisionKind::Changed));
    servers.stop().await;
}

#[tokio::test]
async fn two_servers_that_change_one_sandbox_or_one_key_lose_no_update() {
    let servers = TwoServers::start().await;
    let (one, two) = (servers.one.tenancy(), servers.two.tenancy());
    let sandbox = one.list_sandboxes(None).await.unwrap().remove(0).id.to_string();
    let key = one.create_key(KeyDraft::new("acme", "s", "k")).await.unwrap().key.id.to_string();
    for round in 1..=ROUNDS {
        let pids = ResourcesChange { pids: Some(100 + round), ..ResourcesChange::default() };
        let pids = SandboxChange { resources: pids, ..SandboxChange::default() };
        let name = format!("s-{round}");
        let named = SandboxChange { name: Some(name.clone()), ..SandboxChange::default() };
        let approves = KeyChange { may_approve: Some(round % 2 == 0), ..KeyChange::default() };
        let renamed = KeyChange { name: Some(name.clone()), ..KeyChange::default() };
        let (first, second, third, fourth) = tokio::join!(
            one.update_sandbox(&sandbox, pids),
            two.update_sandbox(&sandbox, named),
            one.update_key(&key, approves),
            two.update_key(&key, renamed),
        );
        first.unwrap();
        second.unwrap();
        third.unwrap();
        fourth.unwrap();
        let found = two.find_sandbox(&sandbox).await.unwrap();
        assert_eq!((found.resources.pids, &found.name), (100 + round, &name));
        let found = two.find_key(&key).await.unwrap();
        assert_eq!((found.may_approve, &found.name), (round % 2 == 0, &name));
    }
    servers.stop().await;
}

#[tokio::test]
async fn two_servers_that_change_the_gates_of_the_fleet_lose_no_update() {
    let servers = TwoServers::start().await;
    let (one, two) = (servers.one.tenancy(), servers.two.tenancy());
    for round in 1..=ROUNDS {
        let on = Some(Some(round % 2 == 0));
        let agents = GateChange { agent_sandbox: on, ..GateChange::default() };
        let elicitation = GateChange { elicitation: on, ..GateChange::default() };
        let (first, second) =
            tokio::join!(one.change_fleet_gates(agents), two.change_fleet_gates(elicitation));
        first.unwrap();
        second.unwrap();
        let gates = one.fleet_gates().await.unwrap();
        assert_eq!((gates.agent_sandbox, gates.elicitation), (on.flatten(), on.flatten()));
    }
    servers.stop().await;
}

#[tokio::test]
async fn an_update_of_a_row_that_does_not_exist_is_not_found() {
    let servers = TwoServers::start().await;
    let tenancy = servers.one.tenancy();
    let team = tenancy.update_team("other", TeamChange::default()).await.unwrap_err();
    let sandbox = tenancy.update_sandbox("sb_none", SandboxChange::default()).await.unwrap_err();
    let key = tenancy.update_key("key_none", KeyChange::default()).await.unwrap_err();
    for refusal in [team, sandbox, key] {
        assert_eq!(refusal.code, ErrorCode::NotFound, "{refusal}");
    }
    servers.stop().await;
}
