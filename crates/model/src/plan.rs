//! What each plan allows, as data, with the sentences the contract fixes for saying no.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{ByteSize, CpuShare, DisplaySeconds, HomeQuota, Invalid};

/// What a team has signed up for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TeamPlan {
    /// Small, inline only.
    Free,
    /// Larger, with streaming and webhooks.
    Pro,
    /// As large as the machine, unless the team's own settings say otherwise.
    Enterprise,
}

/// The limits of a plan; `None` is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanLimits {
    /// Processor share of a sandbox.
    pub cpus: Option<CpuShare>,
    /// Memory of a sandbox.
    pub memory: Option<ByteSize>,
    /// Executions under way at once.
    pub concurrency: Option<u32>,
    /// The longest time limit that may be asked for.
    pub timeout: Option<Duration>,
    /// Whether output may be streamed or sent to a webhook.
    pub streaming: bool,
    /// What the home of a thread may hold.
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

    /// The name in a sentence.
    #[must_use]
    pub const fn display_name(self) -> &'static str {
        match self {
            Self::Free => "Free",
            Self::Pro => "Pro",
            Self::Enterprise => "Enterprise",
        }
    }

    /// What it allows.
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

    /// The sentence for a caller whose executions are all in use.
    #[must_use]
    pub fn concurrency_refusal(self, limit: u32) -> String {
        let advice = match self {
            Self::Free => "Upgrade to Pro for 100 concurrent executions.",
            Self::Pro => "Upgrade to Enterprise for unlimited concurrent executions.",
            Self::Enterprise => "Ask your administrator to raise the team's limit.",
        };
        format!("concurrent execution limit reached ({limit}/{limit}). {advice}")
    }

    /// The sentence for a caller who asked for more time than there is.
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

    /// The sentence for a caller whose plan has inline delivery only.
    #[must_use]
    pub const fn streaming_refusal() -> &'static str {
        "Streaming execution requires a Pro or Enterprise plan. Upgrade at https://baponi.ai/pricing"
    }

    /// The same for webhooks.
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
