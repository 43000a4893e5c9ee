//! `cloche key`: keys, which let their holder run code in a sandbox.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand};
use serde_json::Value;

use super::{
    AdminArguments, AdminClient, AdminError, AdminVerb, AnswerView, EnvChange, Fields,
    client::{list_path, path_segment},
    put_field, variables_to_json,
};

const COLUMNS: &[&str] =
    &["id", "team_id", "sandbox_id", "name", "prefix", "webhook_url", "created_at", "revoked_at"];

/// The arguments of `cloche key`.
#[derive(Args)]
pub(crate) struct KeyArguments {
    #[command(subcommand)]
    pub(super) verb: KeyVerb,
    #[command(flatten)]
    pub(super) common: AdminArguments,
}

#[derive(Subcommand)]
pub(super) enum KeyVerb {
    /// Create a key; its secret is shown only now.
    Create {
        /// Its name.
        name: String,
        /// The id or name of its team.
        #[arg(long, default_value = "default")]
        team: String,
        /// The id or name of its sandbox.
        #[arg(long, default_value = "default")]
        sandbox: String,
        /// An environment variable of every execution; can be repeated.
        #[arg(long, value_name = "NAME=VALUE", value_parser = crate::run::parse_variable)]
        env: Vec<(String, String)>,
        #[command(flatten)]
        webhook: WebhookArguments,
        /// Let its holder answer approval requests of other keys of the team.
        #[arg(long)]
        may_approve: bool,
    },
    /// List keys.
    List {
        /// Only those of this team, by id or name.
        #[arg(long)]
        team: Option<String>,
    },
    /// Show a key, without its secret.
    Show {
        /// Its id.
        key: String,
    },
    /// Change a key, with effect from the next request.
    Set {
        /// Its id.
        key: String,
        /// A new name.
        #[arg(long)]
        name: Option<String>,
        /// The id or name of another sandbox.
        #[arg(long)]
        sandbox: Option<String>,
        #[command(flatten)]
        env: EnvChange,
        #[command(flatten)]
        webhook: WebhookArguments,
        /// Clear the webhook and its secret.
        #[arg(long, conflicts_with_all = ["webhook_url", "webhook_secret_file"])]
        no_webhook: bool,
        /// Whether its holder may answer approval requests of other keys of the team.
        #[arg(long, value_name = "true|false")]
        may_approve: Option<bool>,
    },
    /// Revoke a key immediately and permanently.
    Revoke {
        /// Its id.
        key: String,
    },
}

/// The default webhook.
#[derive(Args)]
pub(super) struct WebhookArguments {
    /// The URL to which results are posted by default; https only.
    #[arg(long, value_name = "URL")]
    webhook_url: Option<String>,
    /// A file with the secret that signs deliveries; `-` reads standard input.
    #[arg(long, value_name = "FILE")]
    webhook_secret_file: Option<PathBuf>,
}

impl WebhookArguments {
    fn put_fields(self, fields: &mut Fields) -> Result<(), AdminError> {
        put_field(fields, "webhook_url", self.webhook_url);
        let secret = self.webhook_secret_file.as_deref().map(read_secret).transpose()?;
        put_field(fields, "webhook_secret", secret);
        Ok(())
    }
}

/// Reads a secret from a file, without the final newline. It is not an argument, because every user
/// of the host can read arguments.
pub(super) fn read_secret(path: &Path) -> Result<String, AdminError> {
    let text = if path == Path::new("-") {
        io::read_to_string(io::stdin())
    } else {
        fs::read_to_string(path)
    };
    let text = text.map_err(|source| AdminError::Secret { path: path.to_owned(), source })?;
    Ok(text.strip_suffix('\n').unwrap_or(&text).to_owned())
}

fn key_path(key: &str) -> String {
    format!("keys/{}", path_segment(key))
}

impl AdminVerb for KeyVerb {
    fn send_to(self, server: &AdminClient) -> Result<(Value, AnswerView), AdminError> {
        let mut fields = Fields::new();
        Ok(match self {
            Self::Create { name, team, sandbox, env, webhook, may_approve } => {
                put_field(&mut fields, "team", Some(team));
                put_field(&mut fields, "sandbox", Some(sandbox));
                put_field(&mut fields, "name", Some(name));
                put_field(&mut fields, "env_vars", variables_to_json(env));
                webhook.put_fields(&mut fields)?;
                put_field(&mut fields, "may_approve", may_approve.then_some(true));
                (server.post("keys", &fields.into())?, AnswerView::NewKey)
            }
            Self::List { team } => (
                server.get(&list_path("keys", team.as_deref()))?,
                AnswerView::List("keys", COLUMNS),
            ),
            Self::Show { key } => (server.get(&key_path(&key))?, AnswerView::Record),
            Self::Set { key, name, sandbox, env, webhook, no_webhook, may_approve } => {
                put_field(&mut fields, "name", name);
                put_field(&mut fields, "sandbox", sandbox);
                put_field(&mut fields, "env_vars", env.apply(server, &key_path(&key))?);
                webhook.put_fields(&mut fields)?;
                put_field(&mut fields, "may_approve", may_approve);
                if no_webhook {
                    put_field(&mut fields, "webhook_url", Some(Value::Null));
                    put_field(&mut fields, "webhook_secret", Some(Value::Null));
                }
                (server.patch(&key_path(&key), &fields.into())?, AnswerView::Record)
            }
            Self::Revoke { key } => {
                (server.delete(&key_path(&key))?, AnswerView::Done(format!("revoked {key}")))
            }
        })
    }
}
