//! What a person's yes is good for, and who may give it.

use cloche_engine::{
    ApprovalFilter, ApprovalWaitResult, Approver, GateChange, GateConfig, GateRefusalReason,
};
use cloche_model::{ApprovalState, DecisionKind, ErrorCode, TraceId};
use futures::future::join_all;

use crate::test_engine::{PATIENCE, TestEngine, call, operator};

#[tokio::test]
async fn the_first_use_waits_for_a_person_and_a_yes_is_good_for_one_call() {
    let server = TestEngine::open().await;
    let acme = server.open_team("acme").await;
    let asked = server.asked(&acme, "1").await;
    assert_eq!(asked.state, ApprovalState::Pending);
    assert_eq!(asked.arguments.as_deref(), Some(r#"{"code":"1","language":"python"}"#));
    // Asking again is the same question.
    assert_eq!(server.asked(&acme, "1").await.id, asked.id);
    let approved =
        server.engine.approvals().approve_call(asked.id.as_str(), &operator()).await.unwrap();
    assert_eq!(approved.state, ApprovalState::Approved);
    assert_eq!(server.opened(&acme, "1").await.by, "admin (ada)");
    let again = server.asked(&acme, "1").await;
    assert_ne!(again.id, asked.id);
    let used = server.engine.approvals().find_approval(&acme, &asked.id).await.unwrap();
    assert_eq!((used.state, used.arguments), (ApprovalState::Used, None));
    let waited =
        server.engine.approvals().wait_for_approval(&acme, &asked.id, PATIENCE).await.unwrap();
    assert_eq!(waited, ApprovalWaitResult::Spent);
}

#[tokio::test]
async fn a_yes_is_for_these_arguments_this_key_and_this_team() {
    let server = TestEngine::open().await;
    let (acme, other) = (server.open_team("acme").await, server.open_team("other").await);
    let colleague = server.key("acme", true).await;
    let asked = server.asked(&acme, "1").await;
    server.engine.approvals().approve_call(asked.id.as_str(), &operator()).await.unwrap();
    for (caller, code) in [(&acme, "2"), (&colleague, "1"), (&other, "1")] {
        let another = server.asked(caller, code).await;
        assert_ne!(another.id, asked.id);
    }
    let _ = server.opened(&acme, "1").await;
}

#[tokio::test]
async fn the_key_that_asked_cannot_answer_and_another_needs_the_right() {
    let server = TestEngine::open().await;
    server.open_team("acme").await;
    let asker = server.key("acme", true).await;
    let asked = server.asked(&asker, "1").await;
    let id = asked.id.as_str();
    let own = server
        .engine
        .approvals()
        .approve_call(id, &Approver::Key(asker.clone()))
        .await
        .unwrap_err();
    assert_eq!(own.code, ErrorCode::Forbidden);
    let plain = Approver::Key(server.key("acme", false).await);
    assert_eq!(
        server.engine.approvals().approve_call(id, &plain).await.unwrap_err().code,
        ErrorCode::Forbidden
    );
    assert_eq!(
        server.engine.approvals().deny_call(id, &plain, None).await.unwrap_err().code,
        ErrorCode::Forbidden
    );
    server.open_team("other").await;
    let stranger = Approver::Key(server.key("other", true).await);
    let unseen = server.engine.approvals().approve_call(id, &stranger).await.unwrap_err();
    let nothing =
        server.engine.approvals().approve_call("apr_nothing", &stranger).await.unwrap_err();
    assert_eq!(unseen.code, ErrorCode::NotFound);
    assert_eq!(unseen.to_string(), nothing.to_string());
    assert!(server.engine.approvals().approval_for(&stranger, id).await.is_err());
    let Approver::Key(stranger) = stranger else { unreachable!() };
    assert!(server.engine.approvals().find_approval(&stranger, &asked.id).await.is_err());
    assert!(
        server.engine.approvals().wait_for_approval(&stranger, &asked.id, PATIENCE).await.is_err()
    );
    let colleague = server.key("acme", true).await;
    let by = format!("{} (k)", colleague.key.id);
    server.engine.approvals().approve_call(id, &Approver::Key(colleague)).await.unwrap();
    assert_eq!(server.opened(&asker, "1").await.by, by);
}

#[tokio::test]
async fn the_person_at_the_client_may_answer_unless_that_is_forbidden() {
    let server = TestEngine::open().await;
    let acme = server.open_team("acme").await;
    let colleague = server.key("acme", true).await;
    let asked = server.asked(&acme, "1").await;
    let wrong = server.engine.approvals().answer_by_elicitation(&colleague, &asked.id, true).await;
    assert_eq!(wrong.unwrap_err().code, ErrorCode::NotFound);
    server.engine.approvals().answer_by_elicitation(&acme, &asked.id, true).await.unwrap();
    let by = format!("person at the client of {}", acme.key.id);
    assert_eq!(server.opened(&acme, "1").await.by, by);
    assert!(server.history().await.contains(&(DecisionKind::Approved, by)));
    let asked = server.asked(&acme, "1").await;
    server
        .set("acme", GateChange { elicitation: Some(Some(false)), ..GateChange::default() })
        .await;
    assert!(!server.engine.approvals().may_elicit(&acme).await);
    let refused = server.engine.approvals().answer_by_elicitation(&acme, &asked.id, true).await;
    assert_eq!(refused.unwrap_err().code, ErrorCode::Forbidden);
    server.asked(&acme, "1").await;
}

#[tokio::test]
async fn a_no_holds_and_says_who_and_why() {
    let server = TestEngine::open().await;
    let acme = server.open_team("acme").await;
    let asked = server.asked(&acme, "1").await;
    let (long, by) = ("x".repeat(501), operator());
    for reason in ["", "a\nb", &long] {
        let refused =
            server.engine.approvals().deny_call(asked.id.as_str(), &by, Some(reason.to_owned()));
        assert_eq!(refused.await.unwrap_err().code, ErrorCode::Validation);
    }
    let odd = Approver::Admin(Some("a\u{1b}[2J".to_owned()));
    assert_eq!(
        server.engine.approvals().approve_call(asked.id.as_str(), &odd).await.unwrap_err().code,
        ErrorCode::Validation
    );
    let denied =
        server.engine.approvals().deny_call(asked.id.as_str(), &by, Some("not today".to_owned()));
    assert_eq!(denied.await.unwrap().arguments, None);
    let closed = server.closed(&acme, "1").await;
    assert_eq!(closed.why, GateRefusalReason::Denied);
    assert_eq!(closed.message, "admin (ada) denied this call: not today");
    let late =
        server.engine.approvals().approve_call(asked.id.as_str(), &operator()).await.unwrap_err();
    assert_eq!(late.code, ErrorCode::Conflict);
    assert!(late.to_string().contains("denied already, by admin (ada)"), "{late}");
    let last = server.history().await.pop().unwrap();
    assert_eq!(last, (DecisionKind::Refused, "admin (ada)".to_owned()));
    // Another call can still be asked about.
    server.asked(&acme, "2").await;
}

#[tokio::test]
async fn of_many_answers_one_counts_and_of_many_calls_one_runs() {
    let server = TestEngine::open().await;
    let acme = server.open_team("acme").await;
    for round in 0..5 {
        let code = round.to_string();
        let id = server.asked(&acme, &code).await.id;
        let by = operator();
        let yes =
            join_all((0..10).map(|_| server.engine.approvals().approve_call(id.as_str(), &by)));
        let no =
            join_all((0..10).map(|_| server.engine.approvals().deny_call(id.as_str(), &by, None)));
        let (yes, no) = tokio::join!(yes, no);
        let yes = yes.iter().filter(|answer| answer.is_ok()).count();
        assert_eq!(yes + no.iter().filter(|answer| answer.is_ok()).count(), 1);
        let call = call(&code);
        let gates =
            join_all((0..10).map(|_| server.engine.approvals().decide_call(&acme, &call))).await;
        let open = gates.iter().filter(|gate| matches!(gate, cloche_engine::GateDecision::Open(_)));
        assert_eq!(open.count(), yes);
    }
}

#[tokio::test]
async fn a_question_outlives_a_restart_and_so_does_its_answer() {
    let server = TestEngine::open().await;
    let acme = server.open_team("acme").await;
    let asked = server.asked(&acme, "1").await;
    let server = server.restart().await;
    let filter = ApprovalFilter {
        state: Some(ApprovalState::Pending),
        limit: 9,
        ..ApprovalFilter::default()
    };
    assert_eq!(server.engine.approvals().list_approvals(&filter).await.unwrap()[0].id, asked.id);
    assert_eq!(server.asked(&acme, "1").await.id, asked.id);
    server.engine.approvals().approve_call(asked.id.as_str(), &operator()).await.unwrap();
    let server = server.restart().await;
    let _ = server.opened(&acme, "1").await;
    let server = server.restart().await;
    assert_ne!(server.asked(&acme, "1").await.id, asked.id);
}

#[tokio::test]
async fn a_team_can_have_so_many_questions() {
    let server = TestEngine::with(GateConfig { pending: 2, ..GateConfig::default() }).await;
    let (acme, other) = (server.open_team("acme").await, server.open_team("other").await);
    let first = server.asked(&acme, "1").await;
    server.asked(&acme, "2").await;
    let closed = server.closed(&acme, "3").await;
    assert_eq!(closed.why, GateRefusalReason::Crowded);
    assert!(closed.message.contains("cloche approval list"), "{closed:?}");
    server.asked(&other, "3").await;
    server.engine.approvals().deny_call(first.id.as_str(), &operator(), None).await.unwrap();
    server.asked(&acme, "3").await;
}

#[tokio::test]
async fn every_decision_is_in_the_ledger_with_who_and_when() {
    let server = TestEngine::open().await;
    let acme = server.open_team("acme").await;
    let other = server.team("other").await;
    let before = cloche_engine::now();
    server.closed(&other, "1").await;
    let asked = server.asked(&acme, "1").await;
    server.engine.approvals().approve_call(asked.id.as_str(), &operator()).await.unwrap();
    let pass = server.opened(&acme, "1").await;
    let key = acme.key.id.to_string();
    let said = |kind, by: &str| (kind, by.to_owned());
    assert_eq!(
        server.history().await,
        [
            said(DecisionKind::Refused, "gate"),
            said(DecisionKind::Asked, &key),
            said(DecisionKind::Approved, "admin (ada)"),
            said(DecisionKind::Used, "admin (ada)"),
        ]
    );
    let trace = TraceId::from_random([1; 20]);
    server.engine.approvals().note_execution(&pass, &trace).await.unwrap();
    let decision =
        server.engine.approvals().decision_of(&acme.team.id, &trace).await.unwrap().unwrap();
    assert_eq!((&decision.id, &decision.approval), (&pass.decision, &Some(asked.id)));
    assert_eq!(decision.digest.as_deref(), Some(call("1").digest()));
    assert!(before <= decision.at && decision.at <= cloche_engine::now());
    assert_eq!(server.engine.approvals().decision_of(&other.team.id, &trace).await.unwrap(), None);
}
