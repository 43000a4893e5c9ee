//! A store in one SQLite file: a pool of readers, and one writer that commits in groups.
//!
//! Durability is described in `docs/decisions/0007-the-ledger-and-fsync.md`. WAL with
//! `synchronous=NORMAL`: a killed process loses nothing that was acknowledged. `synchronous=FULL`
//! for everything that moves the head of a thread, so that a power cut does not lose it either.

mod audit;
mod backup;
mod credentials;
mod gates;
mod heads;
mod images;
mod inline_writer;
mod ledger;
mod ledger_end;
mod ledger_list;
mod members;
mod migrations;
mod outbox;
mod responses;
mod row_reader;
mod sealed;
mod search_index;
mod sources;
mod storage;
mod tenancy;
mod threads;
mod tool_calls;
mod updates;
mod usage;
mod writer;

use std::{
    path::Path,
    sync::{Arc, LazyLock},
    time::Duration,
};

use async_trait::async_trait;
use sqlx::{
    ConnectOptions, SqliteConnection, SqlitePool,
    migrate::{MigrateError, Migrator},
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};

use inline_writer::InlineWriter;

use crate::{KeySource, Result, Store, StoreError, sealing::SecretSealer};
pub use backup::check_database;
use writer::GroupCommitWriter;

/// The number of read connections. Each has a thread and a small cache.
const READERS: u32 = 4;
/// The number of pages in the log after which the writer checkpoints by itself.
const CHECKPOINT_BACKSTOP: &str = "20000";
/// The interval at which a reader connection checkpoints the log, outside of any request.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(1);

/// The store in a SQLite file.
pub struct SqliteStore {
    readers: SqlitePool,
    writer: GroupCommitWriter,
    /// Seals and opens the secrets in rows.
    sealer: Arc<SecretSealer>,
}

impl SqliteStore {
    /// Opens the file, creates it if it is missing, and runs the migrations. Secrets are sealed
    /// with the key in `secret.key` beside it.
    ///
    /// # Errors
    /// As for [`Self::open_with_key`].
    pub async fn open(path: &Path) -> Result<Self> {
        Self::open_with_key(path, &KeySource::File(path.with_file_name("secret.key"))).await
    }

    /// Like [`Self::open`], with another key source.
    ///
    /// # Errors
    /// If the file cannot be opened, a migration fails, or the key is not the one that sealed its
    /// secrets.
    pub async fn open_with_key(path: &Path, key: &KeySource) -> Result<Self> {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Normal)
            .busy_timeout(Duration::from_secs(10))
            .pragma("wal_autocheckpoint", CHECKPOINT_BACKSTOP)
            // The server can write only to its data directory.
            .pragma("temp_store", "memory")
            .disable_statement_logging();
        let mut connection = options.connect().await?;
        migrate_forward(&mut connection).await?;
        let sealer = sealed::unlock_sealer(&mut connection, key).await?;
        search_index::check_search_index(&mut connection).await?;
        let readers = SqlitePoolOptions::new()
            .max_connections(READERS)
            .min_connections(1)
            .connect_with(options.clone())
            .await?;
        let inline = InlineWriter::open(path)?;
        tokio::spawn(run_checkpoints(readers.clone(), inline.clone()));
        let writer = GroupCommitWriter::start(connection, inline);
        Ok(Self { readers, writer, sealer: Arc::new(sealer) })
    }
}

/// The migrations that this version knows.
static MIGRATIONS: LazyLock<Migrator> = LazyLock::new(migrations::list_migrations);

/// The number of the newest migration that this version knows.
fn newest_schema() -> i64 {
    MIGRATIONS.iter().map(|migration| migration.version).max().unwrap_or_default()
}

/// Runs the migrations that the database does not have yet. A database of a newer version is
/// refused before anything in it changes.
async fn migrate_forward(connection: &mut SqliteConnection) -> Result<()> {
    match MIGRATIONS.run(&mut *connection).await {
        Ok(()) => Ok(()),
        Err(MigrateError::VersionMissing(version)) if version > newest_schema() => {
            let found = backup::read_schema(connection).await?;
            Err(StoreError::Newer { found, known: newest_schema() })
        }
        Err(error) => Err(StoreError::Migration(error)),
    }
}

/// Keeps the log short without delaying commits.
async fn run_checkpoints(readers: SqlitePool, inline: InlineWriter) {
    let mut seen = 0;
    let mut tick = tokio::time::interval(CHECKPOINT_EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            () = readers.close_event() => return,
        }
        let commits = inline.commit_count();
        if commits == seen {
            continue;
        }
        seen = commits;
        if let Err(error) = sqlx::query("PRAGMA wal_checkpoint(PASSIVE)").execute(&readers).await {
            tracing::debug!(%error, "checkpoint failed");
        }
        let inline = inline.clone();
        // A panic there concerns nothing here.
        let _ = tokio::task::spawn_blocking(move || inline.restart_log()).await;
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn ping(&self) -> Result<()> {
        sqlx::query("SELECT 1").execute(&self.readers).await?;
        Ok(())
    }

    async fn close(&self) {
        self.writer.close().await;
        self.readers.close().await;
    }
}
