//! Which properties of a tree a pack preserves.

use std::slice::from_ref;
use std::{
    fs::{self, File, Permissions},
    os::{
        fd::AsFd,
        unix::{
            ffi::OsStrExt,
            fs::{PermissionsExt, symlink},
            net::UnixListener,
        },
    },
    path::Path,
};

use cloche_layers::{EntryKind, OverlayXattrs, PackOptions, UpperDir, pack_upper_dir};
use rustix::fs::{CWD, FileType, Mode, Timespec, Timestamps, UTIME_OMIT, XattrFlags};

use crate::{
    snapshot::{assert_same, snapshot},
    support::{LayersFixture, pack_tree, privileged, store},
};

fn bytes(name: &[u8]) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(name))
}

fn set_mtime(path: &Path, seconds: i64, nanos: i64) {
    let times = Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: seconds, tv_nsec: nanos },
    };
    rustix::fs::utimensat(CWD, path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

fn device(path: &Path, kind: FileType, number: u64) {
    rustix::fs::mknodat(CWD, path, kind, Mode::empty(), number).unwrap();
}

/// Fills a tree with files of all kinds.
fn fill_tree(top: &Path) {
    let write = |name: &[u8], content: &[u8]| fs::write(top.join(bytes(name)), content).unwrap();
    fs::create_dir(top.join("empty")).unwrap();
    fs::create_dir(top.join("dir")).unwrap();
    write(b"dir/file", b"hello");
    write(b"zero", b"");
    write(b"not \xff utf-8 \xfe", b"x");
    write(b"new\nline", b"x");
    write(b".wh.mine", b"not a deletion");
    write(b".wh..wh..opq", b"not opaque");
    fs::create_dir(top.join(".wh.dir")).unwrap();
    write(b".wh.dir/.wh.inner", b"deeper");
    device(&top.join(".wh.dir/gone"), FileType::CharacterDevice, 0);
    device(&top.join(".wh..opq"), FileType::CharacterDevice, 0);
    fs::hard_link(top.join(".wh.mine"), top.join("link to .wh.mine")).unwrap();
    fs::hard_link(top.join("dir/file"), top.join("another name")).unwrap();
    write(&[b'n'; 200], b"long name");
    let mut deep = top.join("deep");
    for _ in 0..20 {
        deep = deep.join("d".repeat(50));
    }
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("bottom"), "far down").unwrap();
    symlink("/proc/self/exe", top.join("absolute")).unwrap();
    symlink("../../..", top.join("up")).unwrap();
    symlink(bytes(&[b't'; 900]), top.join("long target")).unwrap();
    fs::hard_link(top.join("up"), top.join("up again")).unwrap();
    device(&top.join("pipe"), FileType::Fifo, 0);
    device(&top.join("gone"), FileType::CharacterDevice, 0);
    for (name, value) in [("user.a", &b"1"[..]), ("user.b=c%3D", b"\n=\0\xff"), ("user.empty", b"")]
    {
        for path in [top.join("dir"), top.join("zero"), top.to_owned()] {
            rustix::fs::setxattr(path, name, value, XattrFlags::empty()).unwrap();
        }
    }
    for (path, mode) in [("zero", 0o0), ("dir/file", 0o4751), ("empty", 0o1777), ("dir", 0o2570)] {
        fs::set_permissions(top.join(path), Permissions::from_mode(mode)).unwrap();
    }
    set_mtime(&top.join("zero"), -1, 500_000_000);
    set_mtime(&top.join("up"), 1 << 33, 1);
    set_mtime(&top.join("dir"), 12, 34);
    set_mtime(top, 1_700_000_000, 123_456_789);
}

