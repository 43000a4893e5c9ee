//! Runs in: server (no capabilities). How an executor is set up.

use std::path::PathBuf;

use cloche_layers::Layers;

use super::{pool::PoolSettings, storage_mounts::MountStorageConfig};

/// How an executor is set up.
#[derive(Clone)]
pub struct ExecutorConfig {
    /// The `cloche` binary, which is started again as the spawner.
    pub program: PathBuf,
    /// The arguments that make it the spawner.
    pub spawner_args: Vec<String>,
    /// Walls that may be missing, by name.
    pub allow_missing: Vec<String>,
    /// How many cells to keep parked. Without it, every run starts a cold cell.
    pub pool: Option<PoolSettings>,
    /// Where homes and the files of runs are stored. Without it nothing is stored, and runs with a
    /// thread are refused. The spawner must have been given the same directory of unpacked layers.
    pub layers: Option<Layers>,
    /// The directory of unpacked layers, from which the spawner mounts homes. It must exist when
    /// the spawner is started.
    pub unpacked_layers: Option<PathBuf>,
    /// A private directory, beside which each contained cell gets a directory of its own. With it the
    /// spawner makes contained cells only: they have no namespaces, and only the walls that need no
    /// privilege. There is no pool then.
    pub contained: Option<PathBuf>,
    /// Whether the host's Python packages are hidden, so that programs have the standard library
    /// only.
    pub hides_packages: bool,
    /// Where volumes and spool files are.
    pub storage: MountStorageConfig,
    /// Whether outcomes name the files that runs wrote, although none is stored.
    pub names_files: bool,
}

impl ExecutorConfig {
    /// The defaults, with this binary as the spawner.
    pub fn with_program(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            spawner_args: vec!["__spawner".to_owned()],
            allow_missing: Vec::new(),
            pool: None,
            layers: None,
            unpacked_layers: None,
            contained: None,
            hides_packages: false,
            storage: MountStorageConfig::default(),
            names_files: false,
        }
    }
}
