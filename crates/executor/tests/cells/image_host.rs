//! Runs in: test. An executor that has images, and images made from programs of this machine.
//!
//! An image here is a real one: layers in a store, unpacked once, with programs, their libraries and
//! a Python in another place than the host's. It is made by copying, so that no test needs a network.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::{fd::AsFd, unix::fs::symlink},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use cloche_executor::{PoolSettings, RunIo};
use cloche_layers::{OverlayXattrs, PackOptions, UpperDir, pack_upper_dir};
use cloche_model::{
    ByteSize, ImageDigest, ImageRoot, Interpreter, InterpreterTable, Language, LayerDigest,
    RunEnding, RunOutcome, RunSpec, SandboxShape,
};
use cloche_test_support::skip;
use tempfile::TempDir;

use crate::homes_host::HomesHost;

/// The commands of an image with a shell.
const COMMANDS: [&str; 15] = [
    "bash", "sh", "ls", "cat", "id", "stat", "touch", "mkdir", "mv", "rm", "env", "head", "sleep",
    "readlink", "true",
];
/// Where the Python of an image is. The host has none there.
pub(crate) const PYTHON_PREFIX: &str = "/opt/python";
/// Parts of the standard library that no test needs.
const LEFT_OUT: [&str; 9] = [
    "test",
    "idlelib",
    "lib2to3",
    "ensurepip",
    "distutils",
    "tkinter",
    "turtledemo",
    "pydoc_data",
    "__pycache__",
];

/// A layer that is being made: a directory tree.
pub(crate) struct LayerTree {
    dir: TempDir,
}

impl LayerTree {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    /// A tree with one file.
    pub(crate) fn with_file() -> Self {
        let tree = Self::new();
        tree.file("opt/file", "");
        tree
    }

    /// A tree with `/bin` and `/lib` as links into `/usr`.
    pub(crate) fn with_merged_usr() -> Self {
        let tree = Self::new();
        for name in ["bin", "lib", "lib64", "sbin"] {
            tree.mkdir(&format!("usr/{name}"));
            tree.link(&format!("usr/{name}"), name);
        }
        tree
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path.trim_start_matches('/'))
    }

    pub(crate) fn mkdir(&self, path: &str) {
        fs::create_dir_all(self.path(path)).unwrap();
    }

    pub(crate) fn link(&self, target: &str, path: &str) {
        symlink(target, self.path(path)).unwrap();
    }

    pub(crate) fn file(&self, path: &str, content: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Marks a path of lower layers as deleted.
    pub(crate) fn whiteout(&self, path: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let (kind, mode) = (rustix::fs::FileType::CharacterDevice, rustix::fs::Mode::empty());
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).unwrap();
    }

    /// Makes a directory that hides what lower layers have in it.
    pub(crate) fn opaque_dir(&self, path: &str) {
        self.mkdir(path);
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(self.path(path), "trusted.overlay.opaque", b"y", flags).unwrap();
    }

    /// Copies a program of the host to a path, and its libraries to where it looks for them.
    pub(crate) fn program(&self, from: &str, to: &str) {
        self.copy(Path::new(from), to);
        let listed = Command::new("ldd").arg(from).output().unwrap();
        for word in String::from_utf8_lossy(&listed.stdout).split_whitespace() {
            if word.starts_with('/') {
                self.copy(Path::new(word), word);
            }
        }
    }

    fn copy(&self, from: &Path, to: &str) {
        // Through the links of the tree, as a program would look for it.
        let to = to.strip_prefix("/lib64/").map_or(to.to_owned(), |to| format!("/usr/lib64/{to}"));
        let to = to.strip_prefix("/lib/").map_or(to.clone(), |to| format!("/usr/lib/{to}"));
        let to = self.path(&to);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        if !to.exists() {
            fs::copy(from, to).unwrap();
        }
    }

    /// Copies the host's Python to `/opt/python`; without these modules of its library.
    pub(crate) fn python(&self, without: &[&str]) -> bool {
        let script = "import sys; print(sys.executable, sys.version_info[1])";
        let Ok(said) = Command::new("/usr/bin/python3").args(["-c", script]).output() else {
            return skip("this host has no python3");
        };
        let said = String::from_utf8(said.stdout).unwrap();
        let (real, minor) = said.trim().split_once(' ').unwrap();
        self.program(real, &format!("{PYTHON_PREFIX}/bin/python3"));
        let (library, name) = (PathBuf::from(format!("/usr/lib/python3.{minor}")), "lib");
        let to = format!("{PYTHON_PREFIX}/{name}/python3.{minor}");
        self.copy_library(&library, &to, &without.iter().copied().collect());
        true
    }

    fn copy_library(&self, from: &Path, to: &str, without: &BTreeSet<&str>) {
        self.mkdir(to);
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let module = name.split('.').next().unwrap();
            let is_config = name.starts_with("config-") || module.starts_with("_test");
            if LEFT_OUT.contains(&&name[..]) || without.contains(module) || is_config {
                continue;
            }
            let kind = entry.file_type().unwrap();
            let to = format!("{to}/{name}");
            if kind.is_dir() {
                self.copy_library(&entry.path(), &to, without);
            } else if name.ends_with(".so") {
                self.program(entry.path().to_str().unwrap(), &to);
            } else if kind.is_file() {
                self.copy(&entry.path(), &to);
            }
        }
    }

    /// Copies the commands of a small system.
    pub(crate) fn commands(&self) {
        for name in COMMANDS {
            self.program(&format!("/bin/{name}"), &format!("/usr/bin/{name}"));
        }
    }

    fn pack(&self) -> Vec<u8> {
        let tree = fs::File::open(self.dir.path()).unwrap();
        let upper = UpperDir { dir: tree.as_fd(), merged: None };
        let markers = OverlayXattrs::Trusted;
        let options = PackOptions { skip: Vec::new(), markers, home_mode: None, most: None };
        let mut archive = Vec::new();
        pack_upper_dir(upper, &options, &mut archive).unwrap();
        archive
    }
}

