//! What happens to a request behind the entry points: admission, the ledger, threads, approvals,
//! webhooks.
//!
//! [`Engine`] is a facade over parts with their own state: [`Tenancy`], [`Approvals`],
//! [`Executions`], [`Threads`], [`Files`], [`StorageBudgets`], [`StorageSources`], [`Images`],
//! [`Backups`],
//! [`WebTools`] and [`Responses`]. A part gets the
//! others that it uses when it is made; no part holds the engine.
//!
//! The engine knows no HTTP of its callers, no kernel and no SQL. Requests are in the words of the
//! model, runs go through a [`Dispatcher`], and rows are kept by a [`Store`]; the binary passes
//! both in.

mod admit;
mod approvals;
mod backups;
mod capacity;
mod clock;
mod config;
mod console;
mod data_dir;
mod dispatch;
mod engine;
mod executions;
mod files;
mod images;
mod json_pieces;
mod lifecycle;
mod maintenance;
mod memory;
mod metrics;
mod null_dispatcher;
pub mod outgoing_http;
mod refusal;
mod remote;
mod request_trace;
mod responses;
mod search_indexer;
mod secrets;
mod shared_parts;
pub mod sidecar;
mod sources;
mod storage;
mod tenancy;
mod threads;
mod usage;
mod web_tools;
mod webhooks;

pub use admit::{AdmittedRun, JobRefusal, JobRequest, admit_job};
pub use approvals::{
    ApprovalWaitResult, Approvals, Approver, CallPermit, GateDecision, GateRefusal,
    GateRefusalReason, ResponseTools, ToolCall, describe_approval, form_text,
};
pub use backups::{BackupReader, BackupSummary, Backups};
pub use capacity::{AdmissionConfig, ClassLimits, HostShare, PlanWeights};
pub use cloche_store::{
    ApprovalFilter, AuditFilter, DecisionFilter, ExecutionCursor, ExecutionFilter, ResponseRow,
    ResponseSummary, StorageTraffic, StorageUsage, Store, UsageTotals,
};
pub use clock::{
    format_rfc3339, format_utc_day, now, parse_first_day, parse_last_day, parse_rfc3339,
};
pub use config::{EngineConfig, GateConfig, HomesConfig, WebhookConfig};
pub use console::{
    Activity, ActivityEvent, ActivityPoint, ActivitySummary, AuditPage, Console, ConsoleConfig,
    LatencyPercentiles, MemberChange, MemberDraft, MemberLink, NewConsoleSession, OidcAnswer,
    OidcConfig, OidcError, OidcFailure, OidcRule, OidcRuleMatch, OidcSignIn, OidcStart,
    SignInError, SignInOrigin, SignedIn, TotpSetup,
};
pub use data_dir::LockedDataDir;
pub use dispatch::{
    DispatchError, Dispatcher, DispatcherLoad, NodeHealth, NodeLoad, PoolLevel, RunNeeds,
    TakenSignal, TrialObserver,
};
pub use engine::{Engine, EngineOpenError, HostFigures};
pub use executions::{
    AnswerSignal, CancelOnDrop, EventLogReader, ExecutionEvent, ExecutionEventKind,
    ExecutionEvents, ExecutionReader, Executions, LedgerPage, ReaderCutOff, RequestPhases,
    StartedExecution,
};
pub use files::{
    FileFilter, FileInfo, FilePage, FileReader, FileSource, FileUpload, Files, SignedToken,
    StoredFile, UrlGrant, UrlPurpose, UrlSigner,
};
pub use images::{
    ImageImportChoice, ImageProgressReport, ImagePull, ImageWork, Images, ProgressPhase,
    RegistryAccess, RegistryCredentials, RemovedImages,
};
pub use json_pieces::{JsonPieces, serialize_text, serialize_text_or_null};
pub use memory::{MEMORY_WAIT, MemoryBudgets, MemoryConfig, MemoryPool, refuse_memory};
pub use metrics::{AgentMetrics, EngineMetrics};
pub use null_dispatcher::NullDispatcher;
pub use refusal::Refusal;
pub use remote::{RemoteConfig, RemoteConfigError, RemoteDispatcher};
pub use request_trace::{RequestLine, RequestTrace, TracePhase, enable_trace_export};
pub use responses::Responses;
pub use secrets::is_same_secret;
pub use sources::{
    CheckStep, ConnectionChange, ConnectionCheck, ConnectionDraft, NamedBinding, StorageSources,
    VolumeAccess, VolumeFile, VolumeState,
};
pub use storage::{
    DiskSpace, HistoryPolicy, PlanStorage, PrunedHistory, StorageBudgets, StorageConfig,
    StorageReserve, TeamStorage,
};
pub use tenancy::{
    BindingTarget, BootstrapFile, Caller, CredentialChange, CredentialDraft, CredentialSettings,
    EnvDraft, GateChange, KeyChange, KeyDraft, NetworkChange, NewKey, ResourcesChange,
    RetentionChange, SandboxChange, SandboxDraft, TeamChange, TeamDraft, Tenancy,
};
pub use threads::{TarStream, ThreadDiff, ThreadHistory, ThreadPage, Threads};
pub use usage::{AllowanceState, CreditAllowances, UsageAccounts, UsageQuery, UsageSummary};
pub use web_tools::{
    CellTools, FetchConfig, FetchedPage, MAX_REQUEST, MAX_RESULTS, MAX_URLS, SearchConfig,
    SearchHit, SearchPointers, ToolCallOrigin, WebToolAnswer, WebToolCall, WebToolError, WebTools,
    WebToolsConfig, parse_cell_request,
};
