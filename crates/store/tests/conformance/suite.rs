//! Requirements for every store, in terms of the traits. Knows no implementation.
#![allow(clippy::unwrap_used, reason = "a set-up that fails is a test that fails")]

use std::{collections::BTreeMap, time::Duration};

use cloche_model::{
    ApiKey, ByteSize, DeliveryMode, DeliveryStatus, DenialReason, EventMark, EventOrder,
    ExecutionEnd, ExecutionStart, ExecutionStatus, GateSettings, HomeWrites, KeyId, Language,
    LedgerRetention, Moment, NetworkProtocol, NetworkReport, OutputFile, Sandbox, SandboxId,
    SandboxProfile, SandboxResources, SandboxShape, Secret, StreamName, Team, TeamId, TeamPlan,
    ToolPolicy, TraceId, UsageReport,
};
use cloche_store::{
    BeginOutcome, DeliveryAttempt, ExecutionCursor, ExecutionFilter, ExecutionFinish,
    FinishOutcome, Revisioned, Store, StoreError, ThreadKey, UpdateOutcome,
};

pub(crate) fn id(n: u8) -> [u8; 20] {
    let mut bytes = [7; 20];
    bytes[0] = n;
    bytes
}

pub(crate) fn trace(n: u8) -> TraceId {
    TraceId::from_random(id(n))
}

pub(crate) fn team(n: u8) -> Team {
    Team {
        id: TeamId::from_random(id(n)),
        name: format!("team-{n}"),
        plan: TeamPlan::Pro,
        max_concurrency: Some(7),
        max_timeout: Some(Duration::from_secs(120)),
        storage: Some(ByteSize::gib(2)),
        monthly_micro_credits: Some(5_000_000),
        gates: GateSettings { execute_code: Some(ToolPolicy::Ask), ..GateSettings::default() },
        created_at: Moment(i64::from(n)),
    }
}

pub(crate) fn sandbox(n: u8) -> Sandbox {
    Sandbox {
        id: SandboxId::from_random(id(n)),
        team: team(1).id,
        name: format!("sandbox-{n}"),
        shape: SandboxShape {
            preload: vec!["json".to_owned()],
            profile: SandboxProfile::Strict,
            ..SandboxShape::default()
        },
        resources: SandboxResources::default(),
        env: BTreeMap::from([("A".to_owned(), "1".to_owned())]),
        secret_env: BTreeMap::from([("B".to_owned(), Secret::new("hidden"))]),
        retention: LedgerRetention { code: false, days: Some(3) },
        created_at: Moment(i64::from(n)),
    }
}

pub(crate) fn key(n: u8) -> ApiKey {
    ApiKey {
        id: KeyId::from_random(id(n)),
        team: team(1).id,
        sandbox: sandbox(1).id,
        name: format!("key-{n}"),
        prefix: "sk-us-abcd".to_owned(),
        env: BTreeMap::new(),
        secret_env: BTreeMap::from([("C".to_owned(), Secret::new("hidden"))]),
        webhook_url: Some("https://a.example/hook".to_owned()),
        webhook_secret: Some(Secret::new("s")),
        may_approve: true,
        created_at: Moment(i64::from(n)),
        revoked_at: None,
    }
}

pub(crate) fn start(n: u8) -> ExecutionStart {
    ExecutionStart {
        trace_id: trace(n),
        team: team(1).id,
        key: key(1).id,
        sandbox: sandbox(1).id,
        language: Some(Language::Python),
        thread: None,
        delivery: DeliveryMode::Inline,
        webhook_url: None,
        metadata: BTreeMap::new(),
        code_digest: "00".to_owned(),
        code_bytes: 8,
        code: Some(b"print(1)".to_vec()),
        created_at: Moment(1000 + i64::from(n)),
    }
}

pub(crate) fn on_thread(n: u8, thread: &str) -> ExecutionStart {
    ExecutionStart { thread: Some(thread.parse().unwrap()), ..start(n) }
}

