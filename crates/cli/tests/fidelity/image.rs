//! Images for the suite: OCI layouts that `scripts/setup-tests` has made, each imported into a
//! layer store of one test.

use std::{
    error::Error,
    fs::File,
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};

use async_trait::async_trait;
use cloche_images::{
    ImageAssembler, ImageLimits, ImageProgress, ImportChoice, LayerCatalog, NewImage,
};
use cloche_layers::{
    LayerBounds, Layers, LayersConfig, OverlayXattrs, PackOptions, StoreConfig, UnpackedStack,
    UpperDir, pack_upper_dir,
};
use cloche_model::{
    ByteSize, ImageDigest, ImageLayer, ImageRoot, Interpreter, InterpreterTable, Language,
    LayerDigest, Moment, SandboxShape,
};
use tempfile::TempDir;

use crate::support::skip;

/// Copies the Python below a prefix ($1) to the same place in a root ($0), with the libraries that
/// it links to and the commands of BusyBox.
const COPY_PREFIX: &str = r#"
set -e
version=$(cd "$1/bin" && ls | grep -x 'python3\.[0-9]*')
mkdir -p "$0$1/bin" "$0$1/lib" "$0/bin" "$0/etc"
cp "$1/bin/$version" "$0$1/bin/python3"
tar -C "$1/lib" --exclude=test --exclude='site-packages/*' --exclude=idlelib --exclude=lib2to3 \
    --exclude=ensurepip --exclude='config-*' -cf - "$version" | tar -C "$0$1/lib" -xf -
ldd "$1/bin/$version" "$1/lib/$version"/lib-dynload/*.so | grep -o '/[^ :]*\.so[^ :]*' | sort -u |
while read -r library; do
    mkdir -p "$0$(dirname "$library")"
    [ -e "$0$library" ] || cp -L "$library" "$0$library"
done
# Loaded when a thread is ended.
for library in /lib/*/libgcc_s.so.1; do cp -L "$library" "$0$library"; done
cp "$(command -v busybox)" "$0/bin/busybox"
for command in $(busybox --list); do
    [ -e "$0/bin/$command" ] || ln -s busybox "$0/bin/$command"
done
find "$0" -type d -exec chmod 755 {} +
"#;

/// An image in a layer store of its own, unpacked.
pub(crate) struct TestImage {
    pub(crate) name: &'static str,
    pub(crate) root: Arc<ImageRoot>,
    pub(crate) layers: Layers,
    unpacked: UnpackedStack,
    _directory: TempDir,
}

impl TestImage {
    /// An image with a Python of this machine, made by copying.
    pub(crate) async fn copy_python(prefix: &Path) -> Self {
        let tree = tempfile::tempdir().unwrap();
        let mut copy = Command::new("sh");
        copy.args(["-c", COPY_PREFIX]).arg(tree.path()).arg(prefix);
        assert!(copy.status().unwrap().success(), "cannot copy {}", prefix.display());
        let directory = tempfile::tempdir().unwrap();
        let layers = open_layers(directory.path()).await;
        let top = File::open(tree.path()).unwrap();
        let markers = OverlayXattrs::Trusted;
        let options = PackOptions { skip: Vec::new(), markers, home_mode: None, most: None };
        let mut archive = Vec::new();
        let upper = UpperDir { dir: top.as_fd(), merged: None };
        pack_upper_dir(upper, &options, &mut archive).unwrap();
        let stored = layers.store_archive(std::io::Cursor::new(archive)).await.unwrap().unwrap();
        let interpreter = |language: Language, path: String| Interpreter {
            language: language.name().to_owned(),
            path,
            arguments: language.arguments().iter().map(ToString::to_string).collect(),
            main_file: language.main_file().to_owned(),
            version: None,
        };
        let python = prefix.join("bin/python3").display().to_string();
        let found = vec![
            interpreter(Language::Python, python),
            interpreter(Language::Sh, "/bin/sh".to_owned()),
        ];
        let root = Arc::new(ImageRoot {
            digest: ImageDigest::from_sha256([7; 32]),
            layers: vec![stored.layer.digest],
            env: [("PATH".to_owned(), "/bin".to_owned())].into(),
            workdir: None,
            interpreters: InterpreterTable { found, refused: Vec::new() },
        });
        let unpacked = layers.unpack_stack(&root.layers).await.unwrap();
        Self { name: "copied", root, layers, unpacked, _directory: directory }
    }

    /// Imports a layout of `target/images`. Skips the test if `scripts/setup-tests` did not make it.
    pub(crate) async fn import(name: &'static str) -> Option<Self> {
        let layout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/images").join(name);
        if !layout.join("index.json").exists() {
            skip(&format!("there is no image target/images/{name}: run scripts/setup-tests"));
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let layers = open_layers(directory.path()).await;
        let NewImage { image, .. } = import_layout(&layout, &layers, directory.path()).await;
        let root = Arc::new(image.to_root());
        let unpacked = layers.unpack_stack(&root.layers).await.unwrap();
        Some(Self { name, root, layers, unpacked, _directory: directory })
    }

    /// The directories of its layers, the topmost first.
    pub(crate) fn layer_directories(&self) -> Vec<PathBuf> {
        let names = self.unpacked.layer_names().into_iter().rev();
        names.map(|name| self.layers.cache_dir().join(name)).collect()
    }

    /// Moves a sandbox to this image.
    pub(crate) fn apply_to(&self, sandbox: &mut SandboxShape) {
        self.name.clone_into(&mut sandbox.image);
        sandbox.root = Some(Arc::clone(&self.root));
    }
}

async fn open_layers(directory: &Path) -> Layers {
    let config = LayersConfig {
        dir: directory.join("layers"),
        store: StoreConfig::Local,
        cache_bytes: ByteSize::gib(8),
        bounds: LayerBounds::default(),
    };
    Layers::open(config).await.unwrap()
}

async fn import_layout(layout: &Path, layers: &Layers, spool: &Path) -> NewImage {
    let mut tar = Command::new("tar")
        .arg("-C")
        .arg(layout)
        .args(["-cf", "-", "."])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let limits = (ImageLimits::default(), ImageProgress::default());
    let assembler = ImageAssembler::new(layers.clone(), limits, Arc::new(NoLayers), spool);
    let archive = tar.stdout.take().unwrap();
    let made = assembler.import_tar(archive, ImportChoice::default(), Moment(1)).await.unwrap();
    assert!(tar.wait().unwrap().success());
    made
}

/// A catalog in which no image is.
struct NoLayers;

#[async_trait]
impl LayerCatalog for NoLayers {
    async fn find_layer(
        &self,
        _: &LayerDigest,
    ) -> Result<Option<ImageLayer>, Box<dyn Error + Send + Sync>> {
        Ok(None)
    }
}
