//! Runs in: test. The properties of the archive and image readers that the fuzz targets check.
//!
//! Each function takes arbitrary bytes and panics if a property does not hold. The tests at the end
//! replay the seeds in the tree.

use std::{
    collections::BTreeMap,
    fs,
    io::{Cursor, Read, Seek},
};

use cloche_model::{ByteSize, LayerDigest};
use sha2::{Digest, Sha256};

use crate::{
    LayerBounds, LayerError, LayerIndex, Tree,
    archive::{
        BLOCK,
        read::{ArchiveItem, ArchiveReader},
        split_path, write,
    },
    entry::{EntryKind, LayerEntry},
    error::PATH_BYTES,
    layer_index::IndexBuilder,
    oci,
};

/// Small limits that a fuzzer can reach.
const BOUNDS: LayerBounds = LayerBounds { entries: 256, bytes: ByteSize(1 << 20), ratio: 200 };
/// The longest input that is used.
const ARCHIVE: usize = 64 << 10;

/// Reads bytes as an archive, after repairing the checksums of its headers. An accepted layer is
/// within the bounds, names nothing outside the home, is rewritten with the same meaning, and gives
/// a tree in which every path has a parent directory.
pub fn check_archive(bytes: &[u8]) {
    let mut bytes = bytes[..bytes.len().min(ARCHIVE)].to_vec();
    repair_checksums(&mut bytes);
    let Ok(index) = read_index(&bytes) else { return };
    check_index(&index);

    let again = rewrite_archive(&bytes);
    let reread = read_index(&again).unwrap_or_else(|why| panic!("our own archive: {why}"));
    assert_eq!(without_offsets(&index), without_offsets(&reread), "rewritten with another meaning");
    assert_eq!(rewrite_archive(&again), again, "writing is not stable");

    let encoded =
        index.encode().unwrap_or_else(|why| panic!("an index that cannot be encoded: {why}"));
    assert_eq!(LayerIndex::decode(&encoded).as_ref(), Some(&index), "the decoded index differs");
    check_tree(&index);
}

/// Reads bytes as an OCI image: documents and a layer, separated by `%%` on lines of their own. In
/// the documents `@L`, `@D`, `@M` and `@C` are replaced by the digests of the layer, its archive,
/// the manifest and the configuration, and `#L`, `#M` and `#C` by their sizes.
pub fn check_image(bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(ARCHIVE)];
    let mut parts = bytes.splitn(2, |&byte| byte == b'\n');
    let compression = parts.next().and_then(|line| line.first()).copied().unwrap_or(0);
    let parts: Vec<&[u8]> = split_parts(parts.next().unwrap_or_default());
    let [layout, index, manifest, config, layer] = parts[..] else { return };
    let (layer, archive) = pack_layer(compression, layer);

    let mut values = BTreeMap::new();
    let mut put = |name: char, blob: &[u8]| {
        values.insert(format!("@{name}"), sha256_digest(blob).to_string());
        values.insert(format!("#{name}"), blob.len().to_string());
        values.clone()
    };
    put('D', &archive);
    let known = put('L', &layer);
    let config = fill_in(config, &known);
    let known = put('C', &config);
    let manifest = fill_in(manifest, &known);
    let known = put('M', &manifest);
    let index = fill_in(index, &known);

    let Ok(dir) = scratch_dir() else { return };
    let blobs = dir.path().join("blobs/sha256");
    let mut files = vec![
        (dir.path().join("oci-layout"), layout.to_vec()),
        (dir.path().join("index.json"), index),
    ];
    files.extend(
        [layer, config, manifest].map(|blob| (blobs.join(sha256_digest(&blob).hex_digits()), blob)),
    );
    let written = fs::create_dir_all(&blobs)
        .and_then(|()| files.iter().try_for_each(|(path, bytes)| fs::write(path, bytes)));
    assert!(written.is_ok(), "the image could not be written: {written:?}");
    let mut layers = 0;
    let result = oci::read_image(dir.path(), BOUNDS, |stored, ingested| {
        layers += 1;
        check_stored(stored, &ingested.digest, &ingested.index);
    });
    assert!(result.is_err() || layers > 0 || parts[2].windows(2).all(|at| at != b"@L"));
}

