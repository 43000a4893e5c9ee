//! Runs in: server (no capabilities).
//!
//! Calls of web tools that a provider answered. They are what a team is billed for.

use async_trait::async_trait;
use cloche_model::{TraceId, WebToolRecord, WebToolUsage};

use crate::Result;

/// The record of calls of web tools. Rows go with the decisions of their age, see
/// [`crate::GateStore`].
#[async_trait]
pub trait ToolCallStore: Send + Sync {
    /// Writes a call. A decision allows one call, so a second one with the same decision is a
    /// conflict.
    async fn record_tool_call(&self, call: WebToolRecord) -> Result<()>;
    /// What the code of an execution has used, by tool.
    async fn tool_usage(&self, execution: &TraceId) -> Result<Vec<WebToolUsage>>;
}
