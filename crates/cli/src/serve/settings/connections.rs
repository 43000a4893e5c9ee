//! Runs in: server (no capabilities).
//!
//! Connection limits and client timeouts: `[connections]` of the file.

use std::time::Duration;

use cloche_gateway::GatewayConfig;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{SettingsError, parse_size};

/// The section of the file.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ConnectionsFile {
    /// The most connections.
    #[schemars(extend("default" = 10000))]
    most: Option<usize>,
    /// The most connections of one address.
    #[schemars(extend("default" = 512))]
    per_address: Option<usize>,
    /// The most connections of one loopback address.
    #[schemars(extend("x-default" = "`most`"))]
    per_loopback: Option<usize>,
    /// Seconds for a request's headers.
    #[schemars(extend("default" = 30.0))]
    header_seconds: Option<f64>,
    /// Seconds for the next bytes of a body.
    #[schemars(extend("default" = 30.0))]
    body_seconds: Option<f64>,
    /// The lowest rate of a body beyond that, in bytes a second.
    #[schemars(extend("default" = "16K"))]
    body_rate: Option<String>,
    /// Seconds after which a connection without a request is closed.
    #[schemars(extend("default" = 75.0))]
    idle_seconds: Option<f64>,
    /// Seconds after which a client that does not read is cut off.
    #[schemars(extend("default" = 30.0))]
    write_seconds: Option<f64>,
}

impl ConnectionsFile {
    pub(super) fn apply(&self, usual: GatewayConfig) -> Result<GatewayConfig, SettingsError> {
        let limits = [
            ("most", self.most),
            ("per_address", self.per_address),
            ("per_loopback", self.per_loopback),
        ];
        if let Some((name, _)) = limits.into_iter().find(|(_, limit)| *limit == Some(0)) {
            return Err(SettingsError::NoConnections(name));
        }
        let most = self.most.unwrap_or(usual.connections);
        Ok(GatewayConfig {
            connections: most,
            per_address: self.per_address.unwrap_or(usual.per_address),
            per_loopback: self.per_loopback.unwrap_or(most),
            header_timeout: parse_seconds(self.header_seconds, usual.header_timeout)?,
            body_timeout: parse_seconds(self.body_seconds, usual.body_timeout)?,
            body_rate: parse_size("connections.body_rate", &self.body_rate)?
                .unwrap_or(usual.body_rate),
            idle_timeout: parse_seconds(self.idle_seconds, usual.idle_timeout)?,
            write_timeout: parse_seconds(self.write_seconds, usual.write_timeout)?,
            ..usual
        })
    }
}

/// The longest timeout.
const HOUR: f64 = 3600.0;

fn parse_seconds(value: Option<f64>, usual: Duration) -> Result<Duration, SettingsError> {
    match value {
        None => Ok(usual),
        Some(seconds) if (0.05..=HOUR).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        Some(seconds) => Err(SettingsError::Timeout(seconds)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_limited_as_the_file_says() {
        let file: ConnectionsFile =
            toml::from_str("most = 50\nper_address = 5\nidle_seconds = 0.5\n").unwrap();
        let config = file.apply(GatewayConfig::default()).unwrap();
        assert_eq!((config.connections, config.per_address, config.per_loopback), (50, 5, 50));
        assert_eq!(config.idle_timeout, Duration::from_millis(500));
        let file = ConnectionsFile { write_seconds: Some(0.0), ..file };
        assert!(file.apply(GatewayConfig::default()).is_err());
        for name in ["most", "per_address", "per_loopback"] {
            let file: ConnectionsFile = toml::from_str(&format!("{name} = 0")).unwrap();
            let error = file.apply(GatewayConfig::default()).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
    }
}
