//! Images that are not what they claim to be: each is refused with a reason, nothing of it stays, and
//! what was there before is unharmed.

use cloche_images::{ImageError, ImageLimits};
use cloche_model::ByteSize;
use cloche_test_support::skip;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::{Value, json};

use crate::support::{GZIP, Store, TarBytes, TestImage, gzip, layout_of, paths, sha256};

/// A store with one good image, which every test finds again at its end.
async fn occupied() -> Store {
    let store = Store::new().await;
    store.import(good().layout()).await.unwrap();
    assert_eq!(store.blob_count().await, 1);
    store
}

fn good() -> TestImage {
    TestImage::new(&[TarBytes::default().file("good", b"good").end()])
}

/// Imports something that must be refused, and checks that nothing else has changed.
async fn refuse(store: &Store, what: &str, tar: Vec<u8>, reason: &str) {
    let error = match store.import(tar).await {
        Ok(new) => panic!("{what}: accepted as {}", new.image.digest),
        Err(error) => error,
    };
    assert!(matches!(error, ImageError::Invalid(_)), "{what}: {error:?}");
    let text = error.to_string();
    assert!(text.contains(reason), "{what}: {text}");
    check_unharmed(store, what).await;
}

async fn check_unharmed(store: &Store, what: &str) {
    assert!(store.leftovers().is_empty(), "{what}: {:?}", store.leftovers());
    assert_eq!(store.blob_count().await, 1, "{what}: something of it was stored");
    let new = store.import(good().layout()).await.unwrap();
    assert_eq!(paths(&store.tree(&new).await).len(), 1, "{what}");
}

/// An image whose second layer is this archive.
fn with_layer(archive: Vec<u8>) -> Vec<u8> {
    TestImage::new(&[TarBytes::default().dir("base").file("base/f", b"1").end(), archive]).layout()
}

#[tokio::test]
async fn a_layer_that_breaks_out_is_refused() {
    let store = occupied().await;
    let new = TarBytes::default;
    let deep = "d/".repeat(40);
    for (what, layer, reason) in [
        ("..", new().file("../x", b"1").end(), "leads out of the root"),
        ("a/../../x", new().file("a/../../x", b"1").end(), "leads out of the root"),
        ("hard link out", new().hard_link("x", "../../etc/passwd").end(), "leads out of the root"),
        ("hard link to nothing", new().hard_link("x", "etc/passwd").end(), "does not exist"),
        ("hard link to itself", new().hard_link("x", "x").end(), "does not exist"),
        ("hard link to a directory", new().dir("d").hard_link("x", "d").end(), "is a directory"),
        ("hard link to the root", new().hard_link("x", "./").end(), "hard link to the root"),
        ("below a file", new().file("f", b"1").file("f/x", b"2").end(), "which is a file"),
        (
            "link loop",
            new().link("a", "b").link("b", "a").file("a/x", b"1").end(),
            "too many links",
        ),
        ("root as a link", new().link("./", "/etc").end(), "a root that is not a directory"),
        ("root as a file", new().file(".", b"1").end(), "a root that is not a directory"),
        ("whiteout of ..", new().file(".wh...", b"").end(), "whiteout without a path"),
        ("whiteout of .", new().file(".wh..", b"").end(), "whiteout without a path"),
        ("bare whiteout", new().file("a/.wh.", b"").end(), "whiteout without a path"),
        ("below a whiteout", new().file(".wh.a/b", b"").end(), "below a whiteout"),
        ("empty link", new().link("x", "").end(), "target is empty"),
        ("unknown kind", new().entry(b'Z', "x", "", b"").end(), "unknown kind"),
        ("old sparse file", new().entry(b'S', "x", "", b"").end(), "sparse file in an old format"),
        (
            "sparse map that lies",
            new()
                .records(&[
                    ("GNU.sparse.major", "1"),
                    ("GNU.sparse.minor", "0"),
                    ("GNU.sparse.name", "x"),
                    ("GNU.sparse.realsize", "10"),
                ])
                .file("x", b"1\n0\n99\n")
                .end(),
            "",
        ),
        (
            "two names",
            new().records(&[("path", "a")]).entry(b'L', "n", "", b"b\0").file("x", b"1").end(),
            "two names",
        ),
        ("deep", new().records(&[("path", &deep.repeat(20))]).dir("x").end(), "too deep"),
        ("NUL", new().records(&[("path", "a\0b")]).file("x", b"1").end(), "NUL"),
        (
            "long name",
            new().records(&[("path", &"n".repeat(300))]).file("x", b"").end(),
            "too long",
        ),
    ] {
        refuse(&store, what, with_layer(layer), reason).await;
    }
}

