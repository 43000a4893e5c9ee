//! The archive format of layers: POSIX pax, the OCI conventions for whiteouts, and four records of
//! our own for what those cannot express.
//!
//! `read` accepts what our packer writes, `foreign` what other tools write into image layers. Both
//! read blocks, records and sparse maps with the same code.
//!
//! The `tar` crate handles the header block. Records are read and written here, because the crate
//! splits them at line ends, which values may contain, and does not support pax sparse files.

pub(crate) mod foreign;
mod foreign_records;
pub(crate) mod pax;
pub(crate) mod read;
mod records;
pub(crate) mod write;

use crate::{
    LayerError,
    error::{NAME_BYTES, PATH_BYTES},
};

/// The size of a header block. All data is padded to it.
pub(crate) const BLOCK: usize = 512;
/// The prefix of whiteout names.
const WHITEOUT: &[u8] = b".wh.";
/// The name of the file that marks its directory as opaque.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Replaces `.wh.` at the beginning of a guest's own names.
const ESCAPED: &[u8] = b".%wh.";
/// The owner of all files: a home has one user.
const OWNER: u64 = 1000;

/// Record: the path of an entry whose name in the archive is escaped.
const NAME: &[u8] = b"CLOCHE.name";
/// Record: the target of a hard link whose name in the archive is escaped.
const LINK_NAME: &[u8] = b"CLOCHE.linkname";
/// Record: the path that a whiteout with an escaped name deletes.
const WHITEOUT_PATH: &[u8] = b"CLOCHE.whiteout";
/// Record: the path of a renamed directory in older layers.
const REDIRECT: &[u8] = b"CLOCHE.redirect";
/// The prefix of the records of extended attributes.
const XATTR: &[u8] = b"SCHILY.xattr.";
/// The only namespace of attributes that is kept.
pub(crate) const USER: &[u8] = b"user.";
/// Overlayfs's own attributes in that namespace. They are not accepted from outside.
pub(crate) const USER_OVERLAY: &[u8] = b"user.overlay.";

/// Splits a path into its directory and its last name.
pub(crate) fn split_path(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&[], path),
    }
}

/// Joins a directory and a name.
pub(crate) fn join_path(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_vec() } else { [directory, name].join(&b'/') }
}

/// Checks that a path stays below the home and is in canonical form.
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
        return refuse("contains a NUL byte");
    }
    for name in path.split(|&byte| byte == b'/') {
        match name {
            b"" | b"." => return refuse("contains an empty name"),
            b".." => return refuse("leads out of the home"),
            _ if name.len() > NAME_BYTES => return refuse("contains a name that is too long"),
            _ => {}
        }
    }
    Ok(())
}

/// Whether a name in the path looks like a whiteout.
fn needs_escape(path: &[u8]) -> bool {
    path.split(|&byte| byte == b'/').any(|name| name.starts_with(WHITEOUT))
}

/// Escapes the names that look like whiteouts.
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
