//! The rows that survive a restart: teams, keys, sandboxes, executions, threads, deliveries,
//! approvals, decisions and responses.
//!
//! The traits here are the seam; [`Sqlite`] is the implementation for one machine. The store keeps
//! what it is told and knows no policy: no plan is enforced here, no secret is hashed, no webhook
//! is sent, and nothing reads the clock. Secrets are sealed in the rows, see [`KeySource`].

mod filter;
mod gates;
mod responses;
mod revision;
mod sealing;
mod sqlite;
mod storage;
mod threads;

use std::time::Duration;

use async_trait::async_trait;
use cloche_model::{
    ApiKey, Decision, Execution, ExecutionEnd, ExecutionStart, ExecutionStatus, HomeState, KeyId,
    Moment, Sandbox, SandboxId, Secret, Team, TeamId, TraceId,
};

pub use filter::{ExecutionCursor, ExecutionFilter};
pub use gates::{
    ApprovalAnswer, ApprovalFilter, ApprovalRequestOutcome, CallId, DecisionFilter, GateStore,
    QuestionLimits,
};
pub use responses::{ResponseRow, ResponseStore};
pub use revision::{Revisioned, UpdateOutcome};
pub use sealing::{KeyError, KeySource};
pub use sqlite::SqliteStore;
pub use storage::{HistoryPruneOutcome, HistoryRule, PrunedRows, StorageAccounting, StorageUsage};
pub use threads::{
    DELETED_KEPT, HeadMoveOutcome, LayerAppend, LayerSquash, ThreadCreation, ThreadFork, ThreadKey,
    ThreadStore,
};

/// Why the store did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A name is taken, or the row is still used by another.
    #[error("{0}")]
    Conflict(String),
    /// A row holds something that this build cannot read.
    #[error("column {column} cannot be read: {reason}")]
    Corrupt {
        /// The column.
        column: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The database failed.
    #[error("the database failed")]
    Database(#[source] sqlx::Error),
    /// The tables could not be brought up to date.
    #[error("the database could not be migrated")]
    Migration(#[source] sqlx::migrate::MigrateError),
    /// The disk is full. Nothing of the write is kept.
    #[error("the disk is full")]
    Full,
    /// Secrets cannot be sealed or opened.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The store was closed while it was being asked.
    #[error("the store is closed")]
    Closed,
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        if is_disk_full(&error) { Self::Full } else { Self::Database(error) }
    }
}

/// Whether SQLite had no room to write: SQLITE_FULL, or an I/O error of any kind, which is how it
/// reports that its log or its shared memory could not grow.
fn is_disk_full(error: &sqlx::Error) -> bool {
    const FULL: u32 = 13;
    const IO: u32 = 10;
    let code = error.as_database_error().and_then(|error| error.code());
    let code = code.and_then(|code| code.parse::<u32>().ok()).map(|code| code & 0xff);
    matches!(code, Some(FULL | IO))
}

/// What most calls give back.
pub type Result<T> = std::result::Result<T, StoreError>;

/// A key with all that it opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyAccess {
    /// The key.
    pub key: ApiKey,
    /// Its team.
    pub team: Team,
    /// Its sandbox.
    pub sandbox: Sandbox,
}

/// What became of an attempt to start an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BeginOutcome {
    /// The row is there, and the thread is held.
    Started,
    /// Another execution holds the thread; nothing was written.
    ThreadBusy,
    /// The home is not in the state that was expected; nothing was written.
    ThreadChanged,
    /// The team has used up its storage budget; nothing was written.
    OverBudget,
}

/// The end of an execution that was begun.
#[derive(Clone, Debug)]
pub struct ExecutionFinish {
    /// Which one.
    pub trace_id: TraceId,
    /// Where it stands now.
    pub status: ExecutionStatus,
    /// How it ended.
    pub end: ExecutionEnd,
    /// The thread that it holds: its head moves by what the execution wrote, and it is given back.
    pub thread: Option<ThreadKey>,
    /// Whether the end is a new point of that thread. What a refused write would have added is not.
    pub moves_head: bool,
    /// How long after the end its webhook is first due, if it has one.
    pub webhook_delay: Option<Duration>,
    /// The most that the team may store with the layer of this execution; none is no limit.
    pub budget: Option<u64>,
}

