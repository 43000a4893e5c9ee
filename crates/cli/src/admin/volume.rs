//! Runs in: operator commands.
//!
//! `cloche volume`: storage of teams that this server keeps.

use clap::{Args, Subcommand};
use cloche_model::ByteSize;
use serde_json::{Value, json};

use super::{
    AdminArguments, AdminClient, AdminError, AdminVerb, AnswerView,
    client::{list_path, path_segment},
};

const COLUMNS: &[&str] =
    &["id", "team_id", "name", "quota_bytes", "used_bytes", "entries", "created_at"];

/// The arguments of `cloche volume`.
#[derive(Args)]
pub(crate) struct VolumeArguments {
    #[command(subcommand)]
    verb: VolumeVerb,
    /// The id or name of the team.
    #[arg(long, global = true, default_value = "default")]
    team: String,
    #[command(flatten)]
    pub(super) common: AdminArguments,
}

impl VolumeArguments {
    pub(super) fn into_verb(self) -> (AdminArguments, TeamVolumeVerb) {
        (self.common, TeamVolumeVerb { verb: self.verb, team: self.team })
    }
}

#[derive(Subcommand)]
enum VolumeVerb {
    /// Create a volume. Bind it to sandboxes and keys with `cloche storage bind`.
    Create {
        /// Its name; it is mounted at /data/NAME.
        name: String,
        /// The most bytes of its files: 512M, 10G.
        #[arg(long, value_name = "SIZE")]
        quota: ByteSize,
    },
    /// List the volumes of the team.
    List,
    /// Show a volume and what may use it.
    Show {
        /// Its name or id.
        name: String,
    },
    /// Change the quota of a volume.
    Set {
        /// Its name or id.
        name: String,
        /// The most bytes of its files. Files that are there stay.
        #[arg(long, value_name = "SIZE")]
        quota: ByteSize,
    },
    /// Remove a volume that nothing uses, with all its files.
    Rm {
        /// Its name or id.
        name: String,
    },
}

pub(super) struct TeamVolumeVerb {
    verb: VolumeVerb,
    team: String,
}

impl AdminVerb for TeamVolumeVerb {
    fn send_to(self, server: &AdminClient) -> Result<(Value, AnswerView), AdminError> {
        let team = self.team;
        let path = |name: &str| list_path(&format!("volumes/{}", path_segment(name)), Some(&team));
        Ok(match self.verb {
            VolumeVerb::Create { name, quota } => {
                let body = json!({"team": team, "name": name, "quota_bytes": quota.bytes()});
                (server.post("volumes", &body)?, AnswerView::Record)
            }
            VolumeVerb::List => (
                server.get(&list_path("volumes", Some(&team)))?,
                AnswerView::List("volumes", COLUMNS),
            ),
            VolumeVerb::Show { name } => (server.get(&path(&name))?, AnswerView::Record),
            VolumeVerb::Set { name, quota } => {
                let body = json!({"quota_bytes": quota.bytes()});
                (server.patch(&path(&name), &body)?, AnswerView::Record)
            }
            VolumeVerb::Rm { name } => {
                (server.delete(&path(&name))?, AnswerView::Done(format!("removed {name}")))
            }
        })
    }
}
