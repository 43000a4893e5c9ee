//! Calls that wait: what wakes them, and what ends them.

use std::time::Duration;

use cloche_engine::{ApprovalWaitResult, DecisionFilter, GateConfig};
use cloche_model::{ApprovalState, DecisionKind, ErrorCode};
use cloche_test_support::eventually;

use crate::test_engine::{PATIENCE, TestEngine, operator};

#[tokio::test]
async fn an_answer_wakes_the_calls_that_wait_for_it() {
    let server = TestEngine::open().await;
    let acme = server.open_team("acme").await;
    let (one, two) = (server.asked(&acme, "1").await, server.asked(&acme, "2").await);
    let (engine, by) = (&server.engine, operator());
    let (first, second, again, yes, no) = tokio::join!(
        engine.approvals().wait_for_approval(&acme, &one.id, PATIENCE),
        engine.approvals().wait_for_approval(&acme, &two.id, PATIENCE),
        engine.approvals().wait_for_approval(&acme, &one.id, PATIENCE),
        engine.approvals().approve_call(one.id.as_str(), &by),
        engine.approvals().deny_call(two.id.as_str(), &by, Some("no".to_owned())),
    );
    assert!(yes.is_ok() && no.is_ok());
    assert_eq!(
        (first.unwrap(), again.unwrap()),
        (ApprovalWaitResult::Approved, ApprovalWaitResult::Approved)
    );
    let denied =
        ApprovalWaitResult::Denied { by: "admin (ada)".to_owned(), reason: Some("no".to_owned()) };
    assert_eq!(second.unwrap(), denied);
    // What was answered before anyone waits is known at once.
    let late = engine.approvals().wait_for_approval(&acme, &one.id, Duration::ZERO).await.unwrap();
    assert_eq!(late, ApprovalWaitResult::Approved);
}

#[tokio::test]
async fn waiting_has_an_end_and_the_question_stays() {
    let server = TestEngine::open().await;
    let acme = server.open_team("acme").await;
    let asked = server.asked(&acme, "1").await;
    let waited = server
        .engine
        .approvals()
        .wait_for_approval(&acme, &asked.id, Duration::from_millis(1))
        .await;
    assert_eq!(waited.unwrap(), ApprovalWaitResult::StillPending);
    assert_eq!(server.asked(&acme, "1").await.id, asked.id);
}

#[tokio::test]
async fn so_many_calls_of_a_team_may_wait() {
    let server = TestEngine::with(GateConfig { waiting: 1, ..GateConfig::default() }).await;
    let (acme, other) = (server.open_team("acme").await, server.open_team("other").await);
    let (one, two) = (server.asked(&acme, "1").await, server.asked(&other, "1").await);
    let waiting = server.engine.approvals().wait_for_approval(&acme, &one.id, PATIENCE);
    tokio::pin!(waiting);
    assert!(futures::poll!(waiting.as_mut()).is_pending());
    let refused =
        server.engine.approvals().wait_for_approval(&acme, &one.id, PATIENCE).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::RateLimited);
    let elsewhere =
        server.engine.approvals().wait_for_approval(&other, &two.id, Duration::ZERO).await;
    assert_eq!(elsewhere.unwrap(), ApprovalWaitResult::StillPending);
    server.engine.approvals().approve_call(one.id.as_str(), &operator()).await.unwrap();
    assert_eq!(waiting.await.unwrap(), ApprovalWaitResult::Approved);
    let next = server.engine.approvals().wait_for_approval(&acme, &one.id, PATIENCE).await;
    assert_eq!(next.unwrap(), ApprovalWaitResult::Approved);
}

#[tokio::test]
async fn a_server_that_stops_lets_go_of_those_who_wait() {
    let server = TestEngine::open().await;
    let acme = server.open_team("acme").await;
    let asked = server.asked(&acme, "1").await;
    let waiting = server.engine.approvals().wait_for_approval(&acme, &asked.id, PATIENCE);
    tokio::pin!(waiting);
    assert!(futures::poll!(waiting.as_mut()).is_pending());
    server.engine.drain();
    let waited = tokio::time::timeout(PATIENCE / 2, waiting).await.unwrap();
    assert_eq!(waited.unwrap(), ApprovalWaitResult::StillPending);
}

/// The one decision that is written when time ends an approval.
async fn expired(server: &TestEngine, note: &str) {
    let filter = DecisionFilter { limit: 200, ..DecisionFilter::default() };
    let decisions = eventually("an approval has expired", async || {
        let mut decisions = server.engine.approvals().list_decisions(&filter).await.unwrap();
        decisions.retain(|it| it.kind == DecisionKind::Expired);
        if decisions.is_empty() { Err("no decision of time") } else { Ok(decisions) }
    });
    let decisions = decisions.await;
    let said: Vec<_> = decisions.iter().map(|it| (it.by.as_str(), it.note.as_deref())).collect();
    assert_eq!(said, [("time", Some(note))]);
}

#[tokio::test]
async fn a_question_without_an_answer_expires_and_cannot_be_answered_later() {
    let short = GateConfig { lifetime: Duration::from_millis(50), ..GateConfig::default() };
    let server = TestEngine::with(short).await;
    let acme = server.open_team("acme").await;
    let asked = server.asked(&acme, "1").await;
    let waited =
        server.engine.approvals().wait_for_approval(&acme, &asked.id, PATIENCE).await.unwrap();
    assert_eq!(waited, ApprovalWaitResult::Expired);
    let late =
        server.engine.approvals().approve_call(asked.id.as_str(), &operator()).await.unwrap_err();
    assert_eq!(
        (late.code, late.to_string().as_str()),
        (ErrorCode::Conflict, "it has expired: no answer came in time")
    );
    expired(&server, "no answer came in time").await;
    assert_ne!(server.asked(&acme, "1").await.id, asked.id);
}

#[tokio::test]
async fn a_yes_that_is_not_used_in_time_is_good_for_nothing() {
    let short = GateConfig { lifetime: Duration::from_millis(200), ..GateConfig::default() };
    let server = TestEngine::with(short).await;
    let acme = server.open_team("acme").await;
    let asked = server.asked(&acme, "1").await;
    // On a machine with much else to do, the question itself may have expired.
    let approved =
        server.engine.approvals().approve_call(asked.id.as_str(), &operator()).await.is_ok();
    let note = match approved {
        true => "it was approved, and not used in time",
        false => "no answer came in time",
    };
    expired(&server, note).await;
    let now = server.engine.approvals().find_approval(&acme, &asked.id).await.unwrap();
    assert_eq!((now.state, now.arguments), (ApprovalState::Expired, None));
    assert_ne!(server.asked(&acme, "1").await.id, asked.id);
}
