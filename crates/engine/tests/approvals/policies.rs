//! The two gates and the policies, before a person is asked.

use std::sync::atomic::Ordering;

use cloche_engine::{GateChange, GateDecision, GateRefusalReason, TeamChange};
use cloche_model::{AgentTool, DecisionKind, PendingApproval, ToolPolicy};

use crate::test_engine::{TestEngine, call};

const NO_CHANGE: GateChange = GateChange {
    agent_sandbox: None,
    execute_code: None,
    elicitation: None,
    pending_approval: None,
    web_search: None,
    fetch_url: None,
    people_search: None,
};
const ON: GateChange = GateChange { agent_sandbox: Some(Some(true)), ..NO_CHANGE };
const OFF: GateChange = GateChange { agent_sandbox: Some(Some(false)), ..NO_CHANGE };
const UNSET: GateChange = GateChange { agent_sandbox: Some(None), ..NO_CHANGE };

#[tokio::test]
async fn a_tool_is_offered_only_where_both_gates_are_open() {
    let server = TestEngine::open().await;
    let acme = server.team("acme").await;
    assert!(!server.offered(&acme).await);
    let closed = server.closed(&acme, "1").await;
    assert_eq!(closed.why, GateRefusalReason::TeamOff);
    assert!(closed.message.contains("cloche team set acme agent_sandbox=on"), "{closed:?}");
    assert!(closed.message.contains("operator"), "{closed:?}");
    server.set("acme", ON).await;
    assert!(server.offered(&acme).await);
    assert!(
        server.engine.approvals().why_not_offered(&acme, AgentTool::ExecuteCode).await.is_none()
    );
    server.wired.store(false, Ordering::SeqCst);
    assert!(!server.offered(&acme).await);
    let closed = server.closed(&acme, "1").await;
    assert_eq!(closed.why, GateRefusalReason::NotWired);
    assert!(closed.message.contains("SANDBOX_EXECUTOR_URL"), "{closed:?}");
    let why =
        server.engine.approvals().why_not_offered(&acme, AgentTool::ExecuteCode).await.unwrap();
    assert_eq!(why.why, GateRefusalReason::NotWired);
}

#[tokio::test]
async fn the_fleet_s_setting_is_for_teams_without_one() {
    let server = TestEngine::open().await;
    let (acme, other) = (server.team("acme").await, server.team("other").await);
    server.engine.tenancy().change_fleet_gates(ON).await.unwrap();
    assert!(server.offered(&acme).await && server.offered(&other).await);
    server.set("acme", OFF).await;
    assert!(!server.offered(&acme).await && server.offered(&other).await);
    server.engine.tenancy().change_fleet_gates(UNSET).await.unwrap();
    server.set("acme", ON).await;
    assert!(server.offered(&acme).await && !server.offered(&other).await);
    server.set("acme", UNSET).await;
    assert!(!server.offered(&acme).await);
}

#[tokio::test]
async fn without_a_person_to_ask_only_a_policy_allows_a_call() {
    let server = TestEngine::open().await;
    let acme = server.open_team("acme").await;
    let gate = server.engine.approvals().decide_without_people(&acme, &call("1")).await;
    assert!(
        matches!(gate, GateDecision::Closed(closed) if closed.why == GateRefusalReason::NoPerson)
    );
    // No person was asked, so no question is open.
    let refused = (DecisionKind::Refused, "gate".to_owned());
    assert_eq!(server.history().await, [refused]);
    server.policy("acme", Some(ToolPolicy::Allow)).await;
    let gate = server.engine.approvals().decide_without_people(&acme, &call("1")).await;
    assert!(matches!(gate, GateDecision::Open(_)), "{gate:?}");
}

#[tokio::test]
async fn a_policy_decides_before_a_person_is_asked() {
    let server = TestEngine::open().await;
    let acme = server.open_team("acme").await;
    let unset = server.asked(&acme, "1").await;
    server.policy("acme", Some(ToolPolicy::Deny)).await;
    assert!(!server.offered(&acme).await);
    let closed = server.closed(&acme, "1").await;
    assert_eq!(closed.why, GateRefusalReason::Policy);
    assert!(closed.message.contains("cloche team set acme execute_code=ask"), "{closed:?}");
    // A yes to what was asked before does not open what the policy closes.
    server
        .engine
        .approvals()
        .approve_call(unset.id.as_str(), &crate::test_engine::operator())
        .await
        .unwrap();
    assert_eq!(server.closed(&acme, "1").await.why, GateRefusalReason::Policy);
    server.policy("acme", Some(ToolPolicy::Allow)).await;
    for _ in 0..2 {
        assert_eq!(server.opened(&acme, "2").await.by, "team policy");
    }
    server.policy("acme", None).await;
    let fleet = GateChange { execute_code: Some(Some(ToolPolicy::Allow)), ..GateChange::default() };
    server.engine.tenancy().change_fleet_gates(fleet).await.unwrap();
    assert_eq!(server.opened(&acme, "2").await.by, "fleet policy");
    server.policy("acme", Some(ToolPolicy::Ask)).await;
    server.asked(&acme, "2").await;
}

