//! Runs in: server (no capabilities).
//!
//! The settings of webhook deliveries: `[webhook]` of the file.

use std::{path::PathBuf, time::Duration};

use cloche_engine::WebhookConfig;
use schemars::JsonSchema;
use serde::Deserialize;

use super::SettingsError;

/// The most often that a delivery can be tried.
pub(super) const MOST_ATTEMPTS: usize = 20;
/// An attempt waits a day at most.
const LONGEST_WAIT: f64 = 86_400.0;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct WebhookFile {
    /// Networks that are not public, or of this host, to which webhooks may be sent, such as
    /// `10.1.0.0/16`.
    #[schemars(extend("default" = [], "x-argument" = "webhook_allow"))]
    pub(super) allow: Vec<String>,
    /// A PEM file with certificate authorities that webhooks trust besides the host's.
    #[schemars(extend("x-default" = "none", "x-argument" = "webhook_ca"))]
    pub(super) extra_ca: Option<PathBuf>,
    /// Seconds for one attempt.
    #[schemars(extend("default" = 10))]
    timeout_seconds: Option<u64>,
    /// How often a delivery is tried, 1 to 20 times, with the usual waits.
    #[schemars(extend("default" = 3))]
    attempts: Option<usize>,
    /// The wait before each attempt, instead of `attempts`. The first counts from the end of the
    /// execution, each other from the failure of the one before it.
    #[schemars(extend("x-default" = "0, 1 and 10"))]
    schedule_seconds: Option<Vec<f64>>,
    /// Deliveries at once.
    #[schemars(extend("default" = 64))]
    at_once: Option<usize>,
    /// Deliveries of one team at once.
    #[schemars(extend("default" = 16))]
    at_once_per_team: Option<usize>,
    /// Deliveries to one host at once.
    #[schemars(extend("default" = 8))]
    at_once_per_host: Option<usize>,
}

impl WebhookFile {
    /// The configuration of deliveries.
    pub(super) fn to_config(&self) -> Result<WebhookConfig, SettingsError> {
        let usual = WebhookConfig::default();
        let network =
            |text: &String| text.parse().map_err(|_| SettingsError::Network(text.clone()));
        Ok(WebhookConfig {
            waits: self.waits()?,
            timeout: self.timeout_seconds.map_or(usual.timeout, Duration::from_secs),
            allow: self.allow.iter().map(network).collect::<Result<_, _>>()?,
            extra_ca: self.extra_ca.clone(),
            at_once: self.at_once.unwrap_or(usual.at_once),
            at_once_per_team: self.at_once_per_team.unwrap_or(usual.at_once_per_team),
            at_once_per_host: self.at_once_per_host.unwrap_or(usual.at_once_per_host),
        })
    }

    /// The waits before the attempts of a delivery.
    fn waits(&self) -> Result<Vec<Duration>, SettingsError> {
        match (self.attempts, &self.schedule_seconds) {
            (Some(_), Some(_)) => Err(SettingsError::TwoSchedules),
            (None, None) => Ok(WebhookConfig::default().waits),
            (Some(attempts @ 1..=MOST_ATTEMPTS), None) => Ok(WebhookConfig::usual_waits(attempts)),
            (Some(attempts), None) => Err(SettingsError::Attempts(attempts)),
            (None, Some(seconds)) if !(1..=MOST_ATTEMPTS).contains(&seconds.len()) => {
                Err(SettingsError::Attempts(seconds.len()))
            }
            (None, Some(seconds)) => seconds.iter().map(parse_wait).collect(),
        }
    }
}

fn parse_wait(seconds: &f64) -> Result<Duration, SettingsError> {
    if !(0.0..=LONGEST_WAIT).contains(seconds) {
        return Err(SettingsError::Schedule(*seconds));
    }
    Ok(Duration::from_secs_f64(*seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<WebhookConfig, String> {
        let file: WebhookFile = toml::from_str(text).unwrap();
        file.to_config().map_err(|error| error.to_string())
    }

    #[test]
    fn an_invalid_network_is_named() {
        let error = read("allow = [\"10.0.0/33\"]").unwrap_err();
        assert!(error.contains("10.0.0/33"), "{error}");
    }

    #[test]
    fn a_webhook_is_tried_at_once_then_after_1_and_10_and_60_seconds() {
        let waits = |text| -> Vec<f64> {
            read(text).unwrap().waits.iter().map(Duration::as_secs_f64).collect()
        };
        assert_eq!(waits(""), [0.0, 1.0, 10.0]);
        assert_eq!(waits("attempts = 1"), [0.0]);
        assert_eq!(waits("attempts = 5"), [0.0, 1.0, 10.0, 60.0, 60.0]);
        assert_eq!(waits("schedule_seconds = [0.5, 2]"), [0.5, 2.0]);
        for wrong in ["attempts = 0", "attempts = 21", "schedule_seconds = []"] {
            assert!(read(wrong).unwrap_err().contains("webhook.attempts"), "{wrong}");
        }
        assert!(read("attempts = 2\nschedule_seconds = [1]").unwrap_err().contains("not both"));
        assert!(read("schedule_seconds = [-1]").unwrap_err().contains("schedule_seconds"));
    }
}
