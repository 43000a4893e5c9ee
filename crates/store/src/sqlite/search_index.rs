//! Runs in: server (no capabilities).
//!
//! Feeds the search index of executions in the background. The ledger's own statements do not know
//! about it, so an execution costs nothing more.

use futures::TryStreamExt;
use sqlx::{Row, SqliteConnection, sqlite::SqliteRow};

use super::{SqliteStore, row_reader::read_json};
use crate::Result;

/// How many executions are indexed in one transaction, which other writes wait for.
const BATCH: i64 = 256;
/// How many bytes of text end such a batch.
const BATCH_TEXT: usize = 1 << 20;
/// How much of code, of standard output and of standard error is indexed.
const MOST_TEXT: i64 = 16 << 10;

macro_rules! indexed_columns {
    ($rest:literal) => {
        concat!(
            "SELECT e.rowid AS position, e.trace_id, e.team_id, e.key_id, e.sandbox_id, \
             e.language, e.thread_id, e.metadata, e.status, substr(e.code, 1, ?1) AS code, \
             substr(e.stdout, 1, ?1) AS stdout, substr(e.stderr, 1, ?1) AS stderr FROM ",
            $rest
        )
    };
}

/// The token of a value that can be filtered by. Filters compare the row itself, too, so that two
/// values of the same token do no harm.
pub(super) fn tag_token(field: &str, value: &str) -> String {
    let text = format!("{field}\n{value}");
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    format!("x{}", hex::encode(&digest.as_ref()[..8]))
}

/// The name of the field of a metadata key.
pub(super) fn metadata_field(key: &str) -> String {
    format!("metadata.{key}")
}

/// One row of the index.
struct IndexEntry {
    position: i64,
    trace_id: String,
    /// The tags and the text; `None` if the execution is still running.
    terms: Option<(String, String)>,
}

fn entry_from_row(row: &SqliteRow) -> Result<IndexEntry> {
    let (position, trace_id) = (row.try_get("position")?, row.try_get("trace_id")?);
    let status: String = row.try_get("status")?;
    if status == "running" {
        return Ok(IndexEntry { position, trace_id, terms: None });
    }
    let mut tags = vec![tag_token("status", &status)];
    for (field, column) in [
        ("team", "team_id"),
        ("key", "key_id"),
        ("sandbox", "sandbox_id"),
        ("language", "language"),
        ("thread", "thread_id"),
    ] {
        let value: Option<String> = row.try_get(column)?;
        tags.extend(value.map(|value| tag_token(field, &value)));
    }
    let metadata: std::collections::BTreeMap<String, String> = read_json(row, "metadata")?;
    tags.extend(metadata.iter().map(|(key, value)| tag_token(&metadata_field(key), value)));
    let mut body = String::new();
    for column in ["code", "stdout", "stderr"] {
        let bytes: Option<Vec<u8>> = row.try_get(column)?;
        body.push_str(&String::from_utf8_lossy(&bytes.unwrap_or_default()));
        body.push('\n');
    }
    Ok(IndexEntry { position, trace_id, terms: Some((tags.join(" "), body)) })
}

impl SqliteStore {
    /// Indexes some executions. Returns whether there may be more.
    pub(super) async fn index_some_executions(&self) -> Result<bool> {
        // A cross join is made in this order. The other one reads the whole ledger.
        let ended = indexed_columns!(
            "search_pending p CROSS JOIN executions e ON e.rowid = p.execution \
             WHERE e.status != 'running' ORDER BY p.execution LIMIT ?2"
        );
        let new = indexed_columns!(
            "executions e NOT INDEXED WHERE e.rowid > (SELECT indexed_to FROM search_progress) \
             ORDER BY e.rowid LIMIT ?2"
        );
        let (ended, more_ended) = self.read_batch(ended).await?;
        let (new, more_new) = self.read_batch(new).await?;
        if ended.is_empty() && new.is_empty() {
            return Ok(false);
        }
        self.writer
            .run_transaction(move |connection| Box::pin(write_entries(connection, ended, new)))
            .await?;
        Ok(more_ended || more_new)
    }

    /// The next entries, and whether there may be more.
    async fn read_batch(&self, statement: &'static str) -> Result<(Vec<IndexEntry>, bool)> {
        let (mut entries, mut text) = (Vec::new(), 0);
        let mut rows = sqlx::query(statement).bind(MOST_TEXT).bind(BATCH).fetch(&self.readers);
        while let Some(row) = rows.try_next().await? {
            let entry = entry_from_row(&row)?;
            text += entry.terms.as_ref().map_or(0, |(_, body)| body.len());
            entries.push(entry);
            if text >= BATCH_TEXT {
                return Ok((entries, true));
            }
        }
        let is_full = i64::try_from(entries.len()).is_ok_and(|count| count == BATCH);
        Ok((entries, is_full))
    }
}

async fn write_entries(
    connection: &mut SqliteConnection,
    ended: Vec<IndexEntry>,
    new: Vec<IndexEntry>,
) -> Result<()> {
    for entry in &ended {
        sqlx::query("DELETE FROM search_pending WHERE execution = ?")
            .bind(entry.position)
            .execute(&mut *connection)
            .await?;
    }
    let last = new.last().map(|entry| (entry.position, entry.trace_id.clone()));
    for entry in ended.into_iter().chain(new) {
        let Some((tags, body)) = entry.terms else {
            sqlx::query("INSERT OR IGNORE INTO search_pending VALUES (?)")
                .bind(entry.position)
                .execute(&mut *connection)
                .await?;
            continue;
        };
        sqlx::query("INSERT OR REPLACE INTO execution_search (rowid, tags, body) VALUES (?, ?, ?)")
            .bind(entry.position)
            .bind(tags)
            .bind(body)
            .execute(&mut *connection)
            .await?;
    }
    if let Some((position, trace_id)) = last {
        // Not beyond the last execution: the next one may get a rowid that was deleted meanwhile.
        sqlx::query(
            "UPDATE search_progress SET trace_id = ?2, \
             indexed_to = min(?1, coalesce((SELECT max(rowid) FROM executions), 0))",
        )
        .bind(position)
        .bind(trace_id)
        .execute(connection)
        .await?;
    }
    Ok(())
}

/// Begins the index anew if rowids have changed, which `VACUUM` may do.
pub(super) async fn check_search_index(connection: &mut SqliteConnection) -> Result<()> {
    let is_same: bool = sqlx::query_scalar(
        "SELECT p.trace_id IS NULL OR p.trace_id = (SELECT trace_id FROM executions \
         WHERE rowid = p.indexed_to) FROM search_progress p",
    )
    .fetch_one(&mut *connection)
    .await
    .map(|same: Option<bool>| same.unwrap_or(false))?;
    if is_same {
        return Ok(());
    }
    tracing::warn!("the search index does not belong to the ledger; it is built again");
    for statement in [
        "INSERT INTO execution_search (execution_search) VALUES ('delete-all')",
        "DELETE FROM search_pending",
        "UPDATE search_progress SET indexed_to = 0, trace_id = NULL",
    ] {
        sqlx::query(statement).execute(&mut *connection).await?;
    }
    Ok(())
}