/// Reads bytes as a layer that another tool wrote, after repairing the checksums of its headers. A
/// converted layer is one that our packer could have written, and no error is the fault of ours.
pub fn check_foreign_layer(bytes: &[u8]) {
    let mut bytes = bytes[..bytes.len().min(ARCHIVE)].to_vec();
    repair_checksums(&mut bytes);
    match oci::convert_bytes(&bytes, BOUNDS) {
        Ok(None) => {}
        Ok(Some((stored, ingested))) => {
            check_stored(&stored, &ingested.digest, &ingested.index);
            check_tree(&ingested.index);
        }
        Err(LayerError::Refused(_) | LayerError::TooMuch(_) | LayerError::BadImage(_)) => {}
        Err(error) => panic!("not a refusal: {error:?}"),
    }
}

/// A stored layer matches its digest and its index.
fn check_stored(mut stored: &fs::File, wanted: &LayerDigest, index: &LayerIndex) {
    check_index(index);
    let mut blob = Vec::new();
    let read = stored.rewind().and_then(|()| stored.read_to_end(&mut blob));
    assert!(read.is_ok(), "a stored layer cannot be read: {read:?}");
    assert_eq!(sha256_digest(&blob), *wanted, "a stored layer has another digest");
    let archive = zstd::decode_all(&blob[..]);
    let archive = archive.unwrap_or_else(|why| panic!("a stored layer is not zstd: {why}"));
    let again = read_index(&archive).unwrap_or_else(|why| panic!("a stored layer: {why}"));
    assert_eq!(without_offsets(&again), without_offsets(index));
}

/// A directory for one image, in memory if possible.
fn scratch_dir() -> std::io::Result<tempfile::TempDir> {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())
}

fn split_parts(bytes: &[u8]) -> Vec<&[u8]> {
    const BETWEEN: &[u8] = b"\n%%\n";
    let mut parts = Vec::new();
    let mut rest = bytes;
    while parts.len() < 4 {
        let Some(at) = rest.windows(BETWEEN.len()).position(|at| at == BETWEEN) else { break };
        parts.push(&rest[..at]);
        rest = &rest[at + BETWEEN.len()..];
    }
    parts.push(rest);
    parts
}

/// The layer's blob and its archive: unchanged, or compressed after its checksums were repaired.
fn pack_layer(compression: u8, bytes: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut archive = bytes.to_vec();
    if compression != b'r' {
        repair_checksums(&mut archive);
    }
    let blob = match compression {
        b'g' => {
            let mut blob = Vec::new();
            let mut encoder =
                flate2::read::GzEncoder::new(&archive[..], flate2::Compression::fast());
            encoder.read_to_end(&mut blob).map(|_| blob).unwrap_or_default()
        }
        b'z' => zstd::encode_all(&archive[..], 1).unwrap_or_default(),
        _ => archive.clone(),
    };
    (blob, archive)
}

fn fill_in(document: &[u8], values: &BTreeMap<String, String>) -> Vec<u8> {
    let mut text = String::from_utf8_lossy(document).into_owned();
    for (name, value) in values {
        text = text.replace(name, value);
    }
    text.into_bytes()
}

fn sha256_digest(bytes: &[u8]) -> LayerDigest {
    LayerDigest::from_sha256(Sha256::digest(bytes).into())
}

/// Repairs the checksum of every block that a reader would take for a header.
fn repair_checksums(bytes: &mut [u8]) {
    let mut at = 0;
    while let Some(block) = bytes.get_mut(at..at + BLOCK) {
        at += BLOCK;
        if block.iter().all(|&byte| byte == 0) {
            continue;
        }
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        let size = std::str::from_utf8(&block[124..135]).ok();
        let size = size.and_then(|size| usize::from_str_radix(size, 8).ok()).unwrap_or(0);
        at = at.saturating_add(size.next_multiple_of(BLOCK));
    }
}

fn read_index(bytes: &[u8]) -> Result<LayerIndex, LayerError> {
    IndexBuilder::from_archive(&mut ArchiveReader::new(bytes), BOUNDS)?
        .finish(Vec::new(), bytes.len() as u64)
}

