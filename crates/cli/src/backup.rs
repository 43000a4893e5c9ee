//! `cloche backup` and `cloche restore`: everything that a server keeps, to a directory or a bucket
//! and back.
//!
//! `place` stores objects, `manifest` lists them, `save` reads them from a running server, and
//! `restore` makes a data directory of them. What is written to a place is described in
//! `docs/decisions/0048-backups.md`.

use std::{io, path::PathBuf, process::ExitCode};

use cloche_layers::LayerError;
use cloche_store::{KeyError, StoreError};

mod manifest;
mod place;
mod restore;
mod save;

pub(crate) use restore::RestoreArguments;
pub(crate) use save::BackupArguments;

use crate::{admin::AdminError, print_error, serve::SettingsError};

/// Why a backup could not be made or restored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BackupError {
    #[error("cannot use {place}")]
    Place { place: String, source: object_store::Error },
    #[error("cannot use {path}")]
    File { path: String, source: io::Error },
    #[error("the bucket of {0} does not exist")]
    NoBucket(String),
    #[error("cannot read or write {name} of the backup")]
    Object { name: String, source: object_store::Error },
    #[error("the backup is damaged: {0} is missing")]
    Missing(String),
    #[error("the backup is damaged: {name} does not have the digest of its manifest")]
    Damaged { name: String },
    #[error("the backup is damaged: its database refers to {0}, which is not in its manifest")]
    Unlisted(String),
    #[error(
        "the backup {0} is not complete: it has no manifest, because `cloche backup` was interrupted"
    )]
    Incomplete(String),
    #[error("{0} has no complete backup")]
    NoBackup(String),
    #[error("the manifest of the backup cannot be read")]
    Manifest(#[source] serde_json::Error),
    #[error("the backup has format {found}, and this version of cloche knows format {known}")]
    Format { found: u32, known: u32 },
    #[error("{} is not empty; name a new directory with --data-dir", .0.display())]
    NotEmpty(PathBuf),
    #[error("the database of the backup cannot be used")]
    Database(#[source] StoreError),
    #[error("the secret key does not belong to this backup")]
    SecretKey(#[source] KeyError),
    #[error("the layer store failed")]
    Layers(#[from] LayerError),
    #[error("the volume {id} cannot be restored")]
    Volume { id: String, source: io::Error },
    #[error(transparent)]
    Server(#[from] AdminError),
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error("the server's answer is not that of this version")]
    Answer,
    #[error("cannot find the server's user")]
    User(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// `cloche backup`.
pub(crate) fn run_backup_command(arguments: BackupArguments) -> ExitCode {
    crate::identity::set_private_umask();
    finish_command(run_to_end(save::save_backup(arguments)))
}

/// `cloche restore`.
pub(crate) fn run_restore_command(arguments: RestoreArguments) -> ExitCode {
    crate::identity::set_private_umask();
    finish_command(run_to_end(restore::restore_backup(arguments)))
}

fn run_to_end(
    work: impl Future<Output = Result<String, BackupError>>,
) -> Result<String, BackupError> {
    let failed = |source| BackupError::File { path: "the runtime".to_owned(), source };
    tokio::runtime::Runtime::new().map_err(failed)?.block_on(work)
}

#[expect(clippy::print_stdout, reason = "this is the terminal's edge")]
fn finish_command(done: Result<String, BackupError>) -> ExitCode {
    match done {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            print_error(&error);
            ExitCode::FAILURE
        }
    }
}
