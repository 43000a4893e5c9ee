//! Runs in: server (no capabilities).
//!
//! Memory budgets that all callers share: `[memory]` of the file.

use cloche_engine::MemoryConfig;
use cloche_model::ByteSize;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{SettingsError, parse_size};

/// The section of the file. Defaults follow the memory of the host.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct MemoryFile {
    /// Memory for bodies of requests.
    #[schemars(extend("x-default" = "an eighth of the host's, 128M to 1G"))]
    bodies: Option<String>,
    /// Memory for output of executions.
    #[schemars(extend("x-default" = "an eighth of the host's, 256M to 2G"))]
    outputs: Option<String>,
    /// Memory for records that are read again.
    #[schemars(extend("x-default" = "an eighth of the host's, 256M to 1G"))]
    replies: Option<String>,
}

impl MemoryFile {
    pub(super) fn to_config(&self) -> Result<MemoryConfig, SettingsError> {
        let usual = MemoryConfig::default();
        Ok(MemoryConfig {
            bodies: parse_size("memory.bodies", &self.bodies)?.unwrap_or(usual.bodies),
            outputs: parse_size("memory.outputs", &self.outputs)?.unwrap_or(usual.outputs),
            replies: parse_size("memory.replies", &self.replies)?.unwrap_or(usual.replies),
        })
    }

    /// The largest body. A body needs twice its size, and one key may use half of the budget.
    pub(super) fn largest_body(&self, usual: ByteSize) -> Result<ByteSize, SettingsError> {
        let fits = ByteSize(self.to_config()?.bodies.bytes() / 4);
        Ok(usual.min(fits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_budget_for_bodies_lowers_the_largest_body() {
        let file: MemoryFile = toml::from_str("bodies = \"8M\"").unwrap();
        assert_eq!(file.largest_body(ByteSize::mib(32)).unwrap(), ByteSize::mib(2));
        assert_eq!(file.to_config().unwrap().outputs, MemoryConfig::default().outputs);
        let usual = MemoryFile::default().largest_body(ByteSize::mib(32)).unwrap();
        assert_eq!(usual, ByteSize::mib(32));
        assert!(MemoryFile { bodies: Some("much".into()), ..file }.to_config().is_err());
    }
}