pub(crate) fn thread_key(thread: &str) -> ThreadKey {
    ThreadKey { team: team(1).id, id: thread.parse().unwrap() }
}

pub(crate) fn network() -> NetworkReport {
    let mut network = NetworkReport { bytes_in: 70, bytes_out: 8, ..NetworkReport::default() };
    let reason = DenialReason::NotAllowed;
    network.count_denied("a.example", 443, NetworkProtocol::Tls, reason);
    NetworkReport { connections: 2, lost: Some("why".to_owned()), ..network }
}

pub(crate) fn end() -> ExecutionEnd {
    ExecutionEnd {
        network: Some(network()),
        exit_code: 3,
        stdout: b"a\n\xff\n".to_vec().into(),
        stderr: b"b".to_vec().into(),
        stdout_dropped: 5,
        stderr_dropped: 0,
        output_truncated: true,
        error: Some("why".to_owned()),
        usage: UsageReport { wall_ms: 1, cpu_ms: 2, peak_memory_bytes: 3, micro_credits: 4 },
        event_order: EventOrder {
            first_seq: 2,
            stdout_skipped: 0,
            stderr_skipped: 0,
            marks: vec![EventMark::Output(StreamName::Stdout, 2), EventMark::Keepalive],
        },
        written: HomeWrites {
            files: vec![OutputFile { name: "a b".to_owned(), size: 9, truncated: true }],
            files_omitted: 3,
            quota_exceeded: true,
            layer: None,
        },
        completed_at: Moment(2000),
        ..ExecutionEnd::default()
    }
}

pub(crate) fn finish(n: u8) -> ExecutionFinish {
    ExecutionFinish {
        trace_id: trace(n),
        status: ExecutionStatus::Failed,
        end: end(),
        thread: None,
        moves_head: true,
        webhook_delay: None,
        budget: None,
    }
}

pub(crate) const LATER: Moment = Moment(1_000_000);

pub(crate) async fn tenants(store: &dyn Store) {
    store.create_team(&team(1)).await.unwrap();
    store.create_sandbox(&sandbox(1)).await.unwrap();
    store.create_key(&key(1), "digest-1").await.unwrap();
}

pub(crate) async fn a_team_is_found_by_id_and_by_name(store: &dyn Store) {
    store.create_team(&team(1)).await.unwrap();
    assert_eq!(store.find_team("team-1").await.unwrap(), Some(team(1)));
    assert_eq!(store.find_team(team(1).id.as_str()).await.unwrap(), Some(team(1)));
    assert_eq!(store.find_team("team-2").await.unwrap(), None);
    let renamed =
        Team { name: "new".to_owned(), plan: TeamPlan::Free, max_timeout: None, ..team(1) };
    let read = store.team_for_update("team-1").await.unwrap().unwrap();
    assert_eq!(read.row, team(1));
    let update = Revisioned { row: renamed.clone(), ..read };
    assert_eq!(store.update_team(&update, None).await.unwrap(), UpdateOutcome::Done);
    assert_eq!(store.list_teams().await.unwrap(), [renamed]);
    let missing = Revisioned { row: team(2), revision: 0 };
    assert_eq!(store.update_team(&missing, None).await.unwrap(), UpdateOutcome::Missing);
}

pub(crate) async fn a_name_can_be_used_once(store: &dyn Store) {
    tenants(store).await;
    let same = Team { id: team(2).id, ..team(1) };
    assert!(matches!(store.create_team(&same).await, Err(StoreError::Conflict(_))));
    let same = Sandbox { id: sandbox(2).id, ..sandbox(1) };
    assert!(matches!(store.create_sandbox(&same).await, Err(StoreError::Conflict(_))));
    let elsewhere = Sandbox { team: team(2).id, ..same };
    store.create_sandbox(&elsewhere).await.unwrap();
}

