//! The rows that survive a restart: teams, keys, sandboxes, executions, threads, deliveries,
//! approvals, decisions, responses, images, connections and volumes.
//!
//! The traits are the interface; [`SqliteStore`] is the implementation for one machine. The store
//! knows no policy: it does not enforce plans, hash secrets, send webhooks or read the clock.
//! Secrets in rows are sealed, see [`KeySource`].

mod backup;
mod credentials;
mod filter;
mod gates;
mod images;
mod members;
mod responses;
mod revision;
mod sealing;
mod sources;
mod sqlite;
mod storage;
mod threads;
mod tool_calls;
mod usage;

use std::time::Duration;

use async_trait::async_trait;
use cloche_model::{
    ApiKey, BoundStorage, Decision, Execution, ExecutionEnd, ExecutionStart, ExecutionStatus,
    HeldCredential, HomeState, KeyId, Moment, Sandbox, SandboxId, Secret, Team, TeamId, TraceId,
};

pub use backup::{BackupStore, DatabaseContents};
pub use credentials::CredentialStore;
pub use filter::{ExecutionCursor, ExecutionFilter};
pub use gates::{
    ApprovalAnswer, ApprovalFilter, ApprovalRequestOutcome, CallId, DecisionFilter, GateStore,
    QuestionLimits,
};
pub use images::{ImageRemoval, ImageStore};
pub use members::{AuditFilter, AuditLog, MemberStore};
pub use responses::{ResponseRow, ResponseStore, ResponseSummary};
pub use revision::{Revisioned, UpdateOutcome};
pub use sealing::{KeyError, KeySource};
pub use sources::{SourceRemoval, SourceStore, StorageTraffic};
pub use sqlite::{SqliteStore, check_database};
pub use storage::{HistoryPruneOutcome, HistoryRule, PrunedRows, StorageAccounting, StorageUsage};
pub use threads::{
    DELETED_KEPT, HeadMoveOutcome, LayerAppend, LayerSquash, ThreadCreation, ThreadFork, ThreadKey,
    ThreadStore,
};
pub use tool_calls::ToolCallStore;
pub use usage::{Transfer, UsageAccounting, UsageFilter, UsageTotals};

/// Why the store refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A name is taken, or another row still uses this one.
    #[error("{0}")]
    Conflict(String),
    /// A column contains a value that this build cannot read.
    #[error("column {column} cannot be read: {reason}")]
    Corrupt {
        /// The column.
        column: &'static str,
        /// Why it cannot be read.
        reason: String,
    },
    /// The database failed.
    #[error("the database failed")]
    Database(#[source] sqlx::Error),
    /// The migrations failed.
    #[error("the database could not be migrated")]
    Migration(#[source] sqlx::migrate::MigrateError),
    /// A newer version wrote the database. Nothing was changed.
    #[error(
        "the database was written by a newer version of cloche: its schema is {found}, and this \
         version knows schemas up to {known}; start the newer version, or restore a backup from \
         before the upgrade"
    )]
    Newer {
        /// The schema of the database.
        found: i64,
        /// The newest schema that this version knows.
        known: i64,
    },
    /// The disk is full. Nothing of the write is kept.
    #[error("the disk is full")]
    Full,
    /// Secrets cannot be sealed or opened.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The store was closed during the call.
    #[error("the store is closed")]
    Closed,
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        if is_disk_full(&error) { Self::Full } else { Self::Database(error) }
    }
}

/// Whether SQLite was out of disk space: SQLITE_FULL, or an I/O error of any kind, which SQLite
/// reports when its log or its shared memory cannot grow.
fn is_disk_full(error: &sqlx::Error) -> bool {
    const FULL: u32 = 13;
    const IO: u32 = 10;
    let code = error.as_database_error().and_then(|error| error.code());
    let code = code.and_then(|code| code.parse::<u32>().ok()).map(|code| code & 0xff);
    matches!(code, Some(FULL | IO))
}

/// The result of most calls.
pub type Result<T> = std::result::Result<T, StoreError>;

/// A key with its team, its sandbox and their credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyAccess {
    /// The key.
    pub key: ApiKey,
    /// Its team.
    pub team: Team,
    /// Its sandbox.
    pub sandbox: Sandbox,
    /// The connections and volumes that its executions can use, by name.
    pub storage: Vec<BoundStorage>,
    /// The credentials of its executions: those of the sandbox and those of the key, by name.
    pub credentials: Vec<HeldCredential>,
    /// Whether a person uses the key from the console, without its secret.
    pub by_person: bool,
}

