//! The store and the cache over time: reading parts, writing, evicting, sweeping, finding damage.

use std::slice::from_ref;
use std::{collections::HashSet, fs, path::Path, time::Duration};

use cloche_layers::{LayerBounds, LayerError, Layers, LayersConfig, StoreConfig, Tree};
use cloche_model::{ByteSize, LayerDigest};
use tokio::io::AsyncReadExt;

use crate::{
    snapshot::{assert_same, snapshot},
    support::{Place, pack_tree, privileged, store},
};

/// Bytes that do not compress and differ everywhere.
pub(crate) fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

pub(crate) async fn read(
    layers: &Layers,
    stack: &[LayerDigest],
    path: &[u8],
    range: Option<std::ops::Range<u64>>,
) -> Result<Vec<u8>, LayerError> {
    let mut file = layers.open_file(stack, path, range).await?;
    let mut content = Vec::new();
    file.content.read_to_end(&mut content).await.unwrap();
    assert_eq!(content.len() as u64, file.range.end - file.range.start);
    Ok(content)
}

fn names(tree: &Tree, directory: &[u8]) -> Vec<String> {
    let listed = tree.list_directory(directory).unwrap();
    listed.iter().map(|(name, _)| String::from_utf8_lossy(name).into_owned()).collect()
}

#[tokio::test]
async fn any_part_of_a_file_can_be_read() {
    let place = Place::new().await;
    let tree = place.tree("tree");
    let large = noise(11 << 20, 1);
    fs::write(tree.join("a"), noise(5 << 20, 2)).unwrap();
    fs::write(tree.join("large"), &large).unwrap();
    let sparse = fs::File::create(tree.join("sparse")).unwrap();
    sparse.set_len(1 << 20).unwrap();
    for at in [8192, 65536, 900_000 / 4096 * 4096] {
        std::os::unix::fs::FileExt::write_all_at(&sparse, &noise(4096, at), at).unwrap();
    }
    let stored = place.store(&tree).await;
    let stack = [stored.layer.digest];
    let holes = fs::read(tree.join("sparse")).unwrap();
    for (name, content) in [("large", &large), ("sparse", &holes)] {
        let size = content.len() as u64;
        for range in
            [0..0, 0..1, 8191..8193, 60_000..70_000, 4095..size - 1, size - 1..size, 0..size]
        {
            let found = read(&place.layers, &stack, name.as_bytes(), Some(range.clone())).await;
            let wanted = &content[range.start as usize..range.end as usize];
            assert!(found.unwrap() == wanted, "{name} {range:?}");
        }
        assert!(read(&place.layers, &stack, name.as_bytes(), None).await.unwrap() == **content);
        let past = read(&place.layers, &stack, name.as_bytes(), Some(size - 5..u64::MAX)).await;
        assert_eq!(past.unwrap().len(), 5);
        assert!(
            read(&place.layers, &stack, name.as_bytes(), Some(size + 1..size + 2)).await.is_err()
        );
    }
    assert!(read(&place.layers, &stack, b"missing", None).await.is_err());
    assert!(read(&place.layers, &stack, b"", None).await.is_err());
    // Without the index the place of the file is found again.
    fs::remove_dir_all(place.config.dir.join("blobs/index")).unwrap();
    fs::create_dir(place.config.dir.join("blobs/index")).unwrap();
    let again = Layers::open(place.config.clone()).await.unwrap();
    let part = read(&again, &stack, b"large", Some(6 << 20..7 << 20)).await.unwrap();
    assert!(part == large[6 << 20..7 << 20]);
}

