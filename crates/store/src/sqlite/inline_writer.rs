//! Runs in: server (no capabilities).
//!
//! Writes single statements in the thread that asks for them, while no other write is under way. A
//! commit without an fsync takes less time than handing it to another thread and waking up for the
//! result. Knows no table, and never waits: what cannot be written at once goes to the queue.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use rusqlite::{Connection, OpenFlags, params_from_iter, types::Value};
use sqlx::{Sqlite, SqliteConnection, query::Query, sqlite::SqliteArguments};
use tokio::sync::{Mutex, MutexGuard};

use super::CHECKPOINT_BACKSTOP;
use crate::{Result, StoreError};

/// A second connection that writes. Who holds it is the only one who writes: the queue takes it
/// around each of its commits.
#[derive(Clone)]
pub(super) struct InlineWriter {
    connection: Arc<Mutex<Option<Connection>>>,
    /// How many commits there were.
    commits: Arc<AtomicU64>,
}

impl InlineWriter {
    /// Opens the connection to a database that is set up.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let open = || {
            let connection = Connection::open_with_flags(path, flags)?;
            connection.busy_timeout(std::time::Duration::ZERO)?;
            for (name, value) in [
                ("synchronous", "NORMAL"),
                ("foreign_keys", "ON"),
                ("temp_store", "MEMORY"),
                ("wal_autocheckpoint", CHECKPOINT_BACKSTOP),
            ] {
                connection.pragma_update(None, name, value)?;
            }
            Ok(connection)
        };
        let connection = open().map_err(open_error)?;
        Ok(Self { connection: Arc::new(Mutex::new(Some(connection))), commits: Arc::default() })
    }

    /// Runs a statement now, as a transaction of its own, and returns how many rows it changed.
    /// `None` if it was not run, for whatever reason: the queue waits for its turn, and reports
    /// errors. Nothing is written then.
    pub(super) fn try_statement(&self, statement: &str, values: &[Value]) -> Option<usize> {
        let connection = self.connection.try_lock().ok()?;
        let mut prepared = connection.as_ref()?.prepare_cached(statement).ok()?;
        let changed = prepared.execute(params_from_iter(values)).ok()?;
        self.commits.fetch_add(1, Ordering::Relaxed);
        Some(changed)
    }

    /// Waits for the turn to write through another connection.
    pub(super) async fn take_turn(&self) -> WriteTurn<'_> {
        let turn = WriteTurn(self.connection.lock().await);
        self.commits.fetch_add(1, Ordering::Relaxed);
        turn
    }

    /// How many commits there were so far.
    pub(super) fn commit_count(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    /// Writes the first page of the log again after a checkpoint. SQLite syncs the log when it
    /// begins to reuse it; without this, the next request would wait for that. Blocks.
    pub(super) fn restart_log(&self) {
        let connection = self.connection.blocking_lock();
        if let Some(connection) = connection.as_ref()
            && let Err(error) = connection.pragma_update(None, "user_version", 1)
        {
            tracing::debug!(%error, "the log was not restarted");
        }
    }

    /// Closes the connection. Every later statement goes to the queue.
    pub(super) async fn close(&self) {
        drop(self.connection.lock().await.take());
    }
}

/// The turn to write. Statements wait in the queue while it exists.
pub(super) struct WriteTurn<'a>(
    #[expect(dead_code, reason = "held, not used")] MutexGuard<'a, Option<Connection>>,
);

fn open_error(error: rusqlite::Error) -> StoreError {
    StoreError::Database(sqlx::Error::Configuration(Box::new(error)))
}

/// Runs the same statement through a connection of the queue.
pub(super) async fn execute_values(
    connection: &mut SqliteConnection,
    statement: &'static str,
    values: Vec<Value>,
) -> Result<u64> {
    let query: Query<'_, Sqlite, SqliteArguments> = sqlx::query(statement);
    let query = values.into_iter().fold(query, |query, value| match value {
        Value::Null => query.bind(None::<i64>),
        Value::Integer(number) => query.bind(number),
        Value::Real(number) => query.bind(number),
        Value::Text(text) => query.bind(text),
        Value::Blob(bytes) => query.bind(bytes),
    });
    Ok(query.execute(connection).await?.rows_affected())
}

#[cfg(test)]
mod tests {
    use super::*;

    const INSERT: &str = "INSERT INTO numbers VALUES (?1)";

    fn open_numbers(directory: &tempfile::TempDir) -> InlineWriter {
        let path = directory.path().join("numbers");
        let setup = Connection::open(&path).unwrap();
        setup.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE numbers (n UNIQUE)").unwrap();
        InlineWriter::open(&path).unwrap()
    }

    #[tokio::test]
    async fn a_statement_is_refused_while_another_write_has_its_turn() {
        let directory = tempfile::TempDir::new().unwrap();
        let writer = open_numbers(&directory);
        let turn = writer.take_turn().await;
        assert_eq!(writer.try_statement(INSERT, &[Value::Integer(1)]), None);
        drop(turn);
        assert_eq!(writer.try_statement(INSERT, &[Value::Integer(1)]), Some(1));
        assert_eq!(writer.commit_count(), 2);
    }

    #[tokio::test]
    async fn a_statement_that_fails_or_comes_too_late_writes_nothing() {
        let directory = tempfile::TempDir::new().unwrap();
        let writer = open_numbers(&directory);
        assert_eq!(writer.try_statement(INSERT, &[Value::Integer(1)]), Some(1));
        assert_eq!(writer.try_statement(INSERT, &[Value::Integer(1)]), None);
        writer.close().await;
        assert_eq!(writer.try_statement(INSERT, &[Value::Integer(2)]), None);
        let reader = Connection::open(directory.path().join("numbers")).unwrap();
        let count: i64 =
            reader.query_row("SELECT count(*) FROM numbers", [], |row| row.get(0)).unwrap();
        assert_eq!(count, 1);
    }

    #[tokio::test]
    async fn a_statement_of_another_connection_is_not_waited_for() {
        let directory = tempfile::TempDir::new().unwrap();
        let writer = open_numbers(&directory);
        let other = Connection::open(directory.path().join("numbers")).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        assert_eq!(writer.try_statement(INSERT, &[Value::Integer(1)]), None);
        other.execute_batch("ROLLBACK").unwrap();
        assert_eq!(writer.try_statement(INSERT, &[Value::Integer(1)]), Some(1));
    }
}