/// Rewrites an archive entry by entry, as an import does.
fn rewrite_archive(bytes: &[u8]) -> Vec<u8> {
    let mut archive = ArchiveReader::new(bytes);
    let mut out = Cursor::new(Vec::new());
    loop {
        let written = match archive.next_item() {
            Ok(Some(ArchiveItem::Opaque(path))) => write::write_opaque(&mut out, &path),
            Ok(Some(ArchiveItem::Entry(entry))) => write::write_header(&mut out, &entry)
                .and_then(|()| std::io::copy(&mut archive, &mut out))
                .and_then(|copied| {
                    assert_eq!(copied, entry.kind.data_bytes(), "data of another length");
                    write::write_padding(&mut out, copied)
                }),
            Ok(None) => break,
            Err(why) => panic!("accepted at first, refused the second time: {why}"),
        };
        assert!(written.is_ok());
    }
    assert!(write::write_end(&mut out).is_ok());
    out.into_inner()
}

/// The entries without the offsets of their data, which depend on how they are written.
fn without_offsets(index: &LayerIndex) -> Vec<LayerEntry> {
    let mut entries = index.entries().to_vec();
    for entry in &mut entries {
        if let EntryKind::File { data_at, .. } = &mut entry.kind {
            *data_at = 0;
        }
    }
    entries
}

fn check_index(index: &LayerIndex) {
    let entries = index.entries();
    assert!(entries.len() as u64 <= BOUNDS.entries && index.data_bytes() <= BOUNDS.bytes.bytes());
    assert!(
        entries.windows(2).all(|pair| pair[0].path < pair[1].path),
        "duplicate or unsorted paths"
    );
    assert!(entries.first().is_some_and(|home| home.path.is_empty()), "no home");
    for entry in entries {
        check_path(&entry.path);
        let parent = index.get(split_path(&entry.path).0).map(|parent| &parent.kind);
        assert!(
            matches!(parent, Some(EntryKind::Directory { .. })),
            "a path without a parent directory"
        );
        match &entry.kind {
            EntryKind::HardLink { target } => {
                check_path(target);
                let target = index.get(target).map(|target| &target.kind);
                assert!(!matches!(
                    target,
                    None | Some(EntryKind::Directory { .. } | EntryKind::HardLink { .. })
                ));
            }
            EntryKind::Directory { redirect: Some(from), .. } => check_path(from),
            EntryKind::Symlink { target } => assert!(!target.contains(&0) && !target.is_empty()),
            EntryKind::File { size, extents: Some(extents), .. } => {
                assert!(extents.iter().all(|part| part.offset + part.length <= *size));
                assert!(
                    extents.windows(2).all(|two| two[0].offset + two[0].length <= two[1].offset)
                );
            }
            _ => {}
        }
        let is_directory = matches!(entry.kind, EntryKind::Directory { .. });
        assert!(entry.mode & !0o7777 == 0 && (is_directory || entry.mode & 0o6000 == 0));
        let odd = |name: &[u8]| !name.starts_with(b"user.") || name.starts_with(b"user.overlay.");
        assert!(entry.xattrs.iter().all(|(name, _)| !odd(name) && !name.contains(&0)));
        assert!(entry.mtime.nanos < 1_000_000_000);
    }
}

fn check_path(path: &[u8]) {
    assert!(path.len() <= PATH_BYTES && !path.contains(&0));
    let odd = |name: &[u8]| matches!(name, b"" | b"." | b"..") || name.len() > 255;
    assert!(path.is_empty() || !path.split(|&byte| byte == b'/').any(odd), "{path:?}");
}

/// Applies the layer to an empty tree and to itself.
fn check_tree(index: &LayerIndex) {
    let name = sha256_digest(b"fuzz");
    let mut tree = Tree::default();
    for _ in 0..2 {
        if tree.apply_layer(&name, index, BOUNDS).is_err() {
            return;
        }
        for (path, _) in tree.walk() {
            check_path(path);
            let parent = tree.get(split_path(path).0);
            let is_directory = parent.is_some_and(|node| node.kind == crate::NodeKind::Directory);
            assert!(is_directory, "{:?} has no parent directory", String::from_utf8_lossy(path));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// A fuzz target and its check.
    type FuzzCheck = (&'static str, fn(&[u8]));

    #[test]
    fn seeds_of_the_fuzz_targets_pass() {
        let all: [FuzzCheck; 3] =
            [("archive", check_archive), ("image", check_image), ("foreign", check_foreign_layer)];
        for (target, check) in all {
            let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
            let seeds: Vec<_> =
                fs::read_dir(seeds).unwrap().map(|seed| seed.unwrap().path()).collect();
            assert!(!seeds.is_empty(), "{target} has no seeds");
            seeds.iter().for_each(|seed| check(&fs::read(seed).unwrap()));
        }
    }
}
