//! Runs in: spawner (root). The host ids of this spawner's cells, which no other spawner has.
//!
//! Two spawners on one host, such as two servers or `cloche run` beside `cloche serve`, would give
//! their first guests the same host id if both counted from the same number. Each reserves a range
//! by a lock on a file of its own, which the kernel releases when the spawner and its cells are
//! gone.

use std::{
    fs::{DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::Path,
};

use rustix::fs::FlockOperation;

/// The directory of lock files, one for each range. The files are empty and stay.
const LOCKS: &str = "/run/cloche-host-ids";
/// The first host id of all ranges.
const FIRST_ID: u32 = 0x7000_0000;
/// How many ids an image can use: its owner and the 65,535 after it.
const IMAGE_IDS: u32 = 0x1_0000;
/// How many guests of one spawner can be alive at once, each with an id of its own.
pub(super) const GUEST_IDS: u32 = 60_000;
/// How many ids stack workers have.
const WORKER_IDS: u32 = 4096;
/// How many ids mount servers have that open no file of the server.
const MOUNT_SERVER_IDS: u32 = 1024;
/// The ids of one spawner: those of the image, of guests, of stack workers and of mount servers.
const RANGE_IDS: u32 = 2 * IMAGE_IDS;
/// How many spawners a host can have at once.
const RANGES: u32 = 1024;
const _: () = assert!(GUEST_IDS + WORKER_IDS + MOUNT_SERVER_IDS <= RANGE_IDS - IMAGE_IDS);
const _: () =
    assert!((RANGES as u64) * (RANGE_IDS as u64) + FIRST_ID as u64 <= i32::MAX as u64 + 1);

/// The host ids of one spawner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HostIds {
    first: u32,
}

impl HostIds {
    /// The host ids of a spawner without a range of its own: that of an ordinary user, or one that
    /// could not reserve a range.
    pub(super) const SHARED: Self = Self { first: FIRST_ID };

    /// The host id that owns the image.
    pub(super) const fn image_owner(self) -> u32 {
        self.first
    }

    /// How many ids the image has, from its owner on.
    pub(super) const fn image_ids(self) -> u32 {
        IMAGE_IDS
    }

    /// The host id of the stack worker of the cell in a slot. Workers of cells that are alive at
    /// once share an id only if there are more than [`WORKER_IDS`].
    pub(super) const fn worker_id(self, slot: u32) -> u32 {
        self.first + IMAGE_IDS + GUEST_IDS + slot % WORKER_IDS
    }

    /// The host id of the mount server of the cell in a slot, if it opens no file of the server.
    pub(super) const fn mount_server_id(self, slot: u32) -> u32 {
        self.first + IMAGE_IDS + GUEST_IDS + WORKER_IDS + slot % MOUNT_SERVER_IDS
    }

    /// The host id of the guest in a slot.
    pub(super) const fn guest_id(self, slot: u32) -> u32 {
        self.first + IMAGE_IDS + slot
    }
}

/// Reserves the first free range, for as long as the file is open.
pub(super) fn reserve_host_ids() -> io::Result<(HostIds, File)> {
    reserve_in(Path::new(LOCKS))
}

fn reserve_in(locks: &Path) -> io::Result<(HostIds, File)> {
    DirBuilder::new().recursive(true).mode(0o700).create(locks)?;
    let found = std::fs::symlink_metadata(locks)?;
    // Another user could hold locks in a directory that belongs to it.
    if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other(format!(
            "{} is not a directory of this user",
            locks.display()
        )));
    }
    for range in 0..RANGES {
        let path = locks.join(range.to_string());
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) if is_named(&file, &path) => {
                return Ok((HostIds { first: FIRST_ID + range * RANGE_IDS }, file));
            }
            // A purge of the package removed it meanwhile, and the next spawner makes it anew.
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Err(io::Error::other(format!("all {RANGES} ranges of host ids are in use")))
}

/// Whether the path still leads to the open file.
fn is_named(file: &File, path: &Path) -> bool {
    let (Ok(open), Ok(named)) = (file.metadata(), std::fs::symlink_metadata(path)) else {
        return false;
    };
    (open.dev(), open.ino()) == (named.dev(), named.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_reserved_once_and_free_again_when_its_file_is_closed() {
        let locks = tempfile::tempdir().unwrap();
        let (first, file) = reserve_in(locks.path()).unwrap();
        let (second, _second_file) = reserve_in(locks.path()).unwrap();
        assert!(first.guest_id(GUEST_IDS - 1) < second.image_owner());
        drop(file);
        assert_eq!(reserve_in(locks.path()).unwrap().0, first);
    }

    #[test]
    fn the_lock_of_a_removed_file_reserves_nothing() {
        let locks = tempfile::tempdir().unwrap();
        let (_, file) = reserve_in(locks.path()).unwrap();
        let path = locks.path().join("0");
        assert!(is_named(&file, &path));
        std::fs::remove_file(&path).unwrap();
        assert!(!is_named(&file, &path));
        File::create(&path).unwrap();
        assert!(!is_named(&file, &path));
    }
}
