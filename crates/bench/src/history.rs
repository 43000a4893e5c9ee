//! Runs in: benchmark. Measures the first page of the history with a million executions in the
//! ledger, for each filter of the API: right after a start with nothing of the database in memory,
//! and again while the server stays.

use std::{
    fs::File,
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use rustix::fs::{Advice, fadvise};
use serde_json::Value;

use crate::{
    BenchArguments, BenchResult,
    figures::print_promise,
    print_line,
    server::{BenchClient, BenchServer, find_binary},
};

const NAME: &str = "history";
/// How many executions there are.
const ROWS: u64 = 1_000_000;
/// How often each filter is called after its first time.
const CALLS: usize = 20;
/// The longest that the index may take.
const INDEXING: Duration = Duration::from_mins(10);
/// The most milliseconds for a page.
const MOST: f64 = 300.0;

/// Executions of one large team, but for one in a thousand. One in a thousand timed out; one in a
/// hundred thousand has the rare metadata and the rare word. They came one each second.
const FILL: &str = "
import sqlite3, sys
database, team, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
connection = sqlite3.connect(database)
# The schema has it, and older versions do not.
connection.create_function('octet_length', 1, lambda value: len(value or ''))
(identifier,) = connection.execute('SELECT id FROM teams WHERE name = ?', (team,)).fetchone()
connection.execute('''WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
INSERT INTO executions (trace_id, team_id, key_id, sandbox_id, language, thread_id, delivery,
    metadata, status, created_at, completed_at, exit_code, code_digest, code_bytes, code, stdout,
    stderr)
SELECT printf('trc_%010d', i), iif(i % 1000 = 7, 'team_small', ?), 'key_' || (i % 50),
    'sbx_' || (i % 20), iif(i % 10 = 0, 'node', 'python'),
    iif(i % 20 = 0, 'thread-' || (i % 5000), NULL), 'inline',
    json_object('user', 'u' || (i % 10000), 'rare', iif(i % 100000 = 5, 'yes', 'no')),
    iif(i % 1000 = 3, 'timeout', iif(i % 12 = 0, 'failed', 'success')),
    1700000000000000 + i * 1000000, 1700000000000000 + i * 1000000 + 50000, 0, 'd', 60,
    CAST(printf('import json, math; print(math.sqrt(%d), \"item %d\")', i, i % 977) AS BLOB),
    CAST(printf('result %d%s', i, iif(i % 100000 = 5, ' unicorn', '')) AS BLOB), x'' FROM n''',
    (rows, identifier))
connection.commit()
";

/// How far the index is.
const PROGRESS: &str = "
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
print(connection.execute('SELECT indexed_to FROM search_progress').fetchone()[0])
";

/// The filters, as parameters of the API. Row 500,000 was accepted on 2023-11-20 at 17:06:40.
const FILTERS: [(&str, &str); 25] = [
    ("no filter", ""),
    ("status, common", "status=success"),
    ("status, one in twelve", "status=failed"),
    ("status, one in a thousand", "status=timeout"),
    ("status, none", "status=oom"),
    ("running", "status=running"),
    ("language", "language=node"),
    ("language, none", "language=bash"),
    ("sandbox", "sandbox=sbx_3"),
    ("key", "key=key_17"),
    ("thread", "thread_id=thread-20"),
    ("metadata, common", "metadata.rare=no"),
    ("metadata, one in 10,000", "metadata.user=u17"),
    ("metadata, one in 100,000", "metadata.rare=yes"),
    ("metadata, none", "metadata.user=nobody"),
    ("an hour of the past", "since=2023-11-20T17:00:00Z&until=2023-11-20T18:00:00Z"),
    ("failed of that hour", "since=2023-11-20T17:00:00Z&until=2023-11-20T18:00:00Z&status=failed"),
    ("before all", "until=2023-01-01T00:00:00Z&status=failed"),
    ("words, common", "q=math"),
    ("words, rare", "q=unicorn"),
    ("words, none", "q=nothing_has_this"),
    ("phrase", "q=%22item+976%22"),
    ("phrase of common words, none", "q=%22json+import%22"),
    ("disjoint: node, sandbox", "language=node&sandbox=sbx_3"),
    ("five at once", "status=failed&language=python&sandbox=sbx_4&metadata.rare=no&q=math"),
];

/// Measures this, if requested by its name: it takes minutes and half a gigabyte of disk.
pub(crate) fn measure_history(arguments: &BenchArguments) -> BenchResult<()> {
    if !arguments.only.iter().any(|part| NAME.contains(part.as_str())) {
        return Ok(());
    }
    let Some(binary) = find_binary(arguments) else {
        print_line("\nskipped: history: no cloche binary beside this one; give --server PATH");
        return Ok(());
    };
    let mut server = BenchServer::start(&binary)?;
    let key = server.make_key("history", serde_json::json!({}))?;
    let database = server.data().join("cloche.db");
    // The server looks for executions without an entry in the index when it starts.
    server.stop()?;
    run_python(FILL, &[&database.display().to_string(), "history", &ROWS.to_string()])?;
    let began = Instant::now();
    server.start_again(&binary)?;
    wait_for_index(&database)?;
    print_line(&format!(
        "\nthe first page of {ROWS} executions; the index took {:.0} s more, the database has {} MiB",
        began.elapsed().as_secs_f64(),
        std::fs::metadata(&database)?.len() >> 20
    ));
    print_line("\n| filter | found | cold | warm, p50 | warm, slowest |\n|---|---|---|---|---|");
    let mut slowest = 0.0_f64;
    for (name, query) in FILTERS {
        server.stop()?;
        forget(&database)?;
        server.start_again(&binary)?;
        slowest = slowest.max(measure_filter(&server, &key, name, query)?);
    }
    print_line("\n| promise | at most | measured | kept |\n|---|---|---|---|");
    print_promise("the slowest page of all, in ms", MOST, slowest);
    Ok(())
}

/// Prints the row of a filter. Returns the milliseconds of its slowest call.
fn measure_filter(server: &BenchServer, key: &str, name: &str, query: &str) -> BenchResult<f64> {
    let mut client = BenchClient::connect(&server.address, key)?;
    let mut times = Vec::new();
    let mut found = 0;
    for _ in 0..=CALLS {
        let path = format!("/v1/executions?{query}");
        let began = Instant::now();
        let (status, answer) = client.send_request("GET", &path, &Value::Null)?;
        times.push(began.elapsed().as_secs_f64() * 1e3);
        if status != 200 {
            return Err(format!("{path}: {status} {answer}").into());
        }
        found = answer["executions"].as_array().map_or(0, Vec::len);
    }
    let cold = times.remove(0);
    times.sort_by(f64::total_cmp);
    let last = times.last().copied().unwrap_or_default();
    let middle = times[times.len() / 2];
    print_line(&format!("| {name} | {found} | {cold:.1} ms | {middle:.1} ms | {last:.1} ms |"));
    Ok(cold.max(last))
}

fn wait_for_index(database: &Path) -> BenchResult<()> {
    let end = Instant::now() + INDEXING;
    while run_python(PROGRESS, &[&database.display().to_string()])?.trim().parse::<u64>()? < ROWS {
        if Instant::now() > end {
            return Err("the index was not built in time".into());
        }
        thread::sleep(Duration::from_secs(1));
    }
    Ok(())
}

/// Python's SQLite, so that this program needs none.
fn run_python(program: &str, arguments: &[&str]) -> BenchResult<String> {
    let done = Command::new("python3").args(["-c", program]).args(arguments).output()?;
    match done.status.success() {
        true => Ok(String::from_utf8(done.stdout)?),
        false => Err(String::from_utf8_lossy(&done.stderr).into()),
    }
}

/// Removes a file from the kernel's page cache.
fn forget(path: &Path) -> BenchResult<()> {
    let file = File::open(path)?;
    file.sync_all()?;
    fadvise(&file, 0, None, Advice::DontNeed)?;
    Ok(())
}
