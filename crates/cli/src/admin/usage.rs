//! Runs in: operator commands.
//!
//! `cloche usage`: what teams and keys used.

use clap::Args;
use serde_json::Value;
use url::form_urlencoded;

use super::{AdminArguments, AdminClient, AdminError, AdminVerb, AnswerView};

const DAYS: &[&str] = &[
    "date",
    "executions",
    "credits",
    "cpu_seconds",
    "bytes_received",
    "bytes_sent",
    "network_bytes_in",
    "network_bytes_out",
    "tool_calls",
    "tool_calls_cost",
];

/// The arguments of `cloche usage`.
#[derive(Args)]
pub(crate) struct UsageArguments {
    #[command(flatten)]
    pub(super) query: UsageVerb,
    #[command(flatten)]
    pub(super) common: AdminArguments,
}

#[derive(Args)]
pub(super) struct UsageVerb {
    /// The id or name of a team [default: all teams].
    #[arg(long)]
    team: Option<String>,
    /// The id of a key [default: all keys].
    #[arg(long)]
    key: Option<String>,
    /// The first day in UTC, such as 2026-03-16 [default: the first of this month].
    #[arg(long, value_name = "DATE")]
    from: Option<String>,
    /// The last day in UTC [default: today].
    #[arg(long, value_name = "DATE")]
    to: Option<String>,
    /// Show each day with any usage.
    #[arg(long, value_name = "UNIT", value_parser = ["day"])]
    by: Option<String>,
}

impl AdminVerb for UsageVerb {
    fn send_to(self, server: &AdminClient) -> Result<(Value, AnswerView), AdminError> {
        let view = match self.by {
            Some(_) => AnswerView::List("days", DAYS),
            None => AnswerView::Record,
        };
        let fields = [
            ("team", self.team),
            ("key", self.key),
            ("from", self.from),
            ("to", self.to),
            ("by", self.by),
        ];
        let mut query = form_urlencoded::Serializer::new(String::new());
        for (name, value) in fields {
            if let Some(value) = value {
                query.append_pair(name, &value);
            }
        }
        Ok((server.get(&format!("usage?{}", query.finish()))?, view))
    }
}
