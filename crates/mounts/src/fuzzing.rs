//! Runs in: test. The checks of the fuzz targets for bytes from object stores, for paths, and for
//! packets between the server and a mount server.
//!
//! Each function takes arbitrary bytes and panics if a property of a parser does not hold. The test
//! at the end replays the seeds of the repository.

use serde::{Serialize, de::DeserializeOwned};

use crate::{MountCommand, MountServerRequest, ObjectPath, objects::filter_listing};

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

/// Parses the bytes as a packet between the server and a mount server, in both directions. What is
/// accepted is written and read again as the same packet.
pub fn check_mount_packet(bytes: &[u8]) {
    check_packet_of::<MountServerRequest>(bytes);
    check_packet_of::<MountCommand>(bytes);
}

fn check_packet_of<T: Serialize + DeserializeOwned>(bytes: &[u8]) {
    let Ok(packet) = serde_json::from_slice::<T>(bytes) else { return };
    let written = serde_json::to_vec(&packet).unwrap_or_default();
    let again = serde_json::from_slice::<T>(&written).ok();
    let again = again.and_then(|again| serde_json::to_vec(&again).ok());
    assert_eq!(again.as_ref(), Some(&written));
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    /// The seeds of a target, each also cut off at every place.
    fn for_each_cut(target: &str, mut check: impl FnMut(&[u8], &[u8])) {
        let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
        for seed in fs::read_dir(seeds).unwrap() {
            let seed = fs::read(seed.unwrap().path()).unwrap();
            for at in 0..=seed.len() {
                let (begin, rest) = seed.split_at(at);
                check(begin, rest);
            }
        }
    }

    #[test]
    fn fuzz_seeds_and_cuts_of_them_pass() {
        for_each_cut("listings", |begin, rest| {
            check_listing(begin);
            check_listing(&[begin, &rest.repeat(2)].concat());
            check_object_path(rest);
        });
        for_each_cut("mount_packets", |begin, rest| {
            check_mount_packet(begin);
            check_mount_packet(&[begin, &rest.repeat(2)].concat());
        });
    }
}