pub(crate) async fn a_sandbox_is_read_as_it_was_written(store: &dyn Store) {
    tenants(store).await;
    assert_eq!(store.find_sandbox(&sandbox(1).id).await.unwrap(), Some(sandbox(1)));
    let changed = Sandbox { name: "x".to_owned(), env: BTreeMap::new(), ..sandbox(1) };
    let read = store.sandbox_for_update(&sandbox(1).id).await.unwrap().unwrap();
    let update = Revisioned { row: changed.clone(), ..read };
    assert_eq!(store.update_sandbox(&update).await.unwrap(), UpdateOutcome::Done);
    assert_eq!(store.list_sandboxes(Some(&team(1).id)).await.unwrap(), [changed]);
    assert_eq!(store.list_sandboxes(Some(&team(2).id)).await.unwrap(), []);
}

pub(crate) async fn a_key_opens_its_team_and_sandbox_until_it_is_revoked(store: &dyn Store) {
    tenants(store).await;
    let access = store.find_key_access("digest-1").await.unwrap().unwrap();
    assert_eq!((access.key, access.team, access.sandbox), (key(1), team(1), sandbox(1)));
    assert!(store.find_key_access("digest-2").await.unwrap().is_none());
    let changed = ApiKey { webhook_url: None, ..key(1) };
    let read = store.key_for_update(&key(1).id).await.unwrap().unwrap();
    let update = Revisioned { row: changed.clone(), ..read };
    assert_eq!(store.update_key(&update).await.unwrap(), UpdateOutcome::Done);
    assert_eq!(store.find_key(&key(1).id).await.unwrap(), Some(changed));
    assert!(store.revoke_key(&key(1).id, Moment(9)).await.unwrap());
    assert!(store.find_key_access("digest-1").await.unwrap().is_none());
    assert!(store.revoke_key(&key(1).id, Moment(10)).await.unwrap());
    assert_eq!(store.list_keys(None).await.unwrap()[0].revoked_at, Some(Moment(9)));
}

pub(crate) async fn teams_and_sandboxes_with_a_valid_key_cannot_be_deleted(store: &dyn Store) {
    tenants(store).await;
    assert!(matches!(store.delete_sandbox(&sandbox(1).id).await, Err(StoreError::Conflict(_))));
    assert!(matches!(store.delete_team(&team(1).id).await, Err(StoreError::Conflict(_))));
    store.revoke_key(&key(1).id, Moment(9)).await.unwrap();
    assert!(store.delete_sandbox(&sandbox(1).id).await.unwrap());
    assert!(store.delete_team(&team(1).id).await.unwrap());
    assert!(!store.delete_team(&team(1).id).await.unwrap());
}

pub(crate) async fn an_execution_is_running_until_it_is_finished_once(store: &dyn Store) {
    tenants(store).await;
    assert_eq!(store.begin_execution(start(1), LATER, None).await.unwrap(), BeginOutcome::Started);
    let running = store.find_execution(&team(1).id, &trace(1)).await.unwrap().unwrap();
    assert_eq!((running.status, running.end), (ExecutionStatus::Running, None));
    assert_eq!(store.finish_execution(finish(1)).await.unwrap(), FinishOutcome::Recorded);
    let again = ExecutionFinish { status: ExecutionStatus::Success, ..finish(1) };
    assert_eq!(store.finish_execution(again).await.unwrap(), FinishOutcome::NotRunning);
    let ended = store.find_execution(&team(1).id, &trace(1)).await.unwrap().unwrap();
    assert_eq!((ended.status, ended.end), (ExecutionStatus::Failed, Some(end())));
    assert_eq!(ended.start.code.as_deref(), Some(&b"print(1)"[..]));
}

pub(crate) async fn an_execution_is_visible_only_to_its_team(store: &dyn Store) {
    store.begin_execution(start(1), LATER, None).await.unwrap();
    assert!(store.find_execution(&team(2).id, &trace(1)).await.unwrap().is_none());
    let filter = ExecutionFilter { limit: 10, ..ExecutionFilter::default() };
    assert!(store.list_executions(Some(&team(2).id), &filter).await.unwrap().is_empty());
    assert!(store.find_execution_of_any_team(&trace(1)).await.unwrap().is_some());
}

