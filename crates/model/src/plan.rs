//! The limits of each plan, as data, and the refusal messages that the contract prescribes.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{ByteSize, CpuShare, DisplaySeconds, HomeQuota, Invalid};

/// The plan of a team.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TeamPlan {
    /// Small limits, inline delivery only.
    Free,
    /// Larger limits, with streaming and webhooks.
    Pro,
    /// Limited by the machine only, unless the team has its own limits.
    Enterprise,
}

/// The limits of a plan; `None` means no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanLimits {
    /// Processor share of a sandbox.
    pub cpus: Option<CpuShare>,
    /// Memory of a sandbox.
    pub memory: Option<ByteSize>,
    /// Concurrent executions.
    pub concurrency: Option<u32>,
    /// The longest timeout that a request may set.
    pub timeout: Option<Duration>,
    /// Whether output may be streamed or sent to a webhook.
    pub streaming: bool,
    /// The quota of a thread's home.
    pub home: Option<HomeQuota>,
}

impl TeamPlan {
    /// Every plan, smallest first.
    pub const ALL: [Self; 3] = [Self::Free, Self::Pro, Self::Enterprise];

    /// The name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Pro => "pro",
            Self::Enterprise => "enterprise",
        }
    }

    /// The name for use in messages.
    #[must_use]
    pub const fn display_name(self) -> &'static str {
        match self {
            Self::Free => "Free",
            Self::Pro => "Pro",
            Self::Enterprise => "Enterprise",
        }
    }

    /// The limits of this plan.
    #[must_use]
    pub const fn default_limits(self) -> PlanLimits {
        match self {
            Self::Free => PlanLimits {
                cpus: Some(CpuShare::from_cores(1)),
                memory: Some(ByteSize::gib(1)),
                concurrency: Some(5),
                timeout: Some(Duration::from_secs(60)),
                streaming: false,
                home: Some(HomeQuota { bytes: ByteSize::gib(1), inodes: 100_000 }),
            },
            Self::Pro => PlanLimits {
                cpus: Some(CpuShare::from_cores(4)),
                memory: Some(ByteSize::gib(4)),
                concurrency: Some(100),
                timeout: Some(Duration::from_secs(3600)),
                streaming: true,
                home: Some(HomeQuota { bytes: ByteSize::gib(10), inodes: 1_000_000 }),
            },
            Self::Enterprise => PlanLimits {
                cpus: None,
                memory: None,
                concurrency: None,
                timeout: None,
                streaming: true,
                home: None,
            },
        }
    }

    /// The message for a caller who has reached the concurrency limit.
    #[must_use]
    pub fn concurrency_refusal(self, limit: u32) -> String {
        let advice = match self {
            Self::Free => "Upgrade to Pro for 100 concurrent executions.",
            Self::Pro => "Upgrade to Enterprise for unlimited concurrent executions.",
            Self::Enterprise => "Ask your administrator to raise the team's limit.",
        };
        format!("concurrent execution limit reached ({limit}/{limit}). {advice}")
    }

    /// The message for a caller whose timeout exceeds the limit.
    #[must_use]
    pub fn timeout_refusal(self, asked: Duration, limit: Duration) -> String {
        let advice = match self {
            Self::Free => "Upgrade to Pro for timeouts up to 3600s.",
            Self::Pro => "Upgrade to Enterprise for longer timeouts.",
            Self::Enterprise => "Ask your administrator to raise the team's limit.",
        };
        format!(
            "timeout of {} exceeds the {} plan's maximum of {}. {advice}",
            DisplaySeconds(asked),
            self.display_name(),
            DisplaySeconds(limit)
        )
    }

    /// The message for a caller whose plan has inline delivery only.
    #[must_use]
    pub const fn streaming_refusal() -> &'static str {
        "Streaming execution requires a Pro or Enterprise plan. Upgrade at https://baponi.ai/pricing"
    }

    /// The same message for webhooks.
    #[must_use]
    pub const fn webhook_refusal() -> &'static str {
        "Async execution requires a Pro or Enterprise plan. Upgrade at https://baponi.ai/pricing"
    }
}

impl fmt::Display for TeamPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for TeamPlan {
    type Err = Invalid;

    fn from_str(name: &str) -> Result<Self, Invalid> {
        Self::ALL
            .into_iter()
            .find(|plan| plan.name() == name)
            .ok_or_else(|| Invalid::new("plan must be one of: free, pro, enterprise"))
    }
}
