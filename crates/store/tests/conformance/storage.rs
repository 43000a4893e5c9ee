//! Runs in: test.
//!
//! Requirements for every store: storage budgets. Counters are correct after any sequence of
//! operations, limits hold inside the transaction, and history can be pruned.

use std::{collections::HashMap, time::Duration};

use cloche_model::{
    ByteSize, DeliveryMode, ExecutionEnd, ExecutionStart, HomeUsage, HomeWrites, Layer,
    LayerDigest, Moment, ResponseStatus, SnapshotKind, TraceId,
};
use cloche_store::{
    BeginOutcome, ExecutionFinish, FinishOutcome, HeadMoveOutcome, HistoryPruneOutcome,
    HistoryRule, LayerAppend, LayerSquash, PrunedRows, ResponseRow, StorageUsage, Store,
    ThreadCreation, ThreadFork,
};

use crate::suite::{LATER, end, finish, key, sandbox, start, team, tenants, thread_key};

/// The layers of the tests; few, so that threads share them.
const LAYERS: u8 = 24;
const BLOCK: u64 = 4096;

fn layer(n: u8) -> Layer {
    let digest = LayerDigest::from_sha256([n; 32]);
    let stored = ByteSize(u64::from(n) * 3000);
    Layer { digest, stored, bytes: stored, entries: 1 }
}

fn sizes() -> HashMap<LayerDigest, u64> {
    (0..=LAYERS).map(|n| (layer(n).digest, layer(n).stored.bytes())).collect()
}

fn trace(n: u32) -> TraceId {
    let mut bytes = [9; 20];
    for (at, byte) in bytes.iter_mut().take(6).enumerate() {
        *byte = u8::try_from((n >> (5 * at)) & 31).unwrap();
    }
    TraceId::from_random(bytes)
}

fn begun(n: u32, thread: Option<&str>) -> ExecutionStart {
    let thread = thread.map(|thread| thread.parse().unwrap());
    ExecutionStart { trace_id: trace(n), thread, ..start(1) }
}

fn wrote(n: u32, thread: Option<&str>, layer: Option<Layer>) -> ExecutionFinish {
    let end = ExecutionEnd { written: HomeWrites { layer, ..HomeWrites::default() }, ..end() };
    ExecutionFinish { trace_id: trace(n), end, thread: thread.map(thread_key), ..finish(1) }
}

fn upload(thread: &str, head: u64, layer: Layer) -> LayerAppend {
    LayerAppend {
        thread: thread_key(thread),
        head,
        layer,
        kind: SnapshotKind::Upload,
        at: Moment(3000),
        allowed_at: None,
        approved: None,
        budget: None,
    }
}

async fn run(store: &dyn Store, n: u32, thread: &str, layer: Option<Layer>) {
    store.begin_execution(begun(n, Some(thread)), LATER, None).await.unwrap();
    let finished = store.finish_execution(wrote(n, Some(thread), layer)).await.unwrap();
    assert_eq!(finished, FinishOutcome::Recorded);
}

async fn usage(store: &dyn Store) -> StorageUsage {
    store.storage_usage(&team(1).id).await.unwrap()
}

async fn head(store: &dyn Store, thread: &str) -> u64 {
    store.find_thread(&thread_key(thread)).await.unwrap().map_or(0, |thread| thread.head)
}

/// A small seeded generator, so that a failure can be reproduced.
struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }

    fn layer(&mut self) -> Layer {
        layer(1 + u8::try_from(self.below(u64::from(LAYERS))).unwrap())
    }

    fn thread(&mut self) -> &'static str {
        ["a", "b", "c", "d"][usize::try_from(self.below(4)).unwrap()]
    }
}

async fn do_something(store: &dyn Store, random: &mut Random, n: u32) {
    let thread = random.thread();
    let at = Moment(2000 + i64::from(n));
    let head = head(store, thread).await;
    match random.below(13) {
        0..=3 => {
            let layer = (random.below(3) > 0).then(|| random.layer());
            run(store, n, thread, layer).await;
        }
        4 => {
            store.begin_execution(begun(n, None), LATER, None).await.unwrap();
            store.finish_execution(wrote(n, None, Some(random.layer()))).await.unwrap();
        }
        5 => drop(store.append_layer(upload(thread, head, random.layer())).await.unwrap()),
        6 => {
            let source = thread_key(thread);
            let new = random.thread().parse().unwrap();
            store
                .fork_thread(ThreadFork { source, seq: head, thread: new, at, budget: None })
                .await
                .unwrap();
        }
        7 => {
            let seq = 1 + random.below(head.max(1));
            store.roll_back_thread(&thread_key(thread), seq, at, None).await.unwrap();
        }
        8 => {
            let Some(now) = store.find_thread(&thread_key(thread)).await.unwrap() else { return };
            let (layers, by) = (now.layers, Some(random.layer()));
            let squash = LayerSquash { thread: thread_key(thread), layers, by, at, budget: None };
            store.squash_layers(squash).await.unwrap();
        }
        9 => drop(store.delete_thread(&thread_key(thread), at).await.unwrap()),
        10 => {
            let rule = HistoryRule { keep: Some(1 + random.below(4)), before: None };
            store.prune_thread(&thread_key(thread), rule, LATER).await.unwrap();
        }
        11 => drop(store.prune_records(&team(1).id, random.below(30)).await.unwrap()),
        _ => {
            let founding = ThreadCreation {
                thread: thread_key(thread),
                kind: SnapshotKind::Import,
                layers: vec![random.layer(), random.layer()],
                usage: HomeUsage::default(),
                at,
                budget: None,
            };
            store.create_thread(founding).await.unwrap();
        }
    }
}

