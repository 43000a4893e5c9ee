//! The wire format of teams.

use std::time::Duration;

use cloche_engine::{GateChange, StorageUsage, TeamChange, TeamDraft, TeamStorage, format_rfc3339};
use cloche_model::{ByteSize, Team, TeamId, TeamPlan};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    super::{
        execution::micro_to_credits,
        number::{credits, credits_or_null, whole, whole_or_null},
    },
    gates::{GateRecord, PendingApprovalName, PolicyName},
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

impl From<PlanName> for TeamPlan {
    fn from(name: PlanName) -> Self {
        match name {
            PlanName::Free => Self::Free,
            PlanName::Pro => Self::Pro,
            PlanName::Enterprise => Self::Enterprise,
        }
    }
}

/// A request to create a team.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateTeam {
    /// The name; unique.
    #[schema(min_length = 1, max_length = 63, pattern = "^[a-z0-9][a-z0-9-]*$")]
    name: String,
    plan: PlanName,
    /// The concurrency limit; overrides the plan's.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 0, maximum = 1_000_000)]
    max_concurrency: Option<u32>,
    /// The longest timeout; overrides the plan's.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 31_536_000)]
    max_timeout_seconds: Option<u32>,
    /// The storage budget; overrides the plan's.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_u64)]
    storage_bytes: Option<u64>,
    /// The credits that executions may cost in a month; overrides the plan's.
    #[serde(default, deserialize_with = "credits")]
    #[schema(value_type = Option<f64>, minimum = 0, maximum = 1_000_000_000)]
    monthly_credits: Option<u64>,
}

impl From<CreateTeam> for TeamDraft {
    fn from(body: CreateTeam) -> Self {
        Self {
            max_concurrency: body.max_concurrency,
            max_timeout: body.max_timeout_seconds.map(duration_from_seconds),
            storage: body.storage_bytes.map(ByteSize),
            monthly_micro_credits: body.monthly_credits,
            ..Self::new(body.name, body.plan.into())
        }
    }
}

fn duration_from_seconds(seconds: u32) -> Duration {
    Duration::from_secs(u64::from(seconds))
}

/// Changes to a team; null clears a limit.
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
    /// The storage budget.
    #[serde(default, deserialize_with = "whole_or_null")]
    #[schema(value_type = Option<u64>, minimum = 0, maximum = 9_007_199_254_740_991_u64)]
    storage_bytes: Option<Option<u64>>,
    /// The credits that executions may cost in a month.
    #[serde(default, deserialize_with = "credits_or_null")]
    #[schema(value_type = Option<f64>, minimum = 0, maximum = 1_000_000_000)]
    monthly_credits: Option<Option<u64>>,
    /// Whether the team's agents may run code; null falls back to the fleet's default.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<bool>)]
    agent_sandbox: Option<Option<bool>>,
    /// The policy for their calls; null falls back to the fleet's default.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<PolicyName>)]
    execute_code: Option<Option<PolicyName>>,
    /// Whether the person at the calling MCP client may answer; null falls back to the fleet's
    /// default.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<bool>)]
    elicitation: Option<Option<bool>>,
    /// The status of a response while a call of it waits for a person; null falls back to the
    /// fleet's default.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<PendingApprovalName>)]
    pending_approval: Option<Option<PendingApprovalName>>,
    /// The policy for calls of `web_search`; null falls back to the fleet's default.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<PolicyName>)]
    web_search: Option<Option<PolicyName>>,
    /// The policy for calls of `fetch_url`; null falls back to the fleet's default.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<PolicyName>)]
    fetch_url: Option<Option<PolicyName>>,
    /// The policy for calls of `people_search`; null falls back to the fleet's default.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<PolicyName>)]
    people_search: Option<Option<PolicyName>>,
}

impl From<UpdateTeam> for TeamChange {
    fn from(body: UpdateTeam) -> Self {
        Self {
            name: body.name,
            plan: body.plan.map(Into::into),
            max_concurrency: body.max_concurrency,
            max_timeout: body.max_timeout_seconds.map(|limit| limit.map(duration_from_seconds)),
            storage: body.storage_bytes.map(|limit| limit.map(ByteSize)),
            monthly_micro_credits: body.monthly_credits,
            gates: GateChange {
                agent_sandbox: body.agent_sandbox,
                execute_code: body.execute_code.map(|policy| policy.map(Into::into)),
                elicitation: body.elicitation,
                pending_approval: body.pending_approval.map(|shown| shown.map(Into::into)),
                web_search: body.web_search.map(|policy| policy.map(Into::into)),
                fetch_url: body.fetch_url.map(|policy| policy.map(Into::into)),
                people_search: body.people_search.map(|policy| policy.map(Into::into)),
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
    /// The team's own storage budget.
    storage_bytes: Option<u64>,
    /// The team's own monthly allowance.
    monthly_credits: Option<f64>,
    /// The effective budget: the team's own or the plan's; null means no limit. Only for a single
    /// team.
    storage_budget_bytes: Option<u64>,
    /// The bytes stored. Only for a single team.
    #[serde(skip_serializing_if = "Option::is_none")]
    storage_used_bytes: Option<u64>,
    /// The bytes stored in layers: homes, their history, output files.
    #[serde(skip_serializing_if = "Option::is_none")]
    storage_layer_bytes: Option<u64>,
    /// The bytes stored in rows: execution records, snapshots, responses.
    #[serde(skip_serializing_if = "Option::is_none")]
    storage_row_bytes: Option<u64>,
    /// The team's own gate settings.
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
            storage_bytes: team.storage.map(ByteSize::bytes),
            monthly_credits: team.monthly_micro_credits.map(micro_to_credits),
            storage_budget_bytes: None,
            storage_used_bytes: None,
            storage_layer_bytes: None,
            storage_row_bytes: None,
            gates: team.gates.into(),
            created_at: format_rfc3339(team.created_at),
        }
    }
}

impl TeamRecord {
    /// Adds the storage usage.
    pub(crate) fn with_storage(self, storage: TeamStorage) -> Self {
        Self {
            storage_budget_bytes: storage.budget.map(ByteSize::bytes),
            storage_used_bytes: Some(storage.used.total()),
            storage_layer_bytes: Some(storage.used.layer_bytes),
            storage_row_bytes: Some(storage.used.row_bytes),
            ..self
        }
    }
}

/// The storage usage of one team.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StorageRecord {
    team_id: String,
    layer_bytes: u64,
    row_bytes: u64,
    used_bytes: u64,
}

impl From<(TeamId, StorageUsage)> for StorageRecord {
    fn from((team, usage): (TeamId, StorageUsage)) -> Self {
        Self {
            team_id: team.into(),
            layer_bytes: usage.layer_bytes,
            row_bytes: usage.row_bytes,
            used_bytes: usage.total(),
        }
    }
}

/// The storage usage of every team.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StorageList {
    pub(crate) teams: Vec<StorageRecord>,
}

/// All teams.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TeamList {
    pub(crate) teams: Vec<TeamRecord>,
}
