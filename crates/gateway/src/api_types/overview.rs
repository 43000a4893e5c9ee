//! The wire format of the console's figures and events.

use std::{collections::HashMap, time::Duration};

use cloche_engine::{
    ActivityEvent, ActivityPoint, ActivitySummary, HostFigures, LatencyPercentiles, NodeHealth,
    NodeLoad, format_rfc3339, now,
};
use cloche_model::{ExecutionStatus, Language, Moment, SandboxId};
use serde::Serialize;
use utoipa::ToSchema;

use super::execute::{LanguageName, StatusName};

/// Percentiles of the time from the request to the end, in milliseconds.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LatencyRecord {
    p50: f64,
    p95: f64,
    p99: f64,
}

impl From<LatencyPercentiles> for LatencyRecord {
    fn from(latency: LatencyPercentiles) -> Self {
        Self { p50: latency.p50_ms, p95: latency.p95_ms, p99: latency.p99_ms }
    }
}

/// A pool of parked cells.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PoolRecord {
    name: String,
    parked: u64,
    target: u64,
}

/// An executor of a fleet.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct NodeRecord {
    url: String,
    /// `up`, `down`, or `unknown` before its first health check.
    state: &'static str,
    /// Why it is left out, if it is.
    reason: Option<String>,
    /// Executions that it runs now.
    running: u64,
    /// Whether it keeps the homes of threads.
    keeps_homes: bool,
    /// The longest time limit that it takes, if it says so.
    max_timeout_seconds: Option<f64>,
}

impl From<NodeLoad> for NodeRecord {
    fn from(node: NodeLoad) -> Self {
        let (state, reason) = match node.health {
            NodeHealth::Up => ("up", None),
            NodeHealth::Down(why) => ("down", Some(why)),
            NodeHealth::Unknown => ("unknown", None),
        };
        Self {
            url: node.url,
            state,
            reason,
            running: node.running,
            keeps_homes: node.keeps_homes,
            max_timeout_seconds: node.max_timeout.map(|time| time.as_secs_f64()),
        }
    }
}

/// The memory that requests and outputs share.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MemoryRecord {
    used_bytes: u64,
    limit_bytes: u64,
}

/// Bytes that programs transferred in the last minute.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct NetworkFigures {
    in_bytes: u64,
    out_bytes: u64,
}

/// A sandbox with many executions.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BusySandbox {
    sandbox_id: String,
    /// Null if it was deleted.
    name: Option<String>,
    /// Executions in the last hour.
    runs: u64,
}

/// Figures of the last minutes. Those of the host are null for members of a team.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OverviewNow {
    #[schema(format = DateTime)]
    at: String,
    /// Executions that ended in the last minute.
    runs_per_minute: u64,
    /// The share of successful ones in the last five minutes; null without any.
    success_rate: Option<f64>,
    latency_ms: Option<LatencyRecord>,
    executions_running: usize,
    cells_running: Option<u64>,
    pools: Option<Vec<PoolRecord>>,
    /// The executors of a fleet; empty where this host runs the code.
    nodes: Option<Vec<NodeRecord>>,
    /// Executions that wait for a place on the host.
    queue_waiting: Option<usize>,
    memory: Option<MemoryRecord>,
    network: NetworkFigures,
    top_sandboxes: Vec<BusySandbox>,
    pending_approvals: usize,
}

impl OverviewNow {
    pub(crate) fn new(
        at: Moment,
        summary: ActivitySummary,
        names: &HashMap<SandboxId, String>,
        running: usize,
    ) -> Self {
        let busy = |(id, runs): (SandboxId, u64)| BusySandbox {
            name: names.get(&id).cloned(),
            sandbox_id: id.into(),
            runs,
        };
        Self {
            at: format_rfc3339(at),
            runs_per_minute: summary.runs_per_minute,
            success_rate: summary.success_rate,
            latency_ms: summary.latency.map(Into::into),
            executions_running: running,
            cells_running: None,
            pools: None,
            nodes: None,
            queue_waiting: None,
            memory: None,
            network: NetworkFigures {
                in_bytes: summary.network_in_bytes,
                out_bytes: summary.network_out_bytes,
            },
            top_sandboxes: summary.top_sandboxes.into_iter().map(busy).collect(),
            pending_approvals: 0,
        }
    }

