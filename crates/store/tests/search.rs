//! The search index of executions: a list with filters is the same with it, without it, and while
//! it is being fed.
#![allow(clippy::unwrap_used, reason = "a set-up that fails is a test that fails")]

use std::collections::BTreeMap;

use cloche_model::{
    DeliveryMode, ExecutionEnd, ExecutionStart, ExecutionStatus, Language, Moment, TeamId, TraceId,
};
use cloche_store::{
    BeginOutcome, ExecutionCursor, ExecutionFilter, ExecutionFinish, FinishOutcome, Ledger,
    SqliteStore, Store,
};
use tempfile::TempDir;

struct Fixture {
    store: SqliteStore,
    directory: TempDir,
}

impl Fixture {
    async fn open() -> Self {
        let directory = TempDir::new().unwrap();
        let store = SqliteStore::open(&directory.path().join("cloche.db")).await.unwrap();
        Self { store, directory }
    }

    async fn begin(&self, number: u32) -> TraceId {
        let languages = [Language::Python, Language::Node, Language::Bash];
        let of = |count: u32| number % count;
        let code = format!("print('{} common word_{number}')", ["ones", "twos"][of(2) as usize]);
        let start = ExecutionStart {
            trace_id: format!("trc_{number:05}").parse().unwrap(),
            team: team(of(2)),
            key: format!("key_{}", of(3)).parse().unwrap(),
            sandbox: format!("sbx_{}", of(4)).parse().unwrap(),
            language: Some(languages[of(3) as usize]),
            thread: (of(5) == 0).then(|| "thread-5".parse().unwrap()),
            delivery: DeliveryMode::Inline,
            webhook_url: None,
            metadata: BTreeMap::from([("user id".to_owned(), format!("u\"{}", of(7)))]),
            code_digest: String::new(),
            code_bytes: code.len() as u64,
            code: Some(code.into_bytes()),
            created_at: Moment(i64::from(number) * 1000),
        };
        let trace_id = start.trace_id.clone();
        // Leases of the one thread expire at once.
        let begun = self.store.begin_execution(start, Moment(0), None).await.unwrap();
        assert_eq!(begun, BeginOutcome::Started);
        trace_id
    }

    async fn finish(&self, trace_id: TraceId, number: u32) {
        let status = match number % 10 {
            0 => ExecutionStatus::Timeout,
            1..3 => ExecutionStatus::Failed,
            _ => ExecutionStatus::Success,
        };
        let end = ExecutionEnd {
            stdout: format!("Répondu {number}").into_bytes().into(),
            stderr: vec![0xff, b' ', b'e', b'r', b'r'].into(),
            completed_at: Moment(i64::from(number) * 1000 + 500),
            ..ExecutionEnd::default()
        };
        let (moves_head, webhook_delay, budget) = (false, None, None);
        let finish = ExecutionFinish {
            trace_id,
            status,
            end,
            thread: None,
            moves_head,
            webhook_delay,
            budget,
        };
        assert_eq!(self.store.finish_execution(finish).await.unwrap(), FinishOutcome::Recorded);
    }

    async fn run(&self, numbers: std::ops::Range<u32>) {
        for number in numbers {
            let trace_id = self.begin(number).await;
            self.finish(trace_id, number).await;
        }
    }

    async fn index(&self) {
        while self.store.index_executions().await.unwrap() {}
    }

    async fn list(&self, team: Option<&TeamId>, filter: &ExecutionFilter) -> Vec<String> {
        let found = self.store.list_executions(team, filter).await.unwrap();
        found.iter().map(|execution| execution.start.trace_id.to_string()).collect()
    }

    /// Every page of a list.
    async fn pages(&self, team: Option<&TeamId>, filter: &ExecutionFilter) -> Vec<String> {
        let (mut filter, mut all) = (ExecutionFilter { limit: 7, ..filter.clone() }, Vec::new());
        loop {
            let page = self.store.list_executions(team, &filter).await.unwrap();
            let Some(last) = page.last() else { return all };
            let (created_at, trace_id) = (last.start.created_at, last.start.trace_id.clone());
            filter.after = Some(ExecutionCursor { created_at, trace_id });
            all.extend(page.iter().map(|execution| execution.start.trace_id.to_string()));
        }
    }
}

fn team(number: u32) -> TeamId {
    format!("team_{number}").parse().unwrap()
}

fn all() -> ExecutionFilter {
    ExecutionFilter { limit: 1000, ..ExecutionFilter::default() }
}

/// Whether a filter finds the execution of this number.
type FindsNumber = fn(u32) -> bool;

/// Filters, each with what it finds.
fn filters() -> Vec<(ExecutionFilter, FindsNumber)> {
    let metadata = BTreeMap::from([("user id".to_owned(), "u\"3".to_owned())]);
    let time = |number: i64| Some(Moment(number * 1000));
    vec![
        (all(), |_| true),
        (ExecutionFilter { status: Some(ExecutionStatus::Timeout), ..all() }, |n| n % 10 == 0),
        (ExecutionFilter { language: Some(Language::Node), ..all() }, |n| n % 3 == 1),
        (ExecutionFilter { thread: Some("thread-5".parse().unwrap()), ..all() }, |n| n % 5 == 0),
        (ExecutionFilter { sandbox: Some("sbx_3".parse().unwrap()), ..all() }, |n| n % 4 == 3),
        (ExecutionFilter { key: Some("key_2".parse().unwrap()), ..all() }, |n| n % 3 == 2),
        (ExecutionFilter { metadata: metadata.clone(), ..all() }, |n| n % 7 == 3),
        (ExecutionFilter { since: time(40), until: time(90), ..all() }, |n| (40..90).contains(&n)),
        (
            ExecutionFilter { metadata, since: time(20), language: Some(Language::Bash), ..all() },
            |n| n % 7 == 3 && n >= 20 && n % 3 == 2,
        ),
        (ExecutionFilter { key: Some("key_none".parse().unwrap()), ..all() }, |_| false),
    ]
}

