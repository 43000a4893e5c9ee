//! Runs in: test. The checks of the fuzz target for bytes from object stores and for paths.
//!
//! Each function takes arbitrary bytes and panics if a property of a parser does not hold. The test
//! at the end replays the seeds of the repository.

use crate::{ObjectPath, objects::filter_listing};

/// Filters the bytes as a list answer. What is kept is kept again.
pub fn check_listing(bytes: &[u8]) {
    if let Ok((kept, _)) = filter_listing(bytes) {
        let again = filter_listing(&kept);
        assert!(again.is_ok_and(|(again, hidden)| again == kept && hidden == 0));
    }
}

/// Parses the bytes as the path of an object. An accepted path has no way out of its prefix.
pub fn check_object_path(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(path) = ObjectPath::parse(text) {
        let is_plain = |name: &str| !matches!(name, "" | "." | "..");
        assert!(path.is_root() || path.as_str().split('/').all(is_plain));
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn fuzz_seeds_and_cuts_of_them_pass() {
        let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/listings");
        for seed in fs::read_dir(seeds).unwrap() {
            let seed = fs::read(seed.unwrap().path()).unwrap();
            for at in 0..seed.len() {
                check_listing(&seed[..at]);
                check_listing(&[&seed[..at], &seed[at..].repeat(2)].concat());
                check_object_path(&seed[at..]);
            }
        }
    }
}
