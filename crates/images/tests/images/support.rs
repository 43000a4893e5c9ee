//! Images made for a test, a store to put them in, and what is left in it.

use std::{
    collections::{BTreeMap, HashMap},
    io::{Cursor, Write},
    path::PathBuf,
    sync::Arc,
};

use async_trait::async_trait;
use cloche_images::{
    ImageAssembler, ImageError, ImageLimits, ImageProgress, ImportChoice, LayerCatalog, NewImage,
};
use cloche_layers::{LayerBounds, Layers, LayersConfig, NodeKind, StoreConfig, Tree};
use cloche_model::{ByteSize, ImageLayer, LayerDigest, Moment};
use parking_lot::Mutex;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

/// The layers of the images that were stored, as a server's database has them.
#[derive(Default)]
pub(crate) struct Catalog(Mutex<HashMap<LayerDigest, ImageLayer>>);

impl Catalog {
    fn needs(&self, layer: &LayerDigest) -> bool {
        let known = self.0.lock();
        let mut stored = known.values().filter_map(|known| known.stored.as_ref());
        stored.any(|stored| stored.digest == *layer)
    }
}

#[async_trait]
impl LayerCatalog for Catalog {
    async fn find_layer(
        &self,
        source: &LayerDigest,
    ) -> Result<Option<ImageLayer>, Box<dyn std::error::Error + Send + Sync>> {
        Ok(self.0.lock().get(source).cloned())
    }
}

/// A layer store and a directory for temporary files.
pub(crate) struct Store {
    pub(crate) layers: Layers,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) spool: PathBuf,
    pub(crate) partial: PathBuf,
    pub(crate) limits: ImageLimits,
    pub(crate) progress: ImageProgress,
    _dir: Option<TempDir>,
}

impl Store {
    pub(crate) async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Self::open_in(dir.path().to_owned()).await;
        Self { _dir: Some(dir), ..store }
    }

    /// A store in a directory that exists.
    pub(crate) async fn open_in(dir: PathBuf) -> Self {
        let (spool, partial) = (dir.join("spool"), dir.join("partial"));
        std::fs::create_dir(&spool).unwrap();
        std::fs::create_dir(&partial).unwrap();
        let config = LayersConfig {
            dir: dir.join("layers"),
            store: StoreConfig::Local,
            cache_bytes: ByteSize::gib(1),
            bounds: LayerBounds::default(),
        };
        Self {
            layers: Layers::open(config).await.unwrap(),
            catalog: Arc::default(),
            spool,
            partial,
            limits: ImageLimits::default(),
            progress: ImageProgress::default(),
            _dir: None,
        }
    }

    pub(crate) fn assembler(&self) -> ImageAssembler {
        let limits = (self.limits, self.progress.clone());
        let catalog: Arc<dyn LayerCatalog> = Arc::clone(&self.catalog) as _;
        ImageAssembler::new(self.layers.clone(), limits, catalog, &self.spool)
    }

    /// Imports an archive as a server does: what was stored for a refused one is removed.
    pub(crate) async fn import(&self, tar: Vec<u8>) -> Result<NewImage, ImageError> {
        self.import_chosen(tar, ImportChoice::default()).await
    }

    pub(crate) async fn import_chosen(
        &self,
        tar: Vec<u8>,
        choice: ImportChoice,
    ) -> Result<NewImage, ImageError> {
        let assembler = self.assembler();
        let made = assembler.import_tar(Cursor::new(tar), choice, Moment(1)).await;
        self.settle(&assembler, made).await
    }

    pub(crate) async fn settle(
        &self,
        assembler: &ImageAssembler,
        made: Result<NewImage, ImageError>,
    ) -> Result<NewImage, ImageError> {
        if let Ok(new) = &made {
            let mut known = self.catalog.0.lock();
            known.extend(new.image.layers.iter().map(|it| (it.source.clone(), it.clone())));
        }
        for layer in assembler.take_pins() {
            self.layers.release_pin(&layer);
            if made.is_err() {
                let needed = self.catalog.needs(&layer);
                let needed = async { Ok::<_, cloche_layers::LayerError>(needed) };
                self.layers.remove_unless(&layer, needed).await.unwrap();
            }
        }
        made
    }

    /// The merged tree of an image.
    pub(crate) async fn tree(&self, new: &NewImage) -> Tree {
        self.layers.load_tree(&new.image.stack()).await.unwrap()
    }

    /// How many layers are stored.
    pub(crate) async fn blob_count(&self) -> u64 {
        self.layers.measure_usage().await.unwrap().blobs
    }

    /// Temporary files and unfinished downloads.
    pub(crate) fn leftovers(&self) -> Vec<PathBuf> {
        let list = |dir: &PathBuf| std::fs::read_dir(dir).unwrap().map(|it| it.unwrap().path());
        list(&self.spool).chain(list(&self.partial)).collect()
    }
}

