//! `cloche thread`: homes that outlive executions, and their history.

use std::{
    fs::{self, File},
    io::{self, Read, Seek},
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand};
use serde_json::{Map, Value};

use super::{
    AdminArguments, AdminClient, AdminError, AdminVerb, AnswerView, Fields,
    client::{ApiRoot, path_segment},
    put_field,
};

const THREADS: &[&str] = &["thread_id", "head", "layers", "bytes", "entries", "updated_at"];
const POINTS: &[&str] = &["seq", "kind", "created_at", "bytes_added", "files_changed", "trace_id"];
/// The number of records that are requested at once.
const PAGE: &str = "200";

/// The arguments of `cloche thread`.
#[derive(Args)]
pub(crate) struct ThreadArguments {
    #[command(subcommand)]
    pub(super) verb: ThreadVerb,
    #[command(flatten)]
    pub(super) common: AdminArguments,
    /// With the admin token: the id or name of the team whose threads are meant. With an API key in
    /// CLOCHE_API_KEY, it is the key's own team.
    #[arg(long, global = true, default_value = "default")]
    pub(super) team: String,
}

#[derive(Subcommand)]
pub(super) enum ThreadVerb {
    /// List threads.
    List,
    /// Show every snapshot of a thread, newest first.
    History {
        /// The thread.
        thread: String,
    },
    /// Show which paths differ between two snapshots.
    Diff {
        /// The thread.
        thread: String,
        /// The older snapshot, by number or trace id [default: the one before].
        #[arg(long, value_name = "POINT")]
        from: Option<String>,
        /// The newer snapshot [default: the newest].
        #[arg(long, value_name = "POINT")]
        to: Option<String>,
    },
    /// Create a thread from a snapshot of another.
    Fork {
        /// The thread.
        thread: String,
        /// The new thread.
        new: String,
        /// The snapshot, by number or trace id [default: the newest].
        #[arg(long, value_name = "POINT")]
        at: Option<String>,
    },
    /// Restore a snapshot as a new snapshot, so that nothing is lost.
    Rollback {
        /// The thread.
        thread: String,
        /// The snapshot, by number or trace id.
        to: String,
    },
    /// Write a thread as an OCI image layout.
    Export {
        /// The thread.
        thread: String,
        /// A directory that does not exist yet; a name that ends in .tar gives an archive.
        to: PathBuf,
        /// The snapshot, by number or trace id [default: the newest].
        #[arg(long, value_name = "POINT")]
        at: Option<String>,
    },
    /// Create a thread from an OCI image layout.
    Import {
        /// The new thread.
        thread: String,
        /// The directory, or an archive of it.
        from: PathBuf,
    },
    /// Drop snapshots of a thread's history: those of the plan's policy, or those that match all
    /// rules given here. The newest is always kept.
    Prune {
        /// The thread.
        thread: String,
        /// Keep this many of the newest.
        #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
        keep: Option<u64>,
        /// Drop only snapshots older than this.
        #[arg(long, value_name = "DAYS")]
        older_than: Option<u32>,
    },
    /// Delete a thread with all its snapshots.
    Rm {
        /// The thread.
        thread: String,
    },
}

/// A verb for the threads of a team.
pub(super) struct TeamThreadVerb {
    pub(super) verb: ThreadVerb,
    pub(super) team: String,
}

impl TeamThreadVerb {
    fn path(&self, thread: &str, what: &str, parameters: &[(&str, Option<&str>)]) -> String {
        let thread =
            if thread.is_empty() { String::new() } else { format!("/{}", path_segment(thread)) };
        let mut path = format!("threads{thread}{what}?team={}", path_segment(&self.team));
        for (name, value) in parameters {
            if let Some(value) = value {
                path = format!("{path}&{name}={}", path_segment(value));
            }
        }
        path
    }

    /// Fetches every page of a list.
    fn fetch_all_pages(
        &self,
        server: &AdminClient,
        thread: &str,
        what: &str,
        name: &str,
    ) -> Result<Value, AdminError> {
        let mut records = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let parameters = [("limit", Some(PAGE)), ("cursor", cursor.as_deref())];
            let mut page = server.get(&self.path(thread, what, &parameters))?;
            if let Value::Array(more) = page[name].take() {
                records.extend(more);
            }
            cursor = page["next_cursor"].as_str().map(str::to_owned);
            if cursor.is_none() {
                return Ok(Value::Object(Map::from_iter([(name.to_owned(), records.into())])));
            }
        }
    }
}

