//! Runs in: server (no capabilities).
//!
//! The wire format of images.

use std::collections::BTreeMap;

use cloche_engine::{
    ImageProgressReport, ImagePull, ProgressPhase, Refusal, RegistryAccess, RegistryCredentials,
    RemovedImages, format_rfc3339,
};
use cloche_model::{ImageRecord, Interpreter, InterpreterProbe, Invalid, ListedImage, Secret};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The longest credential.
const MAX_CREDENTIAL: usize = 16 << 10;
/// The longest list of authorities.
const MAX_AUTHORITIES: usize = 1 << 20;

/// A request to pull an image.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PullImage {
    /// The name of the image, with its registry, its tag or its digest.
    #[schema(example = "python:3.14-slim", min_length = 1, max_length = 330)]
    reference: String,
    /// The account at the registry; anonymous if absent.
    #[schema(max_length = 16384)]
    username: Option<String>,
    #[schema(max_length = 16384)]
    password: Option<String>,
    /// A token that is exchanged for others, instead of a name and a password.
    #[schema(max_length = 16384)]
    identity_token: Option<String>,
    /// Further authorities for the registry's certificate, as PEM.
    #[schema(max_length = 1_048_576)]
    ca_pem: Option<String>,
    /// Use HTTP without TLS, for a registry on the server's own host.
    #[serde(default)]
    plain_http: bool,
    /// Further hosts that may see the password, because the registry's tokens come from there.
    #[serde(default)]
    #[schema(max_items = 8)]
    auth_hosts: Vec<String>,
}

impl PullImage {
    pub(crate) fn into_pull(self) -> Result<ImagePull, Invalid> {
        let long = |text: &Option<String>| text.as_ref().is_some_and(|t| t.len() > MAX_CREDENTIAL);
        if long(&self.username) || long(&self.password) || long(&self.identity_token) {
            return Err(Invalid::new("username, password or identity_token is too long"));
        }
        if self.ca_pem.as_ref().is_some_and(|pem| pem.len() > MAX_AUTHORITIES) {
            return Err(Invalid::new("ca_pem is too long"));
        }
        if self.auth_hosts.len() > 8 {
            return Err(Invalid::new("auth_hosts exceeds 8 entries"));
        }
        let credentials = match (self.username, self.password, self.identity_token) {
            (None, None, None) => None,
            (Some(username), Some(password), None) => {
                Some(RegistryCredentials::Password { username, password: Secret::new(password) })
            }
            (_, None, Some(token)) => Some(RegistryCredentials::IdentityToken(Secret::new(token))),
            _ => {
                return Err(Invalid::new(
                    "give either username and password, or identity_token, or none of them",
                ));
            }
        };
        let access = RegistryAccess {
            credentials,
            authorities: self.ca_pem,
            plain_http: self.plain_http,
            auth_hosts: self.auth_hosts,
            ..RegistryAccess::default()
        };
        let reference: cloche_model::ImageReference = self.reference.parse()?;
        if reference.name.is_none() {
            return Err(Invalid::new("reference: a pull needs the name of an image"));
        }
        Ok(ImagePull { reference, access })
    }
}

/// An image.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ImageSummary {
    /// The digest of its manifest.
    digest: String,
    /// The names that lead to it.
    names: Vec<String>,
    platform: String,
    /// The languages that it has an interpreter for.
    languages: Vec<String>,
    /// The size of its layers as stored. Images share layers.
    stored_bytes: u64,
    /// The size of its files.
    file_bytes: u64,
    /// The sandboxes that use it, as TEAM/NAME.
    used_by: Vec<String>,
    added_at: String,
}

/// An image with everything that is known about it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ImageDetail {
    #[serde(flatten)]
    summary: ImageSummary,
    /// Its variables, which apply below those of a sandbox.
    env_vars: BTreeMap<String, String>,
    workdir: Option<String>,
    /// Its user; programs run as the user of their cell.
    user: Option<String>,
    labels: BTreeMap<String, String>,
    /// When it was made, as it says.
    created: Option<String>,
    interpreters: Vec<InterpreterRecord>,
    /// What looks like an interpreter and cannot be used.
    refused_interpreters: Vec<RefusedInterpreterRecord>,
    layers: Vec<ImageLayerRecord>,
    /// What was left out or ignored when it was imported.
    notes: Vec<String>,
}

/// An interpreter of an image.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct InterpreterRecord {
    language: String,
    path: String,
    version: Option<String>,
    /// Its implementation, such as cpython, if the language has several.
    implementation: Option<String>,
    /// Its C library, if it says so.
    libc: Option<String>,
    /// How programs start: forked from a template, waiting (an interpreter is started ahead), cold,
    /// or failed. Null if it was not tried.
    start: Option<String>,
    /// Why programs are not started in a faster way, or not at all.
    reason: Option<String>,
}

/// Something that looks like an interpreter and cannot be used.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RefusedInterpreterRecord {
    language: String,
    path: String,
    reason: String,
}

