//! Shared by the tests: a store in a directory of its own, and trees to store.

use std::{
    fs::File,
    io::Write,
    os::fd::AsFd,
    path::{Path, PathBuf},
};

use cloche_layers::{
    LayerBounds, LayerError, Layers, LayersConfig, OverlayXattrs, PackOptions, StoreConfig,
    StoredLayer, UpperDir, pack_upper_dir,
};
use cloche_model::{ByteSize, LayerDigest};
use cloche_test_support::skip;
use proptest::prelude::ProptestConfig;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

/// Whether this process may do what a spawner may; the test is skipped otherwise.
pub(crate) fn privileged() -> bool {
    rustix::process::geteuid().is_root() || skip("only root can make what is packed here")
}

/// The number of cases: `usual`, or the value of `PROPTEST_CASES`.
pub(crate) fn cases(usual: u32) -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    let failure_persistence = None;
    let cases = asked.unwrap_or(usual);
    ProptestConfig { cases, failure_persistence, ..ProptestConfig::default() }
}

/// A store of layers in a temporary directory.
pub(crate) struct LayersFixture {
    pub(crate) dir: TempDir,
    pub(crate) config: LayersConfig,
    pub(crate) layers: Layers,
}

impl LayersFixture {
    pub(crate) async fn new() -> Self {
        Self::with(ByteSize::gib(1), LayerBounds::default()).await
    }

    pub(crate) async fn with(cache_bytes: ByteSize, bounds: LayerBounds) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = StoreConfig::Local;
        let config = LayersConfig { dir: dir.path().join("layers"), store, cache_bytes, bounds };
        let layers = Layers::open(config.clone()).await.unwrap();
        Self { dir, config, layers }
    }

    /// Opens the store again, as after a restart of the server.
    pub(crate) async fn reopen(&mut self) {
        self.layers = Layers::open(self.config.clone()).await.unwrap();
    }

    /// Makes a new directory for a tree.
    pub(crate) fn tree(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::create_dir(&path).unwrap();
        path
    }

    pub(crate) async fn store(&self, tree: &Path) -> StoredLayer {
        store(&self.layers, pack_tree(tree)).await.unwrap().unwrap()
    }

    /// Writes bytes as a blob, without any check.
    pub(crate) fn forge(&self, archive: &[u8]) -> LayerDigest {
        let blob = zstd::encode_all(archive, 1).unwrap();
        let digest = LayerDigest::from_sha256(Sha256::digest(&blob).into());
        std::fs::write(self.blob(&digest), blob).unwrap();
        digest
    }

    pub(crate) fn blob(&self, digest: &LayerDigest) -> PathBuf {
        self.config.dir.join("blobs/sha256").join(digest.hex_digits())
    }

    /// The directory of an unpacked layer, which stays in use until the end of the test.
    pub(crate) async fn unpacked(&self, digest: &LayerDigest) -> PathBuf {
        let mountable = self.layers.unpack_stack(std::slice::from_ref(digest)).await.unwrap();
        let path = self.layers.cache_dir().join(mountable.layer_names()[0]);
        std::mem::forget(mountable);
        path
    }
}

pub(crate) async fn store(
    layers: &Layers,
    archive: Vec<u8>,
) -> Result<Option<StoredLayer>, LayerError> {
    layers.store_archive(std::io::Cursor::new(archive)).await
}

pub(crate) fn pack_tree(tree: &Path) -> Vec<u8> {
    let tree = File::open(tree).unwrap();
    pack_upper(UpperDir { dir: tree.as_fd(), merged: None })
}

pub(crate) fn pack_upper(upper: UpperDir<'_>) -> Vec<u8> {
    let request = PackOptions {
        skip: Vec::new(),
        markers: OverlayXattrs::Trusted,
        home_mode: None,
        most: None,
    };
    let mut archive = Vec::new();
    pack_upper_dir(upper, &request, &mut archive).unwrap();
    archive
}

/// A handmade archive with arbitrary content.
pub(crate) struct Forged(Vec<u8>);

impl Forged {
    /// An archive that starts with the home itself.
    pub(crate) fn new() -> Self {
        Self(Vec::new()).entry(b"./", b'5', b"", b"")
    }

    pub(crate) fn empty() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn entry(self, name: &[u8], kind: u8, link: &[u8], data: &[u8]) -> Self {
        let mut header = tar::Header::new_ustar();
        header.as_old_mut().name[..name.len()].copy_from_slice(name);
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link);
        header.as_old_mut().linkflag = [kind];
        header.set_mode(0o755);
        header.set_uid(1000);
        header.set_gid(1000);
        header.set_mtime(1);
        header.set_size(data.len() as u64);
        self.header(header, data)
    }

    pub(crate) fn header(mut self, mut header: tar::Header, data: &[u8]) -> Self {
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self.raw(data)
    }

    /// Appends bytes, padded to the next block.
    pub(crate) fn raw(mut self, data: &[u8]) -> Self {
        self.0.write_all(data).unwrap();
        let length = self.0.len().next_multiple_of(512);
        self.0.resize(length, 0);
        self
    }

    /// Appends records for the next entry.
    pub(crate) fn records(self, records: &[(&[u8], &[u8])]) -> Self {
        let mut bytes = Vec::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3;
            let mut length = rest + 1;
            while length != rest + length.to_string().len() {
                length = rest + length.to_string().len();
            }
            bytes.extend_from_slice(format!("{length} ").as_bytes());
            bytes.extend_from_slice(key);
            bytes.push(b'=');
            bytes.extend_from_slice(value);
            bytes.push(b'\n');
        }
        self.entry(b"records", b'x', b"", &bytes)
    }

    pub(crate) fn end(mut self) -> Vec<u8> {
        self.0.extend_from_slice(&[0; 1024]);
        self.0
    }

    pub(crate) fn cut(self) -> Vec<u8> {
        self.0
    }
}