pub(crate) async fn a_thread_is_held_by_one_execution_at_a_time(store: &dyn Store) {
    assert_eq!(
        store.begin_execution(on_thread(1, "t"), LATER, None).await.unwrap(),
        BeginOutcome::Started
    );
    assert_eq!(
        store.begin_execution(on_thread(2, "t"), LATER, None).await.unwrap(),
        BeginOutcome::ThreadBusy
    );
    assert!(store.find_execution_of_any_team(&trace(2)).await.unwrap().is_none());
    assert_eq!(
        store.begin_execution(on_thread(3, "u"), LATER, None).await.unwrap(),
        BeginOutcome::Started
    );
    let other = ExecutionStart { team: team(2).id, ..on_thread(4, "t") };
    assert_eq!(store.begin_execution(other, LATER, None).await.unwrap(), BeginOutcome::Started);
    store
        .finish_execution(ExecutionFinish { thread: Some(thread_key("t")), ..finish(1) })
        .await
        .unwrap();
    assert_eq!(
        store.begin_execution(on_thread(5, "t"), LATER, None).await.unwrap(),
        BeginOutcome::Started
    );
}

pub(crate) async fn an_expired_lease_holds_nothing(store: &dyn Store) {
    store.begin_execution(on_thread(1, "t"), Moment(1001), None).await.unwrap();
    assert_eq!(
        store.begin_execution(on_thread(2, "t"), LATER, None).await.unwrap(),
        BeginOutcome::Started
    );
    // The end of the first execution must not release the second one's lease.
    let late = ExecutionFinish { thread: Some(thread_key("t")), ..finish(1) };
    assert_eq!(store.finish_execution(late).await.unwrap(), FinishOutcome::ThreadLost);
    assert_eq!(store.finish_execution(finish(1)).await.unwrap(), FinishOutcome::Recorded);
    assert_eq!(
        store.begin_execution(on_thread(3, "t"), LATER, None).await.unwrap(),
        BeginOutcome::ThreadBusy
    );
}

pub(crate) async fn executions_are_filtered_by_their_fields(store: &dyn Store) {
    let metadata = BTreeMap::from([("user.id-1".to_owned(), "it's \"me\"".to_owned())]);
    store
        .begin_execution(ExecutionStart { metadata: metadata.clone(), ..start(1) }, LATER, None)
        .await
        .unwrap();
    let node = ExecutionStart { language: Some(Language::Node), ..on_thread(2, "t") };
    store.begin_execution(node, LATER, None).await.unwrap();
    store.begin_execution(start(3), LATER, None).await.unwrap();
    store.finish_execution(finish(3)).await.unwrap();
    let all = ExecutionFilter { limit: 10, ..ExecutionFilter::default() };
    for (filter, expected) in [
        (all.clone(), vec![3, 2, 1]),
        (ExecutionFilter { metadata, ..all.clone() }, vec![1]),
        (ExecutionFilter { language: Some(Language::Node), ..all.clone() }, vec![2]),
        (ExecutionFilter { thread: Some("t".parse().unwrap()), ..all.clone() }, vec![2]),
        (ExecutionFilter { status: Some(ExecutionStatus::Running), ..all.clone() }, vec![2, 1]),
        (ExecutionFilter { since: Some(Moment(1002)), ..all.clone() }, vec![3, 2]),
        (ExecutionFilter { until: Some(Moment(1002)), ..all.clone() }, vec![1]),
    ] {
        let found = store.list_executions(Some(&team(1).id), &filter).await.unwrap();
        let found: Vec<_> = found.into_iter().map(|row| row.start.trace_id).collect();
        assert_eq!(found, expected.into_iter().map(trace).collect::<Vec<_>>(), "{filter:?}");
    }
}

