//! Runs in: operator commands.
//!
//! `cloche storage`: connections to buckets, and which sandboxes and keys may use them.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Map, Value};

use super::{
    AdminArguments, AdminClient, AdminError, AdminVerb, AnswerView, Fields,
    client::{list_path, path_segment},
    key::read_secret,
    put_field,
};

const COLUMNS: &[&str] =
    &["id", "team_id", "name", "kind", "bucket", "endpoint", "prefix", "read_only"];
const STEPS: &[&str] = &["step", "ok", "message"];
const BINDINGS: &[&str] = &["user", "path", "read_only"];

/// The arguments of `cloche storage`.
#[derive(Args)]
pub(crate) struct StorageArguments {
    #[command(subcommand)]
    verb: StorageVerb,
    /// The id or name of the team.
    #[arg(long, global = true, default_value = "default")]
    team: String,
    #[command(flatten)]
    pub(super) common: AdminArguments,
}

impl StorageArguments {
    pub(super) fn into_verb(self) -> (AdminArguments, TeamStorageVerb) {
        (self.common, TeamStorageVerb { verb: self.verb, team: self.team })
    }
}

#[derive(Subcommand)]
enum StorageVerb {
    /// Create a connection to a bucket, which is tried first.
    Create {
        /// Its name; it is mounted at /data/NAME.
        name: String,
        /// s3, gcs or azure.
        #[arg(long, default_value = "s3")]
        kind: String,
        /// The bucket, or the container of Azure.
        #[arg(long)]
        bucket: String,
        #[command(flatten)]
        settings: ConnectionArguments,
    },
    /// List the connections of the team.
    List,
    /// Show a connection and what may use it.
    Show {
        /// Its name or id.
        name: String,
    },
    /// Change a connection, with effect from the next execution. It is tried first.
    Set {
        /// Its name or id.
        name: String,
        /// Another bucket.
        #[arg(long)]
        bucket: Option<String>,
        #[command(flatten)]
        settings: ConnectionArguments,
    },
    /// Remove a connection that nothing uses. The bucket is left as it is.
    Rm {
        /// Its name or id.
        name: String,
    },
    /// Try a connection: list, write, read and delete a probe object.
    Check {
        /// Its name or id.
        name: String,
    },
    /// Let a sandbox or a key use a connection or volume, read-only unless said otherwise.
    Bind {
        /// The name or id of the connection or volume.
        name: String,
        #[command(flatten)]
        user: BindingUserArguments,
        /// The path, from the root of the bucket or volume, that it is bounded to.
        #[arg(long, value_name = "PATH")]
        path: Option<String>,
        /// Allow writes.
        #[arg(long)]
        read_write: bool,
    },
    /// Take a connection or volume away from a sandbox or a key.
    Unbind {
        /// The name or id of the connection or volume.
        name: String,
        #[command(flatten)]
        user: BindingUserArguments,
    },
}

/// Who uses a connection or volume.
#[derive(Args)]
#[group(required = true, multiple = false)]
struct BindingUserArguments {
    /// The id or name of a sandbox of the team.
    #[arg(long)]
    sandbox: Option<String>,
    /// The id of a key of the team.
    #[arg(long)]
    key: Option<String>,
}

impl BindingUserArguments {
    fn into_fields(self) -> Fields {
        let mut fields = Fields::new();
        put_field(&mut fields, "sandbox", self.sandbox);
        put_field(&mut fields, "key", self.key);
        fields
    }
}

/// The settings of a connection. Secrets are read from files, because every user of the host can
/// read arguments.
#[derive(Args)]
struct ConnectionArguments {
    /// The URL of the service [default: that of the provider].
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,
    /// The region of S3 [default: us-east-1].
    #[arg(long)]
    region: Option<String>,
    /// The storage account of Azure.
    #[arg(long)]
    account: Option<String>,
    /// The path in the bucket that every use is bounded to.
    #[arg(long, value_name = "PATH")]
    prefix: Option<String>,
    /// Whether no use may write.
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true")]
    read_only: Option<bool>,
    /// Whether the endpoint may be a private address and speak plain HTTP.
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true")]
    allow_private_endpoint: Option<bool>,
    /// The access key id of S3. It is not secret.
    #[arg(long, value_name = "ID")]
    access_key_id: Option<String>,
    /// A file with the secret: the secret access key of S3, the service account document of GCS,
    /// or the account key of Azure. `-` reads standard input, `env:NAME` a variable.
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// A file with the session token of temporary S3 credentials.
    #[arg(long, value_name = "FILE")]
    session_token_file: Option<PathBuf>,
    /// Save it without trying it.
    #[arg(long)]
    no_check: bool,
}

