//! Archives that try to escape or to use too much. Each is tried at both entry points: it is not
//! stored, and if it is in the store already, it is not unpacked.

use std::fs;
use std::slice::from_ref;

use cloche_layers::{LayerBounds, LayerError};
use cloche_model::ByteSize;
use proptest::prelude::*;

use crate::{
    snapshot::snapshot,
    support::{Forged, LayersFixture, pack_tree, store},
};

const FILE: u8 = b'0';
const HARD: u8 = b'1';
const SOFT: u8 = b'2';
const CHARACTER: u8 = b'3';
const BLOCK: u8 = b'4';
const DIRECTORY: u8 = b'5';
const PIPE: u8 = b'6';

/// Asserts that both entry points refuse the archive for this reason, and that no file was changed.
async fn assert_refused(archive: Vec<u8>, why: &str) {
    let fixture = LayersFixture::new().await;
    let victim = fixture.dir.path().join("victim");
    fs::write(&victim, "untouched").unwrap();
    let error = store(&fixture.layers, archive.clone()).await.unwrap_err();
    assert!(error.to_string().contains(why), "{why:?} is not in {error}");
    assert_eq!(fs::read_dir(fixture.config.dir.join("new")).unwrap().count(), 0);

    let digest = fixture.forge(&archive);
    let error = fixture.layers.unpack_stack(from_ref(&digest)).await.unwrap_err();
    assert!(matches!(&error, LayerError::Damaged { .. } | LayerError::TooMuch(_)), "{error:?}");
    assert_eq!(fs::read_dir(fixture.layers.cache_dir()).unwrap().count(), 0);
    assert_eq!(fs::read_to_string(victim).unwrap(), "untouched");
    let beside: Vec<_> = fs::read_dir(fixture.dir.path()).unwrap().collect();
    assert_eq!(beside.len(), 2, "{beside:?}");
}

#[tokio::test]
async fn traversal_is_refused() {
    for name in [&b"../victim"[..], b"a/../../victim", b"..", b"./../x", b"a/..", b"../"] {
        assert_refused(Forged::new().entry(name, FILE, b"", b"evil").end(), "leads out").await;
    }
    let long = [(&b"path"[..], &b"a/../../../victim"[..])];
    let archive = Forged::new().records(&long).entry(b"fine", FILE, b"", b"").end();
    assert_refused(archive, "leads out").await;
    let named = [(&b"CLOCHE.name"[..], &b"../victim"[..])];
    let archive = Forged::new().records(&named).entry(b"fine", FILE, b"", b"").end();
    assert_refused(archive, "leads out").await;
    let gone = [(&b"CLOCHE.whiteout"[..], &b"../victim"[..])];
    let archive = Forged::new().records(&gone).entry(b".wh.fine", FILE, b"", b"").end();
    assert_refused(archive, "leads out").await;
}

#[tokio::test]
async fn absolute_and_odd_names_are_refused() {
    for (name, why) in [
        (&b"/etc/passwd"[..], "absolute"),
        (b"//x", "absolute"),
        (b"a//b", "empty name"),
        (b"a/./b", "empty name"),
        (b".wh.", "whiteout without a path"),
        (b".wh...", "leads out"),
        (b".wh..", "empty name"),
        (b".wh..wh.plnk", "whiteout of an unknown kind"),
    ] {
        assert_refused(Forged::new().entry(name, FILE, b"", b"").end(), why).await;
    }
    let nul = [(&b"path"[..], &b"a\0b"[..])];
    assert_refused(Forged::new().records(&nul).entry(b"x", FILE, b"", b"").end(), "NUL").await;
    let long = vec![b'n'; 256];
    let records = [(&b"path"[..], &long[..])];
    let archive = Forged::new().records(&records).entry(b"x", FILE, b"", b"").end();
    assert_refused(archive, "too long").await;
    let long = b"d/".repeat(9000);
    let records = [(&b"path"[..], &long[..])];
    let archive = Forged::new().records(&records).entry(b"x", FILE, b"", b"").end();
    assert_refused(archive, "a path of").await;
}

