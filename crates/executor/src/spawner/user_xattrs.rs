//! Runs in: spawner (root) and packer. Extended attributes that a guest gave its files.

use std::{io, os::fd::OwnedFd};

use rustix::io::Errno;

/// The longest list of names and the longest value that the kernel has.
const MOST_XATTRS: usize = 1 << 16;

/// The `user.` attributes of a file but those of an overlay, sorted by name.
pub(crate) fn read_user_xattrs(file: &OwnedFd) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    // Most files have next to none.
    let mut list = vec![0; 1 << 10];
    let length = match rustix::fs::flistxattr(file, &mut list[..]) {
        Err(Errno::RANGE) => {
            list.resize(MOST_XATTRS, 0);
            rustix::fs::flistxattr(file, &mut list[..])?
        }
        length => length?,
    };
    let is_of_guest =
        |name: &&[u8]| name.starts_with(b"user.") && !name.starts_with(b"user.overlay.");
    let names = list[..length].split(|byte| *byte == 0).filter(is_of_guest);
    let mut found = Vec::new();
    for name in names {
        let mut value = vec![0; MOST_XATTRS];
        let length = rustix::fs::fgetxattr(file, name, &mut value[..])?;
        found.push((name.to_vec(), value[..length].to_vec()));
    }
    found.sort();
    Ok(found)
}
