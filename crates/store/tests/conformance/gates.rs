//! Requirements for every store: gates in front of agent tools.
#![allow(clippy::unwrap_used, reason = "a set-up that fails is a test that fails")]

use cloche_model::{
    AgentTool, Approval, ApprovalId, ApprovalState, Decision, DecisionId, DecisionKind,
    GateSettings, HomeState, KeyId, Moment, PendingApproval, SnapshotKind, Team, TeamId, TeamPlan,
    ToolPolicy, TraceId,
};
use cloche_store::{
    ApprovalAnswer, ApprovalFilter, ApprovalRequestOutcome, BeginOutcome, CallId, DecisionFilter,
    HeadMoveOutcome, LayerAppend, LayerSquash, QuestionLimits, Revisioned, Store, ThreadKey,
    UpdateOutcome,
};

use crate::{
    suite::{on_thread, thread_key},
    threads::layer,
};
use futures::future::join_all;

const MOST: QuestionLimits = QuestionLimits { count: 3, bytes: 1 << 20 };
const SOON: Moment = Moment(1000);

fn id(n: u8) -> [u8; 20] {
    let mut bytes = [7; 20];
    (bytes[0], bytes[1]) = (n % 32, n / 32);
    bytes
}

fn team(n: u8) -> TeamId {
    TeamId::from_random(id(n))
}

fn approval(n: u8) -> Approval {
    Approval {
        id: ApprovalId::from_random(id(n)),
        team: team(1),
        key: KeyId::from_random(id(1)),
        tool: AgentTool::ExecuteCode,
        digest: format!("digest-{n}"),
        arguments: Some("{}".to_owned()),
        arguments_bytes: 2,
        home: None,
        changes: None,
        state: ApprovalState::Pending,
        created_at: Moment(i64::from(n)),
        expires_at: SOON,
        decided_at: None,
        decided_by: None,
        reason: None,
    }
}

fn call(n: u8) -> CallId {
    let Approval { team, key, tool, digest, .. } = approval(n);
    CallId { team, key, tool, digest, home: None }
}

fn decision(n: u8, kind: DecisionKind) -> Decision {
    Decision {
        id: DecisionId::from_random(id(n)),
        kind,
        by: format!("person-{n}"),
        at: Moment(i64::from(n)),
        team: Some(team(1)),
        key: None,
        tool: Some(AgentTool::ExecuteCode),
        digest: None,
        approval: None,
        execution: None,
        note: None,
    }
}

fn answer(n: u8, of: u8, approve: bool, at: Moment) -> ApprovalAnswer {
    let kind = if approve { DecisionKind::Approved } else { DecisionKind::Denied };
    ApprovalAnswer {
        id: approval(of).id,
        approve,
        at,
        expires_at: SOON,
        reason: None,
        decision: decision(n, kind),
    }
}

async fn ask(store: &dyn Store, n: u8) -> ApprovalRequestOutcome {
    store.request_approval(approval(n), MOST, decision(100 + n, DecisionKind::Asked)).await.unwrap()
}

async fn kinds(store: &dyn Store) -> Vec<DecisionKind> {
    let filter = DecisionFilter { limit: 200, ..DecisionFilter::default() };
    store.list_decisions(&filter).await.unwrap().into_iter().map(|decision| decision.kind).collect()
}

