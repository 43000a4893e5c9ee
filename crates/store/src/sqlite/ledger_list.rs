//! Runs in: server (no capabilities).
//!
//! Lists of executions. Without filters they come from the index of the team. With filters they come
//! from the search index, and what is not in it yet from the rows themselves; these lists are in the
//! order of rowids, which is that of acceptance.

use cloche_model::{Execution, ExecutionStatus, Moment, TeamId};
use sqlx::{QueryBuilder, Row, Sqlite as Database, SqliteConnection};

use super::{
    SqliteStore,
    ledger::{EXECUTION_TABLES, SMALL_COLUMNS},
    row_reader::execution_from_row,
    search_index::{metadata_field, tag_token},
};
use crate::{ExecutionFilter, Result};

/// Executions that were accepted at once may be written in another order. A search for times looks at
/// this many more.
const DISORDER: i64 = 1000;

/// The most executions that are not indexed yet and whose text is compared nevertheless.
const MOST_UNINDEXED: i64 = 500;

/// Reads a stretch of the ledger as it is. The index of the team would read, and sort, all of its
/// executions.
const BY_ROWID: &str = " NOT INDEXED";

/// The rowids that a list is about.
#[derive(Clone, Copy)]
struct PositionRange {
    first: i64,
    /// Not included.
    end: i64,
}

impl SqliteStore {
    pub(super) async fn select_page(
        &self,
        team: Option<&TeamId>,
        filter: &ExecutionFilter,
    ) -> Result<Vec<Execution>> {
        let is_plain = team.is_some() && match_terms(None, filter).is_empty();
        if is_plain && filter.status.is_none() {
            let mut query = select_by_time(team, filter);
            let rows = query.build().fetch_all(&self.readers).await?;
            return rows.iter().map(|row| execution_from_row(row, false)).collect();
        }
        // One transaction, so that no execution is between the index and the rows.
        let mut transaction = self.readers.begin().await?;
        let found = search_page(&mut transaction, team, filter).await;
        transaction.rollback().await?;
        found
    }
}

async fn search_page(
    connection: &mut SqliteConnection,
    team: Option<&TeamId>,
    filter: &ExecutionFilter,
) -> Result<Vec<Execution>> {
    let range = find_range(connection, filter).await?;
    let terms = match_terms(team, filter);
    let has_filters = !match_terms(None, filter).is_empty();
    let (mut queries, mut found) = (Vec::new(), Vec::new());
    if filter.status == Some(ExecutionStatus::Running) {
        let condition = " INDEXED BY executions_running";
        let mut query = start_query(condition, " WHERE e.status = 'running'");
        push_predicates(&mut query, team, filter, range);
        queries.push(query);
    } else if !has_filters {
        let mut query = start_query(BY_ROWID, " WHERE true");
        push_predicates(&mut query, team, filter, range);
        queries.push(query);
    } else {
        let indexed_to: i64 = sqlx::query_scalar("SELECT indexed_to FROM search_progress")
            .fetch_one(&mut *connection)
            .await?;
        // Only in its own order the index stops after a page; in another one all would be sorted.
        let mut indexed = select_indexed(&terms, team, filter, range);
        indexed.push(" ORDER BY s.rowid DESC LIMIT ").push_bind(filter.limit);
        read_page(connection, indexed, &mut found).await?;
        if filter.text.is_empty() {
            let mut tail = start_query(BY_ROWID, " WHERE e.rowid > ");
            tail.push_bind(indexed_to);
            push_predicates(&mut tail, team, filter, range);
            let mut pending = select_pending();
            push_predicates(&mut pending, team, filter, range);
            queries.extend([tail, pending]);
        } else {
            queries.push(select_unindexed_text(indexed_to, team, filter, range));
        }
    }
    for mut query in queries {
        query.push(" ORDER BY e.rowid DESC LIMIT ").push_bind(filter.limit);
        read_page(connection, query, &mut found).await?;
    }
    found.sort_by_key(|(position, _)| std::cmp::Reverse(*position));
    found.dedup_by_key(|(position, _)| *position);
    found.truncate(filter.limit as usize);
    Ok(found.into_iter().map(|(_, execution)| execution).collect())
}

async fn read_page(
    connection: &mut SqliteConnection,
    mut query: QueryBuilder<Database>,
    found: &mut Vec<(i64, Execution)>,
) -> Result<()> {
    for row in query.build().fetch_all(connection).await? {
        found.push((row.try_get("position")?, execution_from_row(&row, false)?));
    }
    Ok(())
}

