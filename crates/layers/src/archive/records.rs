//! The records before an entry.

use tar::Header;

use super::{
    LINK_NAME, NAME, REDIRECT, USER, USER_OVERLAY, WHITEOUT, WHITEOUT_PATH, XATTR, check_path,
    join_path, pax, read::refused_archive, split_path,
};
use crate::{
    LayerError,
    entry::{Mtime, Xattr},
    error::{TARGET_BYTES, XATTR_BYTES},
};

/// The records before an entry.
#[derive(Default)]
pub(super) struct EntryRecords {
    pub(super) seen: bool,
    pub(super) pax: bool,
    pub(super) long_name: Option<Vec<u8>>,
    pub(super) long_link: Option<Vec<u8>>,
    pub(super) path: Option<Vec<u8>>,
    pub(super) linkpath: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) mtime: Option<Mtime>,
    pub(super) sparse_name: Option<Vec<u8>>,
    pub(super) sparse_realsize: Option<u64>,
    pub(super) true_name: Option<Vec<u8>>,
    pub(super) true_link: Option<Vec<u8>>,
    pub(super) whiteout_path: Option<Vec<u8>>,
    pub(super) redirect: Option<Vec<u8>>,
    pub(super) xattrs: Vec<Xattr>,
}

impl EntryRecords {
    pub(super) fn read_pax(&mut self, mut bytes: &[u8]) -> Result<(), LayerError> {
        let mut version = (None, None);
        while let Some((key, value)) = pax::take_record(&mut bytes)? {
            let number =
                || pax::parse_number(value).ok_or_else(|| refused_archive("a malformed number"));
            match key {
                b"path" => self.path = Some(value.to_vec()),
                b"linkpath" => self.linkpath = Some(value.to_vec()),
                b"size" => self.size = Some(number()?),
                b"mtime" => {
                    let time = pax::parse_time(value);
                    self.mtime = Some(time.ok_or_else(|| refused_archive("a malformed time"))?);
                }
                b"GNU.sparse.major" => version.0 = Some(number()?),
                b"GNU.sparse.minor" => version.1 = Some(number()?),
                b"GNU.sparse.name" => self.sparse_name = Some(value.to_vec()),
                b"GNU.sparse.realsize" => self.sparse_realsize = Some(number()?),
                key if key.starts_with(b"GNU.sparse.") => {
                    return Err(refused_archive("a sparse file in an old format"));
                }
                NAME => self.true_name = Some(value.to_vec()),
                LINK_NAME => self.true_link = Some(value.to_vec()),
                WHITEOUT_PATH => self.whiteout_path = Some(value.to_vec()),
                REDIRECT => self.redirect = Some(parse_redirect(value)?),
                key => self.add_xattr(key, value)?,
            }
        }
        let wanted = if self.sparse_realsize.is_some() { (Some(1), Some(0)) } else { (None, None) };
        if version != wanted {
            return Err(refused_archive("a sparse file in an unknown format"));
        }
        self.xattrs.sort();
        Ok(())
    }

    fn add_xattr(&mut self, key: &[u8], value: &[u8]) -> Result<(), LayerError> {
        let Some(name) = key.strip_prefix(XATTR) else { return Ok(()) };
        let name = decode_key(name);
        if !name.starts_with(USER) || name.starts_with(USER_OVERLAY) {
            return Ok(());
        }
        if name.len() > 255 || name.len() == USER.len() || name.contains(&0) {
            return Err(refused_archive("an attribute with an invalid name"));
        }
        let before: usize = self.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum();
        if value.len() > 65536 || before + name.len() + value.len() > XATTR_BYTES {
            return Err(LayerError::TooMuch("attributes that are too large"));
        }
        if self.xattrs.iter().any(|(other, _)| *other == name) {
            return Err(refused_archive("a duplicate attribute"));
        }
        self.xattrs.push((name, value.to_vec()));
        Ok(())
    }

    /// The entry's name in the archive, without `./` and `/`.
    pub(super) fn archive_name(&self, header: &Header) -> Result<Vec<u8>, LayerError> {
        let given = self.sparse_name.as_ref().or(self.path.as_ref()).or(self.long_name.as_ref());
        let name = match given {
            Some(name) => name.clone(),
            None => header.path_bytes().into_owned(),
        };
        normalize_path(&name)
    }

    pub(super) fn hard_target(&self, header: &Header) -> Result<Vec<u8>, LayerError> {
        match &self.true_link {
            Some(target) => normalize_path(target),
            None => normalize_path(&self.link_target(header)?),
        }
    }

    pub(super) fn soft_target(&self, header: &Header) -> Result<Vec<u8>, LayerError> {
        let target = self.link_target(header)?;
        if target.len() > TARGET_BYTES || target.contains(&0) {
            return Err(refused_archive("a symbolic link that is too long"));
        }
        Ok(target)
    }

    fn link_target(&self, header: &Header) -> Result<Vec<u8>, LayerError> {
        let target = match self.linkpath.as_ref().or(self.long_link.as_ref()) {
            Some(target) => target.clone(),
            None => header.link_name_bytes().unwrap_or_default().into_owned(),
        };
        if target.is_empty() { Err(refused_archive("a link without a target")) } else { Ok(target) }
    }
}

/// Removes a leading `./` and a trailing `/` from a path.
fn normalize_path(path: &[u8]) -> Result<Vec<u8>, LayerError> {
    let mut rest = path;
    while let Some(shorter) = rest.strip_prefix(b"./") {
        rest = shorter;
    }
    rest = rest.strip_suffix(b"/").unwrap_or(rest);
    if path.is_empty() {
        return Err(refused_archive("an entry without a name"));
    }
    let rest = if rest == b"." { &[] } else { rest };
    // A whiteout's name is longer than the name that it deletes.
    let (directory, name) = split_path(rest);
    check_path(&join_path(
        directory,
        name.strip_prefix(WHITEOUT).filter(|n| !n.is_empty()).unwrap_or(name),
    ))?;
    Ok(rest.to_vec())
}

fn parse_redirect(value: &[u8]) -> Result<Vec<u8>, LayerError> {
    let path = value.strip_prefix(b"/").unwrap_or_default();
    check_path(path)?;
    if path.is_empty() {
        Err(refused_archive("a redirect without a path"))
    } else {
        Ok(path.to_vec())
    }
}

pub(super) fn decode_key(key: &[u8]) -> Vec<u8> {
    let mut name = Vec::with_capacity(key.len());
    let mut rest = key;
    while let Some((&byte, more)) = rest.split_first() {
        (rest, _) = match rest {
            [b'%', b'3', b'D', more @ ..] => (more, name.push(b'=')),
            [b'%', b'2', b'5', more @ ..] => (more, name.push(b'%')),
            _ => (more, name.push(byte)),
        };
    }
    name
}
