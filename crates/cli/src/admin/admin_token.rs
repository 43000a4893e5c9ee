//! Runs in: operator commands.
//!
//! `cloche admin-token`: the token of operators.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{AdminArguments, AdminClient, AdminError, AdminVerb, AnswerView};

/// The arguments of `cloche admin-token`.
#[derive(Args)]
pub(crate) struct AdminTokenArguments {
    #[command(subcommand)]
    pub(super) verb: AdminTokenVerb,
    #[command(flatten)]
    pub(super) common: AdminArguments,
}

#[derive(Subcommand)]
pub(super) enum AdminTokenVerb {
    /// Replace the admin token, also in the server's bootstrap.json; the old one is refused at once.
    Rotate,
}

impl AdminVerb for AdminTokenVerb {
    fn send_to(self, server: &AdminClient) -> Result<(Value, AnswerView), AdminError> {
        let Self::Rotate = self;
        Ok((server.post("token", &json!({}))?, AnswerView::NewKey))
    }
}