impl AdminVerb for TeamThreadVerb {
    fn api_root(&self) -> ApiRoot {
        ApiRoot::Public
    }

    fn send_to(self, server: &AdminClient) -> Result<(Value, AnswerView), AdminError> {
        let mut fields = Fields::new();
        Ok(match &self.verb {
            ThreadVerb::List => (
                self.fetch_all_pages(server, "", "", "threads")?,
                AnswerView::List("threads", THREADS),
            ),
            ThreadVerb::History { thread } => (
                self.fetch_all_pages(server, thread, "/history", "points")?,
                AnswerView::List("points", POINTS),
            ),
            ThreadVerb::Diff { thread, from, to } => {
                let points = [("from", from.as_deref()), ("to", to.as_deref())];
                (server.get(&self.path(thread, "/diff", &points))?, AnswerView::Diff)
            }
            ThreadVerb::Fork { thread, new, at } => {
                put_field(&mut fields, "thread_id", Some(new.as_str()));
                put_field(&mut fields, "at", at.as_deref());
                (server.post(&self.path(thread, "/fork", &[]), &fields.into())?, AnswerView::Record)
            }
            ThreadVerb::Rollback { thread, to } => {
                put_field(&mut fields, "to", Some(to.as_str()));
                (
                    server.post(&self.path(thread, "/rollback", &[]), &fields.into())?,
                    AnswerView::Record,
                )
            }
            ThreadVerb::Prune { thread, keep, older_than } => {
                put_field(&mut fields, "keep", *keep);
                put_field(&mut fields, "older_than_days", *older_than);
                (
                    server.post(&self.path(thread, "/prune", &[]), &fields.into())?,
                    AnswerView::Record,
                )
            }
            ThreadVerb::Export { thread, to, at } => {
                let path = self.path(thread, "/export", &[("at", at.as_deref())]);
                export_thread(server, &path, to)?;
                (Value::Null, AnswerView::Done(format!("exported {thread} to {}", to.display())))
            }
            ThreadVerb::Import { thread, from } => {
                let path = self.path(thread, "/import", &[]);
                (import_thread(server, &path, from)?, AnswerView::Record)
            }
            ThreadVerb::Rm { thread } => (
                server.delete(&self.path(thread, "", &[]))?,
                AnswerView::Done(format!("removed {thread}")),
            ),
        })
    }
}

fn is_archive(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "tar")
}

/// Exports whole or not at all: downloads to a temporary directory beside the target first.
fn export_thread(server: &AdminClient, path: &str, to: &Path) -> Result<(), AdminError> {
    let file_error = |source| AdminError::File { path: to.to_owned(), source };
    if to.exists() {
        return Err(file_error(io::ErrorKind::AlreadyExists.into()));
    }
    let parent = match to.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let draft =
        tempfile::Builder::new().prefix(".cloche-").tempdir_in(parent).map_err(file_error)?;
    let archive = draft.path().join("image.tar");
    server.download(path, File::create(&archive).map_err(file_error)?)?;
    let done = draft.path().join("image");
    let made = if is_archive(to) {
        fs::rename(&archive, to)
    } else {
        File::open(&archive)
            .and_then(|file| unpack_archive(file, &done))
            .and_then(|()| fs::rename(&done, to))
    };
    made.map_err(file_error)
}

fn unpack_archive(archive: impl Read, into: &Path) -> io::Result<()> {
    fs::create_dir(into)?;
    let mut archive = tar::Archive::new(archive);
    archive.set_preserve_permissions(false);
    // The library skips names that lead outside.
    archive.unpack(into)
}

fn import_thread(server: &AdminClient, path: &str, from: &Path) -> Result<Value, AdminError> {
    let file_error = |source| AdminError::File { path: from.to_owned(), source };
    let opened = match from.is_dir() {
        false => File::open(from),
        true => pack_directory(from),
    };
    server.upload(path, opened.map_err(file_error)?)
}

/// Packs a directory into an unnamed temporary file.
fn pack_directory(directory: &Path) -> io::Result<File> {
    let mut archive = tar::Builder::new(tempfile::tempfile()?);
    archive.mode(tar::HeaderMode::Deterministic);
    archive.append_dir_all("", directory)?;
    let mut file = archive.into_inner()?;
    file.rewind()?;
    Ok(file)
}