pub(crate) async fn a_list_continues_after_its_cursor(store: &dyn Store) {
    for n in 1..=5 {
        let same_time = ExecutionStart { created_at: Moment(1), ..start(n) };
        store.begin_execution(same_time, LATER, None).await.unwrap();
    }
    let mut seen = Vec::new();
    let mut filter = ExecutionFilter { limit: 2, ..ExecutionFilter::default() };
    loop {
        let page = store.list_executions(Some(&team(1).id), &filter).await.unwrap();
        let Some(last) = page.last() else { break };
        let cursor = ExecutionCursor {
            created_at: last.start.created_at,
            trace_id: last.start.trace_id.clone(),
        };
        filter.after = Some(cursor.to_string().parse().unwrap());
        seen.extend(page.into_iter().map(|row| row.start.trace_id));
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 5);
}

pub(crate) async fn recovery_ends_running_executions_and_releases_threads(store: &dyn Store) {
    let hooked = ExecutionStart { webhook_url: Some("https://a".to_owned()), ..on_thread(1, "t") };
    store.begin_execution(hooked, LATER, None).await.unwrap();
    store.begin_execution(start(2), LATER, None).await.unwrap();
    store.finish_execution(finish(2)).await.unwrap();
    assert_eq!(
        store.fail_running_executions(Moment(5000), "restarted", Duration::ZERO).await.unwrap(),
        1
    );
    let ended = store.find_execution_of_any_team(&trace(1)).await.unwrap().unwrap();
    assert_eq!(ended.status, ExecutionStatus::Failed);
    assert_eq!(ended.end.unwrap().error.as_deref(), Some("restarted"));
    assert_eq!(ended.webhook_status, Some(DeliveryStatus::Pending));
    assert_eq!(store.due_deliveries(Moment(5000), 10).await.unwrap().len(), 1);
    assert_eq!(
        store.begin_execution(on_thread(3, "t"), LATER, None).await.unwrap(),
        BeginOutcome::Started
    );
    let untouched = store.find_execution_of_any_team(&trace(2)).await.unwrap().unwrap();
    assert_eq!(untouched.end.unwrap().error.as_deref(), Some("why"));
}

pub(crate) async fn a_refused_execution_is_in_the_ledger(store: &dyn Store) {
    store
        .record_refusal(ExecutionStart { language: None, code: None, ..start(1) }, "no")
        .await
        .unwrap();
    let refused = store.find_execution(&team(1).id, &trace(1)).await.unwrap().unwrap();
    assert_eq!(refused.status, ExecutionStatus::Blocked);
    assert_eq!(refused.end.unwrap().error.as_deref(), Some("no"));
}

pub(crate) async fn due_webhooks_alternate_between_teams_and_urls(store: &dyn Store) {
    let hooked = |n, of: u8, url: &str| ExecutionStart {
        team: team(of).id,
        webhook_url: Some(url.to_owned()),
        ..start(n)
    };
    for n in 1..=30 {
        let url = if n == 30 { "https://b" } else { "https://a" };
        store.begin_execution(hooked(n, 1, url), LATER, None).await.unwrap();
    }
    store.begin_execution(hooked(31, 2, "https://c"), LATER, None).await.unwrap();
    for n in 1..=31 {
        let delay = Some(Duration::from_micros(u64::from(n)));
        store
            .finish_execution(ExecutionFinish { webhook_delay: delay, ..finish(n) })
            .await
            .unwrap();
    }
    let due = store.due_deliveries(Moment(9000), 3).await.unwrap();
    let order: Vec<_> = due.iter().map(|due| (&due.trace_id, &due.team)).collect();
    let (first, second) = (team(1).id, team(2).id);
    assert_eq!(order, [(&trace(1), &first), (&trace(31), &second), (&trace(30), &first)]);
    let all = store.due_deliveries(Moment(9000), 100).await.unwrap();
    let of_a = all.iter().filter(|due| due.url == "https://a").count();
    assert_eq!(of_a, cloche_store::DUE_PER_URL as usize);
}