#[tokio::test]
async fn a_packed_tree_keeps_everything() {
    if !privileged() {
        return;
    }
    let fixture = LayersFixture::new().await;
    let tree = fixture.tree("tree");
    fill_tree(&tree);
    let stored = fixture.store(&tree).await;
    let mut before = snapshot(&tree);
    // The set-user-id bit is dropped on purpose, for both names of the file.
    for name in ["dir/file", "another name"] {
        before.get_mut(name.as_bytes()).unwrap().mode = 0o751;
    }
    let unpacked = fixture.unpacked(&stored.layer.digest).await;
    assert_same("unpacked", &before, &snapshot(&unpacked));
    assert_eq!(stored.layer.entries, before.len() as u64 - 1);
    let bytes: usize = 5 + 1 + 1 + 14 + 10 + 6 + 9 + 8;
    assert_eq!(stored.layer.bytes.bytes(), bytes as u64);
}

#[tokio::test]
async fn the_same_tree_gives_the_same_bytes() {
    if !privileged() {
        return;
    }
    let fixture = LayersFixture::new().await;
    let (one, other) = (fixture.tree("one"), fixture.tree("other"));
    fill_tree(&one);
    fill_tree(&other);
    for (path, seen) in snapshot(&one).iter().rev() {
        if seen.kind != "whiteout" {
            set_mtime(&other.join(bytes(path)), seen.mtime.0, seen.mtime.1);
        }
    }
    assert!(pack_tree(&one) == pack_tree(&other), "the archives differ");
}

#[tokio::test]
async fn holes_take_no_space() {
    let fixture = LayersFixture::new().await;
    let tree = fixture.tree("tree");
    let sizes: [(&str, u64); 4] =
        [("hole", 10 << 30), ("middle", 1 << 20), ("tail", 1 << 20), ("head", 1 << 20)];
    for (name, size) in sizes {
        let file = File::create(tree.join(name)).unwrap();
        file.set_len(size).unwrap();
        let at = match name {
            "middle" => 512 << 10,
            "tail" => (1 << 20) - 4096,
            "head" => 0,
            _ => continue,
        };
        std::os::unix::fs::FileExt::write_all_at(&file, &[7; 4096], at).unwrap();
    }
    let archive = pack_tree(&tree);
    assert!(archive.len() < 64 << 10, "{} bytes", archive.len());
    let stored = store(&fixture.layers, archive).await.unwrap().unwrap();
    assert_eq!(stored.layer.bytes.bytes(), 3 * 4096);
    let unpacked = fixture.unpacked(&stored.layer.digest).await;
    assert_same("sparse", &snapshot(&tree), &snapshot(&unpacked));
    let listed = std::process::Command::new("tar")
        .args(["-tvf", "-"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .and_then(|mut child| {
            use std::io::Write;
            child.stdin.take().unwrap().write_all(&pack_tree(&tree))?;
            child.wait_with_output()
        })
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.contains("10737418240"), "GNU tar does not see the size:\n{listed}");
}

#[tokio::test]
async fn an_empty_diff_stores_no_layer() {
    let fixture = LayersFixture::new().await;
    let tree = fixture.tree("tree");
    assert!(store(&fixture.layers, pack_tree(&tree)).await.unwrap().is_none());
    assert_eq!(fixture.layers.measure_usage().await.unwrap().blobs, 0);
}

#[tokio::test]
async fn overlay_marks_become_records_and_marks() {
    if !privileged() {
        return;
    }
    let fixture = LayersFixture::new().await;
    let tree = fixture.tree("tree");
    let mark = |path: &str, name: &str, value: &[u8]| {
        let name = format!("trusted.overlay.{name}");
        rustix::fs::setxattr(tree.join(path), name, value, XattrFlags::empty()).unwrap();
    };
    fs::create_dir_all(tree.join("moved/inner")).unwrap();
    fs::create_dir_all(tree.join("moved/plain/again")).unwrap();
    fs::create_dir(tree.join("beside")).unwrap();
    fs::create_dir(tree.join("opaque")).unwrap();
    mark("moved", "redirect", b"/a/b");
    mark("moved/inner", "redirect", b"was");
    mark("moved/plain/again", "redirect", b"older");
    mark("beside", "redirect", b"other");
    mark("opaque", "opaque", b"y");
    mark("opaque", "origin", b"whatever");
    let stored = fixture.store(&tree).await;
    let moved = |path: &str| match &stored.index.get(path.as_bytes()).unwrap().kind {
        EntryKind::Directory { redirect, .. } => redirect.as_deref().map(String::from_utf8_lossy),
        other => panic!("{other:?}"),
    };
    assert_eq!(moved("moved").as_deref(), Some("a/b"));
    assert_eq!(moved("moved/inner").as_deref(), Some("a/b/was"));
    assert_eq!(moved("moved/plain/again").as_deref(), Some("a/b/plain/older"));
    assert_eq!(moved("beside").as_deref(), Some("other"));
    let unpacked = fixture.unpacked(&stored.layer.digest).await;
    let marks = fs::read(unpacked.with_extension("marks")).unwrap();
    let text = String::from_utf8(marks).unwrap();
    assert_eq!(
        text,
        "rbeside\0other\0rmoved\0/a/b\0rmoved/inner\0was\0\
         rmoved/plain/again\0older\0oopaque\0\0"
    );
}

#[test]
fn user_overlay_marks_are_packed_when_selected() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("opaque")).unwrap();
    let path = dir.path().join("opaque");
    for (name, value) in [("user.overlay.opaque", &b"y"[..]), ("user.mine", b"kept")] {
        rustix::fs::setxattr(&path, name, value, XattrFlags::empty()).unwrap();
    }
    for (markers, opaque) in [(OverlayXattrs::User, true), (OverlayXattrs::Trusted, false)] {
        let mut out = Vec::new();
        let request = PackOptions { skip: Vec::new(), markers, home_mode: None, most: None };
        let top = File::open(dir.path()).unwrap();
        pack_upper_dir(UpperDir { dir: top.as_fd(), merged: None }, &request, &mut out).unwrap();
        let text = String::from_utf8_lossy(&out);
        assert_eq!(text.contains("opaque/.wh..wh..opq"), opaque);
        assert!(text.contains("SCHILY.xattr.user.mine=kept") && !text.contains("user.overlay"));
    }
}