#[tokio::test]
async fn what_cannot_be_looked_up_is_closed() {
    let server = TestEngine::open().await;
    let acme = server.open_team("acme").await;
    server.policy("acme", Some(ToolPolicy::Allow)).await;
    assert!(server.offered(&acme).await && server.engine.approvals().may_elicit(&acme).await);
    server.engine.shutdown().await;
    assert!(!server.offered(&acme).await && !server.engine.approvals().may_elicit(&acme).await);
    assert_eq!(server.closed(&acme, "1").await.why, GateRefusalReason::Unknown);
    let why =
        server.engine.approvals().why_not_offered(&acme, AgentTool::ExecuteCode).await.unwrap();
    assert_eq!(why.why, GateRefusalReason::Unknown);
}

#[tokio::test]
async fn a_caller_from_before_is_judged_by_what_holds_now() {
    let server = TestEngine::open().await;
    let acme = server.open_team("acme").await;
    server.policy("acme", Some(ToolPolicy::Allow)).await;
    let _ = server.opened(&acme, "1").await;
    server.engine.tenancy().revoke_key(acme.key.id.as_str()).await.unwrap();
    assert!(!server.offered(&acme).await);
    assert_eq!(server.closed(&acme, "1").await.why, GateRefusalReason::Unknown);
    server.engine.tenancy().delete_team("acme").await.unwrap();
    assert!(!server.offered(&acme).await);
    assert_eq!(server.closed(&acme, "1").await.why, GateRefusalReason::Unknown);
}

#[tokio::test]
async fn changes_at_the_same_time_are_all_kept_and_written_down() {
    let server = TestEngine::open().await;
    server.team("acme").await;
    let deny = GateChange { execute_code: Some(Some(ToolPolicy::Deny)), ..GateChange::default() };
    let quiet = GateChange { elicitation: Some(Some(false)), ..GateChange::default() };
    let change = |gates| {
        server.engine.tenancy().update_team("acme", TeamChange { gates, ..TeamChange::default() })
    };
    let (one, two, three) = tokio::join!(change(ON), change(deny), change(quiet));
    assert!(one.is_ok() && two.is_ok() && three.is_ok());
    let gates = server.engine.tenancy().find_team("acme").await.unwrap().gates;
    assert_eq!(gates.agent_sandbox, Some(true));
    assert_eq!((gates.execute_code, gates.elicitation), (Some(ToolPolicy::Deny), Some(false)));
    let decisions = server.decisions().await;
    assert_eq!(decisions.len(), 3);
    assert!(decisions.iter().all(|it| it.kind == DecisionKind::Changed && it.by == "admin"));
    let note = decisions[2].note.as_deref().unwrap();
    assert_eq!(
        note,
        "agent_sandbox=on execute_code=deny elicitation=off pending_approval=none \
         web_search=none fetch_url=none people_search=none"
    );
    // What changes nothing is no decision.
    change(quiet).await.unwrap();
    assert_eq!(server.decisions().await.len(), 3);
}

#[tokio::test]
async fn a_pending_approval_is_shown_as_the_team_or_the_fleet_says() {
    let server = TestEngine::open().await;
    let acme = server.team("acme").await;
    let shown = async || {
        let approvals = server.engine.approvals();
        let background = approvals.pending_approval(&acme, true).await;
        (background, approvals.pending_approval(&acme, false).await)
    };
    let (in_progress, requires_action) =
        (PendingApproval::InProgress, PendingApproval::RequiresAction);
    assert_eq!(shown().await, (in_progress, requires_action));
    let fleet = GateChange { pending_approval: Some(Some(requires_action)), ..NO_CHANGE };
    server.engine.tenancy().change_fleet_gates(fleet).await.unwrap();
    assert_eq!(shown().await, (requires_action, requires_action));
    let own = GateChange { pending_approval: Some(Some(in_progress)), ..NO_CHANGE };
    server.set("acme", own).await;
    assert_eq!(shown().await, (in_progress, in_progress));
    server.set("acme", GateChange { pending_approval: Some(None), ..NO_CHANGE }).await;
    assert_eq!(shown().await, (requires_action, requires_action));
}
