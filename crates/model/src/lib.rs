//! The data types of Cloche: requests, limits, outcomes and records.
//!
//! Plain data without I/O and without async. Every other crate may depend on this one. It depends
//! on none of them, and it knows no kernel, no database and no protocol.

mod budget;
mod cpu_priority;
mod credential;
pub mod display;
pub mod env;
mod error;
mod error_chain;
mod event_order;
mod execution;
mod gates;
mod home_changes;
mod home_path;
mod ids;
mod image;
mod image_languages;
mod image_record;
mod key_prefix;
mod language;
mod layer;
mod member;
mod moment;
mod mount;
mod network;
mod network_sentence;
mod outcome;
mod plan;
pub mod request;
mod response;
mod run;
mod secret;
mod storage_source;
mod sub_path;
mod substrate;
mod tenancy;
mod thread;
mod units;

pub use budget::{MemoryAccount, MemoryBudget, MemoryReservation, MemoryShortage};
pub use cpu_priority::CpuPriority;
pub use credential::{
    BrokerRule, BrokeredCredential, Credential, CredentialBinding, CredentialDelivery,
    CredentialForm, CredentialHost, HeldCredential, InjectionTarget, SECRETS_DIR, SecretFile,
    check_credential_value,
};
pub use env::{EnvVars, SecretVars};
pub use error::{ErrorCode, Invalid};
pub use error_chain::error_chain;
pub use execution::{
    DeliveryMode, DeliveryStatus, EventMark, EventOrder, Execution, ExecutionEnd, ExecutionPhases,
    ExecutionStart, ExecutionStatus, UsageReport,
};
pub use gates::{
    AgentTool, Approval, ApprovalState, Decision, DecisionKind, GateSettings, PendingApproval,
    ToolPolicy, WebTool, WebToolRecord, WebToolUsage,
};
pub use home_changes::{ChangeKind, ChangedPath, HomeChanges, HomeState};
pub use home_path::HomePath;
pub use ids::{
    ApprovalId, ConsoleSessionId, CredentialId, DecisionId, KeyId, MemberId, ResponseId, SandboxId,
    StorageId, TeamId, ThreadId, TraceId, VolumeId, check_name,
};
pub use image::{
    DEFAULT_IMAGE, HOST_IMAGE, ImageDigest, ImageName, ImageReference, ImageRoot, Interpreter,
    InterpreterTable, RefusedInterpreter,
};
pub use image_record::{
    ImageLayer, ImageRecord, ImageSettings, InterpreterProbe, InterpreterStart, ListedImage,
};
pub use key_prefix::KeyPrefix;
pub use language::{Language, UnknownLanguage};
pub use layer::{HomeQuota, HomeWrites, Layer, LayerDigest, LayerStoreId, OutputFile, ThreadHome};
pub use member::{
    ActorKind, AuditActor, AuditEntry, ConsoleSession, Member, MemberRole, TotpFactor,
};
pub use moment::Moment;
pub use mount::{
    MOUNTS_ROOT, MountLimits, MountReport, MountSlug, MountSource, MountSpec, ObjectConnection,
    ObjectCredentials, ObjectStoreKind,
};
pub use network::{
    DenialReason, DeniedAttempt, HostName, HostPattern, MAX_NETWORK_RULES, NetworkLimits,
    NetworkPolicy, NetworkProtocol, NetworkReport, NetworkRule, PortRange, RuleTarget,
    is_public_address,
};
pub use outcome::{
    CapturedStream, OutputChunk, RunEnding, RunOutcome, RunTimings, RunUsage, StreamName,
};
pub use plan::{PlanLimits, TeamPlan};
pub use request::{CheckedRequest, ExecuteRequest, RequestFile};
pub use response::ResponseStatus;
pub use run::{
    FileName, InputFile, InvalidFileName, RunLimits, RunSpec, SandboxProfile, SandboxShape,
};
pub use secret::Secret;
pub use storage_source::{
    BindingUser, BoundStorage, MountUse, StorageBacking, StorageBinding, StorageConnection,
    StorageSource, VolumeSettings, credential_names,
};
pub use sub_path::SubPath;
pub use substrate::{OciRuntime, Substrate};
pub use tenancy::{ApiKey, LedgerRetention, Sandbox, SandboxResources, Team};
pub use thread::{HomeUsage, SnapshotKind, SnapshotRef, Thread, ThreadSnapshot};
pub use units::{ByteSize, CpuShare, DisplaySeconds, InvalidUnit};