pub(crate) async fn gate_settings_are_stored_with_their_decision(store: &dyn Store) {
    assert_eq!(store.fleet_gates().await.unwrap(), GateSettings::default());
    let gates = GateSettings {
        agent_sandbox: Some(true),
        execute_code: Some(ToolPolicy::Deny),
        elicitation: Some(false),
        pending_approval: Some(PendingApproval::RequiresAction),
        web_search: Some(ToolPolicy::Allow),
        fetch_url: Some(ToolPolicy::Ask),
        people_search: Some(ToolPolicy::Deny),
    };
    let changed = decision(1, DecisionKind::Changed);
    let none = GateSettings::default();
    assert!(store.change_fleet_gates(none, gates, changed.clone()).await.unwrap());
    assert_eq!(store.fleet_gates().await.unwrap(), gates);
    let late = decision(3, DecisionKind::Changed);
    assert!(!store.change_fleet_gates(none, none, late.clone()).await.unwrap());
    assert_eq!(store.fleet_gates().await.unwrap(), gates);
    let made = decision(2, DecisionKind::Changed);
    let row = Team {
        id: team(1),
        name: "t".to_owned(),
        plan: TeamPlan::Free,
        max_concurrency: None,
        max_timeout: None,
        storage: None,
        monthly_micro_credits: None,
        gates: GateSettings::default(),
        created_at: Moment(1),
    };
    let new = Revisioned { row: Team { gates, ..row.clone() }, revision: 0 };
    let missing = store.update_team(&new, Some(late.clone())).await.unwrap();
    assert_eq!(missing, UpdateOutcome::Missing);
    store.create_team(&row).await.unwrap();
    assert_eq!(store.update_team(&new, Some(made.clone())).await.unwrap(), UpdateOutcome::Done);
    assert_eq!(store.find_team("t").await.unwrap().unwrap().gates, gates);
    // An update that was computed from an older row writes neither the gates nor the decision.
    assert_eq!(store.update_team(&new, Some(late)).await.unwrap(), UpdateOutcome::Stale);
    // A change of the plan leaves the gates alone.
    let read = store.team_for_update("t").await.unwrap().unwrap();
    let planned = Revisioned { row: Team { plan: TeamPlan::Pro, ..read.row.clone() }, ..read };
    assert_eq!(store.update_team(&planned, None).await.unwrap(), UpdateOutcome::Done);
    assert_eq!(store.find_team("t").await.unwrap().unwrap().gates, gates);
    let filter = DecisionFilter { limit: 9, ..DecisionFilter::default() };
    assert_eq!(store.list_decisions(&filter).await.unwrap(), [made, changed]);
}

pub(crate) async fn a_question_is_asked_once_and_pending_questions_are_limited(store: &dyn Store) {
    assert_eq!(ask(store, 1).await, ApprovalRequestOutcome::New);
    let same = Approval { id: approval(9).id, ..approval(1) };
    let again = store.request_approval(same, MOST, decision(1, DecisionKind::Asked)).await.unwrap();
    assert_eq!(again, ApprovalRequestOutcome::Same(Box::new(approval(1))));
    assert_eq!(ask(store, 2).await, ApprovalRequestOutcome::New);
    assert_eq!(ask(store, 3).await, ApprovalRequestOutcome::New);
    assert_eq!(ask(store, 4).await, ApprovalRequestOutcome::Crowded);
    let elsewhere = Approval { team: team(2), ..approval(5) };
    let other =
        store.request_approval(elsewhere, MOST, decision(5, DecisionKind::Asked)).await.unwrap();
    assert_eq!(other, ApprovalRequestOutcome::New);
    store.answer_approval(answer(6, 1, true, Moment(6))).await.unwrap().unwrap();
    assert_eq!(ask(store, 4).await, ApprovalRequestOutcome::New);
    let filter = ApprovalFilter { team: Some(team(1)), limit: 2, ..ApprovalFilter::default() };
    let page = store.list_approvals(&filter).await.unwrap();
    assert_eq!(
        page.iter().map(|row| &row.id).collect::<Vec<_>>(),
        [&approval(4).id, &approval(3).id]
    );
    assert_eq!(page[0].arguments, None);
    let filter = ApprovalFilter { before: Some(approval(3).id), ..filter };
    let page = store.list_approvals(&filter).await.unwrap();
    assert_eq!(
        page.iter().map(|row| &row.id).collect::<Vec<_>>(),
        [&approval(2).id, &approval(1).id]
    );
    let filter = ApprovalFilter { before: None, state: Some(ApprovalState::Approved), ..filter };
    assert_eq!(store.list_approvals(&filter).await.unwrap().len(), 1);
}

pub(crate) async fn an_approval_is_used_once(store: &dyn Store) {
    ask(store, 1).await;
    let this = call(1);
    let use_it = |n| store.consume_approval(&this, Moment(9), decision(n, DecisionKind::Used));
    assert_eq!(use_it(1).await.unwrap(), None);
    store.answer_approval(answer(2, 1, true, Moment(2))).await.unwrap().unwrap();
    let used = join_all((10..40).map(use_it)).await;
    let used: Vec<_> = used.into_iter().filter_map(|used| used.unwrap()).collect();
    assert_eq!(used.len(), 1);
    assert_eq!((used[0].state, used[0].arguments.as_deref()), (ApprovalState::Used, None));
    let noted = kinds(store).await;
    assert_eq!(noted.iter().filter(|kind| **kind == DecisionKind::Used).count(), 1);
    let filter =
        DecisionFilter { approval: Some(approval(1).id), limit: 9, ..DecisionFilter::default() };
    let about = store.list_decisions(&filter).await.unwrap();
    assert_eq!(about.len(), 1);
    assert_eq!((about[0].kind, about[0].by.as_str()), (DecisionKind::Used, "person-2"));
}