#[test]
fn device_nodes_are_refused_and_sockets_are_left_out() {
    if !privileged() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let request = PackOptions {
        skip: vec!["skipped".into()],
        markers: OverlayXattrs::Trusted,
        home_mode: None,
        most: None,
    };
    let top = File::open(dir.path()).unwrap();
    let upper = UpperDir { dir: top.as_fd(), merged: None };
    let packed = |out: &mut Vec<u8>| pack_upper_dir(upper, &request, out);
    let _socket = UnixListener::bind(dir.path().join("socket")).unwrap();
    fs::create_dir(dir.path().join("skipped")).unwrap();
    fs::create_dir_all(dir.path().join("kept/skipped")).unwrap();
    let mut out = Vec::new();
    packed(&mut out).unwrap();
    let text = String::from_utf8_lossy(&out);
    assert!(!text.contains("socket") && text.contains("kept/skipped/"));
    assert_eq!(text.matches("skipped").count(), 1);
    device(&dir.path().join("null"), FileType::CharacterDevice, rustix::fs::makedev(1, 3));
    assert!(packed(&mut Vec::new()).unwrap_err().to_string().contains("device node"));
}

#[tokio::test]
async fn a_tree_may_be_deeper_than_the_longest_path() {
    let fixture = LayersFixture::new().await;
    let tree = fixture.tree("tree");
    let mut here = rustix::fs::open(&tree, rustix::fs::OFlags::PATH, Mode::empty()).unwrap();
    for _ in 0..900 {
        rustix::fs::mkdirat(&here, "depth", Mode::RWXU).unwrap();
        here = rustix::fs::openat(&here, "depth", rustix::fs::OFlags::PATH, Mode::empty()).unwrap();
    }
    let stored = fixture.store(&tree).await;
    assert_eq!(stored.layer.entries, 900);
    let mountable = fixture.layers.unpack_stack(from_ref(&stored.layer.digest)).await.unwrap();
    drop(mountable);
    let merged = fixture.layers.load_tree(&[stored.layer.digest]).await.unwrap();
    assert_eq!(merged.entry_count(), 900);
}