/// What the index is searched for: a token for each filter, and the words.
fn match_terms(team: Option<&TeamId>, filter: &ExecutionFilter) -> Vec<String> {
    let mut terms = Vec::new();
    let mut push = |field: &str, value: Option<&str>| {
        terms.extend(value.map(|value| format!("tags : {}", tag_token(field, value))));
    };
    push("team", team.map(TeamId::as_str));
    push("status", filter.status.map(ExecutionStatus::name));
    push("language", filter.language.map(|language| language.name()));
    push("thread", filter.thread.as_ref().map(|thread| thread.as_str()));
    push("sandbox", filter.sandbox.as_ref().map(|sandbox| sandbox.as_str()));
    push("key", filter.key.as_ref().map(|key| key.as_str()));
    for (key, value) in &filter.metadata {
        push(&metadata_field(key), Some(value));
    }
    let quote = |phrase: &String| format!("body : \"{}\"", phrase.replace('"', "\"\""));
    terms.extend(filter.text.iter().map(quote));
    terms
}

fn start_query(index: &'static str, condition: &'static str) -> QueryBuilder<Database> {
    let mut query = QueryBuilder::new(SMALL_COLUMNS);
    query.push(", e.rowid AS position FROM executions e").push(index).push(EXECUTION_TABLES);
    query.push(condition);
    query
}

/// The executions that were still running when the index came by.
fn select_pending() -> QueryBuilder<Database> {
    let mut query = QueryBuilder::new(SMALL_COLUMNS);
    query.push(", e.rowid AS position FROM search_pending p CROSS JOIN executions e ");
    query.push("ON e.rowid = p.execution").push(EXECUTION_TABLES).push(" WHERE true");
    query
}

fn select_indexed(
    terms: &[String],
    team: Option<&TeamId>,
    filter: &ExecutionFilter,
    range: PositionRange,
) -> QueryBuilder<Database> {
    let mut query = QueryBuilder::new(SMALL_COLUMNS);
    // A cross join is made in this order: the index first.
    query.push(", e.rowid AS position FROM execution_search s CROSS JOIN executions e ");
    query.push("ON e.rowid = s.rowid").push(EXECUTION_TABLES);
    query.push(" WHERE execution_search MATCH ").push_bind(terms.join(" AND "));
    query.push(" AND s.rowid >= ").push_bind(range.first);
    query.push(" AND s.rowid < ").push_bind(range.end);
    push_row_predicates(&mut query, team, filter);
    query
}

/// The newest executions that are over and not indexed yet, by what their text contains.
fn select_unindexed_text(
    indexed_to: i64,
    team: Option<&TeamId>,
    filter: &ExecutionFilter,
    range: PositionRange,
) -> QueryBuilder<Database> {
    let mut query = start_query(BY_ROWID, " WHERE e.status != 'running' AND e.rowid > max(");
    query.push_bind(indexed_to);
    query.push(", coalesce((SELECT max(rowid) FROM executions), 0) - ");
    query.push_bind(MOST_UNINDEXED).push(")");
    for phrase in &filter.text {
        query.push(" AND (false");
        for column in ["code", "stdout", "stderr"] {
            query.push(" OR instr(lower(CAST(e.").push(column).push(" AS TEXT)), lower(");
            query.push_bind(phrase.clone()).push(")) > 0");
        }
        query.push(")");
    }
    push_predicates(&mut query, team, filter, range);
    query
}

fn push_predicates(
    query: &mut QueryBuilder<Database>,
    team: Option<&TeamId>,
    filter: &ExecutionFilter,
    range: PositionRange,
) {
    query.push(" AND e.rowid >= ").push_bind(range.first);
    query.push(" AND e.rowid < ").push_bind(range.end);
    push_row_predicates(query, team, filter);
}

fn push_row_predicates(
    query: &mut QueryBuilder<Database>,
    team: Option<&TeamId>,
    filter: &ExecutionFilter,
) {
    let mut push = |column: &str, value: Option<String>| {
        if let Some(value) = value {
            query.push(" AND e.").push(column).push(" = ").push_bind(value);
        }
    };
    push("team_id", team.map(ToString::to_string));
    let is_running = filter.status == Some(ExecutionStatus::Running);
    push("status", filter.status.filter(|_| !is_running).map(|status| status.name().to_owned()));
    push("language", filter.language.map(|language| language.name().to_owned()));
    push("thread_id", filter.thread.as_ref().map(ToString::to_string));
    push("sandbox_id", filter.sandbox.as_ref().map(ToString::to_string));
    push("key_id", filter.key.as_ref().map(ToString::to_string));
    for (key, value) in &filter.metadata {
        query.push(" AND e.metadata ->> ").push_bind(format!("$.\"{key}\""));
        query.push(" = ").push_bind(value.clone());
    }
    if let Some(since) = filter.since {
        query.push(" AND e.created_at >= ").push_bind(since.0);
    }
    if let Some(until) = filter.until {
        query.push(" AND e.created_at < ").push_bind(until.0);
    }
}