    /// The same with the figures of the host.
    pub(crate) fn with_host(self, host: Option<HostFigures>) -> Self {
        let Some(host) = host else { return self };
        let pools = host.load.pools.into_iter().map(|pool| PoolRecord {
            name: pool.name,
            parked: pool.parked,
            target: pool.target,
        });
        Self {
            cells_running: Some(host.load.cells_running),
            pools: Some(pools.collect()),
            nodes: Some(host.load.nodes.into_iter().map(NodeRecord::from).collect()),
            queue_waiting: Some(host.queued),
            memory: Some(MemoryRecord {
                used_bytes: host.memory_used_bytes,
                limit_bytes: host.memory_limit_bytes,
            }),
            ..self
        }
    }

    /// The same with the number of calls that wait for a person.
    pub(crate) fn with_pending_approvals(self, pending_approvals: usize) -> Self {
        Self { pending_approvals, ..self }
    }
}

/// What happened in one step of time.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OverviewPoint {
    #[schema(format = DateTime)]
    at: String,
    runs: u64,
    failed: u64,
    p50_ms: Option<f64>,
    p95_ms: Option<f64>,
    p99_ms: Option<f64>,
    network_in_bytes: u64,
    network_out_bytes: u64,
}

/// Figures of the last hours.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OverviewHistory {
    #[schema(format = DateTime)]
    from: String,
    #[schema(format = DateTime)]
    to: String,
    step_seconds: i64,
    /// Oldest first; steps without an execution are left out.
    points: Vec<OverviewPoint>,
}

impl OverviewHistory {
    pub(crate) fn new(range: Duration, step_seconds: i64, points: Vec<ActivityPoint>) -> Self {
        let to = now();
        let point = |point: ActivityPoint| OverviewPoint {
            at: format_rfc3339(Moment(point.second.saturating_mul(1_000_000))),
            runs: point.runs,
            failed: point.failed,
            p50_ms: point.latency.map(|latency| latency.p50_ms),
            p95_ms: point.latency.map(|latency| latency.p95_ms),
            p99_ms: point.latency.map(|latency| latency.p99_ms),
            network_in_bytes: point.network_in_bytes,
            network_out_bytes: point.network_out_bytes,
        };
        Self {
            from: format_rfc3339(to.saturating_sub(range)),
            to: format_rfc3339(to),
            step_seconds,
            points: points.into_iter().map(point).collect(),
        }
    }
}

/// An execution that started or ended.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ExecutionActivity {
    /// `started` or `ended`.
    kind: &'static str,
    trace_id: String,
    #[schema(value_type = StatusName)]
    status: &'static str,
    #[schema(value_type = Option<LanguageName>)]
    language: Option<&'static str>,
    team_id: String,
    sandbox_id: String,
    key_id: String,
    thread_id: Option<String>,
    #[schema(format = DateTime)]
    created_at: String,
    /// From the request to the end.
    duration_ms: Option<u64>,
    exit_code: Option<i32>,
}

impl From<&ActivityEvent> for ExecutionActivity {
    fn from(event: &ActivityEvent) -> Self {
        let is_running = event.status == ExecutionStatus::Running;
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self {
            kind: if is_running { "started" } else { "ended" },
            trace_id: event.trace_id.to_string(),
            status: event.status.name(),
            language: event.language.map(Language::name),
            team_id: event.team.to_string(),
            sandbox_id: event.sandbox.to_string(),
            key_id: event.key.to_string(),
            thread_id: event.thread.as_ref().map(ToString::to_string),
            created_at: format_rfc3339(event.created_at),
            duration_ms: event.duration.map(millis),
            exit_code: event.exit_code,
        }
    }
}

/// The number of calls that wait for a person.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ApprovalsEvent {
    pub(crate) pending: usize,
}

/// Why a stream ended.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SessionEnd {
    pub(crate) reason: String,
}
