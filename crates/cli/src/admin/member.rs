//! `cloche member`: people who can sign in to the console.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::Value;

use super::{
    AdminArguments, AdminClient, AdminError, AdminVerb, AnswerView, Fields,
    client::{list_path, path_segment},
    key::read_secret,
    put_field,
};

const COLUMNS: &[&str] =
    &["id", "name", "role", "team", "email", "totp", "disabled", "last_sign_in_at"];

/// The arguments of `cloche member`.
#[derive(Args)]
pub(crate) struct MemberArguments {
    #[command(subcommand)]
    pub(super) verb: MemberVerb,
    #[command(flatten)]
    pub(super) common: AdminArguments,
}

#[derive(Subcommand)]
pub(super) enum MemberVerb {
    /// Create a member.
    Create {
        /// The name at the sign-in, unique on the server.
        name: String,
        /// operator, owner, developer or viewer.
        #[arg(long)]
        role: String,
        /// The id or name of the team; not for operators.
        #[arg(long)]
        team: Option<String>,
        /// The address by which an OpenID provider names the member.
        #[arg(long)]
        email: Option<String>,
        /// A file with the password; `-` reads standard input.
        #[arg(long, value_name = "FILE")]
        password_file: Option<PathBuf>,
    },
    /// List members.
    List {
        /// Only those of this team, by id or name.
        #[arg(long)]
        team: Option<String>,
    },
    /// Show a member.
    Show {
        /// Its id or name.
        member: String,
    },
    /// Change a member.
    Set {
        /// Its id or name.
        member: String,
        /// operator, owner, developer or viewer. All sign-ins of the member end.
        #[arg(long)]
        role: Option<String>,
        /// The address by which an OpenID provider names the member.
        #[arg(long)]
        email: Option<String>,
        /// A file with a new password; `-` reads standard input. All sign-ins of the member end.
        #[arg(long, value_name = "FILE")]
        password_file: Option<PathBuf>,
        /// Whether sign-ins are refused.
        #[arg(long, value_name = "true|false")]
        disabled: Option<bool>,
        /// Remove the second factor, for someone who lost it.
        #[arg(long)]
        remove_totp: bool,
    },
    /// Remove a member. All sign-ins end.
    Remove {
        /// Its id or name.
        member: String,
    },
}

fn member_path(member: &str) -> String {
    format!("members/{}", path_segment(member))
}

impl AdminVerb for MemberVerb {
    fn send_to(self, server: &AdminClient) -> Result<(Value, AnswerView), AdminError> {
        let mut fields = Fields::new();
        Ok(match self {
            Self::Create { name, role, team, email, password_file } => {
                put_field(&mut fields, "name", Some(name));
                put_field(&mut fields, "role", Some(role));
                put_field(&mut fields, "team", team);
                put_field(&mut fields, "email", email);
                let password = password_file.as_deref().map(read_secret).transpose()?;
                put_field(&mut fields, "password", password);
                (server.post("members", &fields.into())?, AnswerView::Record)
            }
            Self::List { team } => (
                server.get(&list_path("members", team.as_deref()))?,
                AnswerView::List("members", COLUMNS),
            ),
            Self::Show { member } => (server.get(&member_path(&member))?, AnswerView::Record),
            Self::Set { member, role, email, password_file, disabled, remove_totp } => {
                put_field(&mut fields, "role", role);
                put_field(&mut fields, "email", email);
                let password = password_file.as_deref().map(read_secret).transpose()?;
                put_field(&mut fields, "password", password);
                put_field(&mut fields, "disabled", disabled);
                put_field(&mut fields, "remove_totp", remove_totp.then_some(true));
                (server.patch(&member_path(&member), &fields.into())?, AnswerView::Record)
            }
            Self::Remove { member } => {
                server.delete(&member_path(&member))?;
                (Value::Null, AnswerView::Done(format!("removed {member}")))
            }
        })
    }
}
