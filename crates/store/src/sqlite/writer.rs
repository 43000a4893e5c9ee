//! The only connection that writes. Waiting writes are committed together, so that concurrent
//! executions share a commit. A write is acknowledged only after its commit.

use futures::future::BoxFuture;
use sqlx::{Connection, SqliteConnection};
use tokio::sync::{mpsc, oneshot};

use super::inline_writer::InlineWriter;
use crate::{Result, StoreError};

/// How many writes may be queued. Beyond it the caller waits.
const QUEUE: usize = 1024;
/// The maximum number of writes in one commit.
const BATCH: usize = 256;

/// Sends writes to the writer task.
pub(super) struct GroupCommitWriter {
    queue: mpsc::Sender<WriterMessage>,
    /// Writes single statements without the queue.
    pub(super) inline: InlineWriter,
}

enum WriterMessage {
    Write(Box<dyn WriteOperation>),
    Close(oneshot::Sender<()>),
}

/// One write. It runs inside a transaction and is acknowledged after the commit.
trait WriteOperation: Send {
    /// Whether it is a single statement, which needs no transaction when alone.
    fn is_single(&self) -> bool;
    /// Whether it may be acknowledged only after an fsync.
    fn is_durable(&self) -> bool;
    /// Runs the write. Returns true if it may be committed.
    fn run<'c>(&'c mut self, connection: &'c mut SqliteConnection) -> BoxFuture<'c, bool>;
    /// Whether the disk was full, which rolls back the whole transaction.
    fn found_disk_full(&self) -> bool;
    /// Replies to the caller with the outcome of the commit.
    fn reply(self: Box<Self>, outcome: CommitOutcome);
}

/// The outcome of the commit that a write was part of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CommitOutcome {
    Committed,
    DiskFull,
    Failed,
}

/// The kind of transaction that a write needs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WriteKind {
    /// One statement, which is a transaction by itself.
    Statement,
    /// Several statements, in one transaction.
    Transaction,
    /// Several statements, with an fsync before the reply.
    Durable,
}

struct QueuedWrite<T, F> {
    work: Option<F>,
    kind: WriteKind,
    result: Option<Result<T>>,
    reply: oneshot::Sender<Result<T>>,
}

impl<T, F> WriteOperation for QueuedWrite<T, F>
where
    T: Send,
    F: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T>> + Send,
{
    fn is_single(&self) -> bool {
        self.kind == WriteKind::Statement
    }

    fn is_durable(&self) -> bool {
        self.kind == WriteKind::Durable
    }

    fn run<'c>(&'c mut self, connection: &'c mut SqliteConnection) -> BoxFuture<'c, bool> {
        Box::pin(async move {
            let Some(work) = self.work.take() else { return false };
            let result = work(connection).await;
            let good = result.is_ok();
            self.result = Some(result);
            good
        })
    }

    fn found_disk_full(&self) -> bool {
        matches!(self.result, Some(Err(StoreError::Full)))
    }

    fn reply(self: Box<Self>, outcome: CommitOutcome) {
        let answer = match self.result {
            Some(Ok(value)) if outcome == CommitOutcome::Committed => Ok(value),
            Some(Err(error)) => Err(error),
            _ if outcome == CommitOutcome::DiskFull => Err(StoreError::Full),
            _ => Err(StoreError::Database(sqlx::Error::WorkerCrashed)),
        };
        // The caller may have been cancelled. The write is committed regardless.
        let _ = self.reply.send(answer);
    }
}

impl GroupCommitWriter {
    pub(super) fn start(connection: SqliteConnection, inline: InlineWriter) -> Self {
        let (queue, inbox) = mpsc::channel(QUEUE);
        tokio::spawn(run_write_loop(connection, inbox, inline.clone()));
        Self { queue, inline }
    }

    /// Runs `work` in a transaction of its own, or in one shared with other waiting writes.
    pub(super) async fn run_transaction<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T>> + Send + 'static,
    {
        self.submit(work, WriteKind::Transaction).await
    }

    /// Like [`Self::run_transaction`], for a single statement, which is a transaction by itself.
    pub(super) async fn run_statement<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T>> + Send + 'static,
    {
        self.submit(work, WriteKind::Statement).await
    }

    /// Like [`Self::run_transaction`], with an fsync before it returns.
    pub(super) async fn run_durable<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T>> + Send + 'static,
    {
        self.submit(work, WriteKind::Durable).await
    }

