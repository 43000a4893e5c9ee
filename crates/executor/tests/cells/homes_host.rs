//! Runs in: test. An executor that keeps homes, and threads that use them.

use cloche_executor::{Executor, PoolSettings, RunIo};
use cloche_layers::{LayerBounds, Layers, LayersConfig, StoreConfig};
use cloche_model::{
    ByteSize, HomeQuota, Language, LayerDigest, RunEnding, RunOutcome, RunSpec, ThreadHome,
};
use tempfile::TempDir;

use crate::host::{own_config, start_with};

/// An executor that keeps homes in a directory of its own.
pub(crate) struct HomesHost {
    pub(crate) executor: Executor,
    pub(crate) layers: Layers,
    _dir: TempDir,
}

impl HomesHost {
    pub(crate) async fn start(cache: ByteSize, pool: Option<PoolSettings>) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let config = LayersConfig {
            dir: dir.path().join("layers"),
            store: StoreConfig::Local,
            cache_bytes: cache,
            bounds: LayerBounds::default(),
        };
        let layers = Layers::open(config).await.unwrap();
        let mut config = own_config(pool);
        config.unpacked_layers = Some(layers.cache_dir().to_owned());
        config.layers = Some(layers.clone());
        let executor = start_with(config).await?;
        Some(Self { executor, layers, _dir: dir })
    }

    pub(crate) async fn run(&self, spec: RunSpec) -> RunOutcome {
        self.executor.run(spec, RunIo::default()).await.unwrap()
    }
}

/// A thread: its layers so far.
#[derive(Default)]
pub(crate) struct Thread {
    pub(crate) layers: Vec<LayerDigest>,
}

impl Thread {
    pub(crate) async fn run(&mut self, host: &HomesHost, spec: RunSpec) -> RunOutcome {
        let room = HomeQuota { bytes: ByteSize::mib(64), inodes: 10_000 };
        let home = Some(ThreadHome { layers: self.layers.clone(), room });
        let outcome = host.run(RunSpec { home, ..spec }).await;
        self.layers.extend(outcome.written.layer.clone().map(|layer| layer.digest));
        outcome
    }

    pub(crate) async fn bash(&mut self, host: &HomesHost, code: &str) -> String {
        let outcome = self.run(host, RunSpec::new(Language::Bash, code)).await;
        assert_eq!(
            outcome.ending,
            RunEnding::Exited(0),
            "{code}: {}",
            outcome.stderr.to_text_lossy()
        );
        outcome.stdout.to_text_lossy()
    }
}
