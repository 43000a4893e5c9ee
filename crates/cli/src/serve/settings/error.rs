//! Runs in: server (no capabilities), `cloche config`.
//!
//! Why settings cannot be used.

use std::{io, path::PathBuf};

use cloche_model::InvalidUnit;

use super::{console::ConsoleSettingsError, tools::ToolSettingsError, webhook::MOST_ATTEMPTS};
use crate::serve::providers::AgentSettingsError;

/// A setting that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SettingsError {
    #[error("cannot read the configuration file {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("the configuration file {path} is invalid")]
    Parse { path: PathBuf, source: Box<toml::de::Error> },
    #[error("{name} in the configuration")]
    Unit { name: &'static str, source: InvalidUnit },
    #[error("webhook.allow in the configuration: {0:?} is not a network such as 10.1.0.0/16")]
    Network(String),
    #[error(transparent)]
    Agent(#[from] AgentSettingsError),
    #[error(transparent)]
    Tools(#[from] ToolSettingsError),
    #[error(transparent)]
    Console(#[from] ConsoleSettingsError),
    #[error("listen: {0:?} is not an address with a port such as 127.0.0.1:8080")]
    Listen(String),
    #[error("connections.{0} in the configuration must be 1 or more")]
    NoConnections(&'static str),
    #[error("remote.urls: {0:?} is not an address such as http://sandbox-executor:9099")]
    Sidecar(String),
    #[error("threads.squash_depth in the configuration must be 2 or more")]
    SquashDepth,
    #[error("layers.endpoint, region, prefix or a key variable is set but layers.bucket is not")]
    Bucket,
    #[error("layers.directory and layers.bucket are both set; name one place for layers")]
    TwoLayerStores,
    #[error("connections in the configuration: {0} is not a time from 0.05 to 3600 seconds")]
    Timeout(f64),
    #[error("webhook.schedule_seconds in the configuration: {0} is not a time from 0 to a day")]
    Schedule(f64),
    #[error("plans.{0}.monthly_credits in the configuration: {1} is not from 0 to 1000000000")]
    Credits(&'static str, f64),
    #[error("{0} needs {1}: a certificate and its private key belong together")]
    TlsPair(&'static str, &'static str),
    #[error("TLS is required: name a certificate and its key with --tls-cert and --tls-key")]
    TlsRequired,
    #[error("webhook.attempts in the configuration: {0} is not a number from 1 to {MOST_ATTEMPTS}")]
    Attempts(usize),
    #[error("webhook in the configuration: set attempts or schedule_seconds, not both")]
    TwoSchedules,
    #[error(
        "log.level: {0:?} is not a level such as info, or a list such as warn,cloche::requests=info"
    )]
    LogLevel(String),
    #[error("metrics.token_env in the configuration: {0} is not set")]
    MetricsToken(String),
    #[error("capacity.{0} in the configuration: {1} is out of range")]
    Capacity(&'static str, f64),
}