/// The outcome of an attempt to start an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BeginOutcome {
    /// The row is written, and the execution holds the thread.
    Started,
    /// Another execution holds the thread; nothing was written.
    ThreadBusy,
    /// The home is not in the state that was expected; nothing was written.
    ThreadChanged,
    /// The team has used up its storage budget; nothing was written.
    OverBudget,
}

/// The end of a running execution.
#[derive(Clone, Debug)]
pub struct ExecutionFinish {
    /// The execution.
    pub trace_id: TraceId,
    /// Its new status.
    pub status: ExecutionStatus,
    /// How it ended.
    pub end: ExecutionEnd,
    /// The thread that it holds. Its head moves if the execution wrote files, and its lease is
    /// released.
    pub thread: Option<ThreadKey>,
    /// Whether the end is a new snapshot of that thread. False if the write was refused.
    pub moves_head: bool,
    /// The delay between the end and the first delivery of its webhook, if it has one.
    pub webhook_delay: Option<Duration>,
    /// The maximum that the team may store including the layer of this execution. `None` is no
    /// limit.
    pub budget: Option<u64>,
}

/// The outcome of ending an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishOutcome {
    /// The end and the thread's new head are written.
    Recorded,
    /// The execution was not running; nothing was written.
    NotRunning,
    /// Another execution holds the thread, so its head must not move; nothing was written.
    ThreadLost,
    /// The layer of the execution exceeds the team's budget; nothing was written.
    OverBudget,
}

/// A webhook that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueDelivery {
    /// The execution that it reports.
    pub trace_id: TraceId,
    /// The team of the execution.
    pub team: TeamId,
    /// The key whose secret signs it.
    pub key: KeyId,
    /// The destination.
    pub url: String,
    /// Attempts so far.
    pub attempts: u32,
    /// The time it was queued.
    pub queued_at: Moment,
}

/// The outcome of one attempt to deliver a webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeliveryAttempt {
    /// The receiver answered with success.
    Delivered,
    /// Another attempt follows.
    Again {
        /// The time of the next attempt.
        at: Moment,
        /// What went wrong.
        error: String,
    },
    /// No attempt follows.
    GaveUp {
        /// What went wrong.
        error: String,
    },
}

/// Teams, sandboxes and keys.
#[async_trait]
pub trait TenancyStore: Send + Sync {
    /// Adds a team. A conflict if the name is taken.
    async fn create_team(&self, team: &Team) -> Result<()>;
    /// Every team, oldest first.
    async fn list_teams(&self) -> Result<Vec<Team>>;
    /// The team with this id or name.
    async fn find_team(&self, id_or_name: &str) -> Result<Option<Team>>;
    /// The same with its revision, for [`TenancyStore::update_team`].
    async fn team_for_update(&self, id_or_name: &str) -> Result<Option<Revisioned<Team>>>;
    /// Replaces all but the id, unless the team has changed since it was read. A change of its
    /// gates comes with the decision about it, which is written with the team or not at all.
    async fn update_team(
        &self,
        team: &Revisioned<Team>,
        gate_decision: Option<Decision>,
    ) -> Result<UpdateOutcome>;
    /// Removes a team with its sandboxes and keys; a conflict while a key is still good.
    async fn delete_team(&self, id: &TeamId) -> Result<bool>;

    /// Adds a sandbox. A conflict if the team has one of this name.
    async fn create_sandbox(&self, sandbox: &Sandbox) -> Result<()>;
    /// The sandboxes of a team, or of all teams, oldest first.
    async fn list_sandboxes(&self, team: Option<&TeamId>) -> Result<Vec<Sandbox>>;
    /// One sandbox.
    async fn find_sandbox(&self, id: &SandboxId) -> Result<Option<Sandbox>>;
    /// The same with its revision, for [`TenancyStore::update_sandbox`].
    async fn sandbox_for_update(&self, id: &SandboxId) -> Result<Option<Revisioned<Sandbox>>>;
    /// Replaces all but id and team, unless the sandbox has changed since it was read.
    async fn update_sandbox(&self, sandbox: &Revisioned<Sandbox>) -> Result<UpdateOutcome>;
    /// Removes a sandbox; a conflict while a key that is still good is bound to it.
    async fn delete_sandbox(&self, id: &SandboxId) -> Result<bool>;

