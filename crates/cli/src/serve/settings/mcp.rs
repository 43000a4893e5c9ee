//! Runs in: server (no capabilities).
//!
//! Limits and timeouts of the MCP server: `[mcp]` of the file.

use std::time::Duration;

use cloche_gateway::McpConfig;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{SettingsError, parse_size};

/// The section of the file.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct McpFile {
    /// The most of each output stream in a result.
    #[schemars(extend("default" = "32K"))]
    output: Option<String>,
    /// The largest file that is read at once.
    #[schemars(extend("default" = "1M"))]
    file: Option<String>,
    /// Origins of web pages that may send requests.
    #[schemars(extend("default" = []))]
    origins: Vec<String>,
    /// Seconds that a call waits for an approval.
    #[schemars(extend("default" = 300))]
    approval_wait_seconds: Option<u64>,
}

impl McpFile {
    pub(super) fn to_config(&self) -> Result<McpConfig, SettingsError> {
        let usual = McpConfig::default();
        let wait = self.approval_wait_seconds.map(Duration::from_secs);
        Ok(McpConfig {
            output: parse_size("mcp.output", &self.output)?.unwrap_or(usual.output),
            file: parse_size("mcp.file", &self.file)?.unwrap_or(usual.file),
            origins: self.origins.clone(),
            approval_wait: wait.unwrap_or(usual.approval_wait),
        })
    }
}