/// Reads a secret from a file, standard input or the environment.
fn read_secret_source(source: &std::path::Path) -> Result<String, AdminError> {
    let variable = source.to_str().and_then(|text| text.strip_prefix("env:"));
    match variable {
        Some(name) => std::env::var(name).map_err(|_| AdminError::NoVariable(name.to_owned())),
        None => read_secret(source),
    }
}

impl ConnectionArguments {
    fn into_fields(self, kind: &str) -> Result<Fields, AdminError> {
        let mut fields = Fields::new();
        put_field(&mut fields, "endpoint", self.endpoint);
        put_field(&mut fields, "region", self.region);
        put_field(&mut fields, "account", self.account);
        put_field(&mut fields, "prefix", self.prefix);
        put_field(&mut fields, "read_only", self.read_only);
        put_field(&mut fields, "allow_private_endpoint", self.allow_private_endpoint);
        put_field(&mut fields, "check", self.no_check.then_some(false));
        let mut credentials = Map::new();
        put_field(&mut credentials, "access_key_id", self.access_key_id);
        let part = match kind {
            "gcs" => "service_account_key",
            "azure" => "account_key",
            _ => "secret_access_key",
        };
        let secret = self.secret_file.as_deref().map(read_secret_source).transpose()?;
        put_field(&mut credentials, part, secret);
        let token = self.session_token_file.as_deref().map(read_secret_source).transpose()?;
        put_field(&mut credentials, "session_token", token);
        put_field(&mut fields, "credentials", (!credentials.is_empty()).then_some(credentials));
        Ok(fields)
    }
}

pub(super) struct TeamStorageVerb {
    verb: StorageVerb,
    team: String,
}

impl AdminVerb for TeamStorageVerb {
    fn send_to(self, server: &AdminClient) -> Result<(Value, AnswerView), AdminError> {
        let team = self.team;
        let path = |name: &str, end: &str| {
            list_path(&format!("storage/{}{end}", path_segment(name)), Some(&team))
        };
        Ok(match self.verb {
            StorageVerb::Create { name, kind, bucket, settings } => {
                let mut fields = settings.into_fields(&kind)?;
                put_field(&mut fields, "team", Some(team));
                put_field(&mut fields, "name", Some(name));
                put_field(&mut fields, "kind", Some(kind));
                put_field(&mut fields, "bucket", Some(bucket));
                (server.post("storage", &fields.into())?, AnswerView::Record)
            }
            StorageVerb::List => (
                server.get(&list_path("storage", Some(&team)))?,
                AnswerView::List("storage", COLUMNS),
            ),
            StorageVerb::Show { name } => (server.get(&path(&name, ""))?, AnswerView::Record),
            StorageVerb::Set { name, bucket, settings } => {
                let now = server.get(&path(&name, ""))?;
                let kind = now["kind"].as_str().unwrap_or("s3");
                let mut fields = settings.into_fields(kind)?;
                put_field(&mut fields, "bucket", bucket);
                (server.patch(&path(&name, ""), &fields.into())?, AnswerView::Record)
            }
            StorageVerb::Rm { name } => {
                let done = AnswerView::Done(format!("removed {name}"));
                (server.delete(&path(&name, ""))?, done)
            }
            StorageVerb::Check { name } => {
                let answer = server.post(&path(&name, "/check"), &Value::Null)?;
                if let Some(failed) = failed_step(&answer) {
                    return Err(AdminError::CheckFailed { name, failed });
                }
                (answer, AnswerView::List("steps", STEPS))
            }
            StorageVerb::Bind { name, user, path: bound, read_write } => {
                let mut fields = user.into_fields();
                put_field(&mut fields, "path", bound);
                put_field(&mut fields, "read_write", read_write.then_some(true));
                let answer = server.post(&path(&name, "/bind"), &fields.into())?;
                (answer, AnswerView::List("bindings", BINDINGS))
            }
            StorageVerb::Unbind { name, user } => {
                let answer = server.post(&path(&name, "/unbind"), &user.into_fields().into())?;
                (answer, AnswerView::List("bindings", BINDINGS))
            }
        })
    }
}

/// The first step of a check that failed, as a sentence.
fn failed_step(answer: &Value) -> Option<String> {
    let steps = answer["steps"].as_array()?;
    let failed = steps.iter().find(|step| step["ok"] == false)?;
    let text = |name: &str| failed[name].as_str().unwrap_or_default().to_owned();
    Some(format!("{}: {}", text("step"), text("message")))
}
