//! A home for these tests: a plain directory, filled from layers and committed as a new layer. An
//! overlay finds changes in real homes; here the files are compared.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use cloche_layers::{Layers, NodeKind};
use cloche_model::{HomePath, HomeWrites, LayerDigest, OutputFile, ThreadHome};
use tempfile::TempDir;
use tokio::io::AsyncReadExt;

pub(crate) struct Home {
    directory: TempDir,
    stack: Vec<LayerDigest>,
    room: u64,
}

type Contents = BTreeMap<PathBuf, Vec<u8>>;

impl Home {
    pub(crate) async fn fill(layers: &Layers, home: Option<&ThreadHome>) -> Self {
        let directory = TempDir::new().unwrap();
        let stack = home.map(|home| home.layers.clone()).unwrap_or_default();
        let room = home.map_or(u64::MAX, |home| home.room.bytes.bytes());
        let tree = layers.load_tree(&stack).await.unwrap();
        for (path, node) in tree.walk().filter(|(path, _)| !path.is_empty()) {
            let target = directory.path().join(OsStr::from_bytes(path));
            match node.kind {
                NodeKind::Directory => fs::create_dir(target).unwrap(),
                NodeKind::File => {
                    let mut content = Vec::new();
                    let mut file = layers.open_node(node, None).await.unwrap();
                    file.content.read_to_end(&mut content).await.unwrap();
                    fs::write(target, content).unwrap();
                }
                _ => {}
            }
        }
        Self { directory, stack, room }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn put(&self, name: &str, content: &[u8]) {
        fs::write(self.path().join(name), content).unwrap();
    }

    /// Every regular file, by its path below the home. Links and empty directories are ignored.
    pub(crate) fn contents(&self) -> Contents {
        let mut contents = Contents::new();
        let mut left = vec![self.path().to_owned()];
        while let Some(directory) = left.pop() {
            for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
                let (kind, path) = (entry.file_type().unwrap(), entry.path());
                if kind.is_dir() {
                    left.push(path);
                } else if kind.is_file() {
                    let name = path.strip_prefix(self.path()).unwrap().to_owned();
                    contents.insert(name, fs::read(path).unwrap());
                }
            }
        }
        contents
    }

    /// Stores the changes since `before`. Files that exceed the quota are omitted, and
    /// `quota_exceeded` is set.
    pub(crate) async fn seal(&self, layers: &Layers, main: &str, before: &Contents) -> HomeWrites {
        let after = self.contents();
        let mut writer = layers.begin_layer(&self.stack).await.unwrap();
        let below = layers.load_tree(&self.stack).await.unwrap();
        let (mut written, mut room) = (HomeWrites::default(), self.room);
        for (path, content) in &after {
            let name = path.as_os_str().as_bytes();
            let is_new = below.get(name).is_none() && before.contains_key(path);
            if name == main.as_bytes() || (before.get(path) == Some(content) && !is_new) {
                continue;
            }
            let size = content.len() as u64;
            if size > room {
                written.quota_exceeded = true;
                continue;
            }
            room -= size;
            writer.put_file(name, 0o644, size, &content[..]).await.unwrap();
            if before.get(path) != Some(content) {
                written.files.push(OutputFile {
                    name: HomePath::text_of(name),
                    size,
                    truncated: false,
                });
            }
        }
        let gone = before.keys().filter(|path| !after.contains_key(*path));
        for path in gone.filter(|path| *path != Path::new(main)) {
            let name = path.as_os_str().as_bytes();
            if below.get(name).is_some() {
                writer.remove_path(name).await.unwrap();
            }
        }
        written.layer = writer.finish().await.unwrap().map(|stored| stored.layer);
        written
    }
}
