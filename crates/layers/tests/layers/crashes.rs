//! The process is killed at every named point of storing a layer. Afterwards there is the old state
//! or the new one, and what was acknowledged is there.

use std::{
    fs,
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{Command, Output},
};

use cloche_layers::{Layers, LayersConfig, crash};
use cloche_model::LayerDigest;

use crate::{
    keeping::{noise, read},
    support::{Place, pack_tree, store},
};

const DIRECTORY: &str = "LAYERS_TEST_DIRECTORY";
const ACKNOWLEDGED: &str = "acknowledged ";

/// Not a test by itself: the process that is killed.
#[tokio::test]
async fn child() {
    let Some(dir) = std::env::var_os(DIRECTORY).map(PathBuf::from) else { return };
    let config = LayersConfig {
        dir: dir.join("layers"),
        store: cloche_layers::StoreConfig::Local,
        cache_bytes: cloche_model::ByteSize::mib(64),
        bounds: cloche_layers::Bounds::default(),
    };
    let layers = Layers::open(config).await.unwrap();
    let stored = store(&layers, pack_tree(&dir.join("new-tree"))).await.unwrap().unwrap();
    println!("{ACKNOWLEDGED}{}", stored.layer.digest);
}

fn run_child(place: &Place, point: &str) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["crashes::child", "--exact", "--nocapture"])
        .env(DIRECTORY, place.dir.path())
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
async fn killed_anywhere_there_is_the_old_state_or_the_new_one() {
    for point in crash::POINTS.into_iter().chain(["nowhere"]) {
        let mut place = Place::new().await;
        let old = place.tree("old-tree");
        fs::write(old.join("file"), noise(100_000, 1)).unwrap();
        let old = place.store(&old).await.layer.digest;
        let new = place.tree("new-tree");
        fs::write(new.join("file"), noise(100_000, 2)).unwrap();
        // The lock of the directory belongs to this process: a second one is refused.
        let refused = run_child(&place, "nowhere");
        assert!(!refused.status.success() && acknowledged(&refused).is_none());
        let config = place.config.clone();
        let elsewhere = Place::new().await;
        place.layers = elsewhere.layers.clone();

        let output = run_child(&place, point);
        let digest = acknowledged(&output);
        if point == "nowhere" {
            assert!(output.status.success() && digest.is_some(), "{output:?}");
        } else {
            assert_eq!(output.status.signal(), Some(9), "{point}: {output:?}");
            assert_eq!(digest, None);
        }
        place.layers = Layers::open(config).await.unwrap();
        let renamed = !matches!(point, "layer-temp-written" | "layer-before-rename");
        let blobs = place.layers.usage().await.unwrap().blobs;
        assert_eq!(blobs, 1 + u64::from(renamed), "{point}");
        assert_eq!(fs::read_dir(place.config.dir.join("new")).unwrap().count(), 0);
        assert!(
            read(&place.layers, &[old.clone()], b"file", None).await.unwrap() == noise(100_000, 1)
        );
        for blob in fs::read_dir(place.config.dir.join("blobs/sha256")).unwrap() {
            let name = blob.unwrap().file_name().into_string().unwrap();
            let found: LayerDigest = format!("sha256:{name}").parse().unwrap();
            drop(place.layers.mountable(&[found.clone()]).await.unwrap());
            if found != old {
                let content = read(&place.layers, &[found], b"file", None).await.unwrap();
                assert!(content == noise(100_000, 2), "{point}");
            }
        }
        // What was interrupted can be done again.
        let again = place.store(&new).await.layer.digest;
        assert!(digest.is_none_or(|digest| digest == again));
    }
}