#[tokio::test]
async fn a_link_in_a_path_does_not_leave_the_image() {
    let store = occupied().await;
    let layer = TarBytes::default()
        .link("out", "../../../../etc")
        .file("out/hosts", b"mine")
        .link("abs", "/usr")
        .file("abs/x", b"2")
        .end();
    let new = store.import(with_layer(layer)).await.unwrap();
    let found: Vec<String> = paths(&store.tree(&new).await).into_keys().collect();
    assert_eq!(found, ["abs", "base", "base/f", "etc", "etc/hosts", "out", "usr", "usr/x"]);
}

#[tokio::test]
async fn a_layer_that_lies_is_refused() {
    let store = occupied().await;
    let plain = TarBytes::default().file("a", &[7; 100_000]).end();
    let other = TarBytes::default().file("b", b"2").end();
    let edit = |edit: &dyn Fn(&mut Value)| {
        let (mut blobs, (digest, _)) = TestImage::new(std::slice::from_ref(&plain)).blobs();
        let mut manifest: Value = serde_json::from_slice(&blobs.remove(&digest).unwrap()).unwrap();
        edit(&mut manifest);
        let bytes = manifest.to_string().into_bytes();
        let entry = json!({"mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": sha256(&bytes), "size": bytes.len()});
        blobs.insert(sha256(&bytes), bytes);
        layout_of(&blobs, &[entry])
    };
    let zeros = format!("sha256:{}", "0".repeat(64));
    for (what, tar, reason) in [
        ("size", edit(&|m| m["layers"][0]["size"] = json!(5)), "bytes instead of 5"),
        ("digest", edit(&|m| m["layers"][0]["digest"] = json!(zeros)), "the archive lacks"),
        ("digest grammar", edit(&|m| m["layers"][0]["digest"] = json!("../../x")), "layer digest"),
        ("media type", edit(&|m| m["layers"][0]["mediaType"] = json!("text/plain")), "media type"),
        ("config type", edit(&|m| m["config"]["mediaType"] = json!("x/y")), "media type"),
        ("both", edit(&|m| m["manifests"] = json!([])), "neither the manifest"),
        ("manifest type", edit(&|m| m["mediaType"] = json!("x/y")), "neither the manifest"),
        ("version", edit(&|m| m["schemaVersion"] = json!(1)), "version other than 2"),
        ("config size", edit(&|m| m["config"]["size"] = json!(1)), "bytes instead of"),
    ] {
        refuse(&store, what, tar, reason).await;
    }

    let mut wrong_archive = TestImage::new(std::slice::from_ref(&plain));
    wrong_archive.config["rootfs"]["diff_ids"] = json!([sha256(&other)]);
    refuse(&store, "diff id", wrong_archive.layout(), "has the digest").await;
    let mut count = TestImage::new(std::slice::from_ref(&plain));
    count.config["rootfs"]["diff_ids"] = json!([]);
    refuse(&store, "diff id count", count.layout(), "its configuration lists 0").await;

    let cut = |file: Vec<u8>| TestImage::of_files(vec![(file, plain.clone())]).layout();
    let packed = gzip(&plain);
    refuse(&store, "cut gzip", cut(packed[..packed.len() / 2].to_vec()), "").await;
    let packed = zstd::encode_all(&plain[..], 3).unwrap();
    refuse(&store, "cut zstd", cut(packed[..packed.len() / 2].to_vec()), "").await;
    let short = plain[..2000].to_vec();
    let image = TestImage::of_files(vec![(short.clone(), short)]);
    refuse(&store, "cut tar", image.layout(), "ends early").await;
    let noise: Vec<u8> =
        (0..4000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let image = TestImage::of_files(vec![(noise.clone(), noise)]);
    refuse(&store, "noise", image.layout(), "checksum").await;
}

#[tokio::test]
async fn a_blob_with_other_content_is_refused() {
    let store = occupied().await;
    let image = TestImage::new(&[TarBytes::default().file("a", b"1").end()]);
    let (mut blobs, (digest, size)) = image.blobs();
    let layer = sha256(&image.layers[0].0);
    let mut other = image.layers[0].0.clone();
    other[12] ^= 1;
    blobs.insert(layer, other);
    let entry = json!({"mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": digest, "size": size});
    refuse(&store, "layer", layout_of(&blobs, &[entry]), "has the digest").await;
}

#[tokio::test]
async fn bombs_are_refused_before_they_fill_the_disk() {
    let mut store = occupied().await;
    store.limits = ImageLimits { bytes: ByteSize::mib(512), ..ImageLimits::default() };
    let zeros = vec![0; 200 << 20];
    let plain = TarBytes::default().file("zeros", &zeros).end();
    let image = TestImage::new(std::slice::from_ref(&plain));
    refuse(&store, "gzip", image.layout(), "compression ratio").await;
    let packed = zstd::encode_all(&plain[..], 3).unwrap();
    let image =
        TestImage { media_type: GZIP, ..TestImage::of_files(vec![(packed, plain.clone())]) };
    refuse(&store, "zstd", image.layout(), "compression ratio").await;

    store.limits = ImageLimits { bytes: ByteSize::mib(1), ..ImageLimits::default() };
    let plain = TarBytes::default().file("zeros", &zeros[..2 << 20]).end();
    refuse(&store, "size", TestImage::new(&[plain]).layout(), "too many bytes").await;

    store.limits = ImageLimits { entries: 100, ..ImageLimits::default() };
    let mut many = TarBytes::default();
    for number in 0..200 {
        many = many.file(&format!("f{number}"), b"");
    }
    refuse(&store, "entries", TestImage::new(&[many.end()]).layout(), "too many entries").await;
}

#[tokio::test]
async fn ten_thousand_layers_are_refused() {
    let store = occupied().await;
    let layer = TarBytes::default().file("a", b"1").end();
    let image = TestImage::of_files(vec![(layer.clone(), layer); 10_000]);
    refuse(&store, "layers", image.layout(), "10000 layers, and at most 128").await;
    refuse(&store, "saved layers", image.saved("a:1"), "").await;
}

#[tokio::test]
async fn an_archive_that_is_none_is_refused() {
    let store = occupied().await;
    let new = TarBytes::default;
    for (what, tar, reason) in [
        ("empty", Vec::new(), "neither an OCI layout"),
        ("text", vec![b'x'; 2000], "not an archive of an image"),
        ("other files", new().file("hello", b"1").end(), "neither an OCI layout"),
        ("twice", new().file("a", b"1").file("a", b"2").end(), "twice"),
        ("link out", new().link("a", "../../x").end(), "leads out of it"),
        ("device", new().entry(b'6', "a", "", b"").end(), "unknown kind"),
        ("cut", good().layout()[..3000].to_vec(), ""),
        ("no index", new().file("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#).end(), "lacks"),
        ("version", new().file("oci-layout", br#"{"imageLayoutVersion":"9"}"#).end(), "version"),
        (
            "saved",
            new().file("manifest.json", br#"[{"Config":"../c","Layers":[]}]"#).end(),
            "lacks",
        ),
        ("saved json", new().file("manifest.json", b"{").end(), "cannot be read"),
        ("gzip", gzip(&good().layout()), "compressed with gzip"),
    ] {
        refuse(&store, what, tar, reason).await;
    }
}

#[tokio::test]
async fn absurd_settings_are_refused_or_harmless() {
    let store = occupied().await;
    let plain = TarBytes::default().file("a", b"1").end();
    let with = |settings: Value| {
        let mut image = TestImage::new(std::slice::from_ref(&plain));
        image.config["config"] = settings;
        image.layout()
    };
    let many: Vec<String> = (0..2000).map(|n| format!("V{n}=x")).collect();
    refuse(&store, "many", with(json!({"Env": many})), "at most 1000").await;
    let large = format!("V={}", "x".repeat(200_000));
    refuse(&store, "large", with(json!({"Env": [large]})), "bytes can be used").await;
    for workdir in ["relative", "/a/../../etc", "/proc/self/fd/7", "/a\u{0}b"] {
        let settings = json!({"WorkingDir": workdir, "User": "0".repeat(100_000),
            "Env": ["NOVALUE", "=x", "A\u{0}=1", "B=2"], "Labels": {"l": "x".repeat(100_000)},
            "Volumes": {"/../../x": {}}, "Entrypoint": ["/bin/evil"]});
        let new = store.import(with(settings)).await.unwrap();
        let found = &new.image.settings;
        assert_eq!(found.workdir, None, "{workdir}");
        assert_eq!(found.env.len(), 1, "{:?}", found.env);
        assert!(found.user.as_ref().unwrap().len() <= 4096 && found.labels["l"].len() <= 4096);
        assert_eq!(new.image.notes.len(), 2, "{:?}", new.image.notes);
    }
}

#[tokio::test]
async fn a_full_disk_leaves_nothing_behind() {
    if !rustix::process::geteuid().is_root() && !skip("only root can mount a small disk") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let options = c"size=16m";
    if mount("none", dir.path(), "tmpfs", MountFlags::empty(), Some(options)).is_err()
        && !skip("this host does not let us mount a small disk")
    {
        return;
    }
    let store = Store::open_in(dir.path().to_owned()).await;
    store.import(good().layout()).await.unwrap();
    // Does not compress, so that the layer itself does not fit.
    let mut state = 1_u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    })
    .take(10 << 20)
    .collect();
    let plain = TarBytes::default().file("noise", &noise).end();
    let error = store.import(TestImage::new(&[plain]).layout()).await.unwrap_err();
    assert!(matches!(error, ImageError::Full), "{error:?}");
    check_unharmed(&store, "full disk").await;
    drop(store);
    unmount(dir.path(), UnmountFlags::DETACH).unwrap();
}
