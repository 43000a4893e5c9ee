//! Layers in a bucket of a real S3 server, which the test starts.

use std::slice::from_ref;
use std::{collections::HashSet, fs, path::Path, time::Duration};

use cloche_layers::{LayerBounds, LayerError, Layers, LayersConfig, S3Config, StoreConfig};
use cloche_model::ByteSize;
use cloche_test_support::moto::Moto;

use crate::{
    snapshot::{assert_same, snapshot},
    store_and_cache::{noise, read},
    support::{pack_tree, store},
};

fn configured(moto: &Moto, dir: &Path, bucket: &str) -> LayersConfig {
    // The access keys do not matter, so existing variables are used.
    let key = "CARGO_PKG_NAME".to_owned();
    let s3 = S3Config {
        bucket: bucket.to_owned(),
        endpoint: Some(format!("http://{}", moto.address)),
        region: "us-east-1".to_owned(),
        prefix: "some/where".to_owned(),
        access_key_env: key.clone(),
        secret_key_env: key,
    };
    LayersConfig {
        dir: dir.to_owned(),
        store: StoreConfig::S3(s3),
        cache_bytes: ByteSize::gib(1),
        bounds: LayerBounds::default(),
    }
}

#[tokio::test]
async fn layers_are_stored_and_read_in_a_bucket() {
    let Some(server) = Moto::start() else { return };
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let large = noise(24 << 20, 5);
    fs::write(tree.join("large"), &large).unwrap();
    fs::write(tree.join("small"), "small").unwrap();
    let config = configured(&server, &dir.path().join("one"), "layers");
    let layers = Layers::open(config.clone()).await.unwrap();
    // One file is large enough for a multipart upload, the other is not.
    let first = store(&layers, pack_tree(&tree)).await.unwrap().unwrap().layer;
    fs::remove_file(tree.join("large")).unwrap();
    let second = store(&layers, pack_tree(&tree)).await.unwrap().unwrap().layer;
    assert_eq!(fs::read_dir(config.dir.join("new")).unwrap().count(), 0);
    let usage = layers.measure_usage().await.unwrap();
    assert_eq!(usage.blobs, 2);
    assert_eq!(usage.blob_bytes, first.stored.bytes() + second.stored.bytes());

    // Another host shares only the bucket.
    let other = Layers::open(configured(&server, &dir.path().join("two"), "layers")).await.unwrap();
    let stack = [first.digest.clone()];
    let range = Some(13 << 20..14 << 20);
    assert!(read(&other, &stack, b"large", range).await.unwrap() == large[13 << 20..14 << 20]);
    let mountable = other.unpack_stack(from_ref(&second.digest)).await.unwrap();
    let unpacked = other.cache_dir().join(mountable.layer_names()[0]);
    assert_same("from the bucket", &snapshot(&tree), &snapshot(&unpacked));
    let both = [first.digest.clone(), second.digest.clone()];
    let squashed = other.squash_stack(&both).await.unwrap().unwrap();
    assert_eq!(squashed.layer.bytes.bytes(), (24 << 20) + 5);

    let keep: HashSet<_> = [squashed.layer.digest.clone()].into();
    let kept = layers.sweep_unreferenced(&keep, Duration::from_secs(3600)).await.unwrap();
    assert_eq!((kept.deleted, kept.kept), (0, 3));
    let swept = layers.sweep_unreferenced(&keep, Duration::ZERO).await.unwrap();
    assert_eq!((swept.deleted, swept.kept), (2, 1));
    assert!(matches!(layers.load_index(&first.digest).await, Err(LayerError::Missing(_))));
}

#[tokio::test]
async fn a_failing_bucket_is_an_error_and_stores_no_layer() {
    let Some(server) = Moto::start() else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut config = configured(&server, &dir.path().join("one"), "no-such-bucket");
    let layers = Layers::open(config.clone()).await.unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), "x").unwrap();
    assert!(store(&layers, pack_tree(&tree)).await.is_err());
    assert_eq!(fs::read_dir(config.dir.join("new")).unwrap().count(), 0);
    let StoreConfig::S3(s3) = &mut config.store else { panic!() };
    s3.secret_key_env = "NO_SUCH_VARIABLE".to_owned();
    let Err(error) = Layers::open(config).await else { panic!("it has no secret") };
    assert!(error.to_string().contains("NO_SUCH_VARIABLE"), "{error}");
}