    async fn submit<T, F>(&self, work: F, kind: WriteKind) -> Result<T>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T>> + Send + 'static,
    {
        let (reply, response) = oneshot::channel();
        let task = QueuedWrite { work: Some(work), kind, result: None, reply };
        let message = WriterMessage::Write(Box::new(task));
        self.queue.send(message).await.map_err(|_| StoreError::Closed)?;
        response.await.map_err(|_| StoreError::Closed)?
    }

    pub(super) async fn close(&self) {
        self.inline.close().await;
        let (done, closed) = oneshot::channel();
        if self.queue.send(WriterMessage::Close(done)).await.is_ok() {
            let _ = closed.await;
        }
    }
}

async fn run_write_loop(
    mut connection: SqliteConnection,
    mut inbox: mpsc::Receiver<WriterMessage>,
    inline: InlineWriter,
) {
    let mut waiting = Vec::new();
    loop {
        if inbox.recv_many(&mut waiting, BATCH).await == 0 {
            return;
        }
        let mut writes = Vec::with_capacity(waiting.len());
        let mut closing = None;
        for message in waiting.drain(..) {
            match message {
                WriterMessage::Write(write) => writes.push(write),
                WriterMessage::Close(done) => closing = Some(done),
            }
        }
        if !writes.is_empty() {
            let turn = inline.take_turn().await;
            commit_group(&mut connection, writes).await;
            drop(turn);
        }
        if let Some(done) = closing {
            if let Err(error) = connection.close().await {
                tracing::warn!(%error, "could not close the database cleanly");
            }
            let _ = done.send(());
            return;
        }
    }
}

async fn commit_group(connection: &mut SqliteConnection, mut writes: Vec<Box<dyn WriteOperation>>) {
    if let [write] = writes.as_mut_slice()
        && write.is_single()
    {
        write.run(connection).await;
        writes.into_iter().for_each(|write| write.reply(CommitOutcome::Committed));
        return;
    }
    let durable = writes.iter().any(|write| write.is_durable());
    let outcome = match commit_with_sync(connection, &mut writes, durable).await {
        Ok(()) => CommitOutcome::Committed,
        Err(error) => {
            tracing::error!(%error, writes = writes.len(), "could not commit a group of writes");
            // Without this the next BEGIN would fail inside the broken transaction.
            let _ = execute_statement(connection, "ROLLBACK").await;
            match error {
                StoreError::Full => CommitOutcome::DiskFull,
                _ => CommitOutcome::Failed,
            }
        }
    };
    writes.into_iter().for_each(|write| write.reply(outcome));
}

/// Commits the writes, with an fsync if one of them needs it. The setting cannot change inside a
/// transaction, so it is set around it. All writes of the group are durable then.
async fn commit_with_sync(
    connection: &mut SqliteConnection,
    writes: &mut [Box<dyn WriteOperation>],
    durable: bool,
) -> Result<()> {
    if !durable {
        return run_in_one_transaction(connection, writes).await;
    }
    execute_statement(connection, "PRAGMA synchronous = FULL").await?;
    let committed = run_in_one_transaction(connection, writes).await;
    if committed.is_err() {
        // The setting cannot be reset inside a broken transaction.
        let _ = execute_statement(connection, "ROLLBACK").await;
    }
    execute_statement(connection, "PRAGMA synchronous = NORMAL").await?;
    committed
}

/// Runs all writes in one transaction. A write that fails is rolled back alone.
async fn run_in_one_transaction(
    connection: &mut SqliteConnection,
    writes: &mut [Box<dyn WriteOperation>],
) -> Result<()> {
    execute_statement(connection, "BEGIN IMMEDIATE").await?;
    if let [write] = writes {
        let end = if write.run(connection).await { "COMMIT" } else { "ROLLBACK" };
        return execute_statement(connection, end).await;
    }
    for write in writes.iter_mut() {
        // A failed statement rolls back by itself. Only several statements need a savepoint.
        if write.is_single() {
            if !write.run(connection).await && write.found_disk_full() {
                return Err(StoreError::Full);
            }
            continue;
        }
        execute_statement(connection, "SAVEPOINT one_write").await?;
        if !write.run(connection).await {
            if write.found_disk_full() {
                return Err(StoreError::Full);
            }
            execute_statement(connection, "ROLLBACK TO one_write").await?;
        }
        execute_statement(connection, "RELEASE one_write").await?;
    }
    execute_statement(connection, "COMMIT").await
}

async fn execute_statement(
    connection: &mut SqliteConnection,
    statement: &'static str,
) -> Result<()> {
    sqlx::query(statement).execute(connection).await?;
    Ok(())
}
