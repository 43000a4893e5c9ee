//! Runs in: all. An image as a record: what is kept about it beside its layers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    EnvVars, ImageDigest, ImageName, ImageRoot, InterpreterTable, Layer, LayerDigest, Moment,
};

/// An image whose layers are in the layer store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRecord {
    /// The digest of its manifest.
    pub digest: ImageDigest,
    /// The operating system and the processor: `linux/amd64`.
    pub platform: String,
    /// What its configuration says.
    pub settings: ImageSettings,
    /// Its layers, lowest first.
    pub layers: Vec<ImageLayer>,
    /// Its interpreters.
    pub interpreters: InterpreterTable,
    /// What its interpreters are, as cells of this host found out. Empty if none was tried.
    #[serde(default)]
    pub probes: Vec<InterpreterProbe>,
    /// What was left out or ignored when it was imported, as sentences.
    pub notes: Vec<String>,
    /// When it was pulled or imported.
    pub added_at: Moment,
}

impl ImageRecord {
    /// The layers to mount, lowest first. Empty layers have none.
    #[must_use]
    pub fn stack(&self) -> Vec<LayerDigest> {
        self.layers
            .iter()
            .filter_map(|layer| layer.stored.as_ref())
            .map(|layer| layer.digest.clone())
            .collect()
    }

    /// The size of its layers as stored. Other images may share them.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        let stored = self.layers.iter().filter_map(|layer| layer.stored.as_ref());
        stored.map(|layer| layer.stored.bytes()).sum()
    }

    /// The size of the files in it.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        let stored = self.layers.iter().filter_map(|layer| layer.stored.as_ref());
        stored.map(|layer| layer.bytes.bytes()).sum()
    }

    /// The image as the root of a cell.
    #[must_use]
    pub fn to_root(&self) -> ImageRoot {
        ImageRoot {
            digest: self.digest.clone(),
            layers: self.stack(),
            env: self.settings.env.clone(),
            workdir: self.settings.workdir.clone(),
            interpreters: self.interpreters.clone(),
        }
    }
}

/// What an interpreter of an image is, as a cell of this host found out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterpreterProbe {
    /// The language.
    pub language: String,
    /// The version that it says it has.
    pub version: Option<String>,
    /// Its implementation, such as `cpython`, if the language has several.
    pub implementation: Option<String>,
    /// Its C library and the version of that, if it says so.
    pub libc: Option<String>,
    /// How programs are started.
    pub start: InterpreterStart,
    /// Why programs are not started in a faster way, or not at all.
    pub reason: Option<String>,
}

/// How the programs of a language are started on an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InterpreterStart {
    /// A template forks an interpreter that has started.
    Forked,
    /// An interpreter is started ahead and waits for one program.
    Waiting,
    /// Each program starts its interpreter itself.
    Cold,
    /// The interpreter does not start.
    Failed,
}

impl InterpreterStart {
    /// The name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forked => "forked",
            Self::Waiting => "waiting",
            Self::Cold => "cold",
            Self::Failed => "failed",
        }
    }
}

/// What the configuration of an image says. All of it is data of a stranger.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageSettings {
    /// Its variables, `PATH` included.
    pub env: EnvVars,
    /// Its working directory: absolute and without `..`, but not known to exist.
    pub workdir: Option<String>,
    /// Its user, for display. Programs run as the cell's user.
    pub user: Option<String>,
    /// Its labels, for display.
    pub labels: BTreeMap<String, String>,
    /// When it was made, as it says.
    pub created: Option<String>,
}

/// One layer of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageLayer {
    /// The digest of its archive, as the configuration lists it.
    pub diff_id: LayerDigest,
    /// What the layer was made of: its own archive, or with those below it if it depends on them.
    /// Layers with the same source are the same.
    pub source: LayerDigest,
    /// The layer in the layer store. `None` if it is empty.
    pub stored: Option<Layer>,
}

/// An image with its names and the sandboxes that use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedImage {
    /// The image.
    pub image: ImageRecord,
    /// The names that lead to it, sorted.
    pub names: Vec<ImageName>,
    /// The sandboxes that use it, as `TEAM/NAME`.
    pub used_by: Vec<String>,
}
