//! Runs in: test. A database of an earlier version has its usage counted when it is opened.
#![allow(clippy::unwrap_used, reason = "a set-up that fails is a test that fails")]

use std::path::Path;

use cloche_model::{DecisionId, Moment, WebTool, WebToolRecord};
use cloche_store::{
    Ledger, SqliteStore, Store, ToolCallStore, UsageAccounting, UsageFilter, UsageTotals,
};
use sqlx::{Connection, SqliteConnection};
use tempfile::TempDir;

#[path = "conformance/suite.rs"]
#[allow(dead_code, reason = "only its rows are needed")]
mod suite;

const ALL: UsageFilter = UsageFilter { team: None, key: None, first_day: 0, last_day: i64::MAX };

/// Takes migration 11 back, and 15 and 23, which add to its table.
async fn forget_usage(path: &Path) {
    let address = format!("sqlite://{}", path.display());
    let mut raw = SqliteConnection::connect(&address).await.unwrap();
    for statement in [
        "DROP TRIGGER execution_used",
        "DROP TRIGGER tool_call_used",
        "DROP TABLE usage_days",
        "ALTER TABLE teams DROP COLUMN monthly_micro_credits",
        "DROP TRIGGER execution_network_reported",
        "DROP TRIGGER execution_with_network_removed",
        "ALTER TABLE executions DROP COLUMN network",
        "ALTER TABLE executions DROP COLUMN network_in_bytes",
        "ALTER TABLE executions DROP COLUMN network_out_bytes",
        "DELETE FROM _sqlx_migrations WHERE version IN (11, 15, 23)",
    ] {
        sqlx::query(statement).execute(&mut raw).await.unwrap();
    }
    raw.close().await.unwrap();
}

fn tool_call(number: u8) -> WebToolRecord {
    WebToolRecord {
        decision: DecisionId::from_random([number; 20]),
        team: suite::team(1).id,
        key: suite::key(1).id,
        tool: WebTool::WebSearch,
        execution: None,
        response: None,
        micro_dollars: 500,
        at: Moment(i64::from(number)),
    }
}

#[tokio::test]
async fn the_ledger_of_an_earlier_version_is_counted() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("cloche.db");
    let store = SqliteStore::open(&path).await.unwrap();
    suite::tenants(&store).await;
    for n in 1..=3 {
        store.begin_execution(suite::start(n), suite::LATER, None).await.unwrap();
    }
    for n in 1..=2 {
        store.finish_execution(suite::finish(n)).await.unwrap();
    }
    store.record_refusal(suite::start(4), "no").await.unwrap();
    for n in 1..=2 {
        store.record_tool_call(tool_call(n)).await.unwrap();
    }
    store.close().await;
    forget_usage(&path).await;

    let store = SqliteStore::open(&path).await.unwrap();
    let counted = UsageTotals {
        executions: 2,
        micro_credits: 8,
        wall_ms: 2,
        cpu_ms: 4,
        tool_calls: 2,
        tool_micro_dollars: 1000,
        ..UsageTotals::default()
    };
    assert_eq!(store.sum_usage(&ALL).await.unwrap(), counted);
    // The one that was running is counted when it ends.
    store.finish_execution(suite::finish(3)).await.unwrap();
    assert_eq!(store.sum_usage(&ALL).await.unwrap().executions, 3);
    store.close().await;
}