pub(crate) async fn a_webhook_is_due_until_it_is_delivered(store: &dyn Store) {
    let hooked = |n| ExecutionStart { webhook_url: Some(format!("https://{n}")), ..start(n) };
    for n in [1, 2] {
        store.begin_execution(hooked(n), LATER, None).await.unwrap();
        let status =
            store.find_execution_of_any_team(&trace(n)).await.unwrap().unwrap().webhook_status;
        assert_eq!(status, Some(DeliveryStatus::Pending));
        let delay = Some(Duration::from_micros(10));
        store
            .finish_execution(ExecutionFinish { webhook_delay: delay, ..finish(n) })
            .await
            .unwrap();
    }
    assert_eq!(store.due_deliveries(Moment(2009), 10).await.unwrap(), []);
    assert_eq!(store.next_delivery_due(Moment(2009)).await.unwrap(), Some(Moment(2010)));
    assert_eq!(store.due_deliveries(Moment(2010), 10).await.unwrap().len(), 2);
    let again = DeliveryAttempt::Again { at: Moment(3000), error: "refused".to_owned() };
    store.record_attempt(&trace(1), again).await.unwrap();
    store
        .record_attempt(&trace(2), DeliveryAttempt::GaveUp { error: "refused".to_owned() })
        .await
        .unwrap();
    let due = store.due_deliveries(Moment(3000), 10).await.unwrap();
    assert_eq!((due.len(), due[0].attempts, due[0].url.as_str()), (1, 1, "https://1"));
    store.record_attempt(&trace(1), DeliveryAttempt::Delivered).await.unwrap();
    assert_eq!(store.next_delivery_due(Moment(0)).await.unwrap(), None);
    for (n, expected) in [(1, DeliveryStatus::Delivered), (2, DeliveryStatus::Failed)] {
        let status =
            store.find_execution_of_any_team(&trace(n)).await.unwrap().unwrap().webhook_status;
        assert_eq!(status, Some(expected));
    }
}

pub(crate) async fn old_records_are_pruned_and_running_ones_are_kept(store: &dyn Store) {
    const DAY: i64 = 86_400_000_000;
    tenants(store).await;
    store.begin_execution(start(1), LATER, None).await.unwrap();
    store.begin_execution(start(2), LATER, None).await.unwrap();
    store.finish_execution(finish(2)).await.unwrap();
    assert_eq!(store.prune_executions(Moment(2 * DAY)).await.unwrap(), 0);
    assert_eq!(store.prune_executions(Moment(4 * DAY)).await.unwrap(), 1);
    assert!(store.find_execution_of_any_team(&trace(1)).await.unwrap().is_some());
    assert!(store.find_execution_of_any_team(&trace(2)).await.unwrap().is_none());
}

pub(crate) async fn concurrent_writers_lose_nothing(store: &dyn Store) {
    let runs = (0..200).map(|n| async move {
        // A taken thread and a taken name fail alone, not with the other writes of their group.
        let begun = store.begin_execution(on_thread(n, "one"), LATER, None).await.unwrap();
        let other = store.begin_execution(start(n), LATER, None).await;
        (begun == BeginOutcome::Started, other.is_ok())
    });
    let results = futures::future::join_all(runs).await;
    assert_eq!(results.iter().filter(|(thread, _)| *thread).count(), 1);
    let written = results.iter().filter(|(_, written)| *written).count();
    let filter = ExecutionFilter { limit: 1000, ..ExecutionFilter::default() };
    let listed = store.list_executions(Some(&team(1).id), &filter).await.unwrap().len();
    // Ids use 32 letters, so some of the 200 collide. Those are refused, not lost.
    assert_eq!(listed, written + 1);
}

pub(crate) async fn settings_are_kept(store: &dyn Store) {
    assert_eq!(store.read_setting("a").await.unwrap(), None);
    store.set_setting("a", "1").await.unwrap();
    store.set_setting("a", "2").await.unwrap();
    settings_were_kept(store).await;
}

pub(crate) async fn settings_were_kept(store: &dyn Store) {
    assert_eq!(store.read_setting("a").await.unwrap().as_deref(), Some("2"));
    store.ping().await.unwrap();
}
