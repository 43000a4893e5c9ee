//! What becomes of the entries of a layer.

use std::io::Write;

use cloche_layers::NodeKind;
use cloche_model::LayerDigest;
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::io::AsyncReadExt;

use crate::support::{Store, TarBytes, TestImage, gzip, paths};

async fn read(store: &Store, tree: &cloche_layers::Tree, path: &str) -> String {
    let node = tree.get(path.as_bytes()).unwrap_or_else(|| panic!("no {path}"));
    let mut text = String::new();
    let mut file = store.layers.open_node(node, None).await.unwrap();
    file.content.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test]
async fn every_compression_gives_the_same_layer() {
    let plain = TarBytes::default().dir("bin").file("bin/a", b"hello").end();
    let gzip_members = [gzip(&plain[..700]), gzip(&plain[700..])].concat();
    let frames =
        [zstd::encode_all(&plain[..700], 3).unwrap(), zstd::encode_all(&plain[700..], 3).unwrap()];
    // A frame that decompressors skip, as chunked layers have it.
    let skipped = [b"\x50\x2a\x4d\x18\x04\x00\x00\x00".as_slice(), b"note"].concat();
    let zstd_frames = [skipped, frames.concat()].concat();
    let mut digests = Vec::new();
    for file in [plain.clone(), gzip_members, zstd_frames] {
        let store = Store::new().await;
        let image = TestImage::of_files(vec![(file, plain.clone())]);
        let new = store.import(image.layout()).await.unwrap();
        digests.push(new.image.stack());
        assert_eq!(read(&store, &store.tree(&new).await, "bin/a").await, "hello");
    }
    assert!(digests.windows(2).all(|pair| pair[0] == pair[1]), "{digests:?}");
}

#[tokio::test]
async fn whiteouts_hide_lower_layers_in_any_order() {
    let lower = TarBytes::default()
        .dir("keep")
        .file("keep/old", b"1")
        .dir("gone")
        .file("gone/x", b"1")
        .dir("opaque")
        .file("opaque/old", b"1")
        .dir("again")
        .file("again/old", b"1")
        .file("file", b"1")
        .end();
    let upper = TarBytes::default()
        .file("keep/.wh.old", b"")
        .file(".wh.gone", b"")
        .file("opaque/new", b"2")
        .file("opaque/.wh..wh..opq", b"")
        .file("opaque/.wh.old", b"")
        // A directory that is removed and made again hides what it had.
        .dir("again")
        .file("again/new", b"2")
        .file(".wh.again", b"")
        // A file that is there wins over a whiteout of its name.
        .file(".wh.file", b"")
        .file("file", b"2")
        // Marks of another tool, and a whiteout of nothing.
        .file(".wh..wh.plnk/1.2", b"")
        .file(".wh..wh.aufs", b"")
        .file(".wh.never", b"")
        .end();
    let store = Store::new().await;
    let new = store.import(TestImage::new(&[lower, upper]).layout()).await.unwrap();
    let tree = store.tree(&new).await;
    let found: Vec<String> = paths(&tree).into_keys().collect();
    assert_eq!(found, ["again", "again/new", "file", "keep", "opaque", "opaque/new"]);
    assert_eq!(read(&store, &tree, "file").await, "2");
}

#[tokio::test]
async fn a_later_entry_replaces_an_earlier_one() {
    let layer = TarBytes::default()
        .file("a", b"first")
        .file("a", b"second")
        // The name keeps the content that it had when the link was made.
        .file("b", b"old")
        .hard_link("c", "b")
        .file("b", b"new")
        .dir("d")
        .file("d/x", b"1")
        .file("d", b"file now")
        .file("e", b"1")
        .dir("e")
        .file("e/x", b"2")
        .end();
    let store = Store::new().await;
    let new = store.import(TestImage::new(&[layer]).layout()).await.unwrap();
    let tree = store.tree(&new).await;
    let found: Vec<(String, char)> = paths(&tree).into_iter().collect();
    let wanted = [("a", 'f'), ("b", 'f'), ("c", 'f'), ("d", 'f'), ("e", 'd'), ("e/x", 'f')];
    assert_eq!(found, wanted.map(|(path, kind)| (path.to_owned(), kind)));
    for (path, text) in [("a", "second"), ("b", "new"), ("c", "old"), ("d", "file now")] {
        assert_eq!(read(&store, &tree, path).await, text, "{path}");
    }
}

