//! The store and the cache over time: partial reads, writes, eviction, sweeps, damage.

use std::slice::from_ref;
use std::{collections::HashSet, fs, path::Path, time::Duration};

use cloche_layers::{LayerBounds, LayerError, Layers, LayersConfig, StoreConfig, Tree};
use cloche_model::{ByteSize, LayerDigest};
use cloche_test_support::eventually;
use tokio::io::AsyncReadExt;

use crate::{
    snapshot::{assert_same, snapshot},
    support::{LayersFixture, pack_tree, privileged, store},
};

/// Incompressible bytes without repetition.
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
async fn any_range_of_a_file_can_be_read() {
    let fixture = LayersFixture::new().await;
    let tree = fixture.tree("tree");
    let large = noise(11 << 20, 1);
    fs::write(tree.join("a"), noise(5 << 20, 2)).unwrap();
    fs::write(tree.join("large"), &large).unwrap();
    let sparse = fs::File::create(tree.join("sparse")).unwrap();
    sparse.set_len(1 << 20).unwrap();
    for at in [8192, 65536, 900_000 / 4096 * 4096] {
        std::os::unix::fs::FileExt::write_all_at(&sparse, &noise(4096, at), at).unwrap();
    }
    let stored = fixture.store(&tree).await;
    let stack = [stored.layer.digest];
    let holes = fs::read(tree.join("sparse")).unwrap();
    for (name, content) in [("large", &large), ("sparse", &holes)] {
        let size = content.len() as u64;
        for range in
            [0..0, 0..1, 8191..8193, 60_000..70_000, 4095..size - 1, size - 1..size, 0..size]
        {
            let found = read(&fixture.layers, &stack, name.as_bytes(), Some(range.clone())).await;
            let wanted = &content[range.start as usize..range.end as usize];
            assert!(found.unwrap() == wanted, "{name} {range:?}");
        }
        assert!(read(&fixture.layers, &stack, name.as_bytes(), None).await.unwrap() == **content);
        let past = read(&fixture.layers, &stack, name.as_bytes(), Some(size - 5..u64::MAX)).await;
        assert_eq!(past.unwrap().len(), 5);
        assert!(
            read(&fixture.layers, &stack, name.as_bytes(), Some(size + 1..size + 2)).await.is_err()
        );
    }
    assert!(read(&fixture.layers, &stack, b"missing", None).await.is_err());
    assert!(read(&fixture.layers, &stack, b"", None).await.is_err());
    // Without the index the offset of the file is found again.
    fs::remove_dir_all(fixture.config.dir.join("blobs/index")).unwrap();
    fs::create_dir(fixture.config.dir.join("blobs/index")).unwrap();
    let again = Layers::open(fixture.config.clone()).await.unwrap();
    let part = read(&again, &stack, b"large", Some(6 << 20..7 << 20)).await.unwrap();
    assert!(part == large[6 << 20..7 << 20]);
}

