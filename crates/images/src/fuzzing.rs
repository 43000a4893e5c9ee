//! Runs in: test. The properties of the readers of archives and documents that the fuzz target
//! checks. The tests at the end replay the seeds in the tree.

use crate::{
    ArchiveDir, ArchiveLimits, ImageProgress, ImportChoice,
    documents::{ConfigDocument, ManifestDocument},
    elf::recognize_program,
    import::find_image,
};

/// The longest input that is used.
const INPUT: usize = 256 << 10;
/// Small limits that a fuzzer can reach.
const LIMITS: ArchiveLimits = ArchiveLimits { files: 64, bytes: 128 << 10 };

/// Reads bytes as an archive of an image, as each of its documents, and as a program. Nothing may
/// panic, and what is accepted is within the limits.
pub fn check_image_archive(bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(INPUT)];
    recognize_program(bytes);
    if let Ok(ManifestDocument::Manifest(manifest)) = ManifestDocument::parse(bytes, 8) {
        assert!(manifest.layers.len() <= 8, "too many layers were accepted");
    }
    if let Ok(config) = ConfigDocument::parse(bytes, 1) {
        let mut notes = Vec::new();
        if let Ok(settings) = config.settings(&mut notes) {
            let workdir = settings.workdir.unwrap_or("/".to_owned());
            assert!(workdir.starts_with('/') && !workdir.split('/').any(|part| part == ".."));
        }
    }
    let Ok(spool) = tempfile::tempdir() else { return };
    let progress = ImageProgress::default();
    let Ok(dir) = ArchiveDir::read_tar(bytes, spool.path(), LIMITS, &progress) else {
        let left = std::fs::read_dir(spool.path()).map(Iterator::count);
        assert_eq!(left.unwrap_or(0), 0, "a refused archive left files behind");
        return;
    };
    assert!(dir.names().values().sum::<u64>() <= LIMITS.bytes, "too many bytes were accepted");
    if let Ok(found) = find_image(&dir, &ImportChoice::default(), 8) {
        assert!(found.layers.len() <= 8, "too many layers were accepted");
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn seeds_of_the_fuzz_target_pass() {
        let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/image_archive");
        let seeds: Vec<_> = fs::read_dir(seeds).unwrap().map(|seed| seed.unwrap().path()).collect();
        assert!(!seeds.is_empty(), "there are no seeds");
        seeds.iter().for_each(|seed| check_image_archive(&fs::read(seed).unwrap()));
    }
}
