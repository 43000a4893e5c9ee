//! Exports to other tools, and imports from them.

use std::{fs, io::Write, path::Path, process::Command};

use cloche_layers::{ExportMeta, LayerBounds, LayerError};
use cloche_model::{ByteSize, LayerDigest};
use rustix::fs::XattrFlags;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{
    store_and_cache::{noise, read},
    support::{Forged, LayersFixture, pack_tree, privileged},
};

/// Two layers with a whiteout in the second.
async fn stack(fixture: &LayersFixture) -> Vec<LayerDigest> {
    let (one, two) = (fixture.tree("one"), fixture.tree("two"));
    fs::create_dir(one.join("dir")).unwrap();
    fs::write(one.join("dir/file"), noise(50_000, 1)).unwrap();
    fs::write(one.join("gone"), "x").unwrap();
    fs::write(two.join(".wh.mine"), "mine").unwrap();
    let (kind, mode) = (rustix::fs::FileType::CharacterDevice, rustix::fs::Mode::empty());
    rustix::fs::mknodat(rustix::fs::CWD, two.join("gone"), kind, mode, 0).unwrap();
    vec![fixture.store(&one).await.layer.digest, fixture.store(&two).await.layer.digest]
}

fn skopeo(arguments: &[&str]) -> Vec<u8> {
    let output = Command::new("skopeo").args(arguments).output();
    let output = output.expect("skopeo is not installed: run scripts/setup-tests");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

#[tokio::test]
async fn skopeo_accepts_an_export_and_it_can_be_imported() {
    let fixture = LayersFixture::new().await;
    let stack = stack(&fixture).await;
    let meta = ExportMeta {
        name: "latest".to_owned(),
        created: Some("2026-01-02T03:04:05Z".to_owned()),
        annotations: [("cloche.thread".to_owned(), "one".to_owned())].into(),
    };
    let dir = fixture.dir.path().join("image");
    fixture.layers.export_image(&stack, &dir, &meta).await.unwrap();
    let image = format!("oci:{}:latest", dir.display());
    let seen: Value = serde_json::from_slice(&skopeo(&["inspect", &image])).unwrap();
    let layers: Vec<_> = stack.iter().map(LayerDigest::as_str).collect();
    assert_eq!(seen["Layers"], serde_json::json!(layers));
    assert_eq!(seen["Created"], "2026-01-02T03:04:05Z");
    // A copy makes skopeo unpack and check every layer.
    let copy = fixture.dir.path().join("copy");
    let target = format!("oci:{}:latest", copy.display());
    let policy = ["--insecure-policy", "copy", "--dest-compress-format", "zstd", &image, &target];
    skopeo(&policy);

    let there = LayersFixture::new().await;
    let imported = there.layers.import_image(&dir).await.unwrap();
    let digests: Vec<_> = imported.iter().map(|stored| stored.layer.digest.clone()).collect();
    assert_eq!(digests, stack);
    for (imported, digest) in imported.iter().zip(&stack) {
        let before = fixture.layers.load_index(digest).await.unwrap();
        assert_eq!(imported.layer.bytes.bytes(), before.data_bytes());
        assert_eq!(imported.index.entries(), before.entries());
    }
    drop(there.layers.unpack_stack(&digests).await.unwrap());
    let copied = LayersFixture::new().await.layers.import_image(&copy).await.unwrap();
    assert_eq!(copied.len(), 2);
    assert_eq!(copied[1].index.entries(), imported[1].index.entries());
    let error = fixture.layers.export_image(&stack, &dir, &meta).await.unwrap_err();
    assert!(error.to_string().contains("not empty"), "{error}");
}

#[tokio::test]
async fn renamed_directories_are_exported_as_one_layer() {
    if !privileged() {
        return;
    }
    let fixture = LayersFixture::new().await;
    let mut stack = stack(&fixture).await;
    let three = fixture.tree("three");
    fs::create_dir(three.join("renamed")).unwrap();
    let name = "trusted.overlay.redirect";
    rustix::fs::setxattr(three.join("renamed"), name, b"dir", XattrFlags::empty()).unwrap();
    stack.push(fixture.store(&three).await.layer.digest);
    let dir = fixture.dir.path().join("image");
    fixture.layers.export_image(&stack, &dir, &ExportMeta::default()).await.unwrap();
    let imported = LayersFixture::new().await.layers.import_image(&dir).await.unwrap();
    assert_eq!(imported.len(), 1);
    let files: Vec<_> = imported[0].index.files().map(|(path, _)| path.to_vec()).collect();
    assert_eq!(files, [&b".wh.mine"[..], b"dir/file", b"renamed/file"]);
}

#[tokio::test]
async fn an_empty_home_can_be_exported() {
    let fixture = LayersFixture::new().await;
    let dir = fixture.dir.path().join("image");
    fixture.layers.export_image(&[], &dir, &ExportMeta::default()).await.unwrap();
    skopeo(&["inspect", &format!("oci:{}", dir.display())]);
    assert!(fixture.layers.import_image(&dir).await.unwrap().is_empty());
}

/// Writes an image layout with one layer.
fn layout(dir: &Path, layer: &[u8], kind: &str, diff_id: &[u8]) {
    let blobs = dir.join("blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    let digest = |bytes: &[u8]| LayerDigest::from_sha256(Sha256::digest(bytes).into());
    let put = |bytes: &[u8]| {
        fs::write(blobs.join(digest(bytes).hex_digits()), bytes).unwrap();
        digest(bytes).to_string()
    };
    let config = serde_json::json!({"architecture": "amd64", "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [digest(diff_id).to_string()]}});
    let config = config.to_string();
    let manifest = serde_json::json!({"schemaVersion": 2,
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": put(config.as_bytes()), "size": config.len()},
        "layers": [{"mediaType": kind, "digest": put(layer), "size": layer.len()}]});
    let manifest = manifest.to_string();
    let index = serde_json::json!({"schemaVersion": 2, "manifests": [{
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": put(manifest.as_bytes()), "size": manifest.len()}]});
    fs::write(dir.join("index.json"), index.to_string()).unwrap();
    fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
}

const ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
const PLAIN: &str = "application/vnd.oci.image.layer.v1.tar";
const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

async fn import(archive: &[u8], kind: &str) -> Result<usize, LayerError> {
    let fixture = LayersFixture::new().await;
    let dir = fixture.tree("image");
    let layer = match kind {
        ZSTD => zstd::encode_all(archive, 1).unwrap(),
        GZIP => gzip(archive),
        _ => archive.to_vec(),
    };
    layout(&dir, &layer, kind, archive);
    let imported = fixture.layers.import_image(&dir).await;
    if imported.is_err() {
        assert_eq!(fixture.layers.measure_usage().await.unwrap().blobs, 0);
        assert_eq!(fs::read_dir(fixture.config.dir.join("new")).unwrap().count(), 0);
    }
    imported.map(|layers| layers.len())
}

#[tokio::test]
async fn imported_layers_are_checked_like_our_own() {
    let fine = Forged::new().entry(b"file", b'0', b"", b"data").end();
    assert_eq!(import(&fine, ZSTD).await.unwrap(), 1);
    assert_eq!(import(&fine, PLAIN).await.unwrap(), 1);
    assert_eq!(import(&fine, GZIP).await.unwrap(), 1);
    let error = import(&fine, "application/vnd.oci.image.layer.v1.tar+xz").await.unwrap_err();
    assert!(error.to_string().contains("tar+xz"), "{error}");
    let attribute = |length| {
        let value = vec![b'a'; length];
        let records = [(&b"SCHILY.xattr.user.a"[..], &value[..])];
        Forged::new().records(&records).entry(b"file", b'0', b"", b"data").end()
    };
    assert_eq!(import(&attribute(3500), ZSTD).await.unwrap(), 1);
    for kind in [ZSTD, GZIP] {
        let error = import(&attribute(4000), kind).await.unwrap_err();
        assert!(matches!(error, LayerError::TooMuch(_)), "no home could keep it: {error:?}");
    }
    for evil in [
        Forged::new().entry(b"../x", b'0', b"", b"data").end(),
        Forged::new().entry(b"x", b'1', b"/etc/passwd", b"").end(),
        Forged::new().entry(b"x", b'3', b"", b"").end(),
        Forged::new().entry(b"p", b'2', b"/proc", b"").entry(b"p/x", b'0', b"", b"").end(),
    ] {
        for kind in [ZSTD, PLAIN, GZIP] {
            assert!(matches!(import(&evil, kind).await, Err(LayerError::Refused(_))));
        }
    }
}

/// Archives as other tools write them: no entry for the home, missing directories, long names, hard
/// links.
#[tokio::test]
async fn layers_that_other_tools_packed_are_completed() {
    let fixture = LayersFixture::new().await;
    let tree = fixture.tree("tree");
    fs::create_dir_all(tree.join("a/b")).unwrap();
    fs::write(tree.join("a/b/file"), noise(200_000, 3)).unwrap();
    fs::hard_link(tree.join("a/b/file"), tree.join("link")).unwrap();
    let long = "n".repeat(150);
    fs::write(tree.join("a").join(&long), "long").unwrap();
    for format in ["gnu", "pax"] {
        let tar = Command::new("tar")
            .args(["--format", format, "-cf", "-", "a/b/file", "link"])
            .arg(format!("a/{long}"))
            .current_dir(&tree)
            .output()
            .unwrap();
        assert!(tar.status.success());
        for kind in [GZIP, ZSTD, PLAIN] {
            let there = LayersFixture::new().await;
            let dir = there.tree("image");
            let layer = match kind {
                GZIP => gzip(&tar.stdout),
                ZSTD => zstd::encode_all(&tar.stdout[..], 1).unwrap(),
                _ => tar.stdout.clone(),
            };
            layout(&dir, &layer, kind, &tar.stdout);
            let imported = there.layers.import_image(&dir).await.unwrap();
            let stack = [imported[0].layer.digest.clone()];
            let content = read(&there.layers, &stack, b"link", None).await.unwrap();
            assert!(content == noise(200_000, 3), "{format} {kind}");
            drop(there.layers.unpack_stack(&stack).await.unwrap());
            let tree = there.layers.load_tree(&stack).await.unwrap();
            assert_eq!(tree.get(b"a/b").unwrap().mode, 0o755);
            assert!(tree.get(format!("a/{long}").as_bytes()).is_some());
        }
    }
}

/// By default skopeo compresses with gzip, and most registries store gzip.
#[tokio::test]
async fn a_gzip_image_of_skopeo_can_be_imported() {
    let fixture = LayersFixture::new().await;
    let tree = fixture.tree("tree");
    fs::create_dir(tree.join("dir")).unwrap();
    fs::write(tree.join("dir/file"), noise(50_000, 1)).unwrap();
    let archive = pack_tree(&tree);
    let (dir, copy) = (fixture.tree("image"), fixture.dir.path().join("copy"));
    layout(&dir, &archive, PLAIN, &archive);
    let (from, to) = (format!("oci:{}", dir.display()), format!("oci:{}:latest", copy.display()));
    skopeo(&["--insecure-policy", "copy", &from, &to]);
    let manifest: Value = serde_json::from_slice(&skopeo(&["inspect", "--raw", &to])).unwrap();
    assert_eq!(manifest["layers"][0]["mediaType"], GZIP);
    let imported = fixture.layers.import_image(&copy).await.unwrap();
    let stack = [imported[0].layer.digest.clone()];
    let content = read(&fixture.layers, &stack, b"dir/file", None).await.unwrap();
    assert!(content == noise(50_000, 1));
}

#[tokio::test]
async fn a_decompression_bomb_is_refused() {
    let bomb = Forged::new().entry(b"zeros", b'0', b"", &vec![0; 80 << 20]).end();
    let error = import(&bomb, ZSTD).await.unwrap_err();
    assert!(
        matches!(error, LayerError::TooMuch("a compression ratio that is too high")),
        "{error:?}"
    );
    // Deflate has a smaller maximum ratio, but its output is limited too.
    let bounds = LayerBounds { ratio: 100, ..LayerBounds::default() };
    let fixture = LayersFixture::with(ByteSize::gib(1), bounds).await;
    let dir = fixture.tree("image");
    layout(&dir, &gzip(&bomb), GZIP, &bomb);
    let error = fixture.layers.import_image(&dir).await.unwrap_err();
    assert!(
        matches!(error, LayerError::TooMuch("a compression ratio that is too high")),
        "{error:?}"
    );
    assert_eq!(fs::read_dir(fixture.config.dir.join("new")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_layout_that_does_not_match_its_documents_is_refused() {
    let archive = Forged::new().entry(b"file", b'0', b"", b"data").end();
    let layer = zstd::encode_all(&archive[..], 1).unwrap();
    let hex = hex::encode(Sha256::digest(&layer));
    type Spoil = fn(&Path, &Path);
    let spoils: [(&str, Spoil); 7] = [
        ("is missing", |dir, _| fs::remove_file(dir.join("index.json")).unwrap()),
        ("oci-layout", |dir, _| fs::write(dir.join("oci-layout"), "{}").unwrap()),
        ("exactly one", |dir, _| {
            fs::write(dir.join("index.json"), r#"{"schemaVersion":2,"manifests":[]}"#).unwrap();
        }),
        ("bytes instead of", |_, blob| fs::write(blob, "other").unwrap()),
        ("damaged", |_, blob| {
            let mut bytes = fs::read(blob).unwrap();
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
            fs::write(blob, bytes).unwrap();
        }),
        ("opening", |_, blob| {
            fs::rename(blob, blob.with_extension("away")).unwrap();
            std::os::unix::fs::symlink(blob.with_extension("away"), blob).unwrap();
        }),
        ("not a file", |_, blob| {
            fs::remove_file(blob).unwrap();
            fs::create_dir(blob).unwrap();
        }),
    ];
    for (why, spoil) in spoils {
        let fixture = LayersFixture::new().await;
        let dir = fixture.tree("image");
        layout(&dir, &layer, ZSTD, &archive);
        spoil(&dir, &dir.join("blobs/sha256").join(&hex));
        let error = fixture.layers.import_image(&dir).await.unwrap_err();
        assert!(error.to_string().contains(why), "{why:?} is not in {error}");
    }
    let fixture = LayersFixture::new().await;
    let dir = fixture.tree("image");
    layout(&dir, &layer, ZSTD, b"another archive");
    let error = fixture.layers.import_image(&dir).await.unwrap_err();
    assert!(error.to_string().contains("the archive of layer"), "{error}");
}
