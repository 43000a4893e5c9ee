//! Requirements for every store: heads, snapshots and leases of threads.

use std::{collections::HashSet, time::Duration};

use cloche_model::{
    ByteSize, ExecutionEnd, HomeUsage, HomeWrites, Layer, LayerDigest, Moment, SnapshotKind,
    SnapshotRef, Thread,
};
use cloche_store::{
    BeginOutcome, DELETED_KEPT, ExecutionFinish, FinishOutcome, HeadMoveOutcome, LayerAppend,
    LayerSquash, Store, ThreadCreation, ThreadFork, ThreadKey,
};

use crate::suite::{LATER, end, finish, key, on_thread, start, team, tenants, thread_key, trace};

fn digest(n: u8) -> LayerDigest {
    LayerDigest::from_sha256([n; 32])
}

pub(crate) fn layer(n: u8) -> Layer {
    let (stored, bytes) = (ByteSize(u64::from(n)), ByteSize(100 * u64::from(n)));
    Layer { digest: digest(n), stored, bytes, entries: u64::from(n) }
}

/// The end of execution `n`, which wrote the layer with the same number.
fn wrote(n: u8, thread: &str) -> ExecutionFinish {
    let written = HomeWrites { layer: Some(layer(n)), ..HomeWrites::default() };
    let end = ExecutionEnd { written, ..end() };
    ExecutionFinish { end, thread: Some(thread_key(thread)), ..finish(n) }
}

/// Runs execution `n` on a thread, from begin to end.
async fn run(store: &dyn Store, n: u8, thread: &str) {
    assert_eq!(
        store.begin_execution(on_thread(n, thread), LATER, None).await.unwrap(),
        BeginOutcome::Started
    );
    assert_eq!(store.finish_execution(wrote(n, thread)).await.unwrap(), FinishOutcome::Recorded);
}

async fn thread(store: &dyn Store, name: &str) -> Thread {
    store.find_thread(&thread_key(name)).await.unwrap().unwrap()
}

fn upload(n: u8, thread: &str, head: u64) -> LayerAppend {
    let kind = SnapshotKind::Upload;
    LayerAppend {
        thread: thread_key(thread),
        head,
        layer: layer(n),
        kind,
        at: Moment(3000),
        allowed_at: None,
        approved: None,
        budget: None,
    }
}

fn fork_of(source: &str, seq: u64, thread: &str) -> ThreadFork {
    let (source, thread) = (thread_key(source), thread.parse().unwrap());
    ThreadFork { source, seq, thread, at: Moment(4000), budget: None }
}

