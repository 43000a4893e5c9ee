//! `cloche team`: teams, their plans and their gates.
//!
//! With gate settings, the team `default` means the fleet: every team without settings of its own.
//! The team with that name can be changed by its id.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{
    AdminArguments, AdminClient, AdminError, AdminVerb, AnswerView, Fields, client::path_segment,
    number_or_none, put_field,
};

const COLUMNS: &[&str] = &[
    "id",
    "name",
    "plan",
    "max_concurrency",
    "max_timeout_seconds",
    "agent_sandbox",
    "execute_code",
    "created_at",
];

/// The arguments of `cloche team`.
#[derive(Args)]
pub(crate) struct TeamArguments {
    #[command(subcommand)]
    pub(super) verb: TeamVerb,
    #[command(flatten)]
    pub(super) common: AdminArguments,
}

#[derive(Subcommand)]
pub(super) enum TeamVerb {
    /// Create a team.
    Create {
        /// Its name, unique among teams.
        name: String,
        /// free, pro or enterprise.
        #[arg(long)]
        plan: String,
        #[command(flatten)]
        limits: TeamLimitArguments,
    },
    /// List teams.
    List,
    /// Show a team.
    Show {
        /// Its id or name.
        team: String,
    },
    /// Change a team.
    Set {
        /// Its id or name.
        team: String,
        /// A new name.
        #[arg(long)]
        name: Option<String>,
        /// free, pro or enterprise.
        #[arg(long)]
        plan: Option<String>,
        #[command(flatten)]
        limits: TeamLimitArguments,
        /// Gates: agent_sandbox=on|off, execute_code=allow|ask|deny, elicitation=on|off,
        /// pending_approval=in_progress|requires_action, and allow|ask|deny for web_search,
        /// fetch_url and people_search; `none` uses the fleet's setting. For the
        /// team `default`, these are the fleet's settings.
        #[arg(value_name = "NAME=VALUE", value_parser = parse_gate_setting)]
        gates: Vec<(String, Value)>,
    },
    /// Show the gates of teams without settings of their own.
    Defaults,
    /// Recount the storage use of every team.
    Recount,
    /// Remove a team that has no sandboxes and no keys.
    Rm {
        /// Its id or name.
        team: String,
    },
}

/// Limits that override the plan's.
#[derive(Args)]
pub(super) struct TeamLimitArguments {
    /// The maximum number of concurrent executions; `none` for the plan's.
    #[arg(long, value_name = "COUNT", value_parser = number_or_none)]
    max_concurrency: Option<Value>,
    /// The longest timeout of an execution; `none` for the plan's.
    #[arg(long, value_name = "SECONDS", value_parser = number_or_none)]
    max_timeout: Option<Value>,
    /// The storage budget, such as 20G; `none` for the plan's.
    #[arg(long, value_name = "SIZE", value_parser = size_or_none)]
    storage: Option<Value>,
    /// The credits that executions may cost in a month; `none` for the plan's.
    #[arg(long, value_name = "CREDITS", value_parser = credits_or_none)]
    monthly_credits: Option<Value>,
}

fn credits_or_none(text: &str) -> Result<Value, String> {
    if text == "none" {
        return Ok(Value::Null);
    }
    let credits = text.parse::<f64>().ok().filter(|credits| *credits >= 0.0);
    let invalid = || format!("{text:?} is neither a number of credits nor \"none\"");
    credits.map(|credits| json!(credits)).ok_or_else(invalid)
}

fn size_or_none(text: &str) -> Result<Value, String> {
    if text == "none" {
        return Ok(Value::Null);
    }
    let size: cloche_model::ByteSize =
        text.parse().map_err(|error: cloche_model::InvalidUnit| error.to_string())?;
    Ok(json!(size.bytes()))
}

fn team_body(name: Option<String>, plan: Option<String>, limits: TeamLimitArguments) -> Value {
    let mut fields = Fields::new();
    put_field(&mut fields, "name", name);
    put_field(&mut fields, "plan", plan);
    put_field(&mut fields, "max_concurrency", limits.max_concurrency);
    put_field(&mut fields, "max_timeout_seconds", limits.max_timeout);
    put_field(&mut fields, "storage_bytes", limits.storage);
    put_field(&mut fields, "monthly_credits", limits.monthly_credits);
    fields.into()
}

/// The name of the fleet in gate settings.
const FLEET: &str = "default";

fn set_team(
    server: &AdminClient,
    team: &str,
    body: Value,
    gates: Vec<(String, Value)>,
) -> Result<(Value, AnswerView), AdminError> {
    let fleet = team == FLEET && !gates.is_empty();
    let mut fields = body.as_object().cloned().unwrap_or_default();
    if fleet && !fields.is_empty() {
        return Err(AdminError::Mixed);
    }
    fields.extend(gates);
    Ok(match fleet {
        true => (server.patch("defaults", &fields.into())?, AnswerView::Defaults),
        false => (server.patch(&team_path(team), &fields.into())?, AnswerView::Record),
    })
}

/// Parses a gate setting.
fn parse_gate_setting(text: &str) -> Result<(String, Value), String> {
    let (name, value) = text.split_once('=').ok_or("a setting must be NAME=VALUE")?;
    let value = match (name, value) {
        (
            "agent_sandbox" | "execute_code" | "elicitation" | "pending_approval" | "web_search"
            | "fetch_url" | "people_search",
            "none",
        ) => Value::Null,
        ("agent_sandbox" | "elicitation", "on") => json!(true),
        ("agent_sandbox" | "elicitation", "off") => json!(false),
        (
            "execute_code" | "web_search" | "fetch_url" | "people_search",
            "allow" | "ask" | "deny",
        )
        | ("pending_approval", "in_progress" | "requires_action") => json!(value),
        ("agent_sandbox" | "elicitation", _) => {
            return Err(format!("{name} must be on, off or none, not {value:?}"));
        }
        ("execute_code" | "web_search" | "fetch_url" | "people_search", _) => {
            return Err(format!("{name} must be allow, ask, deny or none, not {value:?}"));
        }
        ("pending_approval", _) => {
            return Err(format!(
                "{name} must be in_progress, requires_action or none, not {value:?}"
            ));
        }
        _ => {
            return Err(format!(
                "unknown setting {name:?}; use agent_sandbox, execute_code, elicitation, \
                 pending_approval, web_search, fetch_url or people_search"
            ));
        }
    };
    Ok((name.to_owned(), value))
}

fn team_path(team: &str) -> String {
    format!("teams/{}", path_segment(team))
}

impl AdminVerb for TeamVerb {
    fn send_to(self, server: &AdminClient) -> Result<(Value, AnswerView), AdminError> {
        Ok(match self {
            Self::Create { name, plan, limits } => (
                server.post("teams", &team_body(Some(name), Some(plan), limits))?,
                AnswerView::Record,
            ),
            Self::List => (server.get("teams")?, AnswerView::List("teams", COLUMNS)),
            Self::Show { team } => (server.get(&team_path(&team))?, AnswerView::Record),
            Self::Set { team, name, plan, limits, gates } => {
                set_team(server, &team, team_body(name, plan, limits), gates)?
            }
            Self::Defaults => (server.get("defaults")?, AnswerView::Defaults),
            Self::Recount => (
                server.post("storage/recount", &json!({}))?,
                AnswerView::List("teams", &["team_id", "layer_bytes", "row_bytes", "used_bytes"]),
            ),
            Self::Rm { team } => {
                (server.delete(&team_path(&team))?, AnswerView::Done(format!("removed {team}")))
            }
        })
    }
}
