//! How long the first page of a list of executions takes with a million rows in the ledger, for each
//! filter: the slowest of several calls. Rows can be counted down with `ROWS`.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement that fails says so, and its result is printed"
)]

use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, Instant},
};

use cloche_model::{ExecutionStatus, Language, Moment, TeamId};
use cloche_store::{ExecutionFilter, Ledger, SqliteStore, Store};

const CALLS: u32 = 5;

/// Rows of one large team and one small one. One in a thousand timed out; one in a hundred thousand
/// has the rare metadata and the rare word.
const INSERT: &str = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) \
    INSERT INTO executions (trace_id, team_id, key_id, sandbox_id, language, thread_id, delivery, \
    metadata, status, created_at, completed_at, exit_code, code_digest, code_bytes, code, stdout, \
    stderr) SELECT printf('trc_%010d', i), iif(i % 1000 = 7, 'team_small', 'team_large'), \
    'key_' || (i % 50), 'sbx_' || (i % 20), iif(i % 10 = 0, 'node', 'python'), \
    iif(i % 20 = 0, 'thread-' || (i % 5000), NULL), 'inline', \
    json_object('user', 'u' || (i % 10000), 'rare', iif(i % 100000 = 5, 'yes', 'no')), \
    iif(i % 1000 = 3, 'timeout', iif(i % 12 = 0, 'failed', 'success')), \
    1700000000000000 + i * 1000000, 1700000000000000 + i * 1000000 + 50000, 0, 'd', 60, \
    CAST(printf('import json, math; print(math.sqrt(%d), \"item %d\")', i, i % 977) AS BLOB), \
    CAST(printf('result %d%s', i, iif(i % 100000 = 5, ' unicorn', '')) AS BLOB), x'' FROM n";

#[tokio::main]
async fn main() {
    let rows: i64 = std::env::var("ROWS").ok().and_then(|n| n.parse().ok()).unwrap_or(1_000_000);
    let directory = tempfile::tempdir().unwrap();
    let database = directory.path().join("cloche.db");
    fill_ledger(&database, rows).await;
    let store = SqliteStore::open(&database).await.unwrap();
    let begun = Instant::now();
    let (mut batches, mut slowest) = (0_u32, Duration::ZERO);
    loop {
        let batch = Instant::now();
        let more = store.index_executions().await.unwrap();
        slowest = slowest.max(batch.elapsed());
        batches += 1;
        if !more {
            break;
        }
    }
    let indexed = begun.elapsed();
    println!("{rows} rows indexed in {indexed:.1?}: {batches} batches, the slowest {slowest:.1?}");
    for (name, filter) in filters(rows) {
        for (whose, team) in
            [("large", Some("team_large")), ("small", Some("team_small")), ("all", None)]
        {
            let team: Option<TeamId> = team.map(|team| team.parse().unwrap());
            let (mut worst, mut found) = (Duration::ZERO, 0);
            for _ in 0..CALLS {
                let call = Instant::now();
                found = store.list_executions(team.as_ref(), &filter).await.unwrap().len();
                worst = worst.max(call.elapsed());
            }
            println!("{name:28} {whose:6} {found:3} found {:8.1} ms", worst.as_secs_f64() * 1e3);
        }
    }
    let size = std::fs::metadata(&database).unwrap().len() >> 20;
    println!("the database has {size} MiB");
    store.close().await;
}

async fn fill_ledger(database: &Path, rows: i64) {
    SqliteStore::open(database).await.unwrap().close().await;
    let url = format!("sqlite://{}", database.display());
    let pool = sqlx::SqlitePool::connect(&url).await.unwrap();
    sqlx::query(INSERT).bind(rows).execute(&pool).await.unwrap();
    pool.close().await;
}

fn filters(rows: i64) -> Vec<(&'static str, ExecutionFilter)> {
    let all = || ExecutionFilter { limit: 51, ..ExecutionFilter::default() };
    let metadata = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
    let at = |row: i64| Some(Moment(1_700_000_000_000_000 + row * 1_000_000));
    let text = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    vec![
        ("no filter", all()),
        ("status=running", ExecutionFilter { status: Some(ExecutionStatus::Running), ..all() }),
        ("status=failed", ExecutionFilter { status: Some(ExecutionStatus::Failed), ..all() }),
        ("status=timeout", ExecutionFilter { status: Some(ExecutionStatus::Timeout), ..all() }),
        ("language=node", ExecutionFilter { language: Some(Language::Node), ..all() }),
        ("language=bash (none)", ExecutionFilter { language: Some(Language::Bash), ..all() }),
        ("sandbox", ExecutionFilter { sandbox: Some("sbx_3".parse().unwrap()), ..all() }),
        ("key", ExecutionFilter { key: Some("key_17".parse().unwrap()), ..all() }),
        ("thread", ExecutionFilter { thread: Some("thread-20".parse().unwrap()), ..all() }),
        ("metadata common", ExecutionFilter { metadata: metadata("rare", "no"), ..all() }),
        ("metadata rare", ExecutionFilter { metadata: metadata("rare", "yes"), ..all() }),
        ("metadata none", ExecutionFilter { metadata: metadata("user", "nobody"), ..all() }),
        ("an hour long ago", ExecutionFilter { since: at(5000), until: at(8600), ..all() }),
        (
            "timeouts of that hour",
            ExecutionFilter {
                since: at(5000),
                until: at(8600),
                status: Some(ExecutionStatus::Timeout),
                ..all()
            },
        ),
        (
            "failed of the last day",
            ExecutionFilter {
                since: at(rows - 86_400),
                status: Some(ExecutionStatus::Failed),
                ..all()
            },
        ),
        ("text common", ExecutionFilter { text: text(&["math"]), ..all() }),
        ("text rare", ExecutionFilter { text: text(&["unicorn"]), ..all() }),
        ("text phrase", ExecutionFilter { text: text(&["item 976"]), ..all() }),
        ("text none", ExecutionFilter { text: text(&["nothing_has_this"]), ..all() }),
        (
            "disjoint: node in sbx_3",
            ExecutionFilter {
                language: Some(Language::Node),
                sandbox: Some("sbx_3".parse().unwrap()),
                ..all()
            },
        ),
    ]
}
