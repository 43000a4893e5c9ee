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
mod engine;
mod execution_task;
mod executions;
mod files;
mod gates;
mod json_pieces;
mod line_splitter;
mod live_execution;
mod local;
mod memory;
mod metrics;
mod null_dispatcher;
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
pub use admit::{AdmittedRun, JobRefusal, JobRequest, admit_job};
pub use bootstrap::BootstrapFile;
pub use capacity::{AdmissionConfig, ClassLimits, HostShare, PlanWeights};
pub use cloche_store::{
    ApprovalFilter, DecisionFilter, ExecutionCursor, ExecutionFilter, KeySource, ResponseRow,
    StorageUsage,
};
pub use clock::{format_rfc3339, now, parse_rfc3339};
pub use config::{EngineConfig, GateConfig, HomesConfig, WebhookConfig};
pub use dispatch::{DispatchError, Dispatcher, DispatcherLoad, PoolLevel};
pub use engine::{Engine, EngineOpenError};
pub use executions::{CancelOnDrop, ExecutionEvents, LedgerPage, StartedExecution};
pub use files::{
    FileFilter, FileInfo, FilePage, FileReader, FileUpload, HomeFile, SignedToken, UrlGrant,
    UrlPurpose, UrlSigner,
};
pub use gates::{
    ApprovalWaitResult, CallPermit, GateDecision, GateRefusal, GateRefusalReason, ToolCall,
    describe_approval, form_text,
};
pub use json_pieces::{JsonPieces, serialize_text, serialize_text_or_null};
pub use live_execution::{EventLogReader, ExecutionEvent, ExecutionEventKind};
pub use local::LocalDispatcher;
pub use memory::{MEMORY_WAIT, MemoryBudgets, MemoryConfig, MemoryPool, refuse_memory};
pub use metrics::{AgentMetrics, EngineMetrics};
pub use null_dispatcher::NullDispatcher;
pub use refusal::Refusal;
pub use remote::{RemoteConfig, RemoteConfigError, RemoteDispatcher};
pub use storage::{
    DiskSpace, HistoryPolicy, PlanStorage, PrunedHistory, StorageConfig, StorageReserve,
    TeamStorage,
};
pub use threads::{TarStream, ThreadDiff, ThreadHistory, ThreadPage};
pub use webhook::WebhookSetupError;