fn done(moved: HeadMoveOutcome) -> Thread {
    match moved {
        HeadMoveOutcome::Done(thread) => thread,
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn a_run_moves_the_head_by_what_it_wrote(store: &dyn Store) {
    run(store, 1, "t").await;
    run(store, 2, "t").await;
    let now = thread(store, "t").await;
    assert_eq!((now.head, now.layers), (2, vec![digest(1), digest(2)]));
    let usage = HomeUsage { bytes: ByteSize(300), entries: 3, counted: false };
    assert_eq!((now.usage, now.created_at, now.updated_at), (usage, Moment(2000), Moment(2000)));
    let point =
        store.find_point(&thread_key("t"), &SnapshotRef::Trace(trace(1))).await.unwrap().unwrap();
    assert_eq!((point.seq, point.kind, point.trace_id), (1, SnapshotKind::Run, Some(trace(1))));
    assert_eq!((point.layers, point.layer), (vec![digest(1)], Some(digest(1))));
    assert_eq!((point.added, point.changed), (ByteSize(100), 1));
    let record = store.find_execution_of_any_team(&trace(2)).await.unwrap().unwrap();
    assert_eq!(record.end.unwrap().written.layer, Some(layer(2)));
}

pub(crate) async fn a_run_that_wrote_nothing_still_adds_a_snapshot(store: &dyn Store) {
    store.begin_execution(on_thread(1, "t"), LATER, None).await.unwrap();
    store
        .finish_execution(ExecutionFinish { thread: Some(thread_key("t")), ..finish(1) })
        .await
        .unwrap();
    let now = thread(store, "t").await;
    assert_eq!((now.head, now.layers.len(), now.usage.counted), (1, 0, true));
    let points = store.list_points(&thread_key("t"), None, 10).await.unwrap();
    assert_eq!((points.len(), &points[0].layer, points[0].changed), (1, &None, 0));
}

pub(crate) async fn a_head_does_not_move_after_the_lease_was_lost(store: &dyn Store) {
    store.begin_execution(on_thread(1, "t"), Moment(1001), None).await.unwrap();
    assert_eq!(
        store.begin_execution(on_thread(2, "t"), LATER, None).await.unwrap(),
        BeginOutcome::Started
    );
    assert_eq!(store.finish_execution(wrote(1, "t")).await.unwrap(), FinishOutcome::ThreadLost);
    assert!(store.find_execution_of_any_team(&trace(1)).await.unwrap().unwrap().end.is_none());
    assert_eq!(store.finish_execution(wrote(2, "t")).await.unwrap(), FinishOutcome::Recorded);
    assert_eq!(thread(store, "t").await.layers, [digest(2)]);
    assert_eq!(store.finish_execution(wrote(2, "t")).await.unwrap(), FinishOutcome::NotRunning);
    assert_eq!(thread(store, "t").await.head, 1);
    // An execution that recovery ended cannot move a head either.
    store.begin_execution(on_thread(3, "t"), LATER, None).await.unwrap();
    store.fail_running_executions(Moment(5000), "restarted", Duration::ZERO).await.unwrap();
    assert_eq!(store.finish_execution(wrote(3, "t")).await.unwrap(), FinishOutcome::NotRunning);
    assert_eq!(thread(store, "t").await.head, 1);
}

pub(crate) async fn a_lease_is_renewed_only_by_its_holder(store: &dyn Store) {
    store.begin_execution(on_thread(1, "t"), Moment(1500), None).await.unwrap();
    assert!(store.is_thread_held(&thread_key("t"), Moment(1499)).await.unwrap());
    assert!(!store.is_thread_held(&thread_key("t"), Moment(1500)).await.unwrap());
    assert!(store.renew_lease(&trace(1), Moment(9000)).await.unwrap());
    assert!(store.is_thread_held(&thread_key("t"), Moment(8999)).await.unwrap());
    assert!(!store.renew_lease(&trace(2), Moment(9999)).await.unwrap());
    store.finish_execution(wrote(1, "t")).await.unwrap();
    assert!(!store.renew_lease(&trace(1), Moment(9999)).await.unwrap());
    assert!(!store.is_thread_held(&thread_key("t"), Moment(2)).await.unwrap());
}

pub(crate) async fn an_upload_fails_on_a_stale_head_or_a_held_thread(store: &dyn Store) {
    let made = done(store.append_layer(upload(1, "t", 0)).await.unwrap());
    assert_eq!((made.head, made.layers), (1, vec![digest(1)]));
    assert_eq!(store.append_layer(upload(2, "t", 0)).await.unwrap(), HeadMoveOutcome::Stale);
    assert_eq!(done(store.append_layer(upload(2, "t", 1)).await.unwrap()).head, 2);
    store.begin_execution(on_thread(3, "t"), LATER, None).await.unwrap();
    assert_eq!(store.append_layer(upload(4, "t", 2)).await.unwrap(), HeadMoveOutcome::Busy);
    store.finish_execution(wrote(3, "t")).await.unwrap();
    assert_eq!(thread(store, "t").await.layers, [digest(1), digest(2), digest(3)]);
}

pub(crate) async fn a_thread_can_be_rolled_back_and_forward(store: &dyn Store) {
    assert_eq!(
        store.roll_back_thread(&thread_key("t"), 1, LATER, None).await.unwrap(),
        HeadMoveOutcome::Missing
    );
    run(store, 1, "t").await;
    run(store, 2, "t").await;
    let back = done(store.roll_back_thread(&thread_key("t"), 1, LATER, None).await.unwrap());
    assert_eq!((back.head, back.layers), (3, vec![digest(1)]));
    assert_eq!(back.usage.bytes, ByteSize(100));
    let forth = done(store.roll_back_thread(&thread_key("t"), 2, LATER, None).await.unwrap());
    assert_eq!((forth.head, forth.layers), (4, vec![digest(1), digest(2)]));
    assert_eq!(
        store.roll_back_thread(&thread_key("t"), 9, LATER, None).await.unwrap(),
        HeadMoveOutcome::Missing
    );
    store.begin_execution(on_thread(3, "t"), LATER, None).await.unwrap();
    let busy = store.roll_back_thread(&thread_key("t"), 1, Moment(5000), None).await.unwrap();
    assert_eq!(busy, HeadMoveOutcome::Busy);
}

pub(crate) async fn a_fork_is_independent_of_its_source(store: &dyn Store) {
    run(store, 1, "t").await;
    run(store, 2, "t").await;
    let source = thread_key("t");
    let made = done(store.fork_thread(fork_of("t", 1, "f")).await.unwrap());
    assert_eq!((made.head, made.layers), (1, vec![digest(1)]));
    assert_eq!(store.fork_thread(fork_of("t", 1, "f")).await.unwrap(), HeadMoveOutcome::Taken);
    assert_eq!(store.fork_thread(fork_of("t", 7, "f")).await.unwrap(), HeadMoveOutcome::Missing);
    run(store, 3, "f").await;
    assert_eq!(thread(store, "t").await.layers, [digest(1), digest(2)]);
    assert_eq!(thread(store, "f").await.layers, [digest(1), digest(3)]);
    assert!(matches!(store.delete_thread(&source, LATER).await.unwrap(), HeadMoveOutcome::Done(_)));
    assert_eq!(thread(store, "f").await.layers, [digest(1), digest(3)]);
    // A name that a first execution holds is taken, although the thread does not exist yet.
    store.begin_execution(on_thread(4, "g"), LATER, None).await.unwrap();
    let held = store.fork_thread(fork_of("f", 1, "g")).await.unwrap();
    assert_eq!(held, HeadMoveOutcome::Busy);
}

pub(crate) async fn a_squash_keeps_later_layers_and_all_snapshots(store: &dyn Store) {
    for n in 1..=3 {
        run(store, n, "t").await;
    }
    let squash = |layers: Vec<LayerDigest>| LayerSquash {
        thread: thread_key("t"),
        layers,
        by: Some(layer(9)),
        at: Moment(6000),
        budget: None,
    };
    // Another execution holds the thread. It keeps it, and its layer is appended.
    store.begin_execution(on_thread(4, "t"), LATER, None).await.unwrap();
    let squashed = done(store.squash_layers(squash(vec![digest(1), digest(2)])).await.unwrap());
    assert_eq!(squashed.layers, [digest(9), digest(3)]);
    store.finish_execution(wrote(4, "t")).await.unwrap();
    assert_eq!(thread(store, "t").await.layers, [digest(9), digest(3), digest(4)]);
    let stale = store.squash_layers(squash(vec![digest(1), digest(2)])).await.unwrap();
    assert_eq!(stale, HeadMoveOutcome::Stale);
    let back = done(store.roll_back_thread(&thread_key("t"), 2, LATER, None).await.unwrap());
    assert_eq!(back.layers, [digest(1), digest(2)]);
}

pub(crate) async fn a_thread_is_visible_only_to_its_team(store: &dyn Store) {
    run(store, 1, "t").await;
    let theirs = ThreadKey { team: team(2).id, ..thread_key("t") };
    assert_eq!(store.find_thread(&theirs).await.unwrap(), None);
    assert!(store.list_threads(&team(2).id, None, 10).await.unwrap().is_empty());
    assert!(store.list_points(&theirs, None, 10).await.unwrap().is_empty());
    for name in [SnapshotRef::Seq(1), SnapshotRef::Trace(trace(1))] {
        assert_eq!(store.find_point(&theirs, &name).await.unwrap(), None);
    }
    assert_eq!(
        store.roll_back_thread(&theirs, 1, LATER, None).await.unwrap(),
        HeadMoveOutcome::Missing
    );
    assert_eq!(store.delete_thread(&theirs, LATER).await.unwrap(), HeadMoveOutcome::Missing);
    let forked =
        store.fork_thread(ThreadFork { source: theirs, ..fork_of("t", 1, "f") }).await.unwrap();
    assert_eq!(forked, HeadMoveOutcome::Missing);
    assert_eq!(thread(store, "t").await.head, 1);
}

/// A change that was allowed before a deletion does not undo it, even if the thread was made again.
pub(crate) async fn a_change_allowed_before_a_deletion_does_not_undo_it(store: &dyn Store) {
    let allowed = |moment, head| {
        let append = upload(1, "t", head);
        store.append_layer(LayerAppend {
            allowed_at: Some(Moment(moment)),
            at: Moment(moment + 10),
            ..append
        })
    };
    done(allowed(3000, 0).await.unwrap());
    done(store.delete_thread(&thread_key("t"), Moment(4000)).await.unwrap());
    assert!(store.was_thread_deleted_since(&thread_key("t"), Moment(4000)).await.unwrap());
    assert!(!store.was_thread_deleted_since(&thread_key("t"), Moment(4001)).await.unwrap());
    assert!(!store.was_thread_deleted_since(&thread_key("other"), Moment(0)).await.unwrap());
    assert_eq!(allowed(3000, 0).await.unwrap(), HeadMoveOutcome::Missing);
    done(allowed(5000, 0).await.unwrap());
    assert_eq!(allowed(3000, 1).await.unwrap(), HeadMoveOutcome::Missing);
    // The deletion is forgotten after a while.
    let long = i64::try_from(DELETED_KEPT.as_micros()).unwrap();
    done(store.append_layer(upload(1, "other", 0)).await.unwrap());
    done(store.delete_thread(&thread_key("other"), Moment(4001 + long)).await.unwrap());
    assert!(!store.was_thread_deleted_since(&thread_key("t"), Moment(0)).await.unwrap());
}

pub(crate) async fn a_held_thread_is_not_deleted(store: &dyn Store) {
    run(store, 1, "t").await;
    store.begin_execution(on_thread(2, "t"), LATER, None).await.unwrap();
    assert_eq!(
        store.delete_thread(&thread_key("t"), Moment(5000)).await.unwrap(),
        HeadMoveOutcome::Busy
    );
    store.finish_execution(wrote(2, "t")).await.unwrap();
    let was = done(store.delete_thread(&thread_key("t"), Moment(5000)).await.unwrap());
    assert_eq!(was.head, 2);
    assert_eq!(store.find_thread(&thread_key("t")).await.unwrap(), None);
    // A new thread of the same name starts empty.
    run(store, 3, "t").await;
    assert_eq!(store.list_points(&thread_key("t"), None, 10).await.unwrap().len(), 1);
}

pub(crate) async fn every_referenced_layer_is_listed(store: &dyn Store) {
    const DAY: i64 = 86_400_000_000;
    tenants(store).await;
    let needed = |numbers: &[u8]| numbers.iter().map(|n| digest(*n)).collect::<HashSet<_>>();
    run(store, 1, "t").await;
    run(store, 2, "t").await;
    store.roll_back_thread(&thread_key("t"), 1, LATER, None).await.unwrap();
    store.begin_execution(start(3), LATER, None).await.unwrap();
    store.finish_execution(ExecutionFinish { thread: None, ..wrote(3, "t") }).await.unwrap();
    let founding = ThreadCreation {
        thread: thread_key("i"),
        kind: SnapshotKind::Import,
        layers: vec![layer(5), layer(6)],
        usage: HomeUsage { counted: true, ..HomeUsage::default() },
        at: Moment(1),
        budget: None,
    };
    store.create_thread(founding.clone()).await.unwrap();
    assert_eq!(store.create_thread(founding).await.unwrap(), HeadMoveOutcome::Taken);
    assert_eq!(store.layers_in_use().await.unwrap(), needed(&[1, 2, 3, 5, 6]));
    store.delete_thread(&thread_key("t"), LATER).await.unwrap();
    assert_eq!(store.layers_in_use().await.unwrap(), needed(&[1, 2, 3, 5, 6]));
    store.prune_executions(Moment(4 * DAY)).await.unwrap();
    assert_eq!(store.layers_in_use().await.unwrap(), needed(&[5, 6]));
    // Deleting a team deletes its threads.
    store.revoke_key(&key(1).id, Moment(9)).await.unwrap();
    assert!(store.delete_team(&team(1).id).await.unwrap());
    assert_eq!(store.layers_in_use().await.unwrap(), needed(&[]));
}

pub(crate) async fn counted_usage_is_kept_until_the_head_moves(store: &dyn Store) {
    run(store, 1, "t").await;
    let counted = HomeUsage { bytes: ByteSize(7), entries: 1, counted: true };
    store.record_home_usage(&thread_key("t"), 0, counted).await.unwrap();
    assert!(!thread(store, "t").await.usage.counted);
    store.record_home_usage(&thread_key("t"), 1, counted).await.unwrap();
    assert_eq!(thread(store, "t").await.usage, counted);
    run(store, 2, "t").await;
    let sum = HomeUsage { bytes: ByteSize(207), entries: 3, counted: false };
    assert_eq!(thread(store, "t").await.usage, sum);
}

pub(crate) async fn threads_and_snapshots_are_listed_in_pages(store: &dyn Store) {
    for (n, name) in [(1, "b"), (2, "a"), (3, "c"), (4, "b")] {
        run(store, n, name).await;
    }
    let names = |threads: Vec<Thread>| -> Vec<String> {
        threads.into_iter().map(|thread| thread.id.to_string()).collect()
    };
    let first = store.list_threads(&team(1).id, None, 2).await.unwrap();
    let last = first[1].id.clone();
    assert_eq!(names(first), ["a", "b"]);
    assert_eq!(names(store.list_threads(&team(1).id, Some(&last), 2).await.unwrap()), ["c"]);
    let newest = store.list_points(&thread_key("b"), None, 1).await.unwrap();
    assert_eq!(newest[0].seq, 2);
    let older = store.list_points(&thread_key("b"), Some(2), 5).await.unwrap();
    assert_eq!((older.len(), older[0].seq), (1, 1));
}
