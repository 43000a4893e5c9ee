//! `cloche team`: who has which plan.

use clap::{Args, Subcommand};
use serde_json::Value;

use super::{AdminError, Common, Fields, Server, Show, Verb, number_or_none, put, server::segment};

const COLUMNS: &[&str] =
    &["id", "name", "plan", "max_concurrency", "max_timeout_seconds", "created_at"];

/// What `cloche team` takes.
#[derive(Args)]
pub(crate) struct TeamArguments {
    #[command(subcommand)]
    pub(super) verb: TeamVerb,
    #[command(flatten)]
    pub(super) common: Common,
}

#[derive(Subcommand)]
pub(super) enum TeamVerb {
    /// Make a team.
    Create {
        /// Its name, unique among teams.
        name: String,
        /// free, pro or enterprise.
        #[arg(long)]
        plan: String,
        #[command(flatten)]
        limits: Limits,
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
        limits: Limits,
    },
    /// Remove a team that has no sandboxes and no keys.
    Rm {
        /// Its id or name.
        team: String,
    },
}

/// Limits instead of the plan's.
#[derive(Args)]
pub(super) struct Limits {
    /// Executions at once; `none` for what the plan says.
    #[arg(long, value_name = "COUNT", value_parser = number_or_none)]
    max_concurrency: Option<Value>,
    /// The longest timeout that can be asked for; `none` for what the plan says.
    #[arg(long, value_name = "SECONDS", value_parser = number_or_none)]
    max_timeout: Option<Value>,
}

fn body(name: Option<String>, plan: Option<String>, limits: Limits) -> Value {
    let mut fields = Fields::new();
    put(&mut fields, "name", name);
    put(&mut fields, "plan", plan);
    put(&mut fields, "max_concurrency", limits.max_concurrency);
    put(&mut fields, "max_timeout_seconds", limits.max_timeout);
    fields.into()
}

fn path(team: &str) -> String {
    format!("teams/{}", segment(team))
}

impl Verb for TeamVerb {
    fn ask(self, server: &Server) -> Result<(Value, Show), AdminError> {
        Ok(match self {
            Self::Create { name, plan, limits } => {
                (server.post("teams", &body(Some(name), Some(plan), limits))?, Show::Record)
            }
            Self::List => (server.get("teams")?, Show::List("teams", COLUMNS)),
            Self::Show { team } => (server.get(&path(&team))?, Show::Record),
            Self::Set { team, name, plan, limits } => {
                (server.patch(&path(&team), &body(name, plan, limits))?, Show::Record)
            }
            Self::Rm { team } => {
                (server.delete(&path(&team))?, Show::Done(format!("removed {team}")))
            }
        })
    }
}
