//! Runs in: test.
//!
//! Requirements for every store: usage is counted with each outcome, once, and stays when the
//! execution is deleted.

use std::time::Duration;

use cloche_model::{
    ExecutionEnd, ExecutionStart, KeyId, Moment, NetworkReport, TeamId, TraceId, UsageReport,
};
use cloche_store::{ExecutionFinish, FinishOutcome, Store, Transfer, UsageFilter, UsageTotals};

use crate::suite::{
    LATER, end, finish, key, network, sandbox, start, team, tenants, thread_key, trace,
};

const ALL: UsageFilter = UsageFilter { team: None, key: None, first_day: 0, last_day: i64::MAX };

/// Starts and ends an execution on a day.
async fn run_on_day(store: &dyn Store, n: u8, day: i64) {
    run_as(store, start(n), day).await;
}

async fn run_as(store: &dyn Store, start: ExecutionStart, day: i64) {
    let trace_id = start.trace_id.clone();
    store.begin_execution(start, LATER, None).await.unwrap();
    assert_eq!(
        store.finish_execution(ended(trace_id, day)).await.unwrap(),
        FinishOutcome::Recorded
    );
}

fn ended(trace_id: TraceId, day: i64) -> ExecutionFinish {
    let usage = UsageReport { wall_ms: 10, cpu_ms: 5, peak_memory_bytes: 3, micro_credits: 1_000 };
    let completed_at = Moment(Moment::from_utc_day(day).0 + 7);
    let end = ExecutionEnd { usage, completed_at, ..end() };
    ExecutionFinish { trace_id, end, ..finish(1) }
}

fn runs(count: u64) -> UsageTotals {
    UsageTotals {
        executions: count,
        micro_credits: 1_000 * count,
        wall_ms: 10 * count,
        cpu_ms: 5 * count,
        network_in_bytes: 70 * count,
        network_out_bytes: 8 * count,
        ..UsageTotals::default()
    }
}

async fn sum(store: &dyn Store, filter: UsageFilter) -> UsageTotals {
    store.sum_usage(&filter).await.unwrap()
}

pub(crate) async fn usage_is_summed_by_team_key_and_day(store: &dyn Store) {
    tenants(store).await;
    run_on_day(store, 1, 10).await;
    run_on_day(store, 2, 10).await;
    run_on_day(store, 3, 12).await;
    run_as(store, ExecutionStart { key: key(2).id, ..start(4) }, 12).await;
    run_as(store, ExecutionStart { team: team(2).id, key: key(3).id, ..start(5) }, 12).await;
    assert_eq!(sum(store, ALL).await, runs(5));
    let of_team = |n| UsageFilter { team: Some(team(n).id), ..ALL };
    assert_eq!(sum(store, of_team(1)).await, runs(4));
    assert_eq!(sum(store, of_team(3)).await, UsageTotals::default());
    let of_key = |n: u8| UsageFilter { key: Some(key(n).id), ..ALL };
    assert_eq!(sum(store, of_key(1)).await, runs(3));
    assert_eq!(sum(store, of_key(2)).await, runs(1));
    assert_eq!(sum(store, UsageFilter { first_day: 11, ..of_team(1) }).await, runs(2));
    assert_eq!(sum(store, UsageFilter { last_day: 11, ..of_team(1) }).await, runs(2));
    let days = store.usage_by_day(&of_team(1)).await.unwrap();
    assert_eq!(days, [(10, runs(2)), (12, runs(2))]);
    let teams = store.usage_by_team(12).await.unwrap();
    assert_eq!(teams, [(team(1).id, runs(2)), (team(2).id, runs(1))]);
}

pub(crate) async fn an_execution_is_counted_once_whatever_its_end(store: &dyn Store) {
    tenants(store).await;
    run_on_day(store, 1, 10).await;
    let again = store.finish_execution(ended(trace(1), 10)).await.unwrap();
    assert_eq!(again, FinishOutcome::NotRunning);
    assert_eq!(sum(store, ALL).await, runs(1));

    // In a thread the end is written by another path.
    let threaded = ExecutionStart { thread: Some("t".parse().unwrap()), ..start(2) };
    store.begin_execution(threaded, LATER, None).await.unwrap();
    let finish = ExecutionFinish { thread: Some(thread_key("t")), ..ended(trace(2), 10) };
    assert_eq!(store.finish_execution(finish).await.unwrap(), FinishOutcome::Recorded);
    assert_eq!(sum(store, ALL).await, runs(2));

    store.record_refusal(start(3), "no").await.unwrap();
    store.begin_execution(start(4), LATER, None).await.unwrap();
    assert_eq!(sum(store, ALL).await, runs(2), "neither refused nor running ones are counted");

    // One that a crash ended has no cost, but it is counted.
    let at = Moment::from_utc_day(10);
    store.fail_running_executions(at, "crash", Duration::ZERO).await.unwrap();
    assert_eq!(sum(store, ALL).await, UsageTotals { executions: 3, ..runs(2) });
}

pub(crate) async fn usage_outlives_its_executions(store: &dyn Store) {
    tenants(store).await;
    run_on_day(store, 1, 0).await;
    run_on_day(store, 2, 0).await;
    assert_eq!(sandbox(1).retention.days, Some(3));
    assert_eq!(store.prune_executions(Moment::from_utc_day(9)).await.unwrap(), 2);
    assert_eq!(sum(store, ALL).await, runs(2));
    run_on_day(store, 3, 9).await;
    store.prune_records(&team(1).id, 0).await.unwrap();
    assert!(store.find_execution(&team(1).id, &trace(3)).await.unwrap().is_none());
    assert_eq!(sum(store, ALL).await, runs(3));
}

fn transfer(team: TeamId, key: Option<KeyId>, received_bytes: u64, sent_bytes: u64) -> Transfer {
    Transfer { team, key, day: 10, received_bytes, sent_bytes }
}

pub(crate) async fn transferred_bytes_are_added_to_their_day(store: &dyn Store) {
    tenants(store).await;
    run_on_day(store, 1, 10).await;
    let first = transfer(team(1).id, Some(key(1).id), 100, 7);
    let by_admin = transfer(team(1).id, None, 0, 50);
    store.add_transfers(vec![first.clone(), by_admin, first]).await.unwrap();
    let whole = UsageTotals { received_bytes: 200, sent_bytes: 64, ..runs(1) };
    assert_eq!(sum(store, ALL).await, whole);
    let of_key = UsageFilter { key: Some(key(1).id), ..ALL };
    assert_eq!(sum(store, of_key).await, UsageTotals { sent_bytes: 14, ..whole });
}

/// A sum that is too large for an integer would make the end of an execution fail.
pub(crate) async fn absurd_numbers_do_not_fail_a_sum(store: &dyn Store) {
    tenants(store).await;
    for n in 1..=3 {
        let mut finish = ended(trace(n), 10);
        finish.end.usage.cpu_ms = u64::MAX;
        finish.end.usage.micro_credits = u64::MAX;
        finish.end.network = Some(NetworkReport { bytes_in: u64::MAX, ..network() });
        store.begin_execution(start(n), LATER, None).await.unwrap();
        assert_eq!(store.finish_execution(finish).await.unwrap(), FinishOutcome::Recorded);
    }
    let much = transfer(team(1).id, None, u64::MAX, u64::MAX);
    store.add_transfers(vec![much.clone(), much]).await.unwrap();
    let total = sum(store, ALL).await;
    assert_eq!(total.executions, 3);
    assert!(total.cpu_ms >= 1_000_000_000_000_000 && total.sent_bytes >= 1_000_000_000_000_000);
}
