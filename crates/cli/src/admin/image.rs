//! Runs in: the commands that ask a server.
//!
//! `cloche image`: the images that sandboxes can use.

use std::{
    fs::File,
    io::{self, BufWriter, IsTerminal, Write},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    thread,
};

use clap::{Args, Subcommand};
use cloche_model::{ByteSize, ImageReference};
use serde_json::Value;

use super::{
    AdminArguments, AdminClient, AdminError, AdminVerb, AnswerView, Fields, client::path_segment,
    image_progress::ImageProgressBar, key::read_secret, put_field,
    registry_logins::find_credentials,
};
use crate::print_error;

const COLUMNS: &[&str] = &["names", "digest", "size", "languages", "used_by", "added_at"];

/// How much of a packed directory is written at once.
const PIPE: usize = 1 << 16;

/// The arguments of `cloche image`.
#[derive(Args)]
pub(crate) struct ImageArguments {
    #[command(subcommand)]
    pub(super) verb: ImageVerb,
    #[command(flatten)]
    pub(super) common: AdminArguments,
}

#[derive(Subcommand)]
pub(super) enum ImageVerb {
    /// Get an image from a registry. A pull that was interrupted goes on where it stopped.
    Pull {
        /// Its name: python:3.14-slim, registry.example/team/tool@sha256:…
        reference: String,
        #[command(flatten)]
        access: RegistryArguments,
    },
    /// Get an image from an OCI layout or from the output of `docker save`.
    Import {
        /// The directory or the tar; `-` reads a tar from standard input.
        from: PathBuf,
        /// The name that it gets [default: the one in the archive].
        #[arg(long)]
        name: Option<String>,
        /// Which image, if the archive has several.
        #[arg(long = "ref", value_name = "REF")]
        reference: Option<String>,
    },
    /// List images, and which sandboxes use them.
    List,
    /// Show everything that is known about an image.
    Inspect {
        /// Its name, its digest, or the first digits of that.
        image: String,
    },
    /// Remove an image that no sandbox uses.
    Rm {
        /// Its name, its digest, or the first digits of that.
        image: String,
    },
    /// Remove every image that no sandbox uses, and unfinished downloads.
    Prune,
}

/// How to reach a registry.
#[derive(Args)]
pub(super) struct RegistryArguments {
    /// The user name at the registry [default: the login of Docker or Podman].
    #[arg(long)]
    username: Option<String>,
    /// A file with the password; `-` reads standard input.
    #[arg(long, value_name = "FILE", requires = "username")]
    password_file: Option<PathBuf>,
    /// The configuration with the logins [default: those of Docker and Podman].
    #[arg(long, value_name = "FILE", conflicts_with = "username")]
    auth_file: Option<PathBuf>,
    /// Use no login.
    #[arg(long, conflicts_with_all = ["username", "auth_file"])]
    anonymous: bool,
    /// A PEM file with further authorities for the registry's certificate.
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// Use HTTP without TLS, for a registry on the server's own host.
    #[arg(long)]
    plain_http: bool,
    /// Another host that may see the password, because the registry's tokens come from there; can be
    /// repeated.
    #[arg(long, value_name = "HOST")]
    auth_host: Vec<String>,
}

impl RegistryArguments {
    fn into_fields(self, reference: &str) -> Result<Fields, AdminError> {
        let mut fields = Fields::new();
        put_field(&mut fields, "reference", Some(reference));
        if let Some(username) = self.username {
            let password = match &self.password_file {
                Some(file) => read_secret(file)?,
                None => return Err(AdminError::NoPassword),
            };
            put_field(&mut fields, "username", Some(username));
            put_field(&mut fields, "password", Some(password));
        } else if !self.anonymous {
            // A malformed name is for the server to refuse.
            let name = reference.parse::<ImageReference>().ok().and_then(|parsed| parsed.name);
            if let Some(name) = name {
                fields.extend(find_credentials(name.registry(), self.auth_file.as_deref())?);
            }
        }
        if let Some(path) = self.ca_file {
            let pem = std::fs::read_to_string(&path);
            let pem = pem.map_err(|source| AdminError::File { path, source })?;
            put_field(&mut fields, "ca_pem", Some(pem));
        }
        if self.plain_http {
            put_field(&mut fields, "plain_http", Some(true));
        }
        if !self.auth_host.is_empty() {
            put_field(&mut fields, "auth_hosts", Some(self.auth_host));
        }
        Ok(fields)
    }
}

