//! `cloche credential`: secret values for sandboxes and keys, brokered or injected.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{
    AdminArguments, AdminClient, AdminError, AdminVerb, AnswerView, Fields,
    client::{list_path, path_segment},
    key::read_secret,
    put_field,
};

const COLUMNS: &[&str] = &[
    "name",
    "kind",
    "visible_to_code",
    "hosts",
    "form",
    "env",
    "file",
    "sandboxes",
    "keys",
    "updated_at",
    "last_used_at",
];

/// The arguments of `cloche credential`.
#[derive(Args)]
pub(crate) struct CredentialArguments {
    #[command(subcommand)]
    pub(super) verb: CredentialVerb,
    #[command(flatten)]
    pub(super) common: AdminArguments,
}

#[derive(Subcommand)]
pub(super) enum CredentialVerb {
    /// Create a credential. With --host it is brokered: added to requests outside of the sandbox.
    /// With --env or --file it is injected: the code can read it.
    Create {
        /// Its name.
        name: String,
        /// The id or name of its team.
        #[arg(long, default_value = "default")]
        team: String,
        #[command(flatten)]
        settings: CredentialSettingArguments,
        /// A file with the value; `-` reads standard input.
        #[arg(long, value_name = "FILE", default_value = "-")]
        value_file: PathBuf,
        /// A sandbox of the team whose executions have it, by id or name; can be repeated.
        #[arg(long, value_name = "SANDBOX")]
        sandbox: Vec<String>,
        /// A key of the team whose executions have it, by id; can be repeated.
        #[arg(long, value_name = "KEY")]
        key: Vec<String>,
    },
    /// List credentials, without their values.
    List {
        /// Only those of this team, by id or name.
        #[arg(long)]
        team: Option<String>,
    },
    /// Show a credential, without its value.
    Show {
        /// Its id, or TEAM/NAME.
        credential: String,
    },
    /// Change a credential or its value, with effect from the next execution.
    Set {
        /// Its id, or TEAM/NAME.
        credential: String,
        #[command(flatten)]
        settings: CredentialSettingArguments,
        /// A file with the new value; `-` reads standard input.
        #[arg(long, value_name = "FILE")]
        value_file: Option<PathBuf>,
    },
    /// Give a credential to the executions of a sandbox or a key.
    Bind {
        /// Its id, or TEAM/NAME.
        credential: String,
        #[command(flatten)]
        target: CredentialTargetArguments,
    },
    /// Take a credential from the executions of a sandbox or a key.
    Unbind {
        /// Its id, or TEAM/NAME.
        credential: String,
        #[command(flatten)]
        target: CredentialTargetArguments,
    },
    /// Remove a credential and its bindings.
    Rm {
        /// Its id, or TEAM/NAME.
        credential: String,
    },
}

/// What is done with the value.
#[derive(Args)]
pub(super) struct CredentialSettingArguments {
    /// Brokered: a host that it is sent to, such as api.example.com or api.example.com:8443; can be
    /// repeated.
    #[arg(long, value_name = "HOST[:PORT]", conflicts_with_all = ["env", "file"])]
    host: Vec<String>,
    /// Brokered: a method of the requests that it is added to; can be repeated.
    #[arg(long, value_name = "METHOD", conflicts_with_all = ["env", "file"])]
    method: Vec<String>,
    /// Brokered: a prefix of the paths that it is added to; can be repeated.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["env", "file"])]
    path: Vec<String>,
    /// Brokered: bearer, basic, "header NAME" or "query NAME"; bearer if absent.
    #[arg(long, conflicts_with_all = ["env", "file"])]
    form: Option<String>,
    /// Injected: the environment variable that the code reads it from.
    #[arg(long, value_name = "NAME", conflicts_with = "file")]
    env: Option<String>,
    /// Injected: the name of the file in /run/secrets that the code reads it from.
    #[arg(long, value_name = "NAME")]
    file: Option<String>,
}