/// A page of one team by time only.
fn select_by_time(team: Option<&TeamId>, filter: &ExecutionFilter) -> QueryBuilder<Database> {
    let mut query = QueryBuilder::new(SMALL_COLUMNS);
    query.push(" FROM executions e").push(EXECUTION_TABLES).push(" WHERE true");
    push_row_predicates(&mut query, team, filter);
    if let Some(cursor) = &filter.after {
        query.push(" AND (e.created_at, e.trace_id) < (").push_bind(cursor.created_at.0);
        query.push(", ").push_bind(cursor.trace_id.to_string()).push(")");
    }
    query.push(" ORDER BY e.created_at DESC, e.trace_id DESC LIMIT ").push_bind(filter.limit);
    query
}

/// The rowids of a time range and of the cursor.
async fn find_range(
    connection: &mut SqliteConnection,
    filter: &ExecutionFilter,
) -> Result<PositionRange> {
    let mut range = PositionRange { first: i64::MIN, end: i64::MAX };
    if let Some(since) = filter.since {
        range.first = find_position(connection, since).await?.saturating_sub(DISORDER);
    }
    if let Some(until) = filter.until {
        range.end = find_position(connection, until).await?.saturating_add(DISORDER);
    }
    if let Some(cursor) = &filter.after {
        let position: Option<i64> =
            sqlx::query_scalar("SELECT rowid FROM executions WHERE trace_id = ?")
                .bind(cursor.trace_id.as_str())
                .fetch_optional(&mut *connection)
                .await?;
        let position = match position {
            Some(position) => position,
            // It was deleted since.
            None => find_position(connection, cursor.created_at).await?,
        };
        range.end = range.end.min(position);
    }
    Ok(range)
}

/// The first rowid whose execution was accepted at or after a moment, by bisection.
async fn find_position(connection: &mut SqliteConnection, at: Moment) -> Result<i64> {
    let bounds = sqlx::query(
        "SELECT (SELECT min(rowid) FROM executions) AS least, \
        (SELECT max(rowid) FROM executions) AS most",
    )
    .fetch_one(&mut *connection)
    .await?;
    let (least, most): (Option<i64>, Option<i64>) =
        (bounds.try_get("least")?, bounds.try_get("most")?);
    let Some((mut low, most)) = least.zip(most) else { return Ok(0) };
    let mut high = most.saturating_add(1);
    while low < high {
        let middle = low + (high - low) / 2;
        let row = sqlx::query(
            "SELECT rowid AS position, created_at FROM executions WHERE rowid >= ? \
             ORDER BY rowid LIMIT 1",
        )
        .bind(middle)
        .fetch_optional(&mut *connection)
        .await?;
        let Some(row) = row else {
            high = middle;
            continue;
        };
        let (position, created_at): (i64, i64) =
            (row.try_get("position")?, row.try_get("created_at")?);
        if created_at < at.0 {
            low = position + 1;
        } else {
            high = middle;
        }
    }
    Ok(low)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;

    async fn explain(store: &SqliteStore, query: QueryBuilder<Database>) -> String {
        let text = format!("EXPLAIN QUERY PLAN {}", query.sql().as_str());
        let mut plain = QueryBuilder::<Database>::new(text);
        let rows = plain.build().fetch_all(&store.readers).await.unwrap();
        let steps = rows.iter().map(|row| row.try_get::<String, _>("detail").unwrap());
        steps.collect::<Vec<_>>().join("\n")
    }

    #[tokio::test]
    async fn what_the_index_lacks_is_found_without_reading_all_of_a_team() {
        let directory = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&directory.path().join("cloche.db")).await.unwrap();
        let team: TeamId = "team_a".parse().unwrap();
        let status = Some(ExecutionStatus::Failed);
        let filter = ExecutionFilter { status, limit: 51, ..ExecutionFilter::default() };
        let range = PositionRange { first: 5, end: 500 };
        let mut tail = start_query(BY_ROWID, " WHERE e.rowid > 5");
        push_predicates(&mut tail, Some(&team), &filter, range);
        let mut pending = select_pending();
        push_predicates(&mut pending, Some(&team), &filter, range);
        let with_words = ExecutionFilter { text: vec!["word".to_owned()], ..filter.clone() };
        let words = select_unindexed_text(5, Some(&team), &with_words, range);
        for mut query in [tail, pending, words] {
            query.push(" ORDER BY e.rowid DESC LIMIT 51");
            let plan = explain(&store, query).await;
            assert!(plan.contains("SEARCH e USING INTEGER PRIMARY KEY"), "{plan}");
            assert!(!plan.contains("executions_by_team"), "{plan}");
        }
        store.close().await;
    }
}
