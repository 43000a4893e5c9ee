//! May it run, who holds the thread, what happened.
//!
//! The engine admits requests, keeps the ledger, follows live executions and sends webhooks. It
//! knows no HTTP of its callers, no kernel and no SQL: it is asked in words of the model, it runs
//! through a [`Dispatcher`], and it remembers through a store.

mod access;
mod admin;
mod admit;
mod bootstrap;
mod clock;
mod config;
mod dispatch;
mod drive;
mod engine;
mod executions;
mod gates;
mod lines;
mod live;
mod local;
mod metrics;
mod refusal;
mod replay;
mod responses;
mod secrets;
mod webhook;

pub use access::Caller;
pub use admin::{
    Approver, GateChange, KeyChange, KeyDraft, NewKey, SandboxChange, SandboxDraft, TeamChange,
    TeamDraft,
};
pub use admit::Admitted;
pub use bootstrap::Bootstrap;
pub use cloche_store::{ApprovalFilter, Cursor, DecisionFilter, ExecutionFilter, ResponseRow};
pub use clock::{now, parse_rfc3339, rfc3339};
pub use config::{EngineConfig, GateConfig, WebhookConfig};
pub use dispatch::{DispatchError, Dispatcher, PoolLevel, Snapshot};
pub use engine::{Engine, OpenError};
pub use executions::{Output, Page, Started};
pub use gates::{Closed, Gate, Pass, Shut, ToolCall, Waited};
pub use live::{Event, EventKind, Reader};
pub use local::Local;
pub use metrics::Metrics;
pub use refusal::Refusal;
pub use webhook::CourierError;
