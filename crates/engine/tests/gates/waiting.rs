//! Calls that wait: what wakes them, and what ends them.

use std::time::Duration;

use cloche_engine::{ApprovalWaitResult, DecisionFilter, GateConfig};
use cloche_model::{ApprovalState, DecisionKind, ErrorCode};
use cloche_test_support::eventually;

use crate::house::{House, PATIENCE, operator};

#[tokio::test]
async fn an_answer_wakes_whoever_waits_for_it() {
    let house = House::open().await;
    let acme = house.open_team("acme").await;
    let (one, two) = (house.asked(&acme, "1").await, house.asked(&acme, "2").await);
    let (engine, by) = (&house.engine, operator());
    let (first, second, again, yes, no) = tokio::join!(
        engine.wait_for_approval(&acme, &one.id, PATIENCE),
        engine.wait_for_approval(&acme, &two.id, PATIENCE),
        engine.wait_for_approval(&acme, &one.id, PATIENCE),
        engine.approve_call(one.id.as_str(), &by),
        engine.deny_call(two.id.as_str(), &by, Some("no".to_owned())),
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
    let late = engine.wait_for_approval(&acme, &one.id, Duration::ZERO).await.unwrap();
    assert_eq!(late, ApprovalWaitResult::Approved);
}

#[tokio::test]
async fn waiting_has_an_end_and_the_question_stays() {
    let house = House::open().await;
    let acme = house.open_team("acme").await;
    let asked = house.asked(&acme, "1").await;
    let waited = house.engine.wait_for_approval(&acme, &asked.id, Duration::from_millis(1)).await;
    assert_eq!(waited.unwrap(), ApprovalWaitResult::StillPending);
    assert_eq!(house.asked(&acme, "1").await.id, asked.id);
}

#[tokio::test]
async fn so_many_calls_of_a_team_may_wait() {
    let house = House::with(GateConfig { waiting: 1, ..GateConfig::default() }).await;
    let (acme, other) = (house.open_team("acme").await, house.open_team("other").await);
    let (one, two) = (house.asked(&acme, "1").await, house.asked(&other, "1").await);
    let waiting = house.engine.wait_for_approval(&acme, &one.id, PATIENCE);
    tokio::pin!(waiting);
    assert!(futures::poll!(waiting.as_mut()).is_pending());
    let refused = house.engine.wait_for_approval(&acme, &one.id, PATIENCE).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::RateLimited);
    let elsewhere = house.engine.wait_for_approval(&other, &two.id, Duration::ZERO).await;
    assert_eq!(elsewhere.unwrap(), ApprovalWaitResult::StillPending);
    house.engine.approve_call(one.id.as_str(), &operator()).await.unwrap();
    assert_eq!(waiting.await.unwrap(), ApprovalWaitResult::Approved);
    let next = house.engine.wait_for_approval(&acme, &one.id, PATIENCE).await;
    assert_eq!(next.unwrap(), ApprovalWaitResult::Approved);
}

#[tokio::test]
async fn a_server_that_stops_lets_go_of_those_who_wait() {
    let house = House::open().await;
    let acme = house.open_team("acme").await;
    let asked = house.asked(&acme, "1").await;
    let waiting = house.engine.wait_for_approval(&acme, &asked.id, PATIENCE);
    tokio::pin!(waiting);
    assert!(futures::poll!(waiting.as_mut()).is_pending());
    house.engine.drain();
    let waited = tokio::time::timeout(PATIENCE / 2, waiting).await.unwrap();
    assert_eq!(waited.unwrap(), ApprovalWaitResult::StillPending);
}

/// The one decision that is written when time ends an approval.
async fn expired(house: &House, note: &str) {
    let found = eventually("the approval expires", async || {
        let filter = DecisionFilter { limit: 200, ..DecisionFilter::default() };
        let mut decisions = house.engine.list_decisions(&filter).await.unwrap();
        decisions.retain(|it| it.kind == DecisionKind::Expired);
        Some(decisions).filter(|found| !found.is_empty())
    })
    .await;
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].by.as_str(), found[0].note.as_deref()), ("time", Some(note)));
}

#[tokio::test]
async fn what_nobody_answers_expires_and_cannot_be_answered_later() {
    let short = GateConfig { lifetime: Duration::from_millis(50), ..GateConfig::default() };
    let house = House::with(short).await;
    let acme = house.open_team("acme").await;
    let asked = house.asked(&acme, "1").await;
    let waited = house.engine.wait_for_approval(&acme, &asked.id, PATIENCE).await.unwrap();
    assert_eq!(waited, ApprovalWaitResult::Expired);
    let late = house.engine.approve_call(asked.id.as_str(), &operator()).await.unwrap_err();
    assert_eq!(
        (late.code, late.to_string().as_str()),
        (ErrorCode::Conflict, "it has expired: nobody answered in time")
    );
    expired(&house, "nobody answered in time").await;
    assert_ne!(house.asked(&acme, "1").await.id, asked.id);
}

#[tokio::test]
async fn a_yes_that_is_not_used_in_time_is_good_for_nothing() {
    let short = GateConfig { lifetime: Duration::from_millis(200), ..GateConfig::default() };
    let house = House::with(short).await;
    let acme = house.open_team("acme").await;
    let asked = house.asked(&acme, "1").await;
    // On a machine with much else to do, the question itself may have expired.
    let approved = house.engine.approve_call(asked.id.as_str(), &operator()).await.is_ok();
    let note = match approved {
        true => "it was approved, and not used in time",
        false => "nobody answered in time",
    };
    expired(&house, note).await;
    let now = house.engine.find_approval(&acme, &asked.id).await.unwrap();
    assert_eq!((now.state, now.arguments), (ApprovalState::Expired, None));
    assert_ne!(house.asked(&acme, "1").await.id, asked.id);
}
