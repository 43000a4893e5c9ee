//! The one connection that writes. Whatever waits is committed together, so that many executions
//! at once share a commit; an answer is given only after its commit.

use futures::future::BoxFuture;
use sqlx::{Connection, SqliteConnection};
use tokio::sync::{mpsc, oneshot};

use crate::{Result, StoreError};

/// Writes that may wait; more than that and the caller waits to hand its own over.
const QUEUE: usize = 1024;
/// The most writes in one commit.
const BATCH: usize = 256;

/// Hands work to the writing task.
pub(super) struct GroupCommitWriter {
    queue: mpsc::Sender<WriterMessage>,
}

enum WriterMessage {
    Write(Box<dyn WriteOperation>),
    Close(oneshot::Sender<()>),
}

/// One write: it runs inside a transaction and is answered after the commit.
trait WriteOperation: Send {
    /// Whether it is one statement, and so needs no transaction when alone.
    fn is_single(&self) -> bool;
    /// Whether its answer may only be given once the disk has it.
    fn is_durable(&self) -> bool;
    /// Does the work; true if it may be committed.
    fn run<'c>(&'c mut self, connection: &'c mut SqliteConnection) -> BoxFuture<'c, bool>;
    /// Whether the disk was full, which takes back the whole transaction.
    fn found_disk_full(&self) -> bool;
    /// Answers, with the fate of the commit.
    fn reply(self: Box<Self>, fate: CommitOutcome);
}

/// What became of the commit that a write was part of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CommitOutcome {
    Committed,
    DiskFull,
    Failed,
}

/// What a write needs of its transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WriteKind {
    /// One statement, which is a transaction by itself.
    Statement,
    /// Several, all or nothing.
    Transaction,
    /// The same, on the disk before the answer.
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

    fn reply(self: Box<Self>, fate: CommitOutcome) {
        let answer = match self.result {
            Some(Ok(value)) if fate == CommitOutcome::Committed => Ok(value),
            Some(Err(error)) => Err(error),
            _ if fate == CommitOutcome::DiskFull => Err(StoreError::Full),
            _ => Err(StoreError::Database(sqlx::Error::WorkerCrashed)),
        };
        // Whoever asked may have gone; the write stands all the same.
        let _ = self.reply.send(answer);
    }
}

impl GroupCommitWriter {
    pub(super) fn start(connection: SqliteConnection) -> Self {
        let (queue, inbox) = mpsc::channel(QUEUE);
        tokio::spawn(run_write_loop(connection, inbox));
        Self { queue }
    }

    /// Runs `work` in a transaction of its own, or one shared with others that wait.
    pub(super) async fn run_transaction<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T>> + Send + 'static,
    {
        self.submit(work, WriteKind::Transaction).await
    }

    /// The same for work that is one statement, which is a transaction by itself.
    pub(super) async fn run_statement<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T>> + Send + 'static,
    {
        self.submit(work, WriteKind::Statement).await
    }

    /// The same as a transaction, answered once the disk has it.
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
        let (reply, answer) = oneshot::channel();
        let task = QueuedWrite { work: Some(work), kind, result: None, reply };
        let message = WriterMessage::Write(Box::new(task));
        self.queue.send(message).await.map_err(|_| StoreError::Closed)?;
        answer.await.map_err(|_| StoreError::Closed)?
    }

    pub(super) async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.queue.send(WriterMessage::Close(done)).await.is_ok() {
            let _ = closed.await;
        }
    }
}

async fn run_write_loop(
    mut connection: SqliteConnection,
    mut inbox: mpsc::Receiver<WriterMessage>,
) {
    let mut waiting = Vec::new();
    loop {
        if inbox.recv_many(&mut waiting, BATCH).await == 0 {
            return;
        }
        let mut jobs = Vec::with_capacity(waiting.len());
        let mut closing = None;
        for message in waiting.drain(..) {
            match message {
                WriterMessage::Write(job) => jobs.push(job),
                WriterMessage::Close(done) => closing = Some(done),
            }
        }
        commit_group(&mut connection, jobs).await;
        if let Some(done) = closing {
            if let Err(error) = connection.close().await {
                tracing::warn!(%error, "the database did not close cleanly");
            }
            let _ = done.send(());
            return;
        }
    }
}

async fn commit_group(connection: &mut SqliteConnection, mut jobs: Vec<Box<dyn WriteOperation>>) {
    if jobs.is_empty() {
        return;
    }
    if let [job] = jobs.as_mut_slice()
        && job.is_single()
    {
        job.run(connection).await;
        jobs.into_iter().for_each(|job| job.reply(CommitOutcome::Committed));
        return;
    }
    let durable = jobs.iter().any(|job| job.is_durable());
    let fate = match commit_with_sync(connection, &mut jobs, durable).await {
        Ok(()) => CommitOutcome::Committed,
        Err(error) => {
            tracing::error!(%error, jobs = jobs.len(), "a group of writes was not committed");
            // Without this the next BEGIN would fail inside the broken transaction.
            let _ = execute_statement(connection, "ROLLBACK").await;
            match error {
                StoreError::Full => CommitOutcome::DiskFull,
                _ => CommitOutcome::Failed,
            }
        }
    };
    jobs.into_iter().for_each(|job| job.reply(fate));
}

/// Commits them, with an fsync if one of them needs it. The setting cannot change inside of a
/// transaction, so it is made around it; whoever shares the group is on the disk, too.
async fn commit_with_sync(
    connection: &mut SqliteConnection,
    jobs: &mut [Box<dyn WriteOperation>],
    durable: bool,
) -> Result<()> {
    if !durable {
        return run_in_one_transaction(connection, jobs).await;
    }
    execute_statement(connection, "PRAGMA synchronous = FULL").await?;
    let committed = run_in_one_transaction(connection, jobs).await;
    if committed.is_err() {
        // The setting cannot go back inside of a transaction that broke.
        let _ = execute_statement(connection, "ROLLBACK").await;
    }
    execute_statement(connection, "PRAGMA synchronous = NORMAL").await?;
    committed
}

/// One transaction for all; a job that fails takes back only its own part.
async fn run_in_one_transaction(
    connection: &mut SqliteConnection,
    jobs: &mut [Box<dyn WriteOperation>],
) -> Result<()> {
    execute_statement(connection, "BEGIN IMMEDIATE").await?;
    if let [job] = jobs {
        let end = if job.run(connection).await { "COMMIT" } else { "ROLLBACK" };
        return execute_statement(connection, end).await;
    }
    for job in jobs.iter_mut() {
        // A statement that fails takes back itself; only several of them need a mark to go back to.
        if job.is_single() {
            if !job.run(connection).await && job.found_disk_full() {
                return Err(StoreError::Full);
            }
            continue;
        }
        execute_statement(connection, "SAVEPOINT job").await?;
        if !job.run(connection).await {
            if job.found_disk_full() {
                return Err(StoreError::Full);
            }
            execute_statement(connection, "ROLLBACK TO job").await?;
        }
        execute_statement(connection, "RELEASE job").await?;
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
