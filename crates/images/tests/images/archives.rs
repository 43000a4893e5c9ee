//! OCI layouts and the output of `docker save`.

use cloche_images::ImportChoice;
use serde_json::json;

use crate::support::{Store, TarBytes, TestImage, layout_of, paths, sha256};

fn small() -> TestImage {
    TestImage::new(&[TarBytes::default().file("a", b"1").end()])
}

#[tokio::test]
async fn a_layout_gives_the_manifest_digest_and_the_settings() {
    let store = Store::new().await;
    let image = small();
    let new = store.import(image.layout()).await.unwrap();
    assert_eq!(new.image.digest.to_string(), image.blobs().1.0);
    assert_eq!(new.image.settings.env["PATH"], "/usr/bin:/bin");
    assert_eq!(new.image.settings.workdir.as_deref(), Some("/work"));
    assert!(new.names.is_empty() && store.leftovers().is_empty());
}

#[tokio::test]
async fn the_output_of_docker_save_gives_the_same_layers_and_its_names() {
    let store = Store::new().await;
    let image = small();
    let saved = store.import(image.saved("team/tool:1")).await.unwrap();
    assert_eq!(saved.names, ["team/tool:1".parse().unwrap()]);
    let layout = store.import(image.layout()).await.unwrap();
    assert_eq!(saved.image.stack(), layout.image.stack());
    assert_ne!(saved.image.digest, layout.image.digest);
    let again = store.import(image.saved("team/tool:1")).await.unwrap();
    assert_eq!(saved.image.digest, again.image.digest);
}

#[tokio::test]
async fn a_repeated_layer_of_docker_save_is_a_link() {
    let image = small();
    let (file, plain) = image.layers[0].clone();
    let twice = TestImage::of_files(vec![(file.clone(), plain.clone()), (file, plain.clone())]);
    let config = twice.config.to_string();
    let manifest =
        json!([{"Config": "c.json", "RepoTags": null, "Layers": ["x/layer.tar", "y/layer.tar"]}]);
    let tar = TarBytes::default()
        .link("y/layer.tar", "../x/layer.tar")
        .file("x/layer.tar", &plain)
        .file("c.json", config.as_bytes())
        .file("manifest.json", manifest.to_string().as_bytes())
        .end();
    let store = Store::new().await;
    let new = store.import(tar).await.unwrap();
    assert_eq!(new.image.layers.len(), 2);
    assert_eq!(paths(&store.tree(&new).await).len(), 1);
}

#[tokio::test]
async fn an_index_of_many_platforms_gives_the_one_for_this_host() {
    let (mine, mut other) = (small(), small());
    other.config["architecture"] = json!("s390x");
    let (mut blobs, (digest, size)) = mine.blobs();
    let (more, (foreign, foreign_size)) = other.blobs();
    blobs.extend(more);
    let host = mine.config["architecture"].clone();
    let manifest = "application/vnd.oci.image.manifest.v1+json";
    let entry = |digest: &str, size: usize, os: &str, architecture: serde_json::Value| {
        json!({"mediaType": manifest, "digest": digest, "size": size,
            "platform": {"os": os, "architecture": architecture}})
    };
    let inner = json!({"schemaVersion": 2, "manifests": [
        entry(&foreign, foreign_size, "linux", json!("s390x")),
        entry(&foreign, foreign_size, "unknown", json!("unknown")),
        entry(&digest, size, "linux", host),
    ]})
    .to_string()
    .into_bytes();
    let outer = json!({"mediaType": "application/vnd.oci.image.index.v1+json",
        "digest": sha256(&inner), "size": inner.len(),
        "annotations": {"io.containerd.image.name": "docker.io/library/tool:2"}});
    blobs.insert(sha256(&inner), inner);
    let store = Store::new().await;
    let new = store.import(layout_of(&blobs, &[outer])).await.unwrap();
    assert_eq!(new.image.digest.to_string(), digest);
    assert_eq!(new.names, ["tool:2".parse().unwrap()]);

    let only_foreign = other.layout();
    let error = store.import(only_foreign).await.unwrap_err().to_string();
    assert!(error.contains("the image is for linux/s390x"), "{error}");
}

#[tokio::test]
async fn one_of_several_images_is_chosen_by_its_name() {
    let (one, two) = (small(), TestImage::new(&[TarBytes::default().file("b", b"2").end()]));
    let (mut blobs, (first, first_size)) = one.blobs();
    let (more, (second, second_size)) = two.blobs();
    blobs.extend(more);
    let entry = |digest: &str, size: usize, tag: &str| {
        json!({"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest,
            "size": size, "annotations": {"org.opencontainers.image.ref.name": tag}})
    };
    let manifests = [entry(&first, first_size, "one"), entry(&second, second_size, "two")];
    let tar = layout_of(&blobs, &manifests);
    let store = Store::new().await;
    let error = store.import(tar.clone()).await.unwrap_err().to_string();
    assert!(error.contains("choose one with --ref: one, two"), "{error}");
    let choice =
        ImportChoice { reference: Some("two".to_owned()), name: Some("mine:1".parse().unwrap()) };
    let new = store.import_chosen(tar.clone(), choice).await.unwrap();
    assert_eq!(new.image.digest.to_string(), second);
    assert_eq!(new.names, ["mine:1".parse().unwrap()]);
    let choice = ImportChoice { reference: Some("three".to_owned()), name: None };
    let error = store.import_chosen(tar, choice).await.unwrap_err().to_string();
    assert!(error.contains("no image \"three\""), "{error}");
}