/// The paths of a tree with the kind of each: `d`, `f`, `l` or `p`.
pub(crate) fn paths(tree: &Tree) -> BTreeMap<String, char> {
    let kind = |kind: &NodeKind| match kind {
        NodeKind::Directory => 'd',
        NodeKind::File => 'f',
        NodeKind::Symlink(_) => 'l',
        NodeKind::Fifo => 'p',
    };
    let all = tree.walk().filter(|(path, _)| !path.is_empty());
    all.map(|(path, node)| (String::from_utf8_lossy(path).into_owned(), kind(&node.kind))).collect()
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    LayerDigest::from_sha256(Sha256::digest(bytes).into()).to_string()
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// An archive that is made entry by entry, with names that a library would refuse.
#[derive(Default)]
pub(crate) struct TarBytes(Vec<u8>);

impl TarBytes {
    pub(crate) fn entry(mut self, kind: u8, name: &str, link: &str, data: &[u8]) -> Self {
        let header = self.header(kind, name, link, (data.len() as u64, 0o755));
        self.0.extend_from_slice(&header);
        self.0.extend_from_slice(data);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    fn header(&self, kind: u8, name: &str, link: &str, (size, mode): (u64, u32)) -> [u8; 512] {
        let mut header = tar::Header::new_ustar();
        let old = header.as_old_mut();
        old.name[..name.len()].copy_from_slice(name.as_bytes());
        old.linkname[..link.len()].copy_from_slice(link.as_bytes());
        old.linkflag = [kind];
        header.set_size(size);
        header.set_mode(mode);
        header.set_mtime(1_700_000_000);
        header.set_uid(0);
        header.set_gid(0);
        header.set_cksum();
        *header.as_bytes()
    }

    pub(crate) fn file(self, name: &str, data: &[u8]) -> Self {
        self.entry(b'0', name, "", data)
    }

    pub(crate) fn dir(self, name: &str) -> Self {
        self.entry(b'5', name, "", b"")
    }

    pub(crate) fn with_mode(mut self, name: &str, mode: u32, data: &[u8]) -> Self {
        let header = self.header(b'0', name, "", (data.len() as u64, mode));
        self.0.extend_from_slice(&header);
        self.0.extend_from_slice(data);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub(crate) fn link(self, name: &str, target: &str) -> Self {
        self.entry(b'2', name, target, b"")
    }

    pub(crate) fn hard_link(self, name: &str, target: &str) -> Self {
        self.entry(b'1', name, target, b"")
    }

    /// A pax header with these records, for the next entry.
    pub(crate) fn records(self, records: &[(&str, &str)]) -> Self {
        let mut text = String::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3;
            let mut length = rest + 1;
            while length != rest + length.to_string().len() {
                length = rest + length.to_string().len();
            }
            text.push_str(&format!("{length} {key}={value}\n"));
        }
        self.entry(b'x', "pax", "", text.as_bytes())
    }

    pub(crate) fn end(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }

    /// Without an end marker.
    pub(crate) fn cut(self) -> Vec<u8> {
        self.0
    }
}

/// An image of these layers, each as its file and its archive.
#[derive(Clone)]
pub(crate) struct TestImage {
    pub(crate) layers: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) config: Value,
    pub(crate) media_type: &'static str,
}

pub(crate) const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

impl TestImage {
    /// An image of layers that are compressed with gzip.
    pub(crate) fn new(archives: &[Vec<u8>]) -> Self {
        Self::of_files(archives.iter().map(|plain| (gzip(plain), plain.clone())).collect())
    }

    pub(crate) fn of_files(layers: Vec<(Vec<u8>, Vec<u8>)>) -> Self {
        let diff_ids: Vec<String> = layers.iter().map(|(_, plain)| sha256(plain)).collect();
        let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        let config = json!({
            "architecture": architecture,
            "os": "linux",
            "config": {"Env": ["PATH=/usr/bin:/bin", "A=1"], "WorkingDir": "/work"},
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        Self { layers, config, media_type: GZIP }
    }

    /// The documents and blobs of the image, by digest, and the digest and size of its manifest.
    pub(crate) fn blobs(&self) -> (BTreeMap<String, Vec<u8>>, (String, usize)) {
        let mut blobs = BTreeMap::new();
        let config = self.config.to_string().into_bytes();
        let layers: Vec<Value> = self
            .layers
            .iter()
            .map(|(file, _)| {
                blobs.insert(sha256(file), file.clone());
                json!({"mediaType": self.media_type, "digest": sha256(file), "size": file.len()})
            })
            .collect();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json",
                "digest": sha256(&config), "size": config.len()},
            "layers": layers,
        });
        let manifest = manifest.to_string().into_bytes();
        let name = (sha256(&manifest), manifest.len());
        blobs.insert(sha256(&config), config);
        blobs.insert(sha256(&manifest), manifest);
        (blobs, name)
    }

    /// The image as a tar of an OCI layout.
    pub(crate) fn layout(&self) -> Vec<u8> {
        let (blobs, (digest, size)) = self.blobs();
        layout_of(
            &blobs,
            &[json!({"mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": digest, "size": size})],
        )
    }

    /// The image as `docker save` writes it.
    pub(crate) fn saved(&self, name: &str) -> Vec<u8> {
        let config = self.config.to_string().into_bytes();
        let config_name = format!("{}.json", &sha256(&config)[7..]);
        let mut tar = TarBytes::default();
        let mut names = Vec::new();
        for (number, (_, plain)) in self.layers.iter().enumerate() {
            tar = tar.dir(&format!("{number}/")).file(&format!("{number}/layer.tar"), plain);
            names.push(format!("{number}/layer.tar"));
        }
        let manifest =
            json!([{"Config": config_name, "RepoTags": [name], "Layers": names}]).to_string();
        tar.file(&config_name, &config).file("manifest.json", manifest.as_bytes()).end()
    }
}

/// A tar of an OCI layout with these blobs and this index.
pub(crate) fn layout_of(blobs: &BTreeMap<String, Vec<u8>>, manifests: &[Value]) -> Vec<u8> {
    let index = json!({"schemaVersion": 2, "manifests": manifests}).to_string();
    let mut tar = TarBytes::default()
        .file("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)
        .file("index.json", index.as_bytes());
    for (digest, bytes) in blobs {
        tar = tar.file(&format!("blobs/sha256/{}", &digest[7..]), bytes);
    }
    tar.end()
}