#[tokio::test]
async fn directories_that_a_layer_leaves_out_keep_the_mode_of_lower_layers() {
    let lower = TarBytes::default().records(&[("comment", "x")]);
    let mut lower = lower.dir("tmp").file("tmp/a", b"1").end();
    // The directory has mode 1777.
    let at = lower.windows(4).position(|w| w == b"tmp\0").unwrap();
    lower[at + 100..at + 108].copy_from_slice(b"0001777\0");
    let header = tar::Header::from_byte_slice(&lower[at..at + 512]).clone();
    let mut header = header;
    header.set_cksum();
    lower[at..at + 512].copy_from_slice(header.as_bytes());
    let upper = TarBytes::default().file("tmp/b", b"2").file("new/deep/c", b"3").end();
    let store = Store::new().await;
    let new = store.import(TestImage::new(&[lower, upper]).layout()).await.unwrap();
    let tree = store.tree(&new).await;
    assert_eq!(tree.get(b"tmp").unwrap().mode, 0o1777);
    assert_eq!(tree.get(b"new/deep").unwrap().mode, 0o755);
    // Such a layer depends on what is below it, so it is not used elsewhere.
    assert_ne!(new.image.layers[1].source, new.image.layers[1].diff_id);
    assert_eq!(new.image.layers[0].source, new.image.layers[0].diff_id);
}

#[tokio::test]
async fn a_hard_link_to_a_lower_layer_becomes_a_copy() {
    let lower = TarBytes::default().dir("bin").file("bin/tool", b"tool").link("sym", "bin").end();
    let upper = TarBytes::default().dir("opt").hard_link("opt/tool", "bin/tool").end();
    let store = Store::new().await;
    let new = store.import(TestImage::new(&[lower, upper]).layout()).await.unwrap();
    let tree = store.tree(&new).await;
    assert_eq!(read(&store, &tree, "opt/tool").await, "tool");
    assert_eq!(read(&store, &tree, "bin/tool").await, "tool");
}

#[tokio::test]
async fn devices_privileges_and_attributes_are_left_out() {
    let layer = TarBytes::default()
        .entry(b'3', "dev-null", "", b"")
        .entry(b'4', "dev-disk", "", b"")
        .with_mode("su", 0o6755, b"x")
        .records(&[
            ("SCHILY.xattr.security.capability", "v"),
            ("SCHILY.xattr.trusted.overlay.opaque", "y"),
            ("SCHILY.xattr.user.overlay.redirect", "/etc"),
            ("SCHILY.xattr.user.kept", "v"),
            ("CLOCHE.redirect", "/etc"),
            ("CLOCHE.name", "elsewhere"),
        ])
        .dir("plain")
        .entry(b'6', "pipe", "", b"")
        .end();
    let store = Store::new().await;
    let new = store.import(TestImage::new(&[layer]).layout()).await.unwrap();
    let tree = store.tree(&new).await;
    let found: Vec<String> = paths(&tree).into_keys().collect();
    assert_eq!(found, ["pipe", "plain", "su"]);
    assert_eq!(tree.get(b"su").unwrap().mode, 0o755);
    let plain = tree.get(b"plain").unwrap();
    assert_eq!(plain.xattrs, [(b"user.kept".to_vec(), b"v".to_vec())]);
    assert_eq!(plain.kind, NodeKind::Directory);
    let notes = new.image.notes.join("; ");
    for note in ["2 device nodes", "1 files lost their set-user-id", "3 extended attributes"] {
        assert!(notes.contains(note), "{notes}");
    }
}