#[tokio::test]
async fn files_can_be_put_and_removed() {
    let place = Place::new().await;
    let mut writer = place.layers.begin_layer(&[]).await.unwrap();
    writer.put_file(b"a/b/file", 0o640, 5, &b"hello"[..]).await.unwrap();
    writer.put_file(b"a/other", 0o644, 0, &b""[..]).await.unwrap();
    for wrong in [&b"a"[..], b"a/b/file", b"", b"../x", b"/x", b"a/b/file/x", b"a/./x"] {
        assert!(writer.put_file(wrong, 0o644, 0, &b""[..]).await.is_err(), "{wrong:?}");
    }
    let first = writer.finish().await.unwrap().unwrap();
    let mut stack = vec![first.layer.digest];
    assert_eq!(read(&place.layers, &stack, b"a/b/file", None).await.unwrap(), b"hello");

    let mut writer = place.layers.begin_layer(&stack).await.unwrap();
    assert!(writer.put_file(b"a/b", 0o644, 0, &b""[..]).await.is_err(), "a directory is there");
    assert!(writer.remove_path(b"missing").await.is_err());
    writer.remove_path(b"a/other").await.unwrap();
    writer.put_file(b"a/b/file", 0o644, 3, &b"new"[..]).await.unwrap();
    let second = writer.finish().await.unwrap().unwrap();
    stack.push(second.layer.digest);
    let tree = place.layers.load_tree(&stack).await.unwrap();
    assert_eq!(names(&tree, b""), ["a"]);
    assert_eq!(names(&tree, b"a"), ["b"]);
    assert_eq!(tree.data_bytes(), 3);
    assert_eq!(read(&place.layers, &stack, b"a/b/file", None).await.unwrap(), b"new");

    let before = place.layers.measure_usage().await.unwrap().blobs;
    for content in [&b"short"[..], b"this is too long"] {
        let mut writer = place.layers.begin_layer(&stack).await.unwrap();
        assert!(writer.put_file(b"x", 0o644, 10, content).await.is_err());
        assert!(writer.finish().await.is_err());
    }
    let nothing = place.layers.begin_layer(&stack).await.unwrap();
    assert!(nothing.finish().await.unwrap().is_none());
    assert_eq!(place.layers.measure_usage().await.unwrap().blobs, before);
}

#[tokio::test]
async fn a_name_that_is_a_prefix_of_another_is_no_parent() {
    let place = Place::new().await;
    let tree = place.tree("tree");
    for directory in ["a", "a.b", "a0", "a/b"] {
        fs::create_dir(tree.join(directory)).unwrap();
    }
    fs::write(tree.join("a.b/x"), "").unwrap();
    let stored = place.store(&tree).await;
    let merged = place.layers.load_tree(&[stored.layer.digest]).await.unwrap();
    assert_eq!(names(&merged, b""), ["a", "a.b", "a0"]);
    assert_eq!(names(&merged, b"a"), ["b"]);
    assert!(merged.list_directory(b"a.b/x").is_none() && merged.list_directory(b"no").is_none());
}

#[tokio::test]
async fn a_damaged_blob_is_named_and_never_mounted() {
    let place = Place::new().await;
    let tree = place.tree("tree");
    fs::write(tree.join("file"), noise(100_000, 3)).unwrap();
    let digest = place.store(&tree).await.layer.digest;
    let whole = fs::read(place.blob(&digest)).unwrap();
    let mut flipped = whole.clone();
    flipped[50_000] ^= 1;
    let other = zstd::encode_all(&pack_tree(&place.tree("empty"))[..], 1).unwrap();
    for bytes in [&flipped, &whole[..60_000].to_vec(), &other, &Vec::new()] {
        fs::write(place.blob(&digest), bytes).unwrap();
        let error = place.layers.unpack_stack(from_ref(&digest)).await.unwrap_err();
        assert!(matches!(&error, LayerError::Damaged { .. }), "{error:?}");
        assert!(error.to_string().contains(digest.as_str()));
        assert!(place.layers.squash_stack(from_ref(&digest)).await.is_err());
    }
    assert_eq!(fs::read_dir(place.layers.cache_dir()).unwrap().count(), 0);
    fs::remove_file(place.blob(&digest)).unwrap();
    let error = place.layers.unpack_stack(from_ref(&digest)).await.unwrap_err();
    assert!(matches!(error, LayerError::Missing(missing) if missing == digest));
    let error = place.layers.squash_stack(&[digest]).await.unwrap_err();
    assert!(matches!(error, LayerError::Missing(_)), "{error:?}");
}

/// Layers of one file of 100 kB each.
async fn several(place: &Place, count: u64) -> Vec<LayerDigest> {
    let mut digests = Vec::new();
    for number in 0..count {
        let tree = place.tree(&format!("tree{number}"));
        fs::write(tree.join("file"), noise(100_000, number + 1)).unwrap();
        digests.push(place.store(&tree).await.layer.digest);
    }
    digests
}

