//! May it run, who holds the thread, what happened.
//!
//! The engine admits requests, keeps the ledger, follows live executions and sends webhooks. It
//! knows no HTTP of its callers, no kernel and no SQL: it is asked in words of the model, it runs
//! through a [`Dispatcher`], and it remembers through a store.

mod access;
mod admin;
mod admit;
mod bootstrap;
mod capacity;
mod clock;
mod config;
mod dispatch;
mod drive;
mod engine;
mod executions;
mod files;
mod gates;
mod json_pieces;
mod lines;
mod live;
mod local;
mod memory;
mod metrics;
mod nowhere;
mod record;
mod refusal;
mod remote;
mod replay;
mod responses;
mod secrets;
pub mod sidecar;
mod storage;
mod threads;
mod webhook;

pub use access::Caller;
pub use admin::{
    Approver, EnvDraft, GateChange, KeyChange, KeyDraft, NewKey, ResourcesChange, RetentionChange,
    SandboxChange, SandboxDraft, TeamChange, TeamDraft,
};
pub use admit::{Admitted, JobRefusal, JobRequest, admit_job};
pub use bootstrap::Bootstrap;
pub use capacity::{AdmissionConfig, ClassLimits, HostShare, PlanWeights};
pub use cloche_store::{
    ApprovalFilter, Cursor, DecisionFilter, ExecutionFilter, KeySource, ResponseRow, StorageUsage,
};
pub use clock::{now, parse_rfc3339, rfc3339};
pub use config::{EngineConfig, GateConfig, HomesConfig, WebhookConfig};
pub use dispatch::{DispatchError, Dispatcher, PoolLevel, Snapshot};
pub use engine::{Engine, OpenError};
pub use executions::{Leash, Output, Page, Started};
pub use files::{
    FileFilter, FileInfo, FilePage, FileReader, Grant, HomeFile, NewFile, Purpose, Signed, Signer,
};
pub use gates::{Closed, Gate, Pass, Shut, ToolCall, Waited, describe_approval, form_text};
pub use json_pieces::{JsonPieces, serialize_text, serialize_text_or_null};
pub use live::{Event, EventKind, Reader};
pub use local::Local;
pub use memory::{MEMORY_WAIT, MemoryBudgets, MemoryConfig, MemoryPool, refuse_memory};
pub use metrics::{AgentMetrics, Metrics};
pub use nowhere::Nowhere;
pub use refusal::Refusal;
pub use remote::{Remote, RemoteConfig, RemoteError};
pub use storage::{
    HistoryPolicy, HostRoom, PlanStorage, PrunedHistory, StorageConfig, StorageReserve, TeamStorage,
};
pub use threads::{Difference, History, TarStream, ThreadPage};
pub use webhook::CourierError;
