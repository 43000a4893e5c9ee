//! `cloche approval`: approval requests of agents, and decisions.

use clap::{Args, Subcommand};
use cloche_model::AgentTool;
use serde_json::{Value, json};

use super::{
    AdminArguments, AdminClient, AdminError, AdminVerb, AnswerView, Fields, client::path_segment,
    put_field,
};

const COLUMNS: &[&str] =
    &["id", "team_id", "key_id", "tool", "state", "created_at", "expires_at", "decided_by"];
const DECISION_COLUMNS: &[&str] =
    &["at", "kind", "by", "team_id", "tool", "approval_id", "trace_id", "note"];

/// The arguments of `cloche approval`.
#[derive(Args)]
pub(crate) struct ApprovalArguments {
    #[command(subcommand)]
    pub(super) verb: ApprovalVerb,
    #[command(flatten)]
    pub(super) common: AdminArguments,
}

#[derive(Subcommand)]
pub(super) enum ApprovalVerb {
    /// List approval requests.
    List {
        /// Only those of this team, by id or name.
        #[arg(long)]
        team: Option<String>,
        /// Only those with this state: pending, approved, denied, expired, used, or all.
        #[arg(long, default_value = "pending")]
        state: String,
    },
    /// Show an approval request, with its code.
    Show {
        /// Its id.
        approval: String,
    },
    /// Approve: the call may be made once.
    Approve {
        /// Its id.
        approval: String,
        #[command(flatten)]
        person: ApproverArguments,
        /// From now on, let the team's agents run code without approval.
        #[arg(long)]
        always: bool,
    },
    /// Deny.
    Deny {
        /// Its id.
        approval: String,
        #[command(flatten)]
        person: ApproverArguments,
        /// The reason; the agent sees it.
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// List decisions, who made them and when, newest first.
    History {
        /// Only decisions about this team, by id or name.
        #[arg(long)]
        team: Option<String>,
        /// Only decisions about this approval.
        #[arg(long, value_name = "ID")]
        approval: Option<String>,
        /// The maximum number of decisions.
        #[arg(long, value_name = "COUNT", default_value_t = 50)]
        limit: u32,
    },
}

/// Who answers.
#[derive(Args)]
pub(super) struct ApproverArguments {
    /// Your name, for the record.
    #[arg(long = "as", value_name = "NAME", env = "USER")]
    name: Option<String>,
}

fn approval_path(approval: &str) -> String {
    format!("approvals/{}", path_segment(approval))
}

/// A path with the parameters that are set.
fn filtered_path(path: &str, parameters: &[(&str, Option<&str>)]) -> String {
    let given = parameters.iter().filter_map(|(name, value)| Some((name, (*value)?)));
    let pairs: Vec<_> =
        given.map(|(name, value)| format!("{name}={}", path_segment(value))).collect();
    format!("{path}?{}", pairs.join("&"))
}

impl AdminVerb for ApprovalVerb {
    fn send_to(self, server: &AdminClient) -> Result<(Value, AnswerView), AdminError> {
        let mut fields = Fields::new();
        Ok(match self {
            Self::List { team, state } => {
                let state = Some(state.as_str()).filter(|state| *state != "all");
                let path =
                    filtered_path("approvals", &[("team", team.as_deref()), ("state", state)]);
                (server.get(&path)?, AnswerView::List("approvals", COLUMNS))
            }
            Self::Show { approval } => {
                (server.get(&approval_path(&approval))?, AnswerView::Approval)
            }
            Self::Approve { approval, person, always } => {
                put_field(&mut fields, "by", person.given_name());
                let path = format!("{}/approve", approval_path(&approval));
                let answer = server.post(&path, &fields.into())?;
                if always {
                    let team =
                        format!("teams/{}", path_segment(answer["team_id"].as_str().unwrap_or("")));
                    let tool: Option<AgentTool> =
                        answer["tool"].as_str().and_then(|tool| tool.parse().ok());
                    let policy = tool.unwrap_or(AgentTool::ExecuteCode).policy_name();
                    server.patch(&team, &json!({policy: "allow"}))?;
                }
                (answer, AnswerView::Done(format!("approved {approval}")))
            }
            Self::Deny { approval, person, reason } => {
                put_field(&mut fields, "by", person.given_name());
                put_field(&mut fields, "reason", reason);
                let path = format!("{}/deny", approval_path(&approval));
                (
                    server.post(&path, &fields.into())?,
                    AnswerView::Done(format!("denied {approval}")),
                )
            }
            Self::History { team, approval, limit } => {
                let limit = limit.to_string();
                let parameters = [
                    ("team", team.as_deref()),
                    ("approval", approval.as_deref()),
                    ("limit", Some(limit.as_str())),
                ];
                let answer = server.get(&filtered_path("decisions", &parameters))?;
                (answer, AnswerView::List("decisions", DECISION_COLUMNS))
            }
        })
    }
}

impl ApproverArguments {
    fn given_name(self) -> Option<String> {
        self.name.filter(|name| !name.is_empty())
    }
}