pub(crate) async fn counters_equal_a_recount_after_random_operations(store: &dyn Store) {
    tenants(store).await;
    for seed in 1..=4 {
        let mut random = Random(seed);
        for n in 0..150 {
            do_something(store, &mut random, u32::try_from(seed).unwrap() * 1000 + n).await;
        }
        let counted = usage(store).await;
        assert!(counted.layer_bytes > 0 && counted.row_bytes > 0, "{counted:?}");
        let needed = store.layers_in_use().await.unwrap();
        for n in 1..=LAYERS {
            let digest = layer(n).digest;
            let is_needed = store.is_layer_needed(&digest).await.unwrap();
            assert_eq!(is_needed, needed.contains(&digest), "layer {n}, seed {seed}");
        }
        let sum: u64 = needed.iter().map(|digest| Layer::disk_bytes_for(sizes()[digest])).sum();
        assert_eq!(counted.layer_bytes, sum, "seed {seed}");
        store.recount_storage(&sizes()).await.unwrap();
        assert_eq!(usage(store).await, counted, "seed {seed}");
    }
    response_rows_count(store).await;
    store.prune_executions(Moment(i64::MAX / 2)).await.unwrap();
    for thread in ["a", "b", "c", "d"] {
        store.delete_thread(&thread_key(thread), LATER).await.unwrap();
    }
    store.prune_responses(Moment(i64::MAX / 2)).await.unwrap();
    assert_eq!(usage(store).await, StorageUsage::default());
}

async fn response_rows_count(store: &dyn Store) {
    let before = usage(store).await;
    let row = ResponseRow {
        id: cloche_model::ResponseId::from_random([1; 20]),
        team: team(1).id,
        key: key(1).id,
        sandbox: sandbox(1).id,
        status: ResponseStatus::Completed,
        visible: true,
        created_at: Moment(1),
        completed_at: None,
        record: "r".repeat(100),
        conversation: String::new(),
        events: String::new(),
    };
    store.create_response(row.clone()).await.unwrap();
    let events = "e".repeat(50);
    let over = ResponseRow { events, completed_at: Some(Moment(2)), ..row };
    assert!(store.update_response(over).await.unwrap());
    let counted = usage(store).await;
    assert_eq!(counted.row_bytes - before.row_bytes, 256 + 150);
    store.recount_storage(&sizes()).await.unwrap();
    assert_eq!(usage(store).await, counted);
}

pub(crate) async fn an_append_beyond_the_budget_writes_nothing(store: &dyn Store) {
    assert_eq!(head(store, "t").await, 0);
    let fits = LayerAppend { budget: Some(layer(1).disk_bytes()), ..upload("t", 0, layer(1)) };
    assert!(matches!(store.append_layer(fits).await.unwrap(), HeadMoveOutcome::Done(_)));
    let before = usage(store).await;
    assert_eq!(before.layer_bytes, 2 * BLOCK);
    let budget = Some(before.total() + layer(2).disk_bytes() - 1);
    let beyond = LayerAppend { budget, ..upload("t", 1, layer(2)) };
    assert_eq!(store.append_layer(beyond.clone()).await.unwrap(), HeadMoveOutcome::OverBudget);
    let founding = ThreadCreation {
        thread: thread_key("i"),
        kind: SnapshotKind::Import,
        layers: vec![layer(2)],
        usage: HomeUsage::default(),
        at: Moment(1),
        budget,
    };
    assert_eq!(store.create_thread(founding).await.unwrap(), HeadMoveOutcome::OverBudget);
    let full = Some(before.total());
    let fork = ThreadFork {
        source: thread_key("t"),
        seq: 1,
        thread: "f".parse().unwrap(),
        at: Moment(1),
        budget: full,
    };
    assert_eq!(store.fork_thread(fork).await.unwrap(), HeadMoveOutcome::OverBudget);
    let back = store.roll_back_thread(&thread_key("t"), 1, LATER, full).await.unwrap();
    assert_eq!(back, HeadMoveOutcome::OverBudget);
    assert_eq!((usage(store).await, head(store, "t").await), (before, 1));
    let one_more = LayerAppend { budget: budget.map(|budget| budget + 1), ..beyond };
    assert!(matches!(store.append_layer(one_more).await.unwrap(), HeadMoveOutcome::Done(_)));
}