pub(crate) async fn an_approval_is_for_one_call_only(store: &dyn Store) {
    ask(store, 1).await;
    store.answer_approval(answer(2, 1, true, Moment(2))).await.unwrap().unwrap();
    for other in [
        CallId { team: team(2), ..call(1) },
        CallId { key: KeyId::from_random(id(2)), ..call(1) },
        CallId { digest: "else".to_owned(), ..call(1) },
    ] {
        let used = store
            .consume_approval(&other, Moment(9), decision(3, DecisionKind::Used))
            .await
            .unwrap();
        assert_eq!(used, None, "{other:?}");
    }
    assert!(
        store
            .consume_approval(&call(1), Moment(9), decision(3, DecisionKind::Used))
            .await
            .unwrap()
            .is_some()
    );
}

pub(crate) async fn only_the_first_answer_counts(store: &dyn Store) {
    ask(store, 1).await;
    let answers = (10..40).map(|n| store.answer_approval(answer(n, 1, n % 2 == 0, Moment(9))));
    let counted: Vec<_> =
        join_all(answers).await.into_iter().filter_map(|answer| answer.unwrap()).collect();
    assert_eq!(counted.len(), 1);
    let now = store.find_approval(&approval(1).id).await.unwrap().unwrap();
    assert_eq!(now, counted[0]);
    assert_eq!(kinds(store).await.len(), 2);
    let denied = store.find_denial(&call(1), Moment(9)).await.unwrap();
    assert_eq!(denied.is_some(), now.state == ApprovalState::Denied);
}

pub(crate) async fn late_answers_do_not_count(store: &dyn Store) {
    ask(store, 1).await;
    ask(store, 2).await;
    assert_eq!(store.answer_approval(answer(3, 1, true, SOON)).await.unwrap(), None);
    store.answer_approval(answer(4, 2, true, Moment(999))).await.unwrap().unwrap();
    let used =
        store.consume_approval(&call(2), SOON, decision(5, DecisionKind::Used)).await.unwrap();
    assert_eq!(used, None);
    assert_eq!(store.next_expiry().await.unwrap(), Some(SOON));
    assert_eq!(store.overdue_approvals(Moment(999), 9).await.unwrap(), []);
    assert_eq!(store.overdue_approvals(SOON, 9).await.unwrap().len(), 2);
    // Expired questions free their slot, and can be asked again.
    let again =
        Approval { id: approval(9).id, created_at: SOON, expires_at: Moment(2000), ..approval(1) };
    let asked = store
        .request_approval(
            again,
            QuestionLimits { count: 1, ..MOST },
            decision(6, DecisionKind::Asked),
        )
        .await
        .unwrap();
    assert_eq!(asked, ApprovalRequestOutcome::New);
    for n in [1, 2] {
        let expired = decision(10 + n, DecisionKind::Expired);
        assert!(
            !store
                .expire_overdue_approval(&approval(n).id, Moment(999), expired.clone())
                .await
                .unwrap()
        );
        assert!(
            store.expire_overdue_approval(&approval(n).id, SOON, expired.clone()).await.unwrap()
        );
        assert!(!store.expire_overdue_approval(&approval(n).id, SOON, expired).await.unwrap());
    }
    assert_eq!(store.overdue_approvals(SOON, 9).await.unwrap(), []);
    assert_eq!(store.answer_approval(answer(20, 1, true, Moment(5))).await.unwrap(), None);
}

