//! Runs in: server (no capabilities).
//!
//! Metrics of agents: decisions at the gates, responses, calls of models and of tools.

use cloche_model::{DecisionKind, ResponseStatus};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DecisionLabels {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResponseLabels {
    status: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModelLabels {
    provider: String,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TokenLabels {
    provider: String,
    direction: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    tool: &'static str,
    status: &'static str,
}

/// The counters of what agents do.
#[derive(Default)]
pub struct AgentMetrics {
    pending: Gauge,
    decisions: Family<DecisionLabels, Counter>,
    responses: Family<ResponseLabels, Counter>,
    models: Family<ModelLabels, Counter>,
    tokens: Family<TokenLabels, Counter>,
    calls: Family<CallLabels, Counter>,
    web_tools: Family<CallLabels, Counter>,
}

impl AgentMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        let pending = "Calls of agents that wait for a person's answer";
        registry.register("approvals_pending", pending, self.pending.clone());
        let decisions = "Decisions about agents that were written down, by kind";
        registry.register("decisions", decisions, self.decisions.clone());
        let responses = "Responses of the Agent API that are over, by status";
        registry.register("agent_responses", responses, self.responses.clone());
        let models = "Requests to model providers, by provider and result";
        registry.register("model_calls", models, self.models.clone());
        let tokens = "Tokens that models read (input) and wrote (output), by provider";
        registry.register("model_tokens", tokens, self.tokens.clone());
        let calls = "Calls of MCP tools, by tool and status";
        registry.register("mcp_calls", calls, self.calls.clone());
        let web_tools = "Calls of web tools, by tool and result";
        registry.register("web_tool_calls", web_tools, self.web_tools.clone());
    }

    /// A decision is in the ledger.
    pub(crate) fn count_decision(&self, kind: DecisionKind) {
        self.decisions.get_or_create(&DecisionLabels { kind: kind.name() }).inc();
    }

    pub(crate) fn set_pending(&self, count: u64) {
        self.pending.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// A response is over, or waits for its caller's functions.
    pub fn response_over(&self, status: ResponseStatus) {
        self.responses.get_or_create(&ResponseLabels { status: status.name() }).inc();
    }

    /// A provider was asked once, with this result.
    pub fn model_called(&self, provider: &str, result: &'static str) {
        let provider = provider.to_owned();
        self.models.get_or_create(&ModelLabels { provider, result }).inc();
    }

    /// What an answer of a provider took.
    pub fn tokens_used(&self, provider: &str, input: u64, output: u64) {
        for (direction, count) in [("input", input), ("output", output)] {
            let provider = provider.to_owned();
            self.tokens.get_or_create(&TokenLabels { provider, direction }).inc_by(count);
        }
    }

    /// A call of a web tool is over.
    pub(crate) fn web_tool_called(&self, tool: &'static str, status: &'static str) {
        self.web_tools.get_or_create(&CallLabels { tool, status }).inc();
    }

    /// A call of an MCP tool is over.
    pub fn tool_called(&self, tool: &'static str, status: &'static str) {
        self.calls.get_or_create(&CallLabels { tool, status }).inc();
    }
}
