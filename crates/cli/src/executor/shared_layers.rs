//! Runs in: sidecar (root until it is confined).
//!
//! The layer store that a sidecar shares with its server. With it, jobs can have the home of a
//! thread. The sidecar stores layers there, and unpacks them in a directory of its own.

use std::{
    fs::DirBuilder,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use clap::Args;
use cloche_layers::{LayersConfig, StoreConfig};
use cloche_model::ByteSize;

use crate::{
    identity::{DataDirError, ServerNeeds, ServerUser, make_private, make_shared_store},
    serve::{LayersArguments, LayersFile, SettingsError, absolute_path, layers_config},
};

/// Where layers are, and where they are unpacked.
#[derive(Args, Default)]
pub(crate) struct SharedLayersArguments {
    #[command(flatten)]
    layers: LayersArguments,
    /// With a layer store: the directory in which layers are unpacked. Each executor has its own.
    #[arg(
        long,
        env = "SANDBOX_EXECUTOR_DATA_DIR",
        value_name = "DIR",
        default_value = "cloche-executor-data"
    )]
    data_dir: PathBuf,
    /// The limit of the disk space of unpacked layers that no job uses [default: 20 GiB].
    #[arg(long, env = "SANDBOX_EXECUTOR_LAYERS_CACHE", value_name = "SIZE")]
    layers_cache: Option<ByteSize>,
}

/// The layers of a sidecar that shares a store.
pub(super) struct SharedLayers {
    data_dir: PathBuf,
    pub(super) config: LayersConfig,
}

impl SharedLayers {
    /// The settings; `None` if no store is named.
    pub(super) fn from_arguments(
        arguments: SharedLayersArguments,
    ) -> Result<Option<Self>, SettingsError> {
        let data_dir = absolute_path(arguments.data_dir);
        let mut config = layers_config(LayersFile::default(), arguments.layers, &data_dir)?;
        config.cache_bytes = arguments.layers_cache.unwrap_or(config.cache_bytes);
        let is_shared = !matches!(config.store, StoreConfig::Local);
        Ok(is_shared.then_some(Self { data_dir, config }))
    }

    /// The directory of unpacked layers, which the spawner mounts homes from.
    pub(super) fn unpacked(&self) -> PathBuf {
        self.config.dir.join("cache")
    }

    /// Makes the directories, and gives them to the user that the sidecar becomes.
    pub(super) fn make_directories(&self, user: &ServerUser) -> Result<(), DataDirError> {
        make_private(&self.data_dir, user)?;
        let unpacked = self.unpacked();
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&unpacked);
        made.map_err(|source| DataDirError::Io { path: unpacked, source })?;
        make_private(&self.data_dir, user)?;
        self.config.shared_dir().map_or(Ok(()), |path| make_shared_store(path, user))
    }

    /// What the confined sidecar writes to.
    pub(super) fn add_needs(&self, needs: ServerNeeds) -> ServerNeeds {
        let writes = self.config.shared_dir().into_iter().map(Path::to_owned).collect();
        ServerNeeds { data_dir: Some(self.data_dir.clone()), writes, ..needs }
    }
}