pub(crate) async fn an_approval_is_either_answered_or_expired(store: &dyn Store) {
    for n in 1..=20 {
        let asked = decision(100 + n, DecisionKind::Asked);
        store
            .request_approval(approval(n), QuestionLimits { count: 100, ..MOST }, asked)
            .await
            .unwrap();
        let approval = approval(n).id;
        // One clock is just before the expiry, the other just after.
        let (answered, expired) = tokio::join!(
            store.answer_approval(ApprovalAnswer {
                expires_at: Moment(2000),
                ..answer(n, n, true, Moment(999))
            }),
            store.expire_overdue_approval(&approval, SOON, decision(50 + n, DecisionKind::Expired)),
        );
        assert_ne!(answered.unwrap().is_some(), expired.unwrap());
    }
    assert_eq!(kinds(store).await.len(), 40);
}

pub(crate) async fn decisions_are_listed_and_name_their_execution(store: &dyn Store) {
    for n in 1..=3 {
        store.record_decision(decision(n, DecisionKind::Allowed)).await.unwrap();
    }
    let elsewhere = Decision { team: Some(team(2)), ..decision(4, DecisionKind::Refused) };
    store.record_decision(elsewhere.clone()).await.unwrap();
    let filter = DecisionFilter { team: Some(team(1)), limit: 2, ..DecisionFilter::default() };
    let page = store.list_decisions(&filter).await.unwrap();
    assert_eq!(page, [decision(3, DecisionKind::Allowed), decision(2, DecisionKind::Allowed)]);
    let filter = DecisionFilter { before: Some(page[1].id.clone()), ..filter };
    assert_eq!(store.list_decisions(&filter).await.unwrap(), [decision(1, DecisionKind::Allowed)]);
    let (trace, other) = (TraceId::from_random(id(1)), TraceId::from_random(id(2)));
    assert!(store.record_decision_execution(&page[0].id, &trace).await.unwrap());
    assert!(!store.record_decision_execution(&page[0].id, &other).await.unwrap());
    let found = store.find_execution_decision(&team(1), &trace).await.unwrap().unwrap();
    assert_eq!((found.id, found.execution), (page[0].id.clone(), Some(trace.clone())));
    assert_eq!(store.find_execution_decision(&team(2), &trace).await.unwrap(), None);
    assert_eq!(store.find_execution_decision(&team(1), &other).await.unwrap(), None);
}

pub(crate) async fn old_decisions_are_pruned_and_open_approvals_are_kept(store: &dyn Store) {
    ask(store, 1).await;
    ask(store, 2).await;
    store.answer_approval(answer(3, 2, false, Moment(3))).await.unwrap().unwrap();
    // Two questions and an answer were recorded at 101, 102 and 3.
    assert_eq!(store.prune_gates(Moment(50)).await.unwrap(), 2);
    assert!(store.find_approval(&approval(1).id).await.unwrap().is_some());
    assert!(store.find_approval(&approval(2).id).await.unwrap().is_none());
    assert_eq!(kinds(store).await, [DecisionKind::Asked; 2]);
}

pub(crate) async fn deleting_a_team_deletes_its_questions(store: &dyn Store) {
    ask(store, 1).await;
    store.delete_team(&team(1)).await.unwrap();
    assert!(store.find_approval(&approval(1).id).await.unwrap().is_none());
    assert_eq!(kinds(store).await.len(), 1);
}

fn home(thread: &str, layers: &[u8]) -> HomeState {
    let layers = layers.iter().map(|n| layer(*n).digest).collect();
    HomeState { thread: thread.parse().unwrap(), layers }
}

async fn put(store: &dyn Store, n: u8, head: u64, approved: Option<HomeState>) -> HeadMoveOutcome {
    let thread = ThreadKey { team: team(1), id: "t".parse().unwrap() };
    let (kind, at) = (SnapshotKind::Upload, Moment(1));
    let append = LayerAppend {
        thread,
        head,
        layer: layer(n),
        kind,
        at,
        allowed_at: None,
        approved,
        budget: None,
    };
    store.append_layer(append).await.unwrap()
}

