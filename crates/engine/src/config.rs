//! What an operator can set of the engine, with the defaults.

use std::{path::PathBuf, time::Duration};

use cloche_model::ByteSize;
use ipnet::IpNet;

/// Settings of the engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Bytes of each output stream that are kept; the head is kept, the rest is counted.
    pub output: ByteSize,
    /// How long a stream may be silent before it shows a sign of life.
    pub keepalive: Duration,
    /// How long executions may go on after the server was asked to stop.
    pub grace: Duration,
    /// How long past its time limit an execution may hold its thread.
    pub lease_margin: Duration,
    /// The gates in front of agent tools.
    pub gates: GateConfig,
    /// Webhooks.
    pub webhook: WebhookConfig,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            output: ByteSize::mib(16),
            keepalive: Duration::from_secs(15),
            grace: Duration::from_secs(30),
            lease_margin: Duration::from_secs(120),
            gates: GateConfig::default(),
            webhook: WebhookConfig::default(),
        }
    }
}

/// Settings of the gates that are the same for every team.
#[derive(Clone, Copy, Debug)]
pub struct GateConfig {
    /// How long a question can be answered, and then how long the answer counts.
    pub lifetime: Duration,
    /// Questions of one team that may be unanswered at once.
    pub pending: u32,
    /// Calls of one team that may wait for an answer at once.
    pub waiting: usize,
    /// How long decisions are kept.
    pub keep: Duration,
}

impl Default for GateConfig {
    fn default() -> Self {
        Self {
            lifetime: Duration::from_mins(15),
            pending: 100,
            waiting: 32,
            keep: Duration::from_hours(24 * 365),
        }
    }
}

/// Settings of webhook delivery.
#[derive(Clone, Debug)]
pub struct WebhookConfig {
    /// When each attempt is made, counted from the end of the execution.
    pub schedule: Vec<Duration>,
    /// The time one attempt may take, name resolution to answer.
    pub timeout: Duration,
    /// Networks that deliveries may go to although they are not public.
    pub allow: Vec<IpNet>,
    /// A PEM file with authorities to trust besides those of the host.
    pub extra_ca: Option<PathBuf>,
}

impl Default for WebhookConfig {
    fn default() -> Self {
        Self {
            schedule: [1, 10, 60].map(Duration::from_secs).to_vec(),
            timeout: Duration::from_secs(10),
            allow: Vec::new(),
            extra_ca: None,
        }
    }
}
