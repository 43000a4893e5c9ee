//! Runs in: server (no capabilities).
//!
//! The records before an entry of an archive that another tool wrote.

use super::{USER, USER_OVERLAY, XATTR, pax, read::refused_archive, records::decode_key};
use crate::{
    LayerError,
    entry::{Mtime, Xattr},
    error::{KEPT_XATTR_BYTES, XATTR_PLACE},
};

/// The records before an entry. Our own records (`CLOCHE.`) mean nothing here: an image must not be
/// able to redirect a directory.
#[derive(Default)]
pub(super) struct ForeignRecords {
    pub(super) long_name: Option<Vec<u8>>,
    pub(super) long_link: Option<Vec<u8>>,
    pub(super) path: Option<Vec<u8>>,
    pub(super) linkpath: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) mtime: Option<Mtime>,
    pub(super) sparse_realsize: Option<u64>,
    pub(super) xattrs: Vec<Xattr>,
    /// How many attributes were left out.
    pub(super) dropped: u64,
    sparse_name: Option<Vec<u8>>,
    sparse_version: (Option<u64>, Option<u64>),
}

impl ForeignRecords {
    /// Adds the records of a pax header. An empty value means that there is no record.
    pub(super) fn read_pax(&mut self, mut bytes: &[u8]) -> Result<(), LayerError> {
        while let Some((key, value)) = pax::take_record(&mut bytes)? {
            if !value.is_empty() || key.starts_with(XATTR) {
                self.read_record(key, value)?;
            }
        }
        let wanted = if self.sparse_realsize.is_some() { (Some(1), Some(0)) } else { (None, None) };
        if self.sparse_version != wanted {
            return Err(refused_archive("a sparse file in an unknown format"));
        }
        Ok(())
    }

    fn read_record(&mut self, key: &[u8], value: &[u8]) -> Result<(), LayerError> {
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
            b"GNU.sparse.major" => self.sparse_version.0 = Some(number()?),
            b"GNU.sparse.minor" => self.sparse_version.1 = Some(number()?),
            b"GNU.sparse.name" => self.sparse_name = Some(value.to_vec()),
            b"GNU.sparse.realsize" => self.sparse_realsize = Some(number()?),
            key if key.starts_with(b"GNU.sparse.") => {
                return Err(refused_archive("a sparse file in an old format"));
            }
            key => self.add_xattr(key, value),
        }
        Ok(())
    }

    /// Keeps an attribute of the `user.` namespace that every disk can hold. Capabilities, labels
    /// and the marks of overlayfs are dropped.
    fn add_xattr(&mut self, key: &[u8], value: &[u8]) {
        let Some(name) = key.strip_prefix(XATTR) else { return };
        let name = decode_key(name);
        self.xattrs.retain(|(other, _)| *other != name);
        let size = |(name, value): &Xattr| name.len() + value.len() + XATTR_PLACE;
        let before: usize = self.xattrs.iter().map(size).sum();
        let attribute = (name, value.to_vec());
        let kept = attribute.0.starts_with(USER)
            && !attribute.0.starts_with(USER_OVERLAY)
            && (USER.len() + 1..=255).contains(&attribute.0.len())
            && !attribute.0.contains(&0)
            && before + size(&attribute) <= KEPT_XATTR_BYTES;
        if kept {
            self.xattrs.push(attribute);
            self.xattrs.sort();
        } else {
            self.dropped += 1;
        }
    }

    /// The name of the entry, if a record has it. Two different names are ambiguous: tools disagree
    /// about which one counts.
    pub(super) fn name(&self) -> Result<Option<&[u8]>, LayerError> {
        if let Some(name) = &self.sparse_name {
            return Ok(Some(name));
        }
        choose_name(self.path.as_deref(), self.long_name.as_deref())
    }

    /// The target of a link, if a record has it.
    pub(super) fn link(&self) -> Result<Option<&[u8]>, LayerError> {
        choose_name(self.linkpath.as_deref(), self.long_link.as_deref())
    }
}

fn choose_name<'a>(
    pax: Option<&'a [u8]>,
    gnu: Option<&'a [u8]>,
) -> Result<Option<&'a [u8]>, LayerError> {
    match (pax, gnu) {
        (Some(pax), Some(gnu)) if pax != gnu => Err(refused_archive("an entry with two names")),
        (pax, gnu) => Ok(pax.or(gnu)),
    }
}
