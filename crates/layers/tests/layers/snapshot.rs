//! Records all properties of a tree, for comparison.

use std::{
    collections::BTreeMap,
    fs::{self, File, Metadata},
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, MetadataExt},
    },
    path::Path,
};

use cloche_layers::{NodeKind, Tree};
use rustix::fs::SeekFrom;

/// One path of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotEntry {
    pub(crate) kind: &'static str,
    pub(crate) mode: u32,
    pub(crate) mtime: (i64, i64),
    pub(crate) size: u64,
    /// The target of a link, or the content of a file.
    pub(crate) content: Vec<u8>,
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// The first path of the same file, if it has several.
    pub(crate) linked_to: Option<Vec<u8>>,
    /// The ranges with data, if the file has holes.
    pub(crate) extents: Vec<(u64, u64)>,
}

pub(crate) type Snapshot = BTreeMap<Vec<u8>, SnapshotEntry>;

pub(crate) fn snapshot(top: &Path) -> Snapshot {
    let mut seen = Snapshot::new();
    let mut waiting = vec![top.to_owned()];
    let mut inodes: BTreeMap<(u64, u64), Vec<Vec<u8>>> = BTreeMap::new();
    while let Some(path) = waiting.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        if meta.is_dir() {
            waiting.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        let name = path.strip_prefix(top).unwrap().as_os_str().as_bytes().to_vec();
        if !meta.is_dir() && meta.nlink() > 1 {
            inodes.entry((meta.dev(), meta.ino())).or_default().push(name.clone());
        }
        seen.insert(name, read_entry(&path, &meta));
    }
    for mut names in inodes.into_values().filter(|names| names.len() > 1) {
        names.sort();
        for name in &names {
            seen.get_mut(name).unwrap().linked_to = Some(names[0].clone());
        }
    }
    seen
}

fn read_entry(path: &Path, meta: &Metadata) -> SnapshotEntry {
    let kind = meta.file_type();
    let (kind, content) = match () {
        () if kind.is_dir() => ("directory", Vec::new()),
        () if kind.is_file() && meta.len() > 1 << 30 => ("file", Vec::new()),
        () if kind.is_file() => ("file", fs::read(path).unwrap()),
        () if kind.is_symlink() => {
            ("symlink", fs::read_link(path).unwrap().as_os_str().as_bytes().to_vec())
        }
        () if kind.is_fifo() => ("fifo", Vec::new()),
        () if kind.is_char_device() && meta.rdev() == 0 => ("whiteout", Vec::new()),
        () => panic!("{path:?} is a {kind:?}"),
    };
    let plain = matches!(kind, "directory" | "file");
    SnapshotEntry {
        kind,
        mode: if kind == "whiteout" { 0 } else { meta.mode() & 0o7777 },
        mtime: if kind == "whiteout" { (0, 0) } else { (meta.mtime(), meta.mtime_nsec()) },
        size: if kind == "directory" { 0 } else { meta.len() },
        content,
        xattrs: if plain { xattrs(path) } else { Vec::new() },
        linked_to: None,
        extents: if kind == "file" { extents(path, meta) } else { Vec::new() },
    }
}

/// The guest's own attributes.
fn xattrs(path: &Path) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut list = vec![0; 1 << 16];
    let length = rustix::fs::listxattr(path, &mut list[..]).unwrap();
    let names = list[..length].split(|&byte| byte == 0).filter(|name| name.starts_with(b"user."));
    let mut found: Vec<_> = names
        .map(|name| {
            let mut value = vec![0; 1 << 16];
            let length = rustix::fs::getxattr(path, name, &mut value[..]).unwrap();
            (name.to_vec(), value[..length].to_vec())
        })
        .collect();
    found.sort();
    found
}

fn extents(path: &Path, meta: &Metadata) -> Vec<(u64, u64)> {
    if meta.blocks() * 512 >= meta.len() {
        return Vec::new();
    }
    let file = File::open(path).unwrap();
    let (mut found, mut at) = (Vec::new(), 0);
    while let Ok(start) = rustix::fs::seek(&file, SeekFrom::Data(at)) {
        let end = rustix::fs::seek(&file, SeekFrom::Hole(start)).unwrap();
        found.push((start, end - start));
        at = end;
    }
    found
}

/// The same for a merged tree: everything except content and holes.
pub(crate) fn of_tree(tree: &Tree) -> Snapshot {
    let mut first: BTreeMap<_, Vec<&[u8]>> = BTreeMap::new();
    for (path, node) in tree.walk().filter(|(_, node)| node.kind != NodeKind::Directory) {
        first.entry((&node.layer, &node.path_in_layer)).or_default().push(path);
    }
    tree.walk()
        .map(|(path, node)| {
            let (kind, content) = match &node.kind {
                NodeKind::Directory => ("directory", Vec::new()),
                NodeKind::File => ("file", Vec::new()),
                NodeKind::Symlink(target) => ("symlink", target.clone()),
                NodeKind::Fifo => ("fifo", Vec::new()),
            };
            let names = first.get(&(&node.layer, &node.path_in_layer));
            let seen = SnapshotEntry {
                kind,
                mode: node.mode,
                mtime: (node.mtime.seconds, i64::from(node.mtime.nanos)),
                size: node.size,
                content,
                xattrs: node.xattrs.clone(),
                linked_to: names.filter(|names| names.len() > 1).map(|names| names[0].to_vec()),
                extents: Vec::new(),
            };
            (path.to_vec(), seen)
        })
        .collect()
}

/// Removes what a merged tree does not know.
pub(crate) fn without_content(snapshot: &Snapshot) -> Snapshot {
    let mut plain = snapshot.clone();
    for seen in plain.values_mut() {
        seen.extents.clear();
        if seen.kind == "file" {
            seen.content.clear();
        }
        if seen.kind == "symlink" {
            seen.mode = 0o777;
        }
    }
    plain
}

/// Asserts that two trees are the same, and names the first path that differs.
pub(crate) fn assert_same(what: &str, before: &Snapshot, after: &Snapshot) {
    let paths: std::collections::BTreeSet<_> = before.keys().chain(after.keys()).collect();
    for path in paths {
        let (was, is) = (before.get(path), after.get(path));
        assert_eq!(was, is, "{what}: {:?}", String::from_utf8_lossy(path));
    }
}