pub(crate) async fn a_layer_counts_once_per_team(store: &dyn Store) {
    run(store, 1, "a", Some(layer(3))).await;
    let once = usage(store).await.layer_bytes;
    assert_eq!(once, layer(3).disk_bytes());
    run(store, 2, "b", Some(layer(3))).await;
    store.begin_execution(begun(3, None), LATER, None).await.unwrap();
    store.finish_execution(wrote(3, None, Some(layer(3)))).await.unwrap();
    assert_eq!(usage(store).await.layer_bytes, once);
    for thread in ["a", "b"] {
        store.delete_thread(&thread_key(thread), LATER).await.unwrap();
    }
    assert_eq!(usage(store).await.layer_bytes, once, "the records still have it");
    assert!(!store.prune_records(&team(1).id, 0).await.unwrap().layers.is_empty());
    assert_eq!(usage(store).await, StorageUsage::default());
}

pub(crate) async fn an_outcome_over_budget_is_recorded_without_its_layer(store: &dyn Store) {
    run(store, 1, "t", Some(layer(1))).await;
    store.begin_execution(begun(2, Some("t")), LATER, None).await.unwrap();
    let before = usage(store).await;
    let finish =
        ExecutionFinish { budget: Some(before.total()), ..wrote(2, Some("t"), Some(layer(2))) };
    assert_eq!(store.finish_execution(finish.clone()).await.unwrap(), FinishOutcome::OverBudget);
    assert_eq!(usage(store).await, before);
    let mut without = ExecutionFinish { moves_head: false, ..finish };
    without.end.written = HomeWrites { quota_exceeded: true, ..HomeWrites::default() };
    assert_eq!(store.finish_execution(without).await.unwrap(), FinishOutcome::Recorded);
    assert_eq!(head(store, "t").await, 1);
    assert!(!store.is_thread_held(&thread_key("t"), Moment(2)).await.unwrap());
    let record = store.find_execution_of_any_team(&trace(2)).await.unwrap().unwrap().end.unwrap();
    assert!(record.written.quota_exceeded && !record.stdout.is_empty());
    assert_eq!(usage(store).await.layer_bytes, layer(1).disk_bytes());
}

pub(crate) async fn a_team_at_its_budget_starts_no_execution(store: &dyn Store) {
    run(store, 1, "t", Some(layer(1))).await;
    let full = Some(usage(store).await.total());
    for thread in [None, Some("t")] {
        assert_eq!(
            store.begin_execution(begun(2, thread), LATER, full).await.unwrap(),
            BeginOutcome::OverBudget
        );
    }
    assert!(store.find_execution_of_any_team(&trace(2)).await.unwrap().is_none());
    assert!(!store.is_thread_held(&thread_key("t"), Moment(2)).await.unwrap());
    let more = full.map(|full| full + 1);
    assert_eq!(
        store.begin_execution(begun(2, None), LATER, more).await.unwrap(),
        BeginOutcome::Started
    );
}

fn pruned(outcome: HistoryPruneOutcome) -> PrunedRows {
    match outcome {
        HistoryPruneOutcome::Done(rows) => rows,
        other => panic!("{other:?}"),
    }
}

/// A home that is rewritten several times, as by squashes: each snapshot has a stack of its own.
async fn rewrite(store: &dyn Store, times: u8) {
    for n in 1..=times {
        run(store, u32::from(n), "t", Some(layer(n))).await;
        let layers = store.find_thread(&thread_key("t")).await.unwrap().unwrap().layers;
        let (by, at) = (Some(layer(n)), Moment(2000 + i64::from(n)));
        let squash = LayerSquash { thread: thread_key("t"), layers, by, at, budget: None };
        assert!(matches!(store.squash_layers(squash).await.unwrap(), HeadMoveOutcome::Done(_)));
    }
}

