//! The words of Cloche: what is asked, what is agreed, what was done.
//!
//! Plain data without I/O and without async. Every other crate may use these words; this crate
//! knows none of them, and it knows no kernel, no database and no protocol.

mod budget;
pub mod display;
pub mod env;
mod error;
mod execution;
mod gates;
mod home_changes;
mod home_path;
mod ids;
mod language;
mod layer;
mod moment;
mod outcome;
mod plan;
pub mod request;
mod response;
mod run;
mod score;
mod secret;
mod sub_path;
mod tenancy;
mod thread;
mod units;

pub use budget::{MemoryAccount, MemoryBudget, MemoryReservation, MemoryShortage};
pub use env::{EnvVars, SecretVars};
pub use error::{ErrorCode, Invalid};
pub use execution::{
    Beat, Delivery, DeliveryStatus, Execution, ExecutionEnd, ExecutionStart, Score, Status,
    UsageReport,
};
pub use gates::{Approval, ApprovalState, Decision, DecisionKind, GateSettings, Tool, ToolPolicy};
pub use home_changes::{ChangeKind, ChangedPath, HomeChanges, HomeState};
pub use home_path::HomePath;
pub use ids::{
    ApprovalId, DecisionId, KeyId, ResponseId, SandboxId, TeamId, ThreadId, TraceId, check_name,
};
pub use language::{Language, UnknownLanguage};
pub use layer::{HomeRoom, Layer, LayerDigest, OutputFile, ThreadHome, Written};
pub use moment::Moment;
pub use outcome::{Captured, Ending, Outcome, OutputChunk, StreamName, Timings, Usage};
pub use plan::{Allowance, Plan};
pub use request::{CheckedRequest, ExecuteRequest, RequestFile};
pub use response::ResponseStatus;
pub use run::{
    FileName, InputFile, InvalidFileName, Limits, Network, RunSpec, SandboxProfile, SandboxShape,
};
pub use secret::Secret;
pub use sub_path::SubPath;
pub use tenancy::{ApiKey, Resources, Retention, Sandbox, Team};
pub use thread::{HomeUsage, Point, PointKind, PointName, Thread};
pub use units::{ByteSize, Cpus, InvalidUnit, Seconds};