#[tokio::test]
async fn hard_links_out_of_the_home_are_refused() {
    for target in [&b"../victim"[..], b"/etc/passwd", b"missing", b"./", b"d"] {
        let archive = Forged::new().entry(b"d/", DIRECTORY, b"", b"");
        let why = match target {
            b"../victim" => "leads out",
            b"/etc/passwd" => "absolute",
            _ => "hard link to a missing target",
        };
        assert_refused(archive.entry(b"link", HARD, target, b"").end(), why).await;
    }
    // A hard link to a symbolic link is a second symbolic link, not the file outside.
    let archive = Forged::new()
        .entry(b"out", SOFT, b"../../victim", b"")
        .entry(b"link", HARD, b"out", b"")
        .entry(b"link/x", FILE, b"", b"evil");
    assert_refused(archive.end(), "without its parent directory").await;
}

#[tokio::test]
async fn nothing_is_written_through_a_link() {
    for target in [&b"/proc"[..], b"/dev", b"..", b"."] {
        let archive = Forged::new().entry(b"link", SOFT, target, b"").entry(
            b"link/victim",
            FILE,
            b"",
            b"evil",
        );
        assert_refused(archive.end(), "without its parent directory").await;
        let archive =
            Forged::new().entry(b"link", SOFT, target, b"").entry(b"link", FILE, b"", b"evil");
        assert_refused(archive.end(), "duplicate path").await;
    }
    let archive = Forged::new().entry(b"f", FILE, b"", b"").entry(b"f/inside", FILE, b"", b"evil");
    assert_refused(archive.end(), "without its parent directory").await;
}

#[tokio::test]
async fn symbolic_links_are_kept_and_never_followed() {
    let fixture = LayersFixture::new().await;
    let archive = Forged::new()
        .entry(b"exe", SOFT, b"/proc/self/exe", b"")
        .entry(b"up", SOFT, b"../../../../etc", b"")
        .end();
    let stored = store(&fixture.layers, archive).await.unwrap().unwrap();
    let unpacked = fixture.unpacked(&stored.layer.digest).await;
    assert_eq!(fs::read_link(unpacked.join("exe")).unwrap().to_str(), Some("/proc/self/exe"));
    let stack = [stored.layer.digest];
    assert!(fixture.layers.open_file(&stack, b"up/passwd", None).await.is_err());
    assert!(fixture.layers.open_file(&stack, b"exe", None).await.is_err());
    let mut writer = fixture.layers.begin_layer(&stack).await.unwrap();
    assert!(writer.put_file(b"up/x", 0o644, 0, tokio::io::empty()).await.is_err());
}

#[tokio::test]
async fn device_nodes_are_refused() {
    for kind in [CHARACTER, BLOCK] {
        assert_refused(Forged::new().entry(b"dev", kind, b"", b"").end(), "device node").await;
    }
    for kind in [b'7', b'S', b'V', b'M', b'Z', b'A'] {
        assert_refused(Forged::new().entry(b"odd", kind, b"", b"").end(), "not a layer").await;
    }
}

#[tokio::test]
async fn whiteouts_with_content_are_refused() {
    let deletions: [(&[u8], u8, &[u8]); 4] = [
        (b".wh.x", FILE, b"data"),
        (b".wh.x", DIRECTORY, b""),
        (b".wh.x", SOFT, b""),
        (b".wh..wh..opq", PIPE, b""),
    ];
    for (name, kind, data) in deletions {
        let archive = Forged::new().entry(name, kind, b"target", data).end();
        let why = if data.is_empty() { "whiteout with content" } else { "whiteout" };
        assert_refused(archive, why).await;
    }
    let archive = Forged::new().entry(b"nowhere/.wh..wh..opq", FILE, b"", b"").end();
    assert_refused(archive, "opaque mark for a path that is not a directory").await;
    let both = Forged::new().entry(b"x", FILE, b"", b"").entry(b".wh.x", FILE, b"", b"").end();
    assert_refused(both, "duplicate path").await;
}

#[tokio::test]
async fn redirects_out_of_the_home_are_refused() {
    for (from, why) in [
        (&b"../x"[..], "redirect without a path"),
        (b"/../x", "leads out"),
        (b"/", "redirect without a path"),
        (b"x", "redirect without a path"),
        (b"//x", "absolute"),
    ] {
        let records = [(&b"CLOCHE.redirect"[..], from)];
        let archive = Forged::new().records(&records).entry(b"d/", DIRECTORY, b"", b"").end();
        assert_refused(archive, why).await;
    }
}