pub(crate) async fn pruned_snapshots_free_their_layers_and_the_head_is_kept(store: &dyn Store) {
    rewrite(store, 7).await;
    let all: u64 = (1..=7).map(|n| layer(n).disk_bytes()).sum();
    assert_eq!(usage(store).await.layer_bytes, all);
    let by_age = HistoryRule { keep: None, before: Some(Moment(2002)) };
    let both = HistoryRule { keep: Some(12), before: Some(LATER) };
    assert_eq!(store.threads_to_prune(&team(1).id, both).await.unwrap().len(), 1);
    assert_eq!(pruned(store.prune_thread(&thread_key("t"), both, LATER).await.unwrap()).rows, 2);
    assert_eq!(usage(store).await.layer_bytes, all, "the third point has the first layer, too");
    assert_eq!(pruned(store.prune_thread(&thread_key("t"), by_age, LATER).await.unwrap()).rows, 1);
    let first = store.find_execution_of_any_team(&trace(1)).await.unwrap().unwrap();
    assert_eq!(first.end.unwrap().written.layer, None);
    assert_eq!(usage(store).await.layer_bytes, all - layer(1).disk_bytes());
    let all_but_one = HistoryRule { keep: Some(1), before: None };
    let rows = pruned(store.prune_thread(&thread_key("t"), all_but_one, LATER).await.unwrap());
    assert!(rows.layers.contains(&layer(6).digest), "{rows:?}");
    assert_eq!(usage(store).await.layer_bytes, layer(7).disk_bytes());
    let now = store.find_thread(&thread_key("t")).await.unwrap().unwrap();
    assert_eq!((now.head, now.layers), (14, vec![layer(7).digest]));
    assert_eq!(store.list_points(&thread_key("t"), None, 99).await.unwrap().len(), 1);
    let kept = store
        .find_execution_of_any_team(&trace(7))
        .await
        .unwrap()
        .unwrap()
        .end
        .unwrap()
        .written
        .layer;
    assert_eq!(kept, Some(layer(7)), "the head has it");
    assert!(store.threads_to_prune(&team(1).id, all_but_one).await.unwrap().is_empty());
    let missing = store.prune_thread(&thread_key("none"), all_but_one, LATER).await.unwrap();
    assert_eq!(missing, HistoryPruneOutcome::Missing);
}

pub(crate) async fn a_thread_in_use_is_not_pruned(store: &dyn Store) {
    rewrite(store, 3).await;
    store.begin_execution(begun(9, Some("t")), LATER, None).await.unwrap();
    let rule = HistoryRule { keep: Some(1), before: None };
    let now = Moment(5000);
    assert_eq!(
        store.prune_thread(&thread_key("t"), rule, now).await.unwrap(),
        HistoryPruneOutcome::Busy
    );
    store.finish_execution(wrote(9, Some("t"), None)).await.unwrap();
    assert!(pruned(store.prune_thread(&thread_key("t"), rule, now).await.unwrap()).rows > 0);
}

pub(crate) async fn a_fork_keeps_the_layers_of_pruned_snapshots(store: &dyn Store) {
    rewrite(store, 3).await;
    let (source, thread) = (thread_key("t"), "f".parse().unwrap());
    let fork = ThreadFork { source, seq: 1, thread, at: Moment(4000), budget: None };
    assert!(matches!(store.fork_thread(fork).await.unwrap(), HeadMoveOutcome::Done(_)));
    let rule = HistoryRule { keep: Some(1), before: None };
    store.prune_thread(&thread_key("t"), rule, LATER).await.unwrap();
    assert!(store.is_layer_needed(&layer(1).digest).await.unwrap());
    assert!(!store.is_layer_needed(&layer(2).digest).await.unwrap());
    assert_eq!(usage(store).await.layer_bytes, layer(1).disk_bytes() + layer(3).disk_bytes());
}

pub(crate) async fn old_records_are_pruned_except_those_with_pending_webhooks(store: &dyn Store) {
    for n in 1..=3 {
        let delivery = if n == 1 { DeliveryMode::Webhook } else { DeliveryMode::Inline };
        let webhook_url = (n == 1).then(|| "https://a.example".to_owned());
        let start = ExecutionStart { delivery, webhook_url, ..begun(n, None) };
        store.begin_execution(start, LATER, None).await.unwrap();
        let webhook_delay = (n == 1).then_some(Duration::ZERO);
        let finish = ExecutionFinish { webhook_delay, ..wrote(n, None, None) };
        store.finish_execution(finish).await.unwrap();
    }
    store.begin_execution(begun(4, None), LATER, None).await.unwrap();
    assert_eq!(store.prune_records(&team(1).id, 1).await.unwrap().rows, 1);
    assert!(
        store.find_execution_of_any_team(&trace(1)).await.unwrap().is_some(),
        "its webhook is to be sent"
    );
    assert!(store.find_execution_of_any_team(&trace(4)).await.unwrap().is_some(), "it runs");
    store.recount_storage(&sizes()).await.unwrap();
    let counted = usage(store).await;
    assert_eq!(store.prune_records(&team(1).id, 1).await.unwrap().rows, 0);
    assert_eq!(usage(store).await, counted);
}
