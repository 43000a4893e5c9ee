//! Runs in: server (no capabilities).
//!
//! The settings of the engine, with their defaults.

use std::{fmt, path::PathBuf, time::Duration};

use cloche_layers::Layers;
use cloche_model::{ByteSize, HomeQuota};
use ipnet::IpNet;

use crate::{
    AdmissionConfig, ConsoleConfig, CreditAllowances, MemoryConfig, StorageConfig, WebToolsConfig,
};

/// Settings of the engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Bytes of each output stream that are kept; the head is kept, the rest is counted.
    pub output: ByteSize,
    /// How long a stream may be silent before it gets a keepalive.
    pub keepalive: Duration,
    /// How long executions may go on after the server was asked to stop.
    pub grace: Duration,
    /// The lease of a thread. An execution renews it three times as often; after a crash, no thread
    /// is held for longer.
    pub lease: Duration,
    /// The memory that callers share.
    pub memory: MemoryConfig,
    /// How executions and transfers share the host.
    pub admission: AdmissionConfig,
    /// The gates in front of agent tools.
    pub gates: GateConfig,
    /// The homes of threads.
    pub homes: HomesConfig,
    /// Storage budgets.
    pub storage: StorageConfig,
    /// What the executions of a team may cost in a month.
    pub allowances: CreditAllowances,
    /// Webhooks.
    pub webhook: WebhookConfig,
    /// The web tools.
    pub web_tools: WebToolsConfig,
    /// The console.
    pub console: ConsoleConfig,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            output: ByteSize::mib(16),
            keepalive: Duration::from_secs(15),
            grace: Duration::from_secs(30),
            lease: Duration::from_secs(60),
            memory: MemoryConfig::default(),
            admission: AdmissionConfig::default(),
            gates: GateConfig::default(),
            homes: HomesConfig::default(),
            storage: StorageConfig::default(),
            allowances: CreditAllowances::default(),
            webhook: WebhookConfig::default(),
            web_tools: WebToolsConfig::default(),
            console: ConsoleConfig::default(),
        }
    }
}

/// Settings of the gates that are the same for every team.
#[derive(Clone, Copy, Debug)]
pub struct GateConfig {
    /// How long a question can be answered, and then how long the answer is valid.
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

/// Settings of threads and their files.
#[derive(Clone)]
pub struct HomesConfig {
    /// Where layers are kept; without it, nothing that needs a thread can be done.
    pub layers: Option<Layers>,
    /// The most that a home may hold on this machine, whatever its plan.
    pub cap: HomeQuota,
    /// A stack of so many layers is squashed in the background. A run of a thread with four times
    /// as many waits for it.
    pub squash_depth: usize,
    /// How old a layer must be before it is deleted because nothing needs it.
    pub grace: Duration,
    /// The interval of the sweep that deletes such layers.
    pub sweep_every: Duration,
    /// How long a signed URL is valid.
    pub url_expiry: Duration,
    /// The largest file that can be uploaded.
    pub upload: ByteSize,
}

impl fmt::Debug for HomesConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HomesConfig")
            .field("layers", &self.layers.is_some())
            .field("cap", &self.cap)
            .field("squash_depth", &self.squash_depth)
            .field("grace", &self.grace)
            .finish_non_exhaustive()
    }
}

impl Default for HomesConfig {
    fn default() -> Self {
        Self {
            layers: None,
            cap: HomeQuota { bytes: ByteSize::gib(64), inodes: 4_000_000 },
            squash_depth: 16,
            grace: Duration::from_secs(3600),
            sweep_every: Duration::from_secs(600),
            url_expiry: Duration::from_secs(900),
            upload: ByteSize::gib(10),
        }
    }
}

/// Settings of webhook delivery.
#[derive(Clone, Debug)]
pub struct WebhookConfig {
    /// The wait before each attempt: the first counts from the end of the execution, each other
    /// from the failure of the one before it.
    pub waits: Vec<Duration>,
    /// The time one attempt may take, name resolution to answer.
    pub timeout: Duration,
    /// Networks that deliveries may go to although they are not public.
    pub allow: Vec<IpNet>,
    /// A PEM file with authorities to trust besides those of the host.
    pub extra_ca: Option<PathBuf>,
    /// Deliveries under way at once.
    pub at_once: usize,
    /// Deliveries of one team at once.
    pub at_once_per_team: usize,
    /// Deliveries of one team to one host at once.
    pub at_once_per_host: usize,
}

impl WebhookConfig {
    /// The waits of so many attempts: none, then 1 s, 10 s, and 60 s before every further one.
    #[must_use]
    pub fn usual_waits(attempts: usize) -> Vec<Duration> {
        let seconds = [0, 1, 10].into_iter().chain(std::iter::repeat(60));
        seconds.map(Duration::from_secs).take(attempts).collect()
    }
}

impl Default for WebhookConfig {
    fn default() -> Self {
        Self {
            waits: Self::usual_waits(3),
            timeout: Duration::from_secs(10),
            allow: Vec::new(),
            extra_ca: None,
            at_once: 64,
            at_once_per_team: 16,
            at_once_per_host: 8,
        }
    }
}
