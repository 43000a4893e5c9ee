//! Runs in: test.
//!
//! Disk space of layers: immediate removal, sizes, and exports without a copy.

use std::{collections::HashSet, fs, io, time::Duration};

use cloche_layers::{ExportMeta, LayerError};
use cloche_model::LayerDigest;

use crate::{
    store_and_cache::{noise, read},
    support::LayersFixture,
};

async fn remove(fixture: &LayersFixture, digest: &LayerDigest, needed: bool) -> bool {
    fixture.layers.remove_unless::<LayerError>(digest, async { Ok(needed) }).await.unwrap()
}

#[tokio::test]
async fn a_layer_is_removed_only_after_all_pins_are_released() {
    let fixture = LayersFixture::new().await;
    let tree = fixture.tree("tree");
    fs::write(tree.join("f"), "content").unwrap();
    let digest = fixture.store(&tree).await.layer.digest;
    assert_eq!(fixture.store(&tree).await.layer.digest, digest);
    assert!(!remove(&fixture, &digest, false).await, "two pins");
    fixture.layers.release_pin(&digest);
    assert!(!remove(&fixture, &digest, false).await, "one pin");
    fixture.layers.release_pin(&digest);
    assert!(!remove(&fixture, &digest, true).await, "a row needs it");
    let mountable = fixture.layers.unpack_stack(std::slice::from_ref(&digest)).await.unwrap();
    let unpacked = fixture.layers.cache_dir().join(mountable.layer_names()[0]);
    assert!(unpacked.exists());
    drop(mountable);
    assert!(remove(&fixture, &digest, false).await);
    assert!(!fixture.blob(&digest).exists() && !unpacked.exists());
    assert!(matches!(fixture.layers.load_index(&digest).await, Err(LayerError::Missing(_))));
    // The layer can be stored again.
    assert_eq!(fixture.store(&tree).await.layer.digest, digest);
    let content = read(&fixture.layers, &[digest], b"f", None).await.unwrap();
    assert_eq!(content, b"content");
}

#[tokio::test]
async fn nothing_is_deleted_while_deletions_are_held() {
    let fixture = LayersFixture::new().await;
    let tree = fixture.tree("tree");
    fs::write(tree.join("f"), "content").unwrap();
    let digest = fixture.store(&tree).await.layer.digest;
    fixture.layers.release_pin(&digest);
    let (nothing, at_once) = (HashSet::new(), Duration::ZERO);
    let hold = fixture.layers.hold_deletions().await;
    let second = fixture.layers.hold_deletions().await;
    drop(second);
    assert!(!remove(&fixture, &digest, false).await);
    let swept = fixture.layers.sweep_unreferenced(&nothing, at_once).await.unwrap();
    assert_eq!((swept.deleted, swept.kept), (0, 1));
    drop(hold);
    let swept = fixture.layers.sweep_unreferenced(&nothing, at_once).await.unwrap();
    assert_eq!((swept.deleted, swept.kept), (1, 0));
}

#[tokio::test]
async fn a_copied_layer_is_put_back_only_with_its_own_bytes() {
    let fixture = LayersFixture::new().await;
    let tree = fixture.tree("tree");
    fs::write(tree.join("f"), "content").unwrap();
    let digest = fixture.store(&tree).await.layer.digest;
    let copy = fs::read(fixture.blob(&digest)).unwrap();
    fixture.layers.release_pin(&digest);
    assert!(remove(&fixture, &digest, false).await);
    let mut damaged = copy.clone();
    damaged[0] ^= 1;
    let refused = fixture.layers.restore_blob(&digest, io::Cursor::new(damaged)).await;
    assert!(matches!(refused, Err(LayerError::Damaged { .. })), "{refused:?}");
    assert_eq!(fixture.layers.blob_size(&digest).await.unwrap(), None);
    fixture.layers.restore_blob(&digest, io::Cursor::new(copy)).await.unwrap();
    let content = read(&fixture.layers, &[digest], b"f", None).await.unwrap();
    assert_eq!(content, b"content");
}

#[tokio::test]
async fn layer_sizes_are_the_sizes_of_the_blobs() {
    let fixture = LayersFixture::new().await;
    let tree = fixture.tree("tree");
    fs::write(tree.join("f"), noise(100_000, 1)).unwrap();
    let layer = fixture.store(&tree).await.layer;
    let sizes = fixture.layers.layer_sizes().await.unwrap();
    assert_eq!(sizes.len(), 1);
    assert_eq!(sizes[&layer.digest], layer.stored.bytes());
    assert_eq!(fixture.layers.stored_size(&layer.digest).await.unwrap(), layer.stored.bytes());
    assert_eq!(fs::metadata(fixture.blob(&layer.digest)).unwrap().len(), layer.stored.bytes());
}

#[tokio::test]
async fn a_streamed_tar_has_the_same_files_as_the_exported_directory() {
    let fixture = LayersFixture::new().await;
    let tree = fixture.tree("tree");
    fs::write(tree.join("f"), noise(300_000, 1)).unwrap();
    let digest = fixture.store(&tree).await.layer.digest;
    let stack = [digest.clone(), digest.clone()];
    let dir = fixture.tree("image");
    fixture.layers.export_image(&stack, &dir, &ExportMeta::default()).await.unwrap();
    let (layers, of) = (fixture.layers.clone(), stack.clone());
    let tar = tokio::task::spawn_blocking(move || {
        let mut tar = Vec::new();
        layers.export_tar(&of, ExportMeta::default(), &mut tar).map(|()| tar)
    });
    let tar = tar.await.unwrap().unwrap();
    let mut archive = tar::Archive::new(tar.as_slice());
    let mut count = 0;
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let mut content = Vec::new();
        io::Read::read_to_end(&mut entry, &mut content).unwrap();
        let path = dir.join(entry.path().unwrap());
        assert_eq!(fs::read(&path).unwrap(), content, "{}", path.display());
        count += 1;
    }
    assert_eq!(count, 5, "layout, layer, configuration, manifest, index");
    // With a damaged layer the tar ends early.
    fs::write(fixture.blob(&digest), b"damaged").unwrap();
    let layers = fixture.layers.clone();
    let broken = tokio::task::spawn_blocking(move || {
        let mut tar = Vec::new();
        let done = layers.export_tar(&stack, ExportMeta::default(), &mut tar);
        (done, tar)
    });
    let (done, tar) = broken.await.unwrap();
    assert!(done.is_err() && !tar.ends_with(&[0; 1024]));
}