#[tokio::test]
async fn files_can_be_put_and_removed() {
    let fixture = LayersFixture::new().await;
    let mut writer = fixture.layers.begin_layer(&[]).await.unwrap();
    writer.put_file(b"a/b/file", 0o640, 5, &b"hello"[..]).await.unwrap();
    writer.put_file(b"a/other", 0o644, 0, &b""[..]).await.unwrap();
    for wrong in [&b"a"[..], b"a/b/file", b"", b"../x", b"/x", b"a/b/file/x", b"a/./x"] {
        assert!(writer.put_file(wrong, 0o644, 0, &b""[..]).await.is_err(), "{wrong:?}");
    }
    let first = writer.finish().await.unwrap().unwrap();
    let mut stack = vec![first.layer.digest];
    assert_eq!(read(&fixture.layers, &stack, b"a/b/file", None).await.unwrap(), b"hello");

    let mut writer = fixture.layers.begin_layer(&stack).await.unwrap();
    assert!(writer.put_file(b"a/b", 0o644, 0, &b""[..]).await.is_err(), "a directory is there");
    assert!(writer.remove_path(b"missing").await.is_err());
    writer.remove_path(b"a/other").await.unwrap();
    writer.put_file(b"a/b/file", 0o644, 3, &b"new"[..]).await.unwrap();
    let second = writer.finish().await.unwrap().unwrap();
    stack.push(second.layer.digest);
    let tree = fixture.layers.load_tree(&stack).await.unwrap();
    assert_eq!(names(&tree, b""), ["a"]);
    assert_eq!(names(&tree, b"a"), ["b"]);
    assert_eq!(tree.data_bytes(), 3);
    assert_eq!(read(&fixture.layers, &stack, b"a/b/file", None).await.unwrap(), b"new");

    let before = fixture.layers.measure_usage().await.unwrap().blobs;
    for content in [&b"short"[..], b"this is too long"] {
        let mut writer = fixture.layers.begin_layer(&stack).await.unwrap();
        assert!(writer.put_file(b"x", 0o644, 10, content).await.is_err());
        assert!(writer.finish().await.is_err());
    }
    let nothing = fixture.layers.begin_layer(&stack).await.unwrap();
    assert!(nothing.finish().await.unwrap().is_none());
    assert_eq!(fixture.layers.measure_usage().await.unwrap().blobs, before);
}

#[tokio::test]
async fn a_name_that_is_a_prefix_of_another_is_not_its_parent() {
    let fixture = LayersFixture::new().await;
    let tree = fixture.tree("tree");
    for directory in ["a", "a.b", "a0", "a/b"] {
        fs::create_dir(tree.join(directory)).unwrap();
    }
    fs::write(tree.join("a.b/x"), "").unwrap();
    let stored = fixture.store(&tree).await;
    let merged = fixture.layers.load_tree(&[stored.layer.digest]).await.unwrap();
    assert_eq!(names(&merged, b""), ["a", "a.b", "a0"]);
    assert_eq!(names(&merged, b"a"), ["b"]);
    assert!(merged.list_directory(b"a.b/x").is_none() && merged.list_directory(b"no").is_none());
}

#[tokio::test]
async fn a_damaged_blob_is_reported_and_never_mounted() {
    let fixture = LayersFixture::new().await;
    let tree = fixture.tree("tree");
    fs::write(tree.join("file"), noise(100_000, 3)).unwrap();
    let digest = fixture.store(&tree).await.layer.digest;
    let whole = fs::read(fixture.blob(&digest)).unwrap();
    let mut flipped = whole.clone();
    flipped[50_000] ^= 1;
    let other = zstd::encode_all(&pack_tree(&fixture.tree("empty"))[..], 1).unwrap();
    for bytes in [&flipped, &whole[..60_000].to_vec(), &other, &Vec::new()] {
        fs::write(fixture.blob(&digest), bytes).unwrap();
        let error = fixture.layers.unpack_stack(from_ref(&digest)).await.unwrap_err();
        assert!(matches!(&error, LayerError::Damaged { .. }), "{error:?}");
        assert!(error.to_string().contains(digest.as_str()));
        assert!(fixture.layers.squash_stack(from_ref(&digest)).await.is_err());
    }
    assert_eq!(fs::read_dir(fixture.layers.cache_dir()).unwrap().count(), 0);
    fs::remove_file(fixture.blob(&digest)).unwrap();
    let error = fixture.layers.unpack_stack(from_ref(&digest)).await.unwrap_err();
    assert!(matches!(error, LayerError::Missing(missing) if missing == digest));
    let error = fixture.layers.squash_stack(&[digest]).await.unwrap_err();
    assert!(matches!(error, LayerError::Missing(_)), "{error:?}");
}