fn expected(numbers: std::ops::Range<u32>, matches: impl Fn(u32) -> bool) -> Vec<String> {
    numbers.rev().filter(|number| matches(*number)).map(|n| format!("trc_{n:05}")).collect()
}

#[tokio::test]
async fn lists_with_filters_are_the_same_before_while_and_after_the_index_is_fed() {
    let fixture = Fixture::open().await;
    fixture.run(0..100).await;
    for fed in 0..3 {
        for (filter, matches) in filters() {
            let found = fixture.list(None, &filter).await;
            assert_eq!(found, expected(0..100, matches), "{fed} {filter:?}");
            let of_team = fixture.list(Some(&team(1)), &filter).await;
            assert_eq!(of_team, expected(0..100, |n| n % 2 == 1 && matches(n)), "{fed} {filter:?}");
            let pages = fixture.pages(Some(&team(0)), &filter).await;
            assert_eq!(pages, expected(0..100, |n| n % 2 == 0 && matches(n)), "{fed} {filter:?}");
        }
        // The first time a part is indexed, the second time all.
        fixture.store.index_executions().await.unwrap();
    }
}

#[tokio::test]
async fn words_are_found_in_code_and_output_and_phrases_as_they_stand() {
    let fixture = Fixture::open().await;
    fixture.run(0..20).await;
    fixture.index().await;
    let search = async |words: &[&str]| {
        let text = words.iter().map(|word| (*word).to_owned()).collect();
        fixture.list(Some(&team(1)), &ExecutionFilter { text, ..all() }).await.len()
    };
    assert_eq!(search(&["common"]).await, 10);
    assert_eq!(search(&["COMMON", "word_7"]).await, 1);
    assert_eq!(search(&["word_8"]).await, 0, "another team's");
    assert_eq!(search(&["répondu 7"]).await, 1);
    assert_eq!(search(&["7 répondu"]).await, 0);
    assert_eq!(search(&["err"]).await, 10);
    // What the language of the index would take for operators is text here.
    for odd in ["\" OR tags : x", "a*", "NEAR(", "tags : x", "-", "AND"] {
        assert_eq!(search(&[odd, "common"]).await, 0, "{odd}");
    }
}

#[tokio::test]
async fn an_execution_that_runs_while_others_are_indexed_is_indexed_when_it_ends() {
    let fixture = Fixture::open().await;
    let slow = fixture.begin(1).await;
    fixture.run(2..10).await;
    fixture.index().await;
    let running = ExecutionFilter { status: Some(ExecutionStatus::Running), ..all() };
    let failed = ExecutionFilter { status: Some(ExecutionStatus::Failed), ..all() };
    assert_eq!(fixture.list(None, &running).await, ["trc_00001"]);
    let key = ExecutionFilter { key: Some("key_1".parse().unwrap()), ..all() };
    assert_eq!(fixture.list(None, &key).await, ["trc_00007", "trc_00004", "trc_00001"]);
    fixture.finish(slow, 1).await;
    for _ in 0..2 {
        assert_eq!(fixture.list(None, &running).await, [""; 0]);
        assert_eq!(fixture.list(None, &failed).await, ["trc_00002", "trc_00001"]);
        assert_eq!(fixture.list(None, &key).await, ["trc_00007", "trc_00004", "trc_00001"]);
        fixture.index().await;
    }
    let text = vec!["word_1".to_owned()];
    assert_eq!(fixture.list(None, &ExecutionFilter { text, ..all() }).await, ["trc_00001"]);
}

#[tokio::test]
async fn rows_that_are_deleted_leave_the_index_and_their_places_can_be_used_again() {
    let fixture = Fixture::open().await;
    fixture.run(0..10).await;
    fixture.index().await;
    let database = fixture.directory.path().join("cloche.db");
    let url = format!("sqlite://{}", database.display());
    let pool = sqlx::SqlitePool::connect(&url).await.unwrap();
    sqlx::query("DELETE FROM executions").execute(&pool).await.unwrap();
    let common = ExecutionFilter { text: vec!["common".to_owned()], ..all() };
    assert_eq!(fixture.list(None, &common).await, [""; 0]);
    fixture.run(20..25).await;
    fixture.index().await;
    assert_eq!(fixture.list(None, &common).await, expected(20..25, |_| true));
    fixture.store.close().await;
    // After rows have moved, which `VACUUM` may do, the index is built again.
    sqlx::query("DELETE FROM executions WHERE trace_id = 'trc_00020'")
        .execute(&pool)
        .await
        .unwrap();
    sqlx::query("UPDATE executions SET rowid = rowid + 100").execute(&pool).await.unwrap();
    pool.close().await;
    let store = SqliteStore::open(&database).await.unwrap();
    let fixture = Fixture { store, directory: fixture.directory };
    fixture.index().await;
    assert_eq!(fixture.list(None, &common).await, expected(21..25, |_| true));
}