/// An executor with a store of layers.
pub(crate) struct ImageHost {
    pub(crate) host: HomesHost,
}

impl ImageHost {
    /// Nothing, and a skipped test, where no cell can be built or no layer can be made.
    pub(crate) async fn start(pool: Option<PoolSettings>) -> Option<Self> {
        Self::with_cache(ByteSize::gib(1), pool).await
    }

    /// The same with a cache of this size.
    pub(crate) async fn with_cache(cache: ByteSize, pool: Option<PoolSettings>) -> Option<Self> {
        Some(Self { host: HomesHost::start(cache, pool).await? })
    }

    pub(crate) async fn store(&self, tree: &LayerTree) -> LayerDigest {
        let archive = std::io::Cursor::new(tree.pack());
        self.host.layers.store_archive(archive).await.unwrap().unwrap().layer.digest
    }

    /// Stores the trees as layers of an image with these interpreters.
    pub(crate) async fn image(
        &self,
        trees: &[&LayerTree],
        interpreters: &[(Language, &str)],
    ) -> ImageRoot {
        let mut layers = Vec::new();
        for tree in trees {
            layers.push(self.store(tree).await);
        }
        image_of(layers, interpreters)
    }

    pub(crate) async fn run(
        &self,
        image: &ImageRoot,
        language: Language,
        code: &str,
    ) -> RunOutcome {
        let mut spec = RunSpec::new(language, code);
        spec.sandbox = shape_of(image);
        self.host.executor.run(spec, RunIo::default()).await.unwrap()
    }

    /// The output of a program that must succeed.
    pub(crate) async fn output(&self, image: &ImageRoot, language: Language, code: &str) -> String {
        let outcome = self.run(image, language, code).await;
        let said = outcome.stderr.to_text_lossy();
        assert_eq!(outcome.ending, RunEnding::Exited(0), "{language}: {code}: {said}");
        outcome.stdout.to_text_lossy()
    }
}

pub(crate) fn image_of(layers: Vec<LayerDigest>, interpreters: &[(Language, &str)]) -> ImageRoot {
    let found = interpreters.iter().map(|(language, path)| Interpreter {
        language: language.name().to_owned(),
        path: (*path).to_owned(),
        arguments: language.arguments().iter().map(ToString::to_string).collect(),
        main_file: language.main_file().to_owned(),
        version: None,
    });
    ImageRoot {
        digest: ImageDigest::from_sha256([7; 32]),
        layers,
        env: BTreeMap::new(),
        workdir: None,
        interpreters: InterpreterTable { found: found.collect(), refused: Vec::new() },
    }
}

pub(crate) fn shape_of(image: &ImageRoot) -> SandboxShape {
    SandboxShape {
        image: "test:1".to_owned(),
        root: Some(Arc::new(image.clone())),
        ..SandboxShape::default()
    }
}

pub(crate) const PYTHON: (Language, &str) = (Language::Python, "/opt/python/bin/python3");
pub(crate) const BASH: (Language, &str) = (Language::Bash, "/bin/bash");
pub(crate) const SH: (Language, &str) = (Language::Sh, "/bin/sh");

/// An image with commands, a Python and a file of its own.
pub(crate) async fn python_image(host: &ImageHost) -> Option<ImageRoot> {
    let (base, python) = (LayerTree::with_merged_usr(), LayerTree::new());
    base.commands();
    base.file("opt/says", "the image");
    base.mkdir("var/lib");
    base.mkdir("mnt");
    python.python(&[]).then_some(())?;
    Some(host.image(&[&base, &python], &[PYTHON, BASH, SH]).await)
}