#[tokio::test]
async fn archives_of_careless_tools_are_read() {
    // Absolute names, double slashes, a global header, no end marker, a directory by its slash.
    let layer = TarBytes::default()
        .entry(b'g', "global", "", b"19 comment=anything\n")
        .entry(b'5', "/", "", b"")
        .file("/abs//file", b"1")
        .entry(b'0', "./old-dir/", "", b"")
        .file("./old-dir/x", b"2")
        .link("link", "/abs")
        .file("link/through", b"3")
        .file("stargz.index.json", b"{}")
        .cut();
    let store = Store::new().await;
    let new = store.import(TestImage::new(&[layer]).layout()).await.unwrap();
    let tree = store.tree(&new).await;
    let found: Vec<String> = paths(&tree).into_keys().collect();
    assert_eq!(found, ["abs", "abs/file", "abs/through", "link", "old-dir", "old-dir/x"]);
}

#[tokio::test]
async fn a_shared_base_is_stored_once() {
    let base = TarBytes::default().dir("base").file("base/a", &[7; 4096]).end();
    let one = TarBytes::default().file("one", b"1").end();
    let two = TarBytes::default().file("two", b"2").end();
    let store = Store::new().await;
    let first = store.import(TestImage::new(&[base.clone(), one]).layout()).await.unwrap();
    assert_eq!(store.blob_count().await, 2);
    // The base of the second image is compressed in another way, and is the same layer.
    let files = vec![(base.clone(), base), (gzip(&two), two)];
    let second = store.import(TestImage::of_files(files).layout()).await.unwrap();
    assert_eq!(store.blob_count().await, 3);
    assert_eq!(first.image.stack()[0], second.image.stack()[0]);
    assert!(store.leftovers().is_empty());
}

#[tokio::test]
async fn an_empty_layer_has_no_place_in_the_stack() {
    let layer = TarBytes::default().file("a", b"1").end();
    let empty = TarBytes::default().end();
    let store = Store::new().await;
    let new = store.import(TestImage::new(&[empty, layer]).layout()).await.unwrap();
    assert_eq!((new.image.layers.len(), new.image.stack().len()), (2, 1));
}

/// A layer with this many empty files in directories of a thousand: its file, and the digest of its
/// archive. The archive itself would not fit into the memory of a small machine several times.
fn many_files(top: &str, count: usize) -> (Vec<u8>, String) {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let mut hash = Sha256::new();
    let mut write = |bytes: &[u8]| {
        hash.update(bytes);
        packed.write_all(bytes).unwrap();
    };
    for number in 0..count {
        if number % 1000 == 0 {
            write(&TarBytes::default().dir(&format!("{top}{}/", number / 1000)).cut());
        }
        let name = format!("{top}{}/{}", number / 1000, number % 1000);
        write(&TarBytes::default().file(&name, b"").cut());
    }
    write(&[0; 1024]);
    let digest = LayerDigest::from_sha256(hash.finalize().into()).to_string();
    (packed.finish().unwrap(), digest)
}

fn image_of(layers: &[(Vec<u8>, String)]) -> TestImage {
    let files = layers.iter().map(|(file, _)| (file.clone(), Vec::new()));
    let mut image = TestImage::of_files(files.collect());
    let diff_ids: Vec<&String> = layers.iter().map(|(_, digest)| digest).collect();
    image.config["rootfs"]["diff_ids"] = json!(diff_ids);
    image
}

#[tokio::test]
async fn a_million_files_are_imported_and_more_than_the_limit_is_refused() {
    let store = Store::new().await;
    let million = many_files("a", 1_000_000);
    let new = store.import(image_of(std::slice::from_ref(&million)).layout()).await.unwrap();
    assert_eq!(new.image.layers[0].stored.as_ref().unwrap().entries, 1_001_000);
    let index = store.layers.load_index(&new.image.stack()[0]).await.unwrap();
    assert_eq!(index.entries().len(), 1_001_001, "with the root");

    let more = many_files("b", 50_000);
    let error = store.import(image_of(&[million, more]).layout()).await.unwrap_err();
    assert!(error.to_string().contains("too many"), "{error}");
    assert_eq!((store.blob_count().await, store.leftovers()), (1, Vec::new()));
}