pub(crate) async fn an_approval_is_valid_for_one_state_of_a_home(store: &dyn Store) {
    let thread = ThreadKey { team: team(1), id: "t".parse().unwrap() };
    let bound = |n: u8, layers: &[u8]| Approval { home: Some(home("t", layers)), ..approval(n) };
    let of = |layers: &[u8]| CallId { home: Some(home("t", layers)), ..call(1) };
    let one = bound(1, &[]);
    store.request_approval(one.clone(), MOST, decision(1, DecisionKind::Asked)).await.unwrap();
    assert_eq!(store.find_approval(&one.id).await.unwrap().unwrap(), one);
    assert_eq!(store.open_approvals(&of(&[]), Moment(2)).await.unwrap().len(), 1);
    assert_eq!(store.outdated_approvals(&of(&[1]), Moment(2)).await.unwrap().len(), 1);

    // The home changed between question and answer, so the answer does not count.
    assert!(matches!(put(store, 1, 0, None).await, HeadMoveOutcome::Done(_)));
    let late = store.answer_approval(answer(2, 1, true, Moment(3))).await.unwrap().unwrap();
    assert_eq!(late.state, ApprovalState::Expired);
    assert!(late.reason.unwrap().contains("the thread changed"));
    assert_eq!(store.approved_home(&thread).await.unwrap(), None);

    // A squash is not a change, an upload is.
    let again = Approval { id: approval(2).id, ..bound(1, &[1]) };
    store.request_approval(again, MOST, decision(4, DecisionKind::Asked)).await.unwrap();
    let squash = LayerSquash {
        thread: thread.clone(),
        layers: vec![layer(1).digest],
        by: Some(layer(9)),
        budget: None,
        at: Moment(4),
    };
    assert!(matches!(store.squash_layers(squash).await.unwrap(), HeadMoveOutcome::Done(_)));
    assert_eq!(store.home_layers(&thread).await.unwrap(), vec![layer(1).digest]);
    let answered = store.answer_approval(answer(5, 2, true, Moment(5))).await.unwrap().unwrap();
    assert_eq!(answered.state, ApprovalState::Approved);
    let approved = store.approved_home(&thread).await.unwrap().unwrap();
    assert_eq!(approved, (answered.id.clone(), vec![layer(1).digest]));
    assert_eq!(put(store, 3, 2, Some(home("t", &[]))).await, HeadMoveOutcome::Changed);
    assert!(matches!(put(store, 3, 2, Some(home("t", &[1]))).await, HeadMoveOutcome::Done(_)));
    let used = |n| decision(n, DecisionKind::Used);
    let now = store.home_layers(&thread).await.unwrap();
    let changed = CallId { home: Some(HomeState { layers: now, ..home("t", &[]) }), ..call(1) };
    assert_eq!(store.consume_approval(&changed, Moment(6), used(6)).await.unwrap(), None);
    assert_eq!(store.consume_approval(&call(1), Moment(6), used(7)).await.unwrap(), None);
    assert!(
        store
            .expire_changed_approval(&answered.id, decision(8, DecisionKind::Expired))
            .await
            .unwrap()
    );
    assert!(
        !store
            .expire_changed_approval(&answered.id, decision(9, DecisionKind::Expired))
            .await
            .unwrap()
    );
    assert_eq!(store.consume_approval(&of(&[1]), Moment(6), used(10)).await.unwrap(), None);
}

pub(crate) async fn an_approved_execution_begins_only_in_the_approved_home(store: &dyn Store) {
    let append = |n, head| {
        let (thread, kind, at) = (thread_key("t"), SnapshotKind::Upload, Moment(1));
        LayerAppend {
            thread,
            head,
            layer: layer(n),
            kind,
            at,
            allowed_at: None,
            approved: None,
            budget: None,
        }
    };
    store.append_layer(append(1, 0)).await.unwrap();
    let approved = home("t", &[1]);
    store.append_layer(append(2, 1)).await.unwrap();
    let begin = async |home: HomeState| {
        store.begin_approved_execution(on_thread(1, "t"), Moment(2000), None, home).await.unwrap()
    };
    assert_eq!(begin(approved).await, BeginOutcome::ThreadChanged);
    assert_eq!(begin(home("u", &[])).await, BeginOutcome::ThreadChanged, "another thread");
    assert!(
        !store.is_thread_held(&thread_key("t"), Moment(1001)).await.unwrap(),
        "nothing was written"
    );
    assert_eq!(begin(home("t", &[1, 2])).await, BeginOutcome::Started);
    let second = store
        .begin_approved_execution(on_thread(2, "t"), Moment(2000), None, home("t", &[1, 2]))
        .await;
    assert_eq!(second.unwrap(), BeginOutcome::ThreadBusy);
}