/// What became of the end of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishOutcome {
    /// It is written, and so is the thread's new head.
    Recorded,
    /// The execution was not running; nothing was written.
    NotRunning,
    /// The thread is no longer its own, so its head must not move; nothing was written.
    ThreadLost,
    /// The team may not store what the execution wrote; nothing was written.
    OverBudget,
}

/// A webhook that is to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueDelivery {
    /// The execution it tells of.
    pub trace_id: TraceId,
    /// Whose execution that was.
    pub team: TeamId,
    /// Whose secret signs it.
    pub key: KeyId,
    /// Where it goes.
    pub url: String,
    /// Attempts so far.
    pub attempts: u32,
    /// When it was queued.
    pub queued_at: Moment,
}

/// What became of one attempt to send a webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeliveryAttempt {
    /// The receiver said yes.
    Delivered,
    /// Try again then.
    Again {
        /// When.
        at: Moment,
        /// What went wrong.
        error: String,
    },
    /// That was the last one.
    GaveUp {
        /// What went wrong.
        error: String,
    },
}

/// Teams, sandboxes and keys.
#[async_trait]
pub trait TenancyStore: Send + Sync {
    /// Adds a team; a conflict if the name is taken.
    async fn create_team(&self, team: &Team) -> Result<()>;
    /// Every team, oldest first.
    async fn list_teams(&self) -> Result<Vec<Team>>;
    /// The team with this id or name.
    async fn find_team(&self, id_or_name: &str) -> Result<Option<Team>>;
    /// The same with its revision, for [`TenancyStore::update_team`].
    async fn team_for_update(&self, id_or_name: &str) -> Result<Option<Revisioned<Team>>>;
    /// Replaces all but the id, unless the team has changed since it was read. A change of its gates
    /// comes with the decision about it, which is written with the team or not at all.
    async fn update_team(
        &self,
        team: &Revisioned<Team>,
        gate_decision: Option<Decision>,
    ) -> Result<UpdateOutcome>;
    /// Removes a team with its sandboxes and keys; a conflict while a key is still good.
    async fn delete_team(&self, id: &TeamId) -> Result<bool>;

    /// Adds a sandbox; a conflict if the name is taken in the team.
    async fn create_sandbox(&self, sandbox: &Sandbox) -> Result<()>;
    /// The sandboxes of a team, or of all; oldest first.
    async fn list_sandboxes(&self, team: Option<&TeamId>) -> Result<Vec<Sandbox>>;
    /// One sandbox.
    async fn find_sandbox(&self, id: &SandboxId) -> Result<Option<Sandbox>>;
    /// The same with its revision, for [`TenancyStore::update_sandbox`].
    async fn sandbox_for_update(&self, id: &SandboxId) -> Result<Option<Revisioned<Sandbox>>>;
    /// Replaces all but id and team, unless the sandbox has changed since it was read.
    async fn update_sandbox(&self, sandbox: &Revisioned<Sandbox>) -> Result<UpdateOutcome>;
    /// Removes a sandbox; a conflict while a key that is still good is bound to it.
    async fn delete_sandbox(&self, id: &SandboxId) -> Result<bool>;

    /// Adds a key, which can later be found by the digest of its secret.
    async fn create_key(&self, key: &ApiKey, digest: &str) -> Result<()>;
    /// The keys of a team, or of all, revoked ones too; oldest first.
    async fn list_keys(&self, team: Option<&TeamId>) -> Result<Vec<ApiKey>>;
    /// One key.
    async fn find_key(&self, id: &KeyId) -> Result<Option<ApiKey>>;
    /// The same with its revision, for [`TenancyStore::update_key`].
    async fn key_for_update(&self, id: &KeyId) -> Result<Option<Revisioned<ApiKey>>>;
    /// Replaces name, sandbox, environment, webhook and the right to approve, unless the key has
    /// changed since it was read.
    async fn update_key(&self, key: &Revisioned<ApiKey>) -> Result<UpdateOutcome>;
    /// Revokes a key for good; false if there is none. It counts as a change of the key.
    async fn revoke_key(&self, id: &KeyId, at: Moment) -> Result<bool>;
    /// What the secret with this digest opens; nothing if it was revoked.
    async fn find_key_access(&self, digest: &str) -> Result<Option<KeyAccess>>;
}