#[tokio::test]
async fn broken_archives_are_refused() {
    assert_refused(Vec::new(), "ends early").await;
    assert_refused(Forged::empty().end(), "without a home").await;
    assert_refused(Forged::empty().entry(b"x", FILE, b"", b"").end(), "parent directory").await;
    assert_refused(Forged::new().entry(b"x", FILE, b"", b"data").cut(), "ends early").await;
    assert_refused(
        Forged::new().entry(b"./", FILE, b"", b"").end(),
        "home that is not a directory",
    )
    .await;
    let mut cut = Forged::new().entry(b"x", FILE, b"", &[7; 3000]).cut();
    cut.truncate(cut.len() - 1024);
    assert_refused(cut, "ends early").await;
    let mut wrong = Forged::new().entry(b"x", FILE, b"", b"").end();
    wrong[512] ^= 1;
    assert_refused(wrong, "checksum").await;
    let mut more = Forged::new().entry(b"x", FILE, b"", b"").end();
    more.extend_from_slice(b"more");
    assert_refused(more, "after its end").await;
    let dangling = Forged::new().records(&[(b"path", b"x")]).end();
    assert_refused(dangling, "records that no entry follows").await;
    let twice = Forged::new().records(&[(b"path", b"x")]).records(&[(b"path", b"y")]);
    assert_refused(twice.entry(b"x", FILE, b"", b"").end(), "more than one entry").await;
    let global = Forged::new().entry(b"x", b'g', b"", b"9 path=x\n");
    assert_refused(global.entry(b"x", FILE, b"", b"").end(), "more than one entry").await;
    let malformed = Forged::new().entry(b"x", b'x', b"", b"99 path=x\n");
    assert_refused(malformed.entry(b"x", FILE, b"", b"").end(), "malformed pax").await;
    let data = Forged::new().entry(b"d/", DIRECTORY, b"", b"data").end();
    assert_refused(data, "data in an entry that is not a file").await;
}

/// A sparse file of 100 bytes with this map before its data.
fn sparse(map: &[u8], data: &[u8]) -> Vec<u8> {
    let mut content = map.to_vec();
    content.resize(map.len().next_multiple_of(512), 0);
    content.extend_from_slice(data);
    Forged::new()
        .records(&[
            (b"GNU.sparse.major", b"1"),
            (b"GNU.sparse.minor", b"0"),
            (b"GNU.sparse.realsize", b"100"),
        ])
        .entry(b"x", FILE, b"", &content)
        .end()
}

#[tokio::test]
async fn inconsistent_sparse_maps_are_refused() {
    let fixture = LayersFixture::new().await;
    assert!(store(&fixture.layers, sparse(b"1\n0\n4\n", b"data")).await.is_ok());
    for (map, data) in [
        (&b"1\n98\n4\n"[..], &b"data"[..]),
        (b"1\n18446744073709551615\n4\n", b"data"),
        (b"2\n10\n2\n0\n2\n", b"data"),
        (b"1\n0\n5\n", b"data"),
        (b"1\n0\n3\n", b"data"),
        (b"x\n", b""),
        (b"1\n-1\n4\n", b"data"),
    ] {
        assert_refused(sparse(map, data), "sparse map").await;
    }
    assert_refused(sparse(b"9999999\n", b""), "too many extents").await;
    let huge = Forged::new()
        .records(&[
            (b"GNU.sparse.major", b"1"),
            (b"GNU.sparse.minor", b"0"),
            (b"GNU.sparse.realsize", b"9223372036854775807"),
        ])
        .entry(b"x", FILE, b"", b"0\n");
    assert_refused(huge.end(), "too large").await;
}

#[tokio::test]
async fn a_false_size_in_a_header_is_refused() {
    let huge = Forged::new().records(&[(b"size", b"18446744073709551615")]);
    assert_refused(huge.entry(b"x", FILE, b"", b"").end(), "too large").await;
    let mut header = tar::Header::new_ustar();
    header.as_old_mut().name[0] = b'x';
    header.set_entry_type(tar::EntryType::XHeader);
    header.set_size(1 << 40);
    assert_refused(Forged::new().header(header, b"").end(), "too long").await;
}

