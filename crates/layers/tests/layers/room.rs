//! Runs in: test.
//!
//! The disk that layers take: what is removed at once and what stays, and exports without a copy.

use std::fs;

use cloche_layers::{ExportMeta, LayerError};
use cloche_model::LayerDigest;

use crate::{
    keeping::{noise, read},
    support::Place,
};

async fn remove(place: &Place, digest: &LayerDigest, needed: bool) -> bool {
    place.layers.remove_unless::<LayerError>(digest, async { Ok(needed) }).await.unwrap()
}

#[tokio::test]
async fn a_layer_is_removed_once_all_who_stored_it_have_settled() {
    let place = Place::new().await;
    let tree = place.tree("tree");
    fs::write(tree.join("f"), "content").unwrap();
    let digest = place.store(&tree).await.layer.digest;
    assert_eq!(place.store(&tree).await.layer.digest, digest);
    assert!(!remove(&place, &digest, false).await, "two have stored it");
    place.layers.release_pin(&digest);
    assert!(!remove(&place, &digest, false).await, "one may still need it");
    place.layers.release_pin(&digest);
    assert!(!remove(&place, &digest, true).await, "a row needs it");
    let mountable = place.layers.unpack_stack(std::slice::from_ref(&digest)).await.unwrap();
    let unpacked = place.layers.cache_dir().join(mountable.layer_names()[0]);
    assert!(unpacked.exists());
    drop(mountable);
    assert!(remove(&place, &digest, false).await);
    assert!(!place.blob(&digest).exists() && !unpacked.exists());
    assert!(matches!(place.layers.load_index(&digest).await, Err(LayerError::Missing(_))));
    // It can be stored again.
    assert_eq!(place.store(&tree).await.layer.digest, digest);
    let content = read(&place.layers, &[digest], b"f", None).await.unwrap();
    assert_eq!(content, b"content");
}

#[tokio::test]
async fn sizes_are_those_of_the_blobs() {
    let place = Place::new().await;
    let tree = place.tree("tree");
    fs::write(tree.join("f"), noise(100_000, 1)).unwrap();
    let layer = place.store(&tree).await.layer;
    let sizes = place.layers.layer_sizes().await.unwrap();
    assert_eq!(sizes.len(), 1);
    assert_eq!(sizes[&layer.digest], layer.stored.bytes());
    assert_eq!(place.layers.stored_size(&layer.digest).await.unwrap(), layer.stored.bytes());
    assert_eq!(fs::metadata(place.blob(&layer.digest)).unwrap().len(), layer.stored.bytes());
}

#[tokio::test]
async fn a_tar_is_exported_as_it_is_read_and_has_what_the_directory_has() {
    let place = Place::new().await;
    let tree = place.tree("tree");
    fs::write(tree.join("f"), noise(300_000, 1)).unwrap();
    let digest = place.store(&tree).await.layer.digest;
    let stack = [digest.clone(), digest.clone()];
    let dir = place.tree("image");
    place.layers.export_image(&stack, &dir, &ExportMeta::default()).await.unwrap();
    let (layers, of) = (place.layers.clone(), stack.clone());
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
        std::io::Read::read_to_end(&mut entry, &mut content).unwrap();
        let path = dir.join(entry.path().unwrap());
        assert_eq!(fs::read(&path).unwrap(), content, "{}", path.display());
        count += 1;
    }
    assert_eq!(count, 5, "layout, layer, configuration, manifest, index");
    // A damaged layer breaks the tar off before its end.
    fs::write(place.blob(&digest), b"damaged").unwrap();
    let layers = place.layers.clone();
    let broken = tokio::task::spawn_blocking(move || {
        let mut tar = Vec::new();
        let done = layers.export_tar(&stack, ExportMeta::default(), &mut tar);
        (done, tar)
    });
    let (done, tar) = broken.await.unwrap();
    assert!(done.is_err() && !tar.ends_with(&[0; 1024]));
}