    /// Adds a key. It is found by the digest of its secret.
    async fn create_key(&self, key: &ApiKey, digest: &str) -> Result<()>;
    /// The keys of a team, or of all teams, oldest first. Revoked keys are included.
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
    /// The key with this digest, its team and its sandbox. `None` if it was revoked.
    async fn find_key_access(&self, digest: &str) -> Result<Option<KeyAccess>>;
    /// The team, sandbox, storage and credentials of a key that was read before.
    async fn access_of_key(&self, key: ApiKey) -> Result<Option<KeyAccess>>;
}

/// Executions and the threads that they hold.
#[async_trait]
pub trait Ledger: Send + Sync {
    /// Writes the running row and leases the thread, if there is one, until `lease_until`. Refused
    /// if the team already stores `budget` bytes or more.
    async fn begin_execution(
        &self,
        start: ExecutionStart,
        lease_until: Moment,
        budget: Option<u64>,
    ) -> Result<BeginOutcome>;
    /// Like [`Self::begin_execution`], for an execution that was approved for one state of its
    /// thread's home.
    async fn begin_approved_execution(
        &self,
        start: ExecutionStart,
        lease_until: Moment,
        budget: Option<u64>,
        home: HomeState,
    ) -> Result<BeginOutcome>;
    /// Records a refused execution.
    async fn record_refusal(&self, start: ExecutionStart, error: &str) -> Result<()>;
    /// In one transaction: writes the end, moves the thread's head, releases the thread and queues
    /// the webhook. If the head moved, it is durable when this returns.
    async fn finish_execution(&self, finish: ExecutionFinish) -> Result<FinishOutcome>;
    /// The bytes of code, output and files in the record of an execution. 0 if it does not exist.
    async fn record_bytes(&self, trace: &TraceId) -> Result<u64>;
    /// One execution of a team.
    async fn find_execution(&self, team: &TeamId, trace: &TraceId) -> Result<Option<Execution>>;
    /// One execution of any team.
    async fn find_execution_of_any_team(&self, trace: &TraceId) -> Result<Option<Execution>>;
    /// Executions of a team, or of all, newest first, without code and output.
    async fn list_executions(
        &self,
        team: Option<&TeamId>,
        filter: &ExecutionFilter,
    ) -> Result<Vec<Execution>>;
    /// Adds some executions that are over to the index that lists with filters use. Returns whether
    /// there may be more. A list is right without it, and slow.
    async fn index_executions(&self) -> Result<bool>;
    /// Ends every running execution as failed with `error`. Returns their number.
    async fn fail_running_executions(
        &self,
        at: Moment,
        error: &str,
        webhook_delay: Duration,
    ) -> Result<u64>;
    /// Deletes executions older than the retention of their sandbox. Returns their number.
    async fn prune_executions(&self, now: Moment) -> Result<u64>;
}

/// The maximum number of due deliveries of a team to one URL that are returned at once.
pub const DUE_PER_URL: u32 = 16;

/// Webhooks that are queued for delivery.
#[async_trait]
pub trait WebhookOutbox: Send + Sync {
    /// The due deliveries, in turn: the first of each team, then the second of each, and so on. At
    /// most [`DUE_PER_URL`] of a team to one URL, so that one URL does not delay the others.
    async fn due_deliveries(&self, now: Moment, limit: u32) -> Result<Vec<DueDelivery>>;
    /// The time of the next delivery that is not due yet.
    async fn next_delivery_due(&self, now: Moment) -> Result<Option<Moment>>;
    /// Records the outcome of an attempt.
    async fn record_attempt(&self, trace: &TraceId, attempt: DeliveryAttempt) -> Result<()>;
}

/// Small values by name.
#[async_trait]
pub trait SettingStore: Send + Sync {
    /// The value of a setting.
    async fn read_setting(&self, name: &str) -> Result<Option<String>>;
    /// Writes a setting.
    async fn set_setting(&self, name: &str, value: &str) -> Result<()>;
    /// The value of a setting that is sealed in the database.
    async fn read_secret_setting(&self, name: &str) -> Result<Option<Secret>>;
    /// Seals and writes a setting.
    async fn set_secret_setting(&self, name: &str, value: &Secret) -> Result<()>;
}

/// All parts of the store.
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
    + UsageAccounting
    + ImageStore
    + SourceStore
    + ToolCallStore
    + CredentialStore
    + BackupStore
    + MemberStore
    + AuditLog
{
    /// Checks that the database answers.
    async fn ping(&self) -> Result<()>;
    /// Finishes pending writes and closes the database.
    async fn close(&self);
}
