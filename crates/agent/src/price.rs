//! The cost of a response, on three axes: tokens, container sessions, and web tools, whether the
//! model called them or code in the sandbox did.

use std::time::Duration;

use cloche_model::WebTool;
use serde::{Deserialize, Serialize};

use crate::TokenCounts;

/// How much active time of a container one session covers.
pub(crate) const SESSION: Duration = Duration::from_secs(20 * 60);

/// Prices in dollars per million tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TokenPrices {
    /// The price of input tokens.
    pub input: f64,
    /// The price of output tokens.
    pub output: f64,
}

/// The usage of a response so far, and its cost in dollars.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResponseBill {
    /// Tokens of all model calls.
    pub tokens: TokenCounts,
    /// The cost of input tokens.
    pub input_cost: f64,
    /// The cost of output tokens.
    pub output_cost: f64,
    /// How many programs were run in the sandbox.
    pub sandbox_invocations: u64,
    /// The cost of container sessions.
    pub sandbox_cost: f64,
    /// Calls of web tools, in the order of [`WebTool::ALL`].
    #[serde(default)]
    pub web_tools: [WebToolBill; WebTool::ALL.len()],
}

/// Calls of one web tool, and their cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebToolBill {
    /// How many a provider answered.
    pub calls: u64,
    /// What they cost, in millionths of a dollar.
    pub micro_dollars: u64,
}

impl WebToolBill {
    /// What the calls cost, in dollars.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "money is shown, not summed for accounts")]
    pub fn dollars(self) -> f64 {
        self.micro_dollars as f64 / 1e6
    }
}

impl ResponseBill {
    /// Adds the tokens of one call.
    #[expect(clippy::cast_precision_loss, reason = "money is shown, not summed for accounts")]
    pub(crate) fn add_tokens(&mut self, tokens: TokenCounts, prices: TokenPrices) {
        self.tokens.add(tokens);
        self.input_cost += tokens.input as f64 * prices.input / 1e6;
        self.output_cost += tokens.output as f64 * prices.output / 1e6;
    }

    /// Adds calls of a web tool, with the cost of all of them.
    pub(crate) fn add_web_calls(&mut self, tool: WebTool, calls: u64, micro_dollars: u64) {
        let bills = WebTool::ALL.iter().zip(&mut self.web_tools);
        for (_, bill) in bills.filter(|(known, _)| **known == tool) {
            bill.calls = bill.calls.saturating_add(calls);
            bill.micro_dollars = bill.micro_dollars.saturating_add(micro_dollars);
        }
    }

    /// The cost of tools: container sessions and web tools.
    #[must_use]
    pub fn tool_cost(&self) -> f64 {
        let web_tools = self.web_tools.iter().map(|bill| bill.micro_dollars).sum::<u64>();
        self.sandbox_cost + WebToolBill { calls: 0, micro_dollars: web_tools }.dollars()
    }

    /// The total cost.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.input_cost + self.output_cost + self.tool_cost()
    }
}

/// A home that the runs of a chain of responses share, with its active time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ResponseContainer {
    /// Its id, which is also the id of a thread.
    pub(crate) id: String,
    /// How long code has run in it.
    active: Duration,
    /// The number of sessions billed.
    sessions: u64,
}

impl ResponseContainer {
    pub(crate) fn new(id: String) -> Self {
        Self { id, active: Duration::ZERO, sessions: 0 }
    }

    /// Adds the time of a run; returns how many new sessions it starts.
    pub(crate) fn record_use(&mut self, time: Duration) -> u64 {
        self.active += time;
        let begun = 1 + u64::try_from(self.active.as_nanos() / SESSION.as_nanos()).unwrap_or(0);
        let new = begun.saturating_sub(self.sessions);
        self.sessions = self.sessions.max(begun);
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_priced_by_the_million() {
        let mut bill = ResponseBill::default();
        let tokens = TokenCounts { input: 2_000_000, output: 500_000, ..TokenCounts::default() };
        bill.add_tokens(tokens, TokenPrices { input: 1.25, output: 10.0 });
        assert!((bill.total() - 7.5).abs() < 1e-9, "{bill:?}");
    }

    #[test]
    fn web_tools_are_on_the_bill_by_tool() {
        let mut bill = ResponseBill::default();
        bill.add_web_calls(WebTool::FetchUrl, 2, 1_000);
        bill.add_web_calls(WebTool::FetchUrl, 1, 500);
        bill.add_web_calls(WebTool::WebSearch, 1, 5_000);
        assert_eq!(bill.web_tools.map(|bill| bill.calls), [1, 3, 0]);
        assert!((bill.total() - 0.0065).abs() < 1e-9, "{bill:?}");
        let old = r#"{"tokens":{"input":0,"output":0,"cache_read":0,"cache_creation":0},
            "input_cost":0,"output_cost":0,"sandbox_invocations":0,"sandbox_cost":0.03}"#;
        let old: ResponseBill = serde_json::from_str(old).unwrap();
        assert!((old.total() - 0.03).abs() < 1e-9, "a stored bill without web tools is read");
    }

    #[test]
    fn a_session_is_billed_per_twenty_minutes_of_use() {
        let mut container = ResponseContainer::new("c".to_owned());
        assert_eq!(container.record_use(Duration::from_secs(1)), 1);
        assert_eq!(container.record_use(Duration::from_secs(19 * 60)), 0);
        assert_eq!(container.record_use(Duration::from_secs(60)), 1);
        assert_eq!(container.record_use(Duration::from_secs(41 * 60)), 2);
    }
}