#[tokio::test]
async fn what_was_not_used_for_longest_goes_first_and_what_is_used_stays() {
    let place = Place::with(ByteSize::kib(330), LayerBounds::default()).await;
    let digests = several(&place, 6).await;
    let one = |at: usize| &digests[at..=at];
    let held = place.layers.unpack_stack(one(0)).await.unwrap();
    let name = place.layers.cache_dir().join(held.layer_names()[0]);
    drop(place.layers.unpack_stack(one(1)).await.unwrap());
    drop(place.layers.unpack_stack(one(2)).await.unwrap());
    drop(place.layers.unpack_stack(one(1)).await.unwrap());
    assert_eq!(place.layers.cache_usage().cached, 3);
    // Room for one more is made by the third: the first is in use, the second was used later.
    drop(place.layers.unpack_stack(one(3)).await.unwrap());
    assert_eq!(place.layers.cache_usage().cached, 3);
    fs::remove_file(place.blob(&digests[1])).unwrap();
    drop(place.layers.unpack_stack(one(1)).await.unwrap());
    fs::remove_file(place.blob(&digests[2])).unwrap();
    assert!(place.layers.unpack_stack(one(2)).await.is_err(), "it must have been evicted");
    for at in 3..6 {
        drop(place.layers.unpack_stack(one(at)).await.unwrap());
        assert_eq!(fs::read(name.join("file")).unwrap(), noise(100_000, 1));
    }
    // All in use at once is more than fits, and still right.
    let all = place.layers.unpack_stack(&[&digests[..1], &digests[3..]].concat()).await.unwrap();
    assert_eq!(all.layer_names().len(), 4);
    assert!(place.layers.cache_usage().cache_bytes > 330 << 10);
    drop((all, held));
    assert_eq!(place.layers.cache_usage().in_use, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_who_want_the_same_layer_get_the_same_directory() {
    let place = Place::new().await;
    let digests = several(&place, 3).await;
    let wanted = (0..24).map(|_| {
        let (layers, digests) = (place.layers.clone(), digests.clone());
        tokio::spawn(async move { layers.unpack_stack(&digests).await.unwrap() })
    });
    let held: Vec<_> =
        futures::future::join_all(wanted).await.into_iter().map(Result::unwrap).collect();
    assert!(held.iter().all(|stack| stack.layer_names() == held[0].layer_names()));
    assert_eq!(place.layers.cache_usage().cached, 3);
    assert_eq!(place.layers.cache_usage().in_use, 3);
    let directories = fs::read_dir(place.layers.cache_dir()).unwrap();
    assert_eq!(directories.filter(|entry| entry.as_ref().unwrap().path().is_dir()).count(), 3);
    // A stack may hold a layer twice; an overlay may not.
    let twice = [&digests[..1], &digests[..1]].concat();
    let twice = place.layers.unpack_stack(&twice).await.unwrap();
    assert_ne!(twice.layer_names()[0], twice.layer_names()[1]);
}

#[tokio::test]
async fn the_cache_survives_a_restart_but_not_a_reboot() {
    let mut place = Place::new().await;
    let digests = several(&place, 2).await;
    let name = place.unpacked(&digests[0]).await;
    let second = place.unpacked(&digests[1]).await;
    // As a crash would leave it: unfinished, and finished but not recorded.
    fs::create_dir(place.layers.cache_dir().join("new-abc")).unwrap();
    fs::remove_file(second.with_extension("layer")).unwrap();
    fs::write(place.config.dir.join("new/half"), "x").unwrap();
    place.reopen().await;
    assert!(name.is_dir() && !second.exists());
    assert!(!place.layers.cache_dir().join("new-abc").exists());
    assert!(!place.config.dir.join("new/half").exists());
    assert_eq!(place.layers.cache_usage().cached, 1);

    let record = name.with_extension("layer");
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let text = fs::read_to_string(&record).unwrap();
    assert!(text.contains(boot.trim()));
    fs::write(&record, text.replace(boot.trim(), "another-boot")).unwrap();
    place.reopen().await;
    assert_eq!(place.layers.cache_usage().cached, 0);
    assert_eq!(fs::read_dir(place.layers.cache_dir()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_sweep_takes_what_nobody_wants_and_nothing_new() {
    let mut place = Place::new().await;
    let digests = several(&place, 3).await;
    drop(place.layers.unpack_stack(&digests).await.unwrap());
    let keep: HashSet<_> = digests[..1].iter().cloned().collect();
    let hour = Duration::from_secs(3600);
    let swept = place.layers.sweep_unreferenced(&keep, hour).await.unwrap();
    assert_eq!((swept.deleted, swept.kept), (0, 3));

    let long_ago = std::time::SystemTime::now() - 2 * hour;
    for digest in &digests {
        let file = fs::File::options().write(true).open(place.blob(digest)).unwrap();
        file.set_modified(long_ago).unwrap();
    }
    // Old by its file, but stored by this very process just now.
    assert_eq!(place.layers.sweep_unreferenced(&keep, hour).await.unwrap().deleted, 0);
    place.reopen().await;
    store(&place.layers, pack_tree(&place.dir.path().join("tree1"))).await.unwrap();
    let swept = place.layers.sweep_unreferenced(&keep, hour).await.unwrap();
    assert_eq!((swept.deleted, swept.kept), (1, 2));
    assert!(place.layers.load_index(&digests[0]).await.is_ok());
    assert!(place.layers.load_index(&digests[1]).await.is_ok());
    assert!(matches!(place.layers.load_index(&digests[2]).await, Err(LayerError::Missing(_))));
    assert!(place.layers.unpack_stack(&digests[2..]).await.is_err(), "gone from the cache too");
}

#[tokio::test]
async fn a_squashed_stack_is_the_same_tree() {
    if !privileged() {
        return;
    }
    let place = Place::new().await;
    let (one, two) = (place.tree("one"), place.tree("two"));
    fs::write(one.join("stays"), noise(9000, 1)).unwrap();
    fs::hard_link(one.join("stays"), one.join("twin")).unwrap();
    fs::write(one.join("goes"), noise(9000, 2)).unwrap();
    fs::create_dir_all(one.join("old/inner")).unwrap();
    fs::write(one.join("old/inner/file"), "moved").unwrap();
    fs::create_dir(two.join("new")).unwrap();
    let redirect = "trusted.overlay.redirect";
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(two.join("new"), redirect, b"old", flags).unwrap();
    for gone in ["old", "goes"] {
        let (kind, mode) = (rustix::fs::FileType::CharacterDevice, rustix::fs::Mode::empty());
        rustix::fs::mknodat(rustix::fs::CWD, two.join(gone), kind, mode, 0).unwrap();
    }
    let stack = [place.store(&one).await.layer.digest, place.store(&two).await.layer.digest];
    let squashed = place.layers.squash_stack(&stack).await.unwrap().unwrap();
    let top = place.unpacked(&squashed.layer.digest).await;
    let found = snapshot(&top);
    let paths: Vec<_> = found.keys().map(|path| String::from_utf8_lossy(path)).collect();
    assert_eq!(paths, ["", "new", "new/inner", "new/inner/file", "stays", "twin"]);
    assert_eq!(found[&b"twin"[..]].linked_to.as_deref(), Some(&b"stays"[..]));
    assert_eq!(fs::read(top.join("new/inner/file")).unwrap(), b"moved");
    assert!(!top.with_extension("marks").exists());
    let (before, after) = (
        place.layers.load_tree(&stack).await.unwrap(),
        place.layers.load_tree(from_ref(&squashed.layer.digest)).await.unwrap(),
    );
    let diff = Tree::diff(&before, &after);
    assert_eq!(diff, cloche_layers::TreeDiff::default());
    let again = place.layers.squash_stack(from_ref(&squashed.layer.digest)).await.unwrap().unwrap();
    assert_eq!(again.layer.digest, squashed.layer.digest, "squashing is stable");
    assert_same("itself", &found, &snapshot(&top));
}

/// The most memory that this process has had, in bytes.
fn memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[tokio::test]
async fn a_large_upload_takes_little_memory() {
    let place = Place::new().await;
    let size = 256 << 20;
    let mut writer = place.layers.begin_layer(&[]).await.unwrap();
    let content = tokio::io::repeat(7).take(size);
    let before = memory();
    writer.put_file(b"up", 0o644, size, content).await.unwrap();
    let stored = writer.finish().await.unwrap().unwrap();
    let stack = [stored.layer.digest];
    let mut file = place.layers.open_file(&stack, b"up", Some(1000..size)).await.unwrap();
    let read = tokio::io::copy(&mut file.content, &mut tokio::io::sink()).await.unwrap();
    assert_eq!(read, size - 1000);
    drop(place.layers.unpack_stack(&stack).await.unwrap());
    // Under a test runner with one process for all tests this counts their memory too.
    let more = memory() - before;
    assert!(more < 100 << 20, "{more} bytes");
}

#[tokio::test]
async fn a_directory_that_cannot_be_used_is_an_error() {
    let config = LayersConfig {
        dir: Path::new("/proc/nowhere").to_owned(),
        store: StoreConfig::Local,
        cache_bytes: ByteSize::mib(1),
        bounds: LayerBounds::default(),
    };
    assert!(Layers::open(config).await.is_err());
}
