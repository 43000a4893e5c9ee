//! Runs in: test.
//!
//! One store for several processes: its name, and layers that another process stored.

use std::{collections::HashSet, fs, path::Path, time::Duration};

use cloche_layers::{LayerBounds, LayerError, Layers, LayersConfig, StoreConfig};
use cloche_model::{ByteSize, LayerDigest};

use crate::support::{pack_tree, store};

async fn open(dir: &Path, shared: &Path) -> Layers {
    let config = LayersConfig {
        dir: dir.to_owned(),
        store: StoreConfig::Directory(shared.to_owned()),
        cache_bytes: ByteSize::gib(1),
        bounds: LayerBounds::default(),
    };
    Layers::open(config).await.unwrap()
}

#[tokio::test]
async fn processes_that_use_one_store_read_the_same_name() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let one = open(&at("one"), &at("shared")).await;
    let two = open(&at("two"), &at("shared")).await;
    let other = open(&at("three"), &at("other")).await;
    assert_eq!(one.known_store_id(), None);
    let (first, second) = tokio::join!(one.store_id(), two.store_id());
    let id = first.unwrap();
    assert_eq!(id, second.unwrap());
    assert_ne!(id, other.store_id().await.unwrap());
    assert_eq!(one.known_store_id(), Some(id));
    fs::write(at("other").join("store-id"), "not an id").unwrap();
    let damaged = open(&at("four"), &at("other")).await;
    assert!(matches!(damaged.store_id().await, Err(LayerError::Config(_))));
}

#[tokio::test]
async fn an_adopted_layer_is_pinned_and_a_missing_one_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let server = open(&at("server"), &at("shared")).await;
    let sidecar = open(&at("sidecar"), &at("shared")).await;
    fs::create_dir(at("tree")).unwrap();
    fs::write(at("tree").join("f"), "content").unwrap();
    let stored = store(&sidecar, pack_tree(&at("tree"))).await.unwrap().unwrap();
    sidecar.release_pin(&stored.layer.digest);
    let adopted = server.adopt_layer(&stored.layer.digest).await.unwrap();
    assert_eq!(adopted, stored.layer);
    let nothing = HashSet::new();
    let grace = Duration::from_nanos(1);
    let removed = server.remove_unless::<LayerError>(&adopted.digest, async { Ok(false) }).await;
    assert!(!removed.unwrap(), "it is pinned");
    server.release_pin(&adopted.digest);
    assert_eq!(server.sweep_unreferenced(&nothing, grace).await.unwrap().deleted, 1);
    // The index is still in memory; the store decides.
    for digest in [adopted.digest, LayerDigest::from_sha256([7; 32])] {
        assert!(matches!(server.adopt_layer(&digest).await, Err(LayerError::Missing(_))));
    }
}

#[tokio::test]
async fn a_second_process_leaves_the_unfinished_layers_of_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let _one = open(&at("one"), &at("shared")).await;
    let unfinished = at("shared").join("new/unfinished");
    fs::write(&unfinished, "").unwrap();
    let _two = open(&at("two"), &at("shared")).await;
    assert!(unfinished.exists());
}
