//! The two gates and the policies, before a person is asked.

use std::sync::atomic::Ordering;

use cloche_engine::{GateChange, GateDecision, GateRefusalReason, TeamChange};
use cloche_model::{AgentTool, DecisionKind, ToolPolicy};

use crate::house::{House, call};

const ON: GateChange =
    GateChange { agent_sandbox: Some(Some(true)), execute_code: None, elicitation: None };
const OFF: GateChange =
    GateChange { agent_sandbox: Some(Some(false)), execute_code: None, elicitation: None };
const UNSET: GateChange =
    GateChange { agent_sandbox: Some(None), execute_code: None, elicitation: None };

#[tokio::test]
async fn a_tool_is_offered_only_where_both_gates_are_open() {
    let house = House::open().await;
    let acme = house.team("acme").await;
    assert!(!house.offered(&acme).await);
    let closed = house.closed(&acme, "1").await;
    assert_eq!(closed.why, GateRefusalReason::TeamOff);
    assert!(closed.message.contains("cloche team set acme agent_sandbox=on"), "{closed:?}");
    assert!(closed.message.contains("operator"), "{closed:?}");
    house.set("acme", ON).await;
    assert!(house.offered(&acme).await);
    assert!(
        house.engine.approvals().why_not_offered(&acme, AgentTool::ExecuteCode).await.is_none()
    );
    house.wired.store(false, Ordering::SeqCst);
    assert!(!house.offered(&acme).await);
    let closed = house.closed(&acme, "1").await;
    assert_eq!(closed.why, GateRefusalReason::NotWired);
    assert!(closed.message.contains("SANDBOX_EXECUTOR_URL"), "{closed:?}");
    let why =
        house.engine.approvals().why_not_offered(&acme, AgentTool::ExecuteCode).await.unwrap();
    assert_eq!(why.why, GateRefusalReason::NotWired);
}

#[tokio::test]
async fn the_fleet_s_setting_is_for_teams_without_one() {
    let house = House::open().await;
    let (acme, other) = (house.team("acme").await, house.team("other").await);
    house.engine.tenancy().change_fleet_gates(ON).await.unwrap();
    assert!(house.offered(&acme).await && house.offered(&other).await);
    house.set("acme", OFF).await;
    assert!(!house.offered(&acme).await && house.offered(&other).await);
    house.engine.tenancy().change_fleet_gates(UNSET).await.unwrap();
    house.set("acme", ON).await;
    assert!(house.offered(&acme).await && !house.offered(&other).await);
    house.set("acme", UNSET).await;
    assert!(!house.offered(&acme).await);
}

#[tokio::test]
async fn without_a_person_to_ask_only_a_policy_allows_a_call() {
    let house = House::open().await;
    let acme = house.open_team("acme").await;
    let gate = house.engine.approvals().decide_without_people(&acme, &call("1")).await;
    assert!(
        matches!(gate, GateDecision::Closed(closed) if closed.why == GateRefusalReason::NoPerson)
    );
    // No person was asked, so no question is open.
    let refused = (DecisionKind::Refused, "gate".to_owned());
    assert_eq!(house.history().await, [refused]);
    house.policy("acme", Some(ToolPolicy::Allow)).await;
    let gate = house.engine.approvals().decide_without_people(&acme, &call("1")).await;
    assert!(matches!(gate, GateDecision::Open(_)), "{gate:?}");
}

#[tokio::test]
async fn a_policy_decides_before_a_person_is_asked() {
    let house = House::open().await;
    let acme = house.open_team("acme").await;
    let unset = house.asked(&acme, "1").await;
    house.policy("acme", Some(ToolPolicy::Deny)).await;
    assert!(!house.offered(&acme).await);
    let closed = house.closed(&acme, "1").await;
    assert_eq!(closed.why, GateRefusalReason::Policy);
    assert!(closed.message.contains("cloche team set acme execute_code=ask"), "{closed:?}");
    // A yes to what was asked before does not open what the policy closes.
    house
        .engine
        .approvals()
        .approve_call(unset.id.as_str(), &crate::house::operator())
        .await
        .unwrap();
    assert_eq!(house.closed(&acme, "1").await.why, GateRefusalReason::Policy);
    house.policy("acme", Some(ToolPolicy::Allow)).await;
    for _ in 0..2 {
        assert_eq!(house.opened(&acme, "2").await.by, "team policy");
    }
    house.policy("acme", None).await;
    let fleet = GateChange { execute_code: Some(Some(ToolPolicy::Allow)), ..GateChange::default() };
    house.engine.tenancy().change_fleet_gates(fleet).await.unwrap();
    assert_eq!(house.opened(&acme, "2").await.by, "fleet policy");
    house.policy("acme", Some(ToolPolicy::Ask)).await;
    house.asked(&acme, "2").await;
}

#[tokio::test]
async fn what_cannot_be_looked_up_is_closed() {
    let house = House::open().await;
    let acme = house.open_team("acme").await;
    house.policy("acme", Some(ToolPolicy::Allow)).await;
    assert!(house.offered(&acme).await && house.engine.approvals().may_elicit(&acme).await);
    house.engine.shutdown().await;
    assert!(!house.offered(&acme).await && !house.engine.approvals().may_elicit(&acme).await);
    assert_eq!(house.closed(&acme, "1").await.why, GateRefusalReason::Unknown);
    let why =
        house.engine.approvals().why_not_offered(&acme, AgentTool::ExecuteCode).await.unwrap();
    assert_eq!(why.why, GateRefusalReason::Unknown);
}

#[tokio::test]
async fn a_caller_from_before_is_judged_by_what_holds_now() {
    let house = House::open().await;
    let acme = house.open_team("acme").await;
    house.policy("acme", Some(ToolPolicy::Allow)).await;
    let _ = house.opened(&acme, "1").await;
    house.engine.tenancy().revoke_key(acme.key.id.as_str()).await.unwrap();
    assert!(!house.offered(&acme).await);
    assert_eq!(house.closed(&acme, "1").await.why, GateRefusalReason::Unknown);
    house.engine.tenancy().delete_team("acme").await.unwrap();
    assert!(!house.offered(&acme).await);
    assert_eq!(house.closed(&acme, "1").await.why, GateRefusalReason::Unknown);
}

#[tokio::test]
async fn changes_at_the_same_time_are_all_kept_and_written_down() {
    let house = House::open().await;
    house.team("acme").await;
    let deny = GateChange { execute_code: Some(Some(ToolPolicy::Deny)), ..GateChange::default() };
    let quiet = GateChange { elicitation: Some(Some(false)), ..GateChange::default() };
    let change = |gates| {
        house.engine.tenancy().update_team("acme", TeamChange { gates, ..TeamChange::default() })
    };
    let (one, two, three) = tokio::join!(change(ON), change(deny), change(quiet));
    assert!(one.is_ok() && two.is_ok() && three.is_ok());
    let gates = house.engine.tenancy().find_team("acme").await.unwrap().gates;
    assert_eq!(gates.agent_sandbox, Some(true));
    assert_eq!((gates.execute_code, gates.elicitation), (Some(ToolPolicy::Deny), Some(false)));
    let decisions = house.decisions().await;
    assert_eq!(decisions.len(), 3);
    assert!(decisions.iter().all(|it| it.kind == DecisionKind::Changed && it.by == "admin"));
    let note = decisions[2].note.as_deref().unwrap();
    assert_eq!(note, "agent_sandbox=on execute_code=deny elicitation=off");
    // What changes nothing is no decision.
    change(quiet).await.unwrap();
    assert_eq!(house.decisions().await.len(), 3);
}
