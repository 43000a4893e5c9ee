//! Teams on the wire.

use std::time::Duration;

use cloche_engine::{GateChange, TeamChange, TeamDraft, rfc3339};
use cloche_model::{Plan, Team};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    super::number::{whole, whole_or_null},
    gates::{GateRecord, PolicyName},
    present,
};

/// The plans.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PlanName {
    Free,
    Pro,
    Enterprise,
}

impl From<PlanName> for Plan {
    fn from(name: PlanName) -> Self {
        match name {
            PlanName::Free => Self::Free,
            PlanName::Pro => Self::Pro,
            PlanName::Enterprise => Self::Enterprise,
        }
    }
}

/// A team to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateTeam {
    /// Unique.
    #[schema(min_length = 1, max_length = 63, pattern = "^[a-z0-9][a-z0-9-]*$")]
    name: String,
    plan: PlanName,
    /// Instead of the plan's.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 0, maximum = 1_000_000)]
    max_concurrency: Option<u32>,
    /// Instead of the plan's.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 31_536_000)]
    max_timeout_seconds: Option<u32>,
}

impl From<CreateTeam> for TeamDraft {
    fn from(body: CreateTeam) -> Self {
        Self {
            max_concurrency: body.max_concurrency,
            max_timeout: body.max_timeout_seconds.map(seconds),
            ..Self::new(body.name, body.plan.into())
        }
    }
}

fn seconds(seconds: u32) -> Duration {
    Duration::from_secs(u64::from(seconds))
}

/// What to change of a team; null clears a limit.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UpdateTeam {
    #[schema(min_length = 1, max_length = 63, pattern = "^[a-z0-9][a-z0-9-]*$")]
    name: Option<String>,
    plan: Option<PlanName>,
    #[serde(default, deserialize_with = "whole_or_null")]
    #[schema(value_type = Option<u32>, minimum = 0, maximum = 1_000_000)]
    max_concurrency: Option<Option<u32>>,
    #[serde(default, deserialize_with = "whole_or_null")]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 31_536_000)]
    max_timeout_seconds: Option<Option<u32>>,
    /// Whether the team's agents may run code; null leaves it to the fleet's default.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<bool>)]
    agent_sandbox: Option<Option<bool>>,
    /// What happens when they ask to; null leaves it to the fleet's default.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<PolicyName>)]
    execute_code: Option<Option<PolicyName>>,
    /// Whether the person at the client that asks may answer; null leaves it to the fleet's default.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<bool>)]
    elicitation: Option<Option<bool>>,
}

impl From<UpdateTeam> for TeamChange {
    fn from(body: UpdateTeam) -> Self {
        Self {
            name: body.name,
            plan: body.plan.map(Into::into),
            max_concurrency: body.max_concurrency,
            max_timeout: body.max_timeout_seconds.map(|limit| limit.map(seconds)),
            gates: GateChange {
                agent_sandbox: body.agent_sandbox,
                execute_code: body.execute_code.map(|policy| policy.map(Into::into)),
                elicitation: body.elicitation,
            },
        }
    }
}

/// A team.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TeamRecord {
    id: String,
    name: String,
    plan: String,
    max_concurrency: Option<u32>,
    max_timeout_seconds: Option<u64>,
    /// Its own gates.
    #[serde(flatten)]
    gates: GateRecord,
    created_at: String,
}

impl From<Team> for TeamRecord {
    fn from(team: Team) -> Self {
        Self {
            id: team.id.into(),
            name: team.name,
            plan: team.plan.name().to_owned(),
            max_concurrency: team.max_concurrency,
            max_timeout_seconds: team.max_timeout.map(|limit| limit.as_secs()),
            gates: team.gates.into(),
            created_at: rfc3339(team.created_at),
        }
    }
}

/// Every team.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TeamList {
    pub(crate) teams: Vec<TeamRecord>,
}