#[tokio::test]
async fn bounds_are_enforced_while_streaming() {
    let bounds = LayerBounds { entries: 5, bytes: ByteSize(1000), ratio: 2000 };
    let fixture = LayersFixture::with(ByteSize::gib(1), bounds).await;
    let mut many = Forged::new();
    for name in [b"a", b"b", b"c", b"d", b"e"] {
        many = many.entry(name, FILE, b"", b"");
    }
    let large = Forged::new().entry(b"a", FILE, b"", &[0; 600]).entry(b"b", FILE, b"", &[0; 600]);
    for (archive, why) in [(many.end(), "too many entries"), (large.end(), "too many bytes")] {
        let error = store(&fixture.layers, archive.clone()).await.unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
        let digest = fixture.forge(&archive);
        let error = fixture.layers.unpack_stack(&[digest]).await.unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
    assert_eq!(fs::read_dir(fixture.layers.cache_dir()).unwrap().count(), 0);
}

#[tokio::test]
async fn overlay_attributes_in_an_archive_are_ignored() {
    let fixture = LayersFixture::new().await;
    let archive = Forged::new()
        .records(&[
            (b"SCHILY.xattr.user.overlay.opaque", b"y"),
            (b"SCHILY.xattr.trusted.overlay.redirect", b"/x"),
            (b"SCHILY.xattr.security.capability", b"x"),
            (b"SCHILY.xattr.user.mine", b"kept"),
        ])
        .entry(b"d/", DIRECTORY, b"", b"")
        .end();
    let stored = store(&fixture.layers, archive).await.unwrap().unwrap();
    let unpacked = snapshot(&fixture.unpacked(&stored.layer.digest).await);
    assert_eq!(unpacked[&b"d"[..]].xattrs, [(b"user.mine".to_vec(), b"kept".to_vec())]);
}

/// A small archive with entries of most kinds.
fn seed() -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("d")).unwrap();
    fs::write(dir.path().join("d/file"), "content").unwrap();
    fs::write(dir.path().join(".wh.mine"), "x").unwrap();
    fs::write(dir.path().join("n".repeat(150)), "long").unwrap();
    fs::hard_link(dir.path().join("d/file"), dir.path().join("link")).unwrap();
    std::os::unix::fs::symlink("d", dir.path().join("soft")).unwrap();
    let sparse = fs::File::create(dir.path().join("sparse")).unwrap();
    sparse.set_len(1 << 20).unwrap();
    pack_tree(dir.path())
}

proptest! {
    #![proptest_config(crate::support::cases(200))]

    /// Any bytes give an error or a layer, never a panic, and change nothing outside. An accepted
    /// layer can be unpacked.
    #[test]
    fn random_damage_is_refused_or_harmless(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        mend in any::<bool>(),
    ) {
        let mut archive = seed();
        for (at, byte) in &damage {
            let at = at.index(archive.len());
            archive[at] = *byte;
        }
        if mend {
            // With correct checksums the damage gets past the first check.
            for block in archive.chunks_mut(512).filter(|block| &block[257..262] == b"ustar") {
                let header: &mut [u8; 512] = block.try_into().unwrap();
                let mut copy = tar::Header::from_byte_slice(header).clone();
                copy.set_cksum();
                header.copy_from_slice(copy.as_bytes());
            }
        }
        tokio::runtime::Runtime::new().unwrap().block_on(async {
            let fixture = LayersFixture::new().await;
            let stored = store(&fixture.layers, archive.clone()).await;
            let forged = fixture.forge(&archive);
            let unpacked = fixture.layers.unpack_stack(&[forged]).await;
            match stored {
                Ok(Some(stored)) => {
                    unpacked.unwrap();
                    fixture.layers.load_tree(&[stored.layer.digest]).await.unwrap();
                }
                Ok(None) => {}
                Err(_) => {
                    unpacked.unwrap_err();
                    assert_eq!(fs::read_dir(fixture.layers.cache_dir()).unwrap().count(), 0);
                }
            }
            assert_eq!(fs::read_dir(fixture.dir.path()).unwrap().count(), 1);
        });
    }
}
