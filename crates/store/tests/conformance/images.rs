//! Requirements for every store: images.
#![allow(clippy::unwrap_used, reason = "a set-up that fails is a test that fails")]

use std::collections::BTreeMap;

use cloche_model::{
    ByteSize, ImageDigest, ImageLayer, ImageName, ImageRecord, ImageSettings, Interpreter,
    InterpreterProbe, InterpreterStart, InterpreterTable, Layer, LayerDigest, Moment, Sandbox,
    SandboxShape,
};
use cloche_store::{ImageRemoval, Revisioned, Store, StoreError};

use crate::suite::{sandbox, team};

fn layer(n: u8) -> LayerDigest {
    LayerDigest::from_sha256([n; 32])
}

fn stored(n: u8) -> Layer {
    Layer { digest: layer(n), stored: ByteSize(10), bytes: ByteSize(20), entries: 3 }
}

/// An image of two layers, of which the lower one is the same for all.
fn image(n: u8) -> ImageRecord {
    ImageRecord {
        digest: ImageDigest::from_sha256([n; 32]),
        platform: "linux/amd64".to_owned(),
        settings: ImageSettings {
            env: BTreeMap::from([("PATH".to_owned(), "/bin".to_owned())]),
            workdir: Some("/app".to_owned()),
            ..ImageSettings::default()
        },
        layers: vec![
            ImageLayer { diff_id: layer(200), source: layer(200), stored: Some(stored(100)) },
            ImageLayer { diff_id: layer(n), source: layer(n), stored: None },
        ],
        interpreters: InterpreterTable {
            found: vec![Interpreter {
                language: "python".to_owned(),
                path: "/usr/bin/python3".to_owned(),
                version: Some("3.14".to_owned()),
                arguments: Vec::new(),
                main_file: "main.py".to_owned(),
            }],
            refused: Vec::new(),
        },
        probes: vec![InterpreterProbe {
            language: "python".to_owned(),
            version: Some("3.14.2".to_owned()),
            implementation: Some("cpython".to_owned()),
            libc: None,
            start: InterpreterStart::Waiting,
            reason: Some("no template".to_owned()),
        }],
        notes: vec!["a note".to_owned()],
        added_at: Moment(i64::from(n)),
    }
}

fn name(text: &str) -> ImageName {
    text.parse().unwrap()
}

fn sandbox_with(image: &ImageRecord) -> Sandbox {
    let image = format!("a:1@{}", image.digest);
    Sandbox { shape: SandboxShape { image, ..sandbox(1).shape }, ..sandbox(1) }
}

pub(crate) async fn an_image_is_read_as_it_was_written(store: &dyn Store) {
    let (one, two) = (image(1), image(2));
    store.put_image(&one, &[name("a:1"), name("b:1")]).await.unwrap();
    store.put_image(&two, &[]).await.unwrap();
    assert_eq!(store.find_image(&one.digest).await.unwrap(), Some(one.clone()));
    assert_eq!(store.find_image(&image(3).digest).await.unwrap(), None);
    let listed = store.list_images().await.unwrap();
    assert_eq!(listed.iter().map(|it| &it.image).collect::<Vec<_>>(), [&one, &two]);
    assert_eq!(listed[0].names, [name("a:1"), name("b:1")]);
    assert!(listed[1].names.is_empty() && listed[1].used_by.is_empty());
}

pub(crate) async fn a_name_moves_to_the_newest_image(store: &dyn Store) {
    store.put_image(&image(1), &[name("a:1")]).await.unwrap();
    store.put_image(&image(2), &[name("a:1")]).await.unwrap();
    assert_eq!(store.find_image_by_name(&name("a:1")).await.unwrap(), Some(image(2)));
    assert_eq!(store.find_image_by_name(&name("a:2")).await.unwrap(), None);
    assert!(store.list_images().await.unwrap()[0].names.is_empty());
    // A second pull of the same image changes nothing but the record.
    store.put_image(&ImageRecord { notes: Vec::new(), ..image(2) }, &[]).await.unwrap();
    assert!(store.find_image_by_name(&name("a:1")).await.unwrap().unwrap().notes.is_empty());
}

pub(crate) async fn a_layer_is_found_by_its_source(store: &dyn Store) {
    store.put_image(&image(1), &[]).await.unwrap();
    let found = store.find_image_layer(&layer(200)).await.unwrap();
    assert_eq!(found.and_then(|layer| layer.stored), Some(stored(100)));
    let empty = store.find_image_layer(&layer(1)).await.unwrap();
    assert_eq!(empty.map(|layer| layer.stored), Some(None));
    assert_eq!(store.find_image_layer(&layer(7)).await.unwrap(), None);
}

pub(crate) async fn layers_of_images_are_in_use(store: &dyn Store) {
    store.put_image(&image(1), &[]).await.unwrap();
    store.put_image(&image(2), &[]).await.unwrap();
    assert!(store.layers_in_use().await.unwrap().contains(&layer(100)));
    assert!(store.is_layer_needed(&layer(100)).await.unwrap());
    let removed = store.remove_image(&image(1).digest).await.unwrap();
    assert_eq!(removed, ImageRemoval::Done(vec![layer(100)]));
    assert!(store.is_layer_needed(&layer(100)).await.unwrap(), "the other image needs it");
    store.remove_image(&image(2).digest).await.unwrap();
    assert!(!store.is_layer_needed(&layer(100)).await.unwrap());
    assert!(store.layers_in_use().await.unwrap().is_empty());
    assert_eq!(store.remove_image(&image(2).digest).await.unwrap(), ImageRemoval::Missing);
}

pub(crate) async fn an_image_that_a_sandbox_uses_is_not_removed(store: &dyn Store) {
    store.create_team(&team(1)).await.unwrap();
    store.put_image(&image(1), &[name("a:1")]).await.unwrap();
    store.create_sandbox(&sandbox_with(&image(1))).await.unwrap();
    let users = vec!["team-1/sandbox-1".to_owned()];
    assert_eq!(store.list_images().await.unwrap()[0].used_by, users);
    let refused = store.remove_image(&image(1).digest).await.unwrap();
    assert_eq!(refused, ImageRemoval::InUse(users));
    assert!(store.find_image_by_name(&name("a:1")).await.unwrap().is_some());
    store.delete_sandbox(&sandbox(1).id).await.unwrap();
    assert!(matches!(store.remove_image(&image(1).digest).await, Ok(ImageRemoval::Done(_))));
    assert_eq!(store.find_image_by_name(&name("a:1")).await.unwrap(), None);
}

pub(crate) async fn a_sandbox_is_saved_only_with_an_image_that_exists(store: &dyn Store) {
    store.create_team(&team(1)).await.unwrap();
    let refused = store.create_sandbox(&sandbox_with(&image(1))).await;
    assert!(matches!(refused, Err(StoreError::Conflict(_))), "{refused:?}");
    store.create_sandbox(&sandbox(1)).await.unwrap();
    let Revisioned { revision, .. } =
        store.sandbox_for_update(&sandbox(1).id).await.unwrap().unwrap();
    let update = Revisioned { row: sandbox_with(&image(1)), revision };
    let refused = store.update_sandbox(&update).await;
    assert!(matches!(refused, Err(StoreError::Conflict(_))), "{refused:?}");
    store.put_image(&image(1), &[]).await.unwrap();
    store.update_sandbox(&update).await.unwrap();
    let saved = store.find_sandbox(&sandbox(1).id).await.unwrap().unwrap();
    assert_eq!(saved.shape, update.row.shape);
}