/// Executions and the threads they hold.
#[async_trait]
pub trait Ledger: Send + Sync {
    /// Writes the running row and takes the thread, if there is one, until `lease_until`. Not for a
    /// team that stores as much as `budget` already.
    async fn begin_execution(
        &self,
        start: ExecutionStart,
        lease_until: Moment,
        budget: Option<u64>,
    ) -> Result<BeginOutcome>;
    /// The same for an execution that was approved for one state of its thread's home.
    async fn begin_approved_execution(
        &self,
        start: ExecutionStart,
        lease_until: Moment,
        budget: Option<u64>,
        home: HomeState,
    ) -> Result<BeginOutcome>;
    /// Writes down that an execution was refused.
    async fn record_refusal(&self, start: ExecutionStart, error: &str) -> Result<()>;
    /// Writes the end, moves the thread's head, gives the thread back and queues the webhook, all or
    /// nothing. A head that moved is on the disk when this returns.
    async fn finish_execution(&self, finish: ExecutionFinish) -> Result<FinishOutcome>;
    /// The bytes of code, output and files in the record of an execution; none if there is none.
    async fn record_bytes(&self, trace: &TraceId) -> Result<u64>;
    /// One execution of a team.
    async fn find_execution(&self, team: &TeamId, trace: &TraceId) -> Result<Option<Execution>>;
    /// One execution, whoever's it is.
    async fn find_execution_of_any_team(&self, trace: &TraceId) -> Result<Option<Execution>>;
    /// Executions of a team, newest first, without code and output.
    async fn list_executions(
        &self,
        team: &TeamId,
        filter: &ExecutionFilter,
    ) -> Result<Vec<Execution>>;
    /// Ends every running execution as failed with `error`; gives back how many.
    async fn fail_running_executions(
        &self,
        at: Moment,
        error: &str,
        webhook_delay: Duration,
    ) -> Result<u64>;
    /// Deletes what is older than its sandbox's retention; gives back how many.
    async fn prune_executions(&self, now: Moment) -> Result<u64>;
}

/// Due deliveries of a team to one URL that are given at once.
pub const DUE_PER_URL: u32 = 16;

/// Webhooks that are still to be sent.
#[async_trait]
pub trait WebhookOutbox: Send + Sync {
    /// The deliveries that are due: of each team its first, then of each its second, and so on. At
    /// most [`DUE_PER_URL`] of a team to one URL, so that those do not hide what goes elsewhere.
    async fn due_deliveries(&self, now: Moment, limit: u32) -> Result<Vec<DueDelivery>>;
    /// When the first delivery is due that is not due yet.
    async fn next_delivery_due(&self, now: Moment) -> Result<Option<Moment>>;
    /// Writes down what became of an attempt.
    async fn record_attempt(&self, trace: &TraceId, attempt: DeliveryAttempt) -> Result<()>;
}

/// Small values by name.
#[async_trait]
pub trait SettingStore: Send + Sync {
    /// The value of a setting.
    async fn read_setting(&self, name: &str) -> Result<Option<String>>;
    /// Sets it.
    async fn set_setting(&self, name: &str, value: &str) -> Result<()>;
    /// The value of a setting that is sealed in the database.
    async fn read_secret_setting(&self, name: &str) -> Result<Option<Secret>>;
    /// Sets it.
    async fn set_secret_setting(&self, name: &str, value: &Secret) -> Result<()>;
}

/// All of it.
#[async_trait]
pub trait Store:
    TenancyStore
    + Ledger
    + ThreadStore
    + WebhookOutbox
    + SettingStore
    + GateStore
    + ResponseStore
    + StorageAccounting
{
    /// Whether the store answers.
    async fn ping(&self) -> Result<()>;
    /// Writes what is under way and closes.
    async fn close(&self);
}
