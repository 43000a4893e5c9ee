//! `cloche approval`: calls of agents that wait for a person, and what was decided.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{AdminError, Common, Fields, Server, Show, Verb, put, server::segment};

const COLUMNS: &[&str] =
    &["id", "team_id", "key_id", "tool", "state", "created_at", "expires_at", "decided_by"];
const DECISION_COLUMNS: &[&str] =
    &["at", "kind", "by", "team_id", "tool", "approval_id", "trace_id", "note"];

/// What `cloche approval` takes.
#[derive(Args)]
pub(crate) struct ApprovalArguments {
    #[command(subcommand)]
    pub(super) verb: ApprovalVerb,
    #[command(flatten)]
    pub(super) common: Common,
}

#[derive(Subcommand)]
pub(super) enum ApprovalVerb {
    /// List calls that wait for an answer.
    List {
        /// Only those of this team, by id or name.
        #[arg(long)]
        team: Option<String>,
        /// Those that are pending, approved, denied, expired, used, or all.
        #[arg(long, default_value = "pending")]
        state: String,
    },
    /// Show a call that waits, with its code.
    Show {
        /// Its id.
        approval: String,
    },
    /// Say yes: the call may be made once.
    Approve {
        /// Its id.
        approval: String,
        #[command(flatten)]
        person: Person,
        /// From now on let the team's agents run code without asking.
        #[arg(long)]
        always: bool,
    },
    /// Say no.
    Deny {
        /// Its id.
        approval: String,
        #[command(flatten)]
        person: Person,
        /// Why; whoever asked reads it.
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// List what was decided, by whom and when, newest first.
    History {
        /// Only what is about this team, by id or name.
        #[arg(long)]
        team: Option<String>,
        /// Only what is about this approval.
        #[arg(long, value_name = "ID")]
        approval: Option<String>,
        /// At most so many.
        #[arg(long, value_name = "COUNT", default_value_t = 50)]
        limit: u32,
    },
}

/// Who answers.
#[derive(Args)]
pub(super) struct Person {
    /// Your name, for the record.
    #[arg(long = "as", value_name = "NAME", env = "USER")]
    name: Option<String>,
}

fn path(approval: &str) -> String {
    format!("approvals/{}", segment(approval))
}

/// A path with those parameters that are there.
fn narrowed(path: &str, parameters: &[(&str, Option<&str>)]) -> String {
    let given = parameters.iter().filter_map(|(name, value)| Some((name, (*value)?)));
    let pairs: Vec<_> = given.map(|(name, value)| format!("{name}={}", segment(value))).collect();
    format!("{path}?{}", pairs.join("&"))
}

impl Verb for ApprovalVerb {
    fn ask(self, server: &Server) -> Result<(Value, Show), AdminError> {
        let mut fields = Fields::new();
        Ok(match self {
            Self::List { team, state } => {
                let state = Some(state.as_str()).filter(|state| *state != "all");
                let path = narrowed("approvals", &[("team", team.as_deref()), ("state", state)]);
                (server.get(&path)?, Show::List("approvals", COLUMNS))
            }
            Self::Show { approval } => (server.get(&path(&approval))?, Show::Approval),
            Self::Approve { approval, person, always } => {
                put(&mut fields, "by", person.given());
                let path = format!("{}/approve", path(&approval));
                let answer = server.post(&path, &fields.into())?;
                if always {
                    let team =
                        format!("teams/{}", segment(answer["team_id"].as_str().unwrap_or("")));
                    server.patch(&team, &json!({"execute_code": "allow"}))?;
                }
                (answer, Show::Done(format!("approved {approval}")))
            }
            Self::Deny { approval, person, reason } => {
                put(&mut fields, "by", person.given());
                put(&mut fields, "reason", reason);
                let path = format!("{}/deny", path(&approval));
                (server.post(&path, &fields.into())?, Show::Done(format!("denied {approval}")))
            }
            Self::History { team, approval, limit } => {
                let limit = limit.to_string();
                let parameters = [
                    ("team", team.as_deref()),
                    ("approval", approval.as_deref()),
                    ("limit", Some(limit.as_str())),
                ];
                let answer = server.get(&narrowed("decisions", &parameters))?;
                (answer, Show::List("decisions", DECISION_COLUMNS))
            }
        })
    }
}

impl Person {
    fn given(self) -> Option<String> {
        self.name.filter(|name| !name.is_empty())
    }
}