/// Layers with one file of 100 kB each.
async fn several(fixture: &LayersFixture, count: u64) -> Vec<LayerDigest> {
    let mut digests = Vec::new();
    for number in 0..count {
        let tree = fixture.tree(&format!("tree{number}"));
        fs::write(tree.join("file"), noise(100_000, number + 1)).unwrap();
        digests.push(fixture.store(&tree).await.layer.digest);
    }
    digests
}

#[tokio::test]
async fn the_least_recently_used_idle_layer_is_evicted_first() {
    let fixture = LayersFixture::with(ByteSize::kib(330), LayerBounds::default()).await;
    let digests = several(&fixture, 6).await;
    let one = |at: usize| &digests[at..=at];
    let held = fixture.layers.unpack_stack(one(0)).await.unwrap();
    let name = fixture.layers.cache_dir().join(held.layer_names()[0]);
    drop(fixture.layers.unpack_stack(one(1)).await.unwrap());
    drop(fixture.layers.unpack_stack(one(2)).await.unwrap());
    drop(fixture.layers.unpack_stack(one(1)).await.unwrap());
    assert_eq!(fixture.layers.cache_usage().cached, 3);
    // The third layer is evicted: the first is in use, the second was used later.
    drop(fixture.layers.unpack_stack(one(3)).await.unwrap());
    assert_eq!(fixture.layers.cache_usage().cached, 3);
    fs::remove_file(fixture.blob(&digests[1])).unwrap();
    drop(fixture.layers.unpack_stack(one(1)).await.unwrap());
    fs::remove_file(fixture.blob(&digests[2])).unwrap();
    assert!(fixture.layers.unpack_stack(one(2)).await.is_err(), "it must have been evicted");
    for at in 3..6 {
        drop(fixture.layers.unpack_stack(one(at)).await.unwrap());
        assert_eq!(fs::read(name.join("file")).unwrap(), noise(100_000, 1));
    }
    // With all in use the limit is exceeded, and the content is still correct.
    let all = fixture.layers.unpack_stack(&[&digests[..1], &digests[3..]].concat()).await.unwrap();
    assert_eq!(all.layer_names().len(), 4);
    assert!(fixture.layers.cache_usage().cache_bytes > 330 << 10);
    drop((all, held));
    assert_eq!(fixture.layers.cache_usage().in_use, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_requests_for_a_layer_share_one_directory() {
    let fixture = LayersFixture::new().await;
    let digests = several(&fixture, 3).await;
    let wanted = (0..24).map(|_| {
        let (layers, digests) = (fixture.layers.clone(), digests.clone());
        tokio::spawn(async move { layers.unpack_stack(&digests).await.unwrap() })
    });
    let held: Vec<_> =
        futures::future::join_all(wanted).await.into_iter().map(Result::unwrap).collect();
    assert!(held.iter().all(|stack| stack.layer_names() == held[0].layer_names()));
    assert_eq!(fixture.layers.cache_usage().cached, 3);
    assert_eq!(fixture.layers.cache_usage().in_use, 3);
    let directories = fs::read_dir(fixture.layers.cache_dir()).unwrap();
    assert_eq!(directories.filter(|entry| entry.as_ref().unwrap().path().is_dir()).count(), 3);
    // A stack may contain a layer twice, but an overlay may not.
    let twice = [&digests[..1], &digests[..1]].concat();
    let twice = fixture.layers.unpack_stack(&twice).await.unwrap();
    assert_ne!(twice.layer_names()[0], twice.layer_names()[1]);
}

#[tokio::test]
async fn the_cache_survives_a_restart_but_not_a_reboot() {
    let mut fixture = LayersFixture::new().await;
    let digests = several(&fixture, 2).await;
    let name = fixture.unpacked(&digests[0]).await;
    let second = fixture.unpacked(&digests[1]).await;
    // As a crash would leave it: unfinished, and finished without a record.
    fs::create_dir(fixture.layers.cache_dir().join("new-abc")).unwrap();
    fs::remove_file(second.with_extension("layer")).unwrap();
    fs::write(fixture.config.dir.join("new/half"), "x").unwrap();
    fixture.reopen().await;
    assert!(name.is_dir() && !second.exists());
    assert!(!fixture.layers.cache_dir().join("new-abc").exists());
    assert!(!fixture.config.dir.join("new/half").exists());
    assert_eq!(fixture.layers.cache_usage().cached, 1);

    let record = name.with_extension("layer");
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let text = fs::read_to_string(&record).unwrap();
    assert!(text.contains(boot.trim()));
    fs::write(&record, text.replace(boot.trim(), "another-boot")).unwrap();
    fixture.reopen().await;
    assert_eq!(fixture.layers.cache_usage().cached, 0);
    assert_eq!(fs::read_dir(fixture.layers.cache_dir()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_sweep_removes_unreferenced_layers_but_no_new_ones() {
    let mut fixture = LayersFixture::new().await;
    let digests = several(&fixture, 3).await;
    drop(fixture.layers.unpack_stack(&digests).await.unwrap());
    let keep: HashSet<_> = digests[..1].iter().cloned().collect();
    let hour = Duration::from_secs(3600);
    let swept = fixture.layers.sweep_unreferenced(&keep, hour).await.unwrap();
    assert_eq!((swept.deleted, swept.kept), (0, 3));

    let long_ago = std::time::SystemTime::now() - 2 * hour;
    for digest in &digests {
        let file = fs::File::options().write(true).open(fixture.blob(digest)).unwrap();
        file.set_modified(long_ago).unwrap();
    }
    // The file is old, but this process stored the layer just now.
    assert_eq!(fixture.layers.sweep_unreferenced(&keep, hour).await.unwrap().deleted, 0);
    fixture.reopen().await;
    store(&fixture.layers, pack_tree(&fixture.dir.path().join("tree1"))).await.unwrap();
    let swept = fixture.layers.sweep_unreferenced(&keep, hour).await.unwrap();
    assert_eq!((swept.deleted, swept.kept), (1, 2));
    assert!(fixture.layers.load_index(&digests[0]).await.is_ok());
    assert!(fixture.layers.load_index(&digests[1]).await.is_ok());
    assert!(matches!(fixture.layers.load_index(&digests[2]).await, Err(LayerError::Missing(_))));
    assert!(fixture.layers.unpack_stack(&digests[2..]).await.is_err(), "gone from the cache too");
}

#[tokio::test]
async fn a_removed_layer_leaves_the_cache_after_its_last_use() {
    let fixture = LayersFixture::new().await;
    let digests = several(&fixture, 2).await;
    let in_use = fixture.layers.unpack_stack(&digests).await.unwrap();
    let again = fixture.layers.unpack_stack(&digests[..1]).await.unwrap();
    let directory = fixture.layers.cache_dir().join(in_use.layer_names()[0]);
    fixture.layers.release_pin(&digests[0]);
    let needed = async { Ok::<_, LayerError>(false) };
    assert!(fixture.layers.remove_unless(&digests[0], needed).await.unwrap());
    drop(in_use);
    assert!(directory.is_dir(), "it is still in use");
    assert_eq!(fixture.layers.cache_usage().cached, 2);
    drop(again);
    assert_eq!(fixture.layers.cache_usage().cached, 1, "the other layer is stored");
    eventually("the directory is removed", async || {
        (!directory.exists()).then_some(()).ok_or("it is there")
    })
    .await;
    assert!(fixture.layers.unpack_stack(&digests[..1]).await.is_err());
    assert!(fixture.layers.unpack_stack(&digests[1..]).await.is_ok());
}

#[tokio::test]
async fn a_layer_that_is_stored_again_while_it_is_in_use_stays_in_the_cache() {
    let fixture = LayersFixture::new().await;
    let digest = several(&fixture, 1).await.remove(0);
    let in_use = fixture.layers.unpack_stack(from_ref(&digest)).await.unwrap();
    fixture.layers.release_pin(&digest);
    let needed = async { Ok::<_, LayerError>(false) };
    assert!(fixture.layers.remove_unless(&digest, needed).await.unwrap());
    store(&fixture.layers, pack_tree(&fixture.dir.path().join("tree0"))).await.unwrap();
    drop(fixture.layers.unpack_stack(from_ref(&digest)).await.unwrap());
    drop(in_use);
    assert_eq!(fixture.layers.cache_usage().cached, 1);
}

#[tokio::test]
async fn a_sweep_removes_unpacked_layers_that_are_not_stored() {
    let mut fixture = LayersFixture::new().await;
    let digests = several(&fixture, 2).await;
    let in_use = fixture.layers.unpack_stack(&digests).await.unwrap();
    fixture.layers.release_pin(&digests[0]);
    let needed = async { Ok::<_, LayerError>(false) };
    assert!(fixture.layers.remove_unless(&digests[0], needed).await.unwrap());
    // The process ends while it uses the layer.
    std::mem::forget(in_use);
    fixture.reopen().await;
    assert_eq!(fixture.layers.cache_usage().cached, 2);
    let hour = Duration::from_secs(3600);
    fixture.layers.sweep_unreferenced(&HashSet::new(), hour).await.unwrap();
    assert_eq!(fixture.layers.cache_usage().cached, 1);
    assert!(fixture.layers.unpack_stack(&digests[1..]).await.is_ok());
}

#[tokio::test]
async fn a_squashed_stack_gives_the_same_tree() {
    if !privileged() {
        return;
    }
    let fixture = LayersFixture::new().await;
    let (one, two) = (fixture.tree("one"), fixture.tree("two"));
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
    let stack = [fixture.store(&one).await.layer.digest, fixture.store(&two).await.layer.digest];
    let squashed = fixture.layers.squash_stack(&stack).await.unwrap().unwrap();
    let top = fixture.unpacked(&squashed.layer.digest).await;
    let found = snapshot(&top);
    let paths: Vec<_> = found.keys().map(|path| String::from_utf8_lossy(path)).collect();
    assert_eq!(paths, ["", "new", "new/inner", "new/inner/file", "stays", "twin"]);
    assert_eq!(found[&b"twin"[..]].linked_to.as_deref(), Some(&b"stays"[..]));
    assert_eq!(fs::read(top.join("new/inner/file")).unwrap(), b"moved");
    assert!(!top.with_extension("marks").exists());
    let (before, after) = (
        fixture.layers.load_tree(&stack).await.unwrap(),
        fixture.layers.load_tree(from_ref(&squashed.layer.digest)).await.unwrap(),
    );
    let diff = Tree::diff(&before, &after);
    assert_eq!(diff, cloche_layers::TreeDiff::default());
    let again =
        fixture.layers.squash_stack(from_ref(&squashed.layer.digest)).await.unwrap().unwrap();
    assert_eq!(again.layer.digest, squashed.layer.digest, "squashing is stable");
    assert_same("itself", &found, &snapshot(&top));
}

/// The peak memory of this process, in bytes.
fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[tokio::test]
async fn a_large_upload_takes_little_memory() {
    let fixture = LayersFixture::new().await;
    let size = 256 << 20;
    let mut writer = fixture.layers.begin_layer(&[]).await.unwrap();
    let content = tokio::io::repeat(7).take(size);
    let before = peak_memory();
    writer.put_file(b"up", 0o644, size, content).await.unwrap();
    let stored = writer.finish().await.unwrap().unwrap();
    let stack = [stored.layer.digest];
    let mut file = fixture.layers.open_file(&stack, b"up", Some(1000..size)).await.unwrap();
    let read = tokio::io::copy(&mut file.content, &mut tokio::io::sink()).await.unwrap();
    assert_eq!(read, size - 1000);
    drop(fixture.layers.unpack_stack(&stack).await.unwrap());
    // With one process for all tests, this counts their memory too.
    let more = peak_memory() - before;
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
