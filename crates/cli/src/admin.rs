//! `cloche team|member|sandbox|image|key|credential|thread|approval|storage|volume|usage`: commands
//! for operators, through the API of a running server.
//!
//! Each noun has a file with its verbs, the request of each verb, and the columns of its table. The
//! server validates requests; nothing is validated twice.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
use serde_json::{Map, Value, json};

use crate::print_error;

mod admin_token;
mod approval;
mod client;
mod credential;
mod image;
mod image_progress;
mod key;
mod member;
mod registry_logins;
mod sandbox;
mod storage;
mod table;
mod team;
mod thread;
mod usage;
mod volume;

pub(crate) use admin_token::AdminTokenArguments;
pub(crate) use approval::ApprovalArguments;
pub(crate) use credential::CredentialArguments;
pub(crate) use image::ImageArguments;
pub(crate) use key::KeyArguments;
pub(crate) use member::MemberArguments;
pub(crate) use sandbox::SandboxArguments;
pub(crate) use storage::StorageArguments;
pub(crate) use team::TeamArguments;
pub(crate) use thread::ThreadArguments;
pub(crate) use usage::UsageArguments;
pub(crate) use volume::VolumeArguments;

use client::ApiRoot;
pub(crate) use client::{AdminClient, AdminError};

/// The server and the output format; the same for every noun and verb.
#[derive(Args)]
pub(crate) struct AdminArguments {
    /// The server's data directory; its address and admin token are read there.
    #[arg(long, global = true, env = "CLOCHE_DATA_DIR", value_name = "DIR")]
    #[arg(default_value = "cloche-data")]
    data_dir: PathBuf,
    /// The server's address, e.g. `https://cloche.example`; the token is read from
    /// CLOCHE_ADMIN_TOKEN.
    #[arg(long, global = true, env = "CLOCHE_URL", value_name = "URL")]
    url: Option<String>,
    /// A PEM file with certificate authorities to trust besides the host's.
    #[arg(long, global = true, env = "CLOCHE_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Print the server's response as JSON.
    #[arg(long, global = true)]
    json: bool,
}

impl AdminArguments {
    /// Whether JSON is wanted instead of words.
    pub(crate) fn wants_json(&self) -> bool {
        self.json
    }

    /// The server, and its admin token.
    pub(crate) fn find_server(&self) -> Result<AdminClient, AdminError> {
        let found = AdminClient::find(&self.data_dir, self.url.as_deref(), ApiRoot::Admin)?;
        Ok(found.trusting(self.ca.clone()))
    }
}

/// How a response is printed.
enum AnswerView {
    /// Some fields of every record in the list of this name.
    List(&'static str, &'static [&'static str]),
    /// Every field of one record.
    Record,
    /// A record whose `key` is not shown again.
    NewKey,
    /// The gates of the fleet, and to whom they apply.
    Defaults,
    /// An approval, with its code.
    Approval,
    /// The paths of a comparison.
    Diff,
    /// A sentence; the response has no content.
    Done(String),
}

type Fields = Map<String, Value>;

/// A request to the server.
trait AdminVerb {
    /// The part of the API that the request uses.
    fn api_root(&self) -> ApiRoot {
        ApiRoot::Admin
    }
    /// Sends the request. Returns the response and how to print it.
    fn send_to(self, server: &AdminClient) -> Result<(Value, AnswerView), AdminError>;
}

fn run_verb(common: &AdminArguments, verb: impl AdminVerb) -> ExitCode {
    let answer = AdminClient::find(&common.data_dir, common.url.as_deref(), verb.api_root())
        .map(|server| server.trusting(common.ca.clone()))
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

/// `cloche member`.
pub(crate) fn run_member_command(arguments: MemberArguments) -> ExitCode {
    run_verb(&arguments.common, arguments.verb)
}

/// `cloche sandbox`.
pub(crate) fn run_sandbox_command(arguments: SandboxArguments) -> ExitCode {
    run_verb(&arguments.common, arguments.verb)
}

/// `cloche image`.
pub(crate) fn run_image_command(arguments: ImageArguments) -> ExitCode {
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

/// `cloche credential`.
pub(crate) fn run_credential_command(arguments: CredentialArguments) -> ExitCode {
    run_verb(&arguments.common, arguments.verb)
}

/// `cloche thread`.
pub(crate) fn run_thread_command(arguments: ThreadArguments) -> ExitCode {
    let of_team = thread::TeamThreadVerb { verb: arguments.verb, team: arguments.team };
    run_verb(&arguments.common, of_team)
}

/// `cloche admin-token`.
pub(crate) fn run_admin_token_command(arguments: AdminTokenArguments) -> ExitCode {
    run_verb(&arguments.common, arguments.verb)
}

/// `cloche storage`.
pub(crate) fn run_storage_command(arguments: StorageArguments) -> ExitCode {
    let (common, verb) = arguments.into_verb();
    run_verb(&common, verb)
}

/// `cloche volume`.
pub(crate) fn run_volume_command(arguments: VolumeArguments) -> ExitCode {
    let (common, verb) = arguments.into_verb();
    run_verb(&common, verb)
}

/// `cloche usage`.
pub(crate) fn run_usage_command(arguments: UsageArguments) -> ExitCode {
    run_verb(&arguments.common, arguments.query)
}

/// Sets a field of a body if there is a value. An absent field is not changed.
fn put_field(fields: &mut Fields, name: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        fields.insert(name.to_owned(), value.into());
    }
}

/// Variables to set and to remove.
#[derive(Args)]
struct EnvChange {
    /// An environment variable of every execution; can be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = crate::run::parse_variable)]
    env: Vec<(String, String)>,
    /// A variable whose value is never shown again, and a file with the value; `-` reads standard
    /// input.
    #[arg(long, value_name = "NAME=FILE", value_parser = crate::run::parse_variable)]
    secret_env: Vec<(String, String)>,
    /// A variable to remove; can be repeated.
    #[arg(long, value_name = "NAME")]
    unset: Vec<String>,
}

impl EnvChange {
    /// The variables after the change. `None` if nothing changes. The API replaces all of them at
    /// once.
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

/// Variables of a new record. `None` if there are none.
fn variables_to_json(env: Vec<(String, String)>) -> Option<Value> {
    let env: BTreeMap<_, _> = env.into_iter().map(|(name, value)| (name, value.into())).collect();
    (!env.is_empty()).then(|| Value::Object(env.into_iter().collect()))
}

/// Parses a whole number, or `none` for null.
fn number_or_none(text: &str) -> Result<Value, String> {
    if text == "none" {
        return Ok(Value::Null);
    }
    let invalid = |_| format!("{text:?} is neither a whole number nor \"none\"");
    text.parse::<u32>().map(Value::from).map_err(invalid)
}
