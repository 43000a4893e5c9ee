//! Kills the process at every named point of storing a layer. Afterwards the old or the new state
//! is there, and every acknowledged layer exists.

use std::slice::from_ref;
use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::ExitStatusExt},
    path::PathBuf,
    process::{Command, Output},
};

use cloche_layers::{Layers, LayersConfig, crash};
use cloche_model::LayerDigest;

use crate::{
    store_and_cache::{noise, read},
    support::{LayersFixture, pack_tree, privileged, store},
};

const DIRECTORY: &str = "LAYERS_TEST_DIRECTORY";
const ACKNOWLEDGED: &str = "acknowledged ";

/// Not a test of its own: the process that is killed.
#[tokio::test]
async fn child() {
    let Some(dir) = std::env::var_os(DIRECTORY).map(PathBuf::from) else { return };
    let config = LayersConfig {
        dir: dir.join("layers"),
        store: cloche_layers::StoreConfig::Local,
        cache_bytes: cloche_model::ByteSize::mib(64),
        bounds: cloche_layers::LayerBounds::default(),
    };
    let layers = Layers::open(config).await.unwrap();
    let stored = store(&layers, pack_tree(&dir.join("new-tree"))).await.unwrap().unwrap();
    println!("{ACKNOWLEDGED}{}", stored.layer.digest);
}

/// The environment variable with the archive of the child without capabilities.
const ARCHIVE: &str = "LAYERS_TEST_ARCHIVE";

/// Not a test of its own: a server that runs as root without capabilities.
#[tokio::test]
async fn unprivileged_child() {
    let Some(archive) = std::env::var_os(ARCHIVE) else { return };
    let status = fs::read_to_string("/proc/self/status").unwrap();
    assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
    let (bytes, bounds) = (cloche_model::ByteSize::kib(40), cloche_layers::LayerBounds::default());
    let mut fixture = LayersFixture::with(bytes, bounds).await;
    let stored = store(&fixture.layers, fs::read(archive).unwrap()).await.unwrap().unwrap();
    let other = fixture.tree("other");
    fs::write(other.join("file"), noise(40_000, 1)).unwrap();
    let other = [fixture.store(&other).await.layer.digest];
    for _ in 0..2 {
        drop(fixture.layers.unpack_stack(from_ref(&stored.layer.digest)).await.unwrap());
        // Evicts the other layer, including directories without read permission.
        drop(fixture.layers.unpack_stack(&other).await.unwrap());
        assert_eq!(fixture.layers.cache_usage().cached, 1);
        assert_eq!(fs::read_dir(fixture.layers.cache_dir()).unwrap().count(), 2);
    }
    drop(fixture.layers.unpack_stack(from_ref(&stored.layer.digest)).await.unwrap());
    let name = fs::read_dir(fixture.layers.cache_dir()).unwrap().find_map(|entry| {
        entry
            .ok()
            .map(|entry| entry.path())
            .filter(|path| path.extension() == Some("layer".as_ref()))
    });
    fs::remove_file(name.unwrap()).unwrap();
    fixture.reopen().await;
    assert_eq!(fs::read_dir(fixture.layers.cache_dir()).unwrap().count(), 0);
    println!("{ACKNOWLEDGED}{}", stored.layer.digest);
}

#[tokio::test]
async fn unpacking_and_removing_need_no_capability() {
    if !privileged() {
        return;
    }
    let fixture = LayersFixture::new().await;
    let tree = fixture.tree("tree");
    fs::create_dir_all(tree.join("closed/inner")).unwrap();
    fs::write(tree.join("closed/inner/file"), noise(9000, 1)).unwrap();
    fs::hard_link(tree.join("closed/inner/file"), tree.join("closed/name")).unwrap();
    let (kind, mode) = (rustix::fs::FileType::CharacterDevice, rustix::fs::Mode::empty());
    rustix::fs::mknodat(rustix::fs::CWD, tree.join("closed/gone"), kind, mode, 0).unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(tree.join("closed"), "user.x", b"y", flags).unwrap();
    for (path, mode) in [("closed/inner/file", 0), ("closed/inner", 0), ("closed", 0o1000), ("", 0)]
    {
        fs::set_permissions(tree.join(path), PermissionsExt::from_mode(mode)).unwrap();
    }
    let archive = fixture.dir.path().join("archive");
    fs::write(&archive, pack_tree(&tree)).unwrap();
    let output = Command::new("setpriv")
        .args(["--inh-caps=-all", "--bounding-set=-all", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["crashes::unprivileged_child", "--exact", "--nocapture"])
        .env(ARCHIVE, archive)
        .output()
        .unwrap();
    assert!(acknowledged(&output).is_some(), "{output:?}");
}

fn run_child(fixture: &LayersFixture, point: &str) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["crashes::child", "--exact", "--nocapture"])
        .env(DIRECTORY, fixture.dir.path())
        .env(crash::VARIABLE, point)
        .output()
        .unwrap()
}

fn acknowledged(output: &Output) -> Option<LayerDigest> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let at = text.find(ACKNOWLEDGED)?;
    text[at + ACKNOWLEDGED.len()..].split_whitespace().next()?.parse().ok()
}

#[tokio::test]
async fn a_kill_at_any_point_leaves_the_old_or_the_new_state() {
    for point in crash::POINTS.into_iter().chain(["nowhere"]) {
        let mut fixture = LayersFixture::new().await;
        let old = fixture.tree("old-tree");
        fs::write(old.join("file"), noise(100_000, 1)).unwrap();
        let old = fixture.store(&old).await.layer.digest;
        let new = fixture.tree("new-tree");
        fs::write(new.join("file"), noise(100_000, 2)).unwrap();
        // This process has locked the directory, so a second one is refused.
        let refused = run_child(&fixture, "nowhere");
        assert!(!refused.status.success() && acknowledged(&refused).is_none());
        let config = fixture.config.clone();
        let elsewhere = LayersFixture::new().await;
        fixture.layers = elsewhere.layers.clone();

        let output = run_child(&fixture, point);
        let digest = acknowledged(&output);
        if point == "nowhere" {
            assert!(output.status.success() && digest.is_some(), "{output:?}");
        } else {
            assert_eq!(output.status.signal(), Some(9), "{point}: {output:?}");
            assert_eq!(digest, None);
        }
        fixture.layers = Layers::open(config).await.unwrap();
        let renamed = !matches!(point, "layer-temp-written" | "layer-before-rename");
        let blobs = fixture.layers.measure_usage().await.unwrap().blobs;
        assert_eq!(blobs, 1 + u64::from(renamed), "{point}");
        assert_eq!(fs::read_dir(fixture.config.dir.join("new")).unwrap().count(), 0);
        assert!(
            read(&fixture.layers, from_ref(&old), b"file", None).await.unwrap()
                == noise(100_000, 1)
        );
        for blob in fs::read_dir(fixture.config.dir.join("blobs/sha256")).unwrap() {
            let name = blob.unwrap().file_name().into_string().unwrap();
            let found: LayerDigest = format!("sha256:{name}").parse().unwrap();
            drop(fixture.layers.unpack_stack(from_ref(&found)).await.unwrap());
            if found != old {
                let content = read(&fixture.layers, &[found], b"file", None).await.unwrap();
                assert!(content == noise(100_000, 2), "{point}");
            }
        }
        // The interrupted operation can be repeated.
        let again = fixture.store(&new).await.layer.digest;
        assert!(digest.is_none_or(|digest| digest == again));
    }
}
