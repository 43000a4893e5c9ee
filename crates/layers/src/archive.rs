//! Layers as archives: POSIX pax with the conventions of OCI for deletions, and four records of
//! our own for what those cannot say.
//!
//! The `tar` crate knows the header block. Records are read and written here, because it splits them
//! at line ends, which values may contain, and knows no sparse files of the pax kind.

pub(crate) mod pax;
pub(crate) mod read;
mod records;
pub(crate) mod write;

use crate::{
    LayerError,
    error::{NAME_BYTES, PATH_BYTES},
};

/// The size of a header and the unit of everything.
pub(crate) const BLOCK: usize = 512;
/// What the name of a deletion begins with.
const WHITEOUT: &[u8] = b".wh.";
/// The file that makes its directory opaque.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// What `.wh.` becomes at the beginning of a guest's own names.
const ESCAPED: &[u8] = b".%wh.";
/// Everything belongs to the one guest.
const OWNER: u64 = 1000;

/// The path of an entry whose name in the archive is escaped.
const NAME: &[u8] = b"CLOCHE.name";
/// The target of a hard link, likewise.
const LINK_NAME: &[u8] = b"CLOCHE.linkname";
/// The path that a deletion with an escaped name deletes.
const WHITEOUT_PATH: &[u8] = b"CLOCHE.whiteout";
/// Where older layers hold a directory.
const REDIRECT: &[u8] = b"CLOCHE.redirect";
/// What the records of extended attributes begin with.
const XATTR: &[u8] = b"SCHILY.xattr.";
/// The only namespace that is kept.
pub(crate) const USER: &[u8] = b"user.";
/// Overlayfs's own attributes in that namespace: nobody may bring them from outside.
pub(crate) const USER_OVERLAY: &[u8] = b"user.overlay.";

/// The directory of a path and its last name.
pub(crate) fn split_path(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&[], path),
    }
}

/// A path below a directory.
pub(crate) fn join_path(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_vec() } else { [directory, name].join(&b'/') }
}

/// Checks that a path stays below the home and has one spelling.
pub(crate) fn check_path(path: &[u8]) -> Result<(), LayerError> {
    let refuse = |why: &str| {
        Err(LayerError::Refused(format!("the path {:?} {why}", String::from_utf8_lossy(path))))
    };
    if path.is_empty() {
        return Ok(());
    }
    if path.len() > PATH_BYTES {
        return Err(LayerError::Refused(format!("a path of {} bytes", path.len())));
    }
    if path[0] == b'/' {
        return refuse("is absolute");
    }
    if path.contains(&0) {
        return refuse("has a NUL in it");
    }
    for name in path.split(|&byte| byte == b'/') {
        match name {
            b"" | b"." => return refuse("has an empty name in it"),
            b".." => return refuse("leads out"),
            _ if name.len() > NAME_BYTES => return refuse("has a name that is too long"),
            _ => {}
        }
    }
    Ok(())
}

/// Whether a name of the path would be taken for a deletion.
fn needs_escape(path: &[u8]) -> bool {
    path.split(|&byte| byte == b'/').any(|name| name.starts_with(WHITEOUT))
}

/// The path with such names changed.
fn escape_path(path: &[u8]) -> Vec<u8> {
    let names: Vec<Vec<u8>> = path
        .split(|&byte| byte == b'/')
        .map(|name| match name.strip_prefix(WHITEOUT) {
            Some(rest) => [ESCAPED, rest].concat(),
            None => name.to_vec(),
        })
        .collect();
    names.join(&b'/')
}