impl AdminVerb for ImageVerb {
    fn send_to(self, server: &AdminClient) -> Result<(Value, AnswerView), AdminError> {
        let image_path = |image: &str| format!("images/{}", path_segment(image));
        Ok(match self {
            Self::Pull { reference, access } => {
                let fields = access.into_fields(&reference)?;
                let mut bar = progress_bar();
                let events = |event: &Value| bar.show_event(event);
                let image = server.post_for_events("images/pull", &fields.into(), events)?;
                (image, AnswerView::Record)
            }
            Self::Import { from, name, reference } => {
                let path = import_path(name.as_deref(), reference.as_deref());
                let mut bar = progress_bar();
                let file = open_archive(&from)?;
                let events = |event: &Value| bar.show_event(event);
                (server.upload_for_events(&path, file, events)?, AnswerView::Record)
            }
            Self::List => {
                let mut list = server.get("images")?;
                for image in list["images"].as_array_mut().into_iter().flatten() {
                    let bytes = image["file_bytes"].as_u64().unwrap_or_default();
                    image["size"] = ByteSize(bytes).to_string().into();
                }
                (list, AnswerView::List("images", COLUMNS))
            }
            Self::Inspect { image } => (server.get(&image_path(&image))?, AnswerView::Record),
            Self::Rm { image } => {
                let removed = server.delete(&image_path(&image))?;
                let done =
                    AnswerView::Done(describe_removal(&format!("removed {image}"), &removed));
                (removed, done)
            }
            Self::Prune => {
                let removed = server.post("images/prune", &Fields::new().into())?;
                let count = removed["removed"].as_array().map_or(0, Vec::len);
                let done = describe_removal(&format!("removed {count} images"), &removed);
                (removed, AnswerView::Done(done))
            }
        })
    }
}

fn describe_removal(what: &str, removed: &Value) -> String {
    let freed = ByteSize(removed["freed_bytes"].as_u64().unwrap_or_default());
    format!("{what}, which frees {freed}")
}

fn progress_bar() -> ImageProgressBar {
    ImageProgressBar::new(io::stderr().is_terminal())
}

fn import_path(name: Option<&str>, reference: Option<&str>) -> String {
    let name = name.map(|name| format!("name={}", path_segment(name)));
    let reference = reference.map(|reference| format!("ref={}", path_segment(reference)));
    let query: Vec<String> = name.into_iter().chain(reference).collect();
    format!("images/import?{}", query.join("&"))
}

/// A directory as a tar that is packed while it is read. If a file cannot be read, the tar ends
/// early, which the server refuses.
fn pack_to_pipe(directory: &Path) -> io::Result<File> {
    let (reader, writer) = io::pipe()?;
    let directory = directory.to_owned();
    thread::Builder::new().name("pack".to_owned()).spawn(move || {
        let mut archive = tar::Builder::new(BufWriter::with_capacity(PIPE, writer));
        archive.mode(tar::HeaderMode::Deterministic);
        let packed = archive.append_dir_all("", &directory);
        match packed.and_then(|()| archive.into_inner()).and_then(|mut out| out.flush()) {
            // The server has refused the rest.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            Err(source) => print_error(&AdminError::File { path: directory, source }),
            Ok(()) => {}
        }
    })?;
    Ok(File::from(OwnedFd::from(reader)))
}

/// The tar to send: a file, standard input, or a directory that is packed.
fn open_archive(from: &Path) -> Result<File, AdminError> {
    let file_error = |source| AdminError::File { path: from.to_owned(), source };
    if from == Path::new("-") {
        let input = rustix::io::dup(io::stdin());
        return input.map(File::from).map_err(|error| file_error(error.into()));
    }
    match from.is_dir() {
        false => File::open(from),
        true => pack_to_pipe(from),
    }
    .map_err(file_error)
}
