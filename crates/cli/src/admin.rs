//! `cloche team|sandbox|key|thread|approval`: what operators do, through the API of a running server.
//!
//! Each noun is a file of its own: its verbs, the request that each one makes, and the columns of
//! its table. What may be asked for is the server's to say; nothing is checked twice.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
use serde_json::{Map, Value, json};

use crate::print_error;

mod approval;
mod client;
mod connection;
mod key;
mod sandbox;
mod table;
mod team;
mod thread;

pub(crate) use approval::ApprovalArguments;
pub(crate) use connection::open_connection;
pub(crate) use key::KeyArguments;
pub(crate) use sandbox::SandboxArguments;
pub(crate) use team::TeamArguments;
pub(crate) use thread::ThreadArguments;

use client::{AdminClient, AdminError, ApiRoot};

/// Where the server is and how its answer is shown; the same for every noun and verb.
#[derive(Args)]
pub(crate) struct AdminArguments {
    /// The server's data directory; its address and admin token are read there.
    #[arg(long, global = true, env = "CLOCHE_DATA_DIR", value_name = "DIR")]
    #[arg(default_value = "cloche-data")]
    data_dir: PathBuf,
    /// The server's address instead, e.g. https://cloche.example; the token is CLOCHE_ADMIN_TOKEN's.
    #[arg(long, global = true, env = "CLOCHE_URL", value_name = "URL")]
    url: Option<String>,
    /// Print what the server answered, as JSON.
    #[arg(long, global = true)]
    json: bool,
}

/// What is shown of an answer to a person.
enum AnswerView {
    /// Some fields of every record in the list of this name.
    List(&'static str, &'static [&'static str]),
    /// Every field of one record.
    Record,
    /// A record whose `key` is not shown again.
    NewKey,
    /// The fleet's gates, and whom they are for.
    Defaults,
    /// A call that waits, with its code as a person reads it.
    Approval,
    /// The paths of a comparison.
    Diff,
    /// A sentence; there is no answer to speak of.
    Done(String),
}

type Fields = Map<String, Value>;

/// Something that can be asked of the server.
trait AdminVerb {
    /// Where what it asks for is.
    fn api_root(&self) -> ApiRoot {
        ApiRoot::Admin
    }
    /// Asks it, and says how the answer is to be shown.
    fn send_to(self, server: &AdminClient) -> Result<(Value, AnswerView), AdminError>;
}

fn run_verb(common: &AdminArguments, verb: impl AdminVerb) -> ExitCode {
    let answer = AdminClient::find(&common.data_dir, common.url.as_deref(), verb.api_root())
        .and_then(|server| verb.send_to(&server))
        .and_then(|(answer, show)| table::print_answer(&answer, &show, common.json));
    match answer {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&error);
            ExitCode::FAILURE
        }
    }
}

/// `cloche team`.
pub(crate) fn run_team_command(arguments: TeamArguments) -> ExitCode {
    run_verb(&arguments.common, arguments.verb)
}

/// `cloche sandbox`.
pub(crate) fn run_sandbox_command(arguments: SandboxArguments) -> ExitCode {
    run_verb(&arguments.common, arguments.verb)
}

/// `cloche approval`.
pub(crate) fn run_approval_command(arguments: ApprovalArguments) -> ExitCode {
    run_verb(&arguments.common, arguments.verb)
}

/// `cloche key`.
pub(crate) fn run_key_command(arguments: KeyArguments) -> ExitCode {
    run_verb(&arguments.common, arguments.verb)
}

/// `cloche thread`.
pub(crate) fn run_thread_command(arguments: ThreadArguments) -> ExitCode {
    let of_team = thread::TeamThreadVerb { verb: arguments.verb, team: arguments.team };
    run_verb(&arguments.common, of_team)
}

/// Puts a value into a body, if there is one: what is absent stays as it is.
fn put_field(fields: &mut Fields, name: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        fields.insert(name.to_owned(), value.into());
    }
}

/// Variables to set and to take away.
#[derive(Args)]
struct EnvChange {
    /// An environment variable of every execution; can be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = crate::run::parse_variable)]
    env: Vec<(String, String)>,
    /// A variable whose value is never shown again, and a file with the value; `-` reads standard input.
    #[arg(long, value_name = "NAME=FILE", value_parser = crate::run::parse_variable)]
    secret_env: Vec<(String, String)>,
    /// A variable to take away; can be repeated.
    #[arg(long, value_name = "NAME")]
    unset: Vec<String>,
}

impl EnvChange {
    /// The variables after the change; `None` if there is none. The API takes them all at once.
    fn apply(self, server: &AdminClient, path: &str) -> Result<Option<Value>, AdminError> {
        if self.env.is_empty() && self.secret_env.is_empty() && self.unset.is_empty() {
            return Ok(None);
        }
        let record = server.get(path)?;
        let mut variables = record["env_vars"].as_object().cloned().unwrap_or_default();
        variables.retain(|name, _| !self.unset.contains(name));
        variables.extend(self.env.into_iter().map(|(name, value)| (name, value.into())));
        for (name, file) in self.secret_env {
            let value = key::read_secret(Path::new(&file))?;
            variables.insert(name, json!({"value": value, "secret": true}));
        }
        Ok(Some(variables.into()))
    }
}

/// Variables of something new; `None` if there are none.
fn variables_to_json(env: Vec<(String, String)>) -> Option<Value> {
    let env: BTreeMap<_, _> = env.into_iter().map(|(name, value)| (name, value.into())).collect();
    (!env.is_empty()).then(|| Value::Object(env.into_iter().collect()))
}

/// Reads a whole number, or `none` for null.
fn number_or_none(text: &str) -> Result<Value, String> {
    if text == "none" {
        return Ok(Value::Null);
    }
    let invalid = |_| format!("{text:?} is neither a whole number nor \"none\"");
    text.parse::<u32>().map(Value::from).map_err(invalid)
}