/// A layer of an image.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ImageLayerRecord {
    /// The digest of its archive in the image.
    diff_id: String,
    /// The digest of the layer as stored; null if it is empty.
    layer: Option<String>,
    stored_bytes: u64,
    entries: u64,
}

/// A list of images.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ImageList {
    pub(crate) images: Vec<ImageSummary>,
}

/// Images that were removed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ImageRemovalRecord {
    /// Their digests.
    removed: Vec<String>,
    /// The size of the layers that nothing else needs.
    freed_bytes: u64,
}

impl From<ListedImage> for ImageSummary {
    fn from(listed: ListedImage) -> Self {
        let ListedImage { image, names, used_by } = listed;
        Self {
            names: names.iter().map(ToString::to_string).collect(),
            languages: image.interpreters.languages().map(str::to_owned).collect(),
            stored_bytes: image.stored_bytes(),
            file_bytes: image.file_bytes(),
            used_by,
            added_at: format_rfc3339(image.added_at),
            digest: image.digest.to_string(),
            platform: image.platform,
        }
    }
}

impl From<ListedImage> for ImageDetail {
    fn from(listed: ListedImage) -> Self {
        let ImageRecord { settings, layers, interpreters, probes, notes, .. } =
            listed.image.clone();
        let layers = layers.into_iter().map(|layer| ImageLayerRecord {
            diff_id: layer.diff_id.to_string(),
            layer: layer.stored.as_ref().map(|stored| stored.digest.to_string()),
            stored_bytes: layer.stored.as_ref().map_or(0, |stored| stored.stored.bytes()),
            entries: layer.stored.as_ref().map_or(0, |stored| stored.entries),
        });
        let found = interpreters.found.into_iter().map(|found| {
            let probe = probes.iter().find(|probe| probe.language == found.language).cloned();
            InterpreterRecord::new(found, probe)
        });
        let refused = interpreters.refused.into_iter().map(|refused| RefusedInterpreterRecord {
            language: refused.language,
            path: refused.path,
            reason: refused.reason,
        });
        Self {
            env_vars: settings.env,
            workdir: settings.workdir,
            user: settings.user,
            labels: settings.labels,
            created: settings.created,
            interpreters: found.collect(),
            refused_interpreters: refused.collect(),
            layers: layers.collect(),
            notes,
            summary: listed.into(),
        }
    }
}

impl InterpreterRecord {
    /// What was found in the image's files, and what a cell found out.
    fn new(found: Interpreter, probe: Option<InterpreterProbe>) -> Self {
        let Interpreter { language, path, version, .. } = found;
        let Some(probe) = probe else {
            let (implementation, libc, start, reason) = (None, None, None, None);
            return Self { language, path, version, implementation, libc, start, reason };
        };
        Self {
            language,
            path,
            version: probe.version.or(version),
            implementation: probe.implementation,
            libc: probe.libc,
            start: Some(probe.start.name().to_owned()),
            reason: probe.reason,
        }
    }
}

impl From<RemovedImages> for ImageRemovalRecord {
    fn from(removed: RemovedImages) -> Self {
        Self {
            removed: removed.images.iter().map(ToString::to_string).collect(),
            freed_bytes: removed.freed_bytes,
        }
    }
}

/// One line of the progress of a pull or an import.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum ImageEvent {
    /// How far it is.
    Progress {
        /// waiting, receiving, resolving, downloading, storing, searching, unpacking or trying.
        phase: String,
        layers_done: usize,
        layers: usize,
        bytes_done: u64,
        bytes: u64,
        /// The interpreter that is being tried in cells.
        #[serde(skip_serializing_if = "Option::is_none")]
        trying: Option<String>,
    },
    /// It is done.
    Image { image: Box<ImageDetail> },
    /// It has failed; nothing of it is kept.
    Error { error: String, message: String },
}

impl ImageEvent {
    pub(crate) fn from_report(report: ImageProgressReport) -> Self {
        let phase = match report.phase {
            ProgressPhase::Waiting => "waiting",
            ProgressPhase::Receiving => "receiving",
            ProgressPhase::Resolving => "resolving",
            ProgressPhase::Downloading => "downloading",
            ProgressPhase::Storing => "storing",
            ProgressPhase::Searching => "searching",
            ProgressPhase::Unpacking => "unpacking",
            ProgressPhase::Trying => "trying",
        };
        let ImageProgressReport { layers_done, layers, bytes_done, bytes, trying, .. } = report;
        Self::Progress { phase: phase.to_owned(), layers_done, layers, bytes_done, bytes, trying }
    }

    pub(crate) fn from_result(result: Result<ListedImage, Refusal>) -> Self {
        match result {
            Ok(listed) => Self::Image { image: Box::new(listed.into()) },
            Err(refusal) => Self::Error {
                error: refusal.code.name().to_owned(),
                message: refusal.message.into_owned(),
            },
        }
    }
}