impl CredentialSettingArguments {
    fn kind(&self) -> &'static str {
        if self.env.is_some() || self.file.is_some() { "injected" } else { "brokered" }
    }

    fn put_fields(self, fields: &mut Fields) {
        let list = |words: Vec<String>| (!words.is_empty()).then_some(words);
        put_field(fields, "hosts", list(self.host));
        put_field(fields, "methods", list(self.method));
        put_field(fields, "paths", list(self.path));
        put_field(fields, "form", self.form);
        put_field(fields, "env", self.env);
        put_field(fields, "file", self.file);
    }
}

/// What it is bound to.
#[derive(Args)]
#[group(required = true, multiple = false)]
pub(super) struct CredentialTargetArguments {
    /// A sandbox of the team, by id or name.
    #[arg(long)]
    sandbox: Option<String>,
    /// A key of the team, by id.
    #[arg(long)]
    key: Option<String>,
}

impl CredentialTargetArguments {
    fn into_body(self) -> Value {
        match (self.sandbox, self.key) {
            (Some(sandbox), _) => json!({"sandbox": sandbox}),
            (None, key) => json!({"key": key}),
        }
    }
}

/// The path of a credential, by its id or by `TEAM/NAME`.
fn find_credential_path(server: &AdminClient, credential: &str) -> Result<String, AdminError> {
    let Some((team, name)) = credential.split_once('/') else {
        return Ok(format!("credentials/{}", path_segment(credential)));
    };
    let list = server.get(&list_path("credentials", Some(team)))?;
    let all = list["credentials"].as_array().map(Vec::as_slice).unwrap_or_default();
    let found = all.iter().find(|one| one["name"] == name).and_then(|one| one["id"].as_str());
    let missing = || AdminError::NoSuchCredential { team: team.to_owned(), name: name.to_owned() };
    Ok(format!("credentials/{}", path_segment(found.ok_or_else(missing)?)))
}

impl AdminVerb for CredentialVerb {
    fn send_to(self, server: &AdminClient) -> Result<(Value, AnswerView), AdminError> {
        let mut fields = Fields::new();
        Ok(match self {
            Self::Create { name, team, settings, value_file, sandbox, key } => {
                put_field(&mut fields, "team", Some(team));
                put_field(&mut fields, "name", Some(name));
                put_field(&mut fields, "kind", Some(settings.kind()));
                settings.put_fields(&mut fields);
                put_field(&mut fields, "value", Some(read_secret(&value_file)?));
                put_field(&mut fields, "sandboxes", Some(sandbox));
                put_field(&mut fields, "keys", Some(key));
                (server.post("credentials", &fields.into())?, AnswerView::Record)
            }
            Self::List { team } => (
                server.get(&list_path("credentials", team.as_deref()))?,
                AnswerView::List("credentials", COLUMNS),
            ),
            Self::Show { credential } => {
                (server.get(&find_credential_path(server, &credential)?)?, AnswerView::Record)
            }
            Self::Set { credential, settings, value_file } => {
                settings.put_fields(&mut fields);
                let value = value_file.as_deref().map(read_secret).transpose()?;
                put_field(&mut fields, "value", value);
                let path = find_credential_path(server, &credential)?;
                (server.patch(&path, &fields.into())?, AnswerView::Record)
            }
            Self::Bind { credential, target } => {
                let path = format!("{}/bind", find_credential_path(server, &credential)?);
                (server.post(&path, &target.into_body())?, AnswerView::Record)
            }
            Self::Unbind { credential, target } => {
                let path = format!("{}/unbind", find_credential_path(server, &credential)?);
                (server.post(&path, &target.into_body())?, AnswerView::Record)
            }
            Self::Rm { credential } => {
                let done = AnswerView::Done(format!("removed {credential}"));
                (server.delete(&find_credential_path(server, &credential)?)?, done)
            }
        })
    }
}
