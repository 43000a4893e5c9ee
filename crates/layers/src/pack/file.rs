//! The data, holes and attributes of one file.

use std::{
    io::{self, Write},
    os::fd::{BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{SeekFrom, Stat},
    io::Errno,
};

use super::OverlayXattrs;
use crate::{
    archive::{USER, USER_OVERLAY},
    entry::{EntryKind, Extent, Xattr},
    error::{EXTENTS, KEPT_XATTR_BYTES, XATTR_PLACE},
};

/// The kernel's limits of an attribute value and of the attribute list.
const XATTR_MOST: usize = 1 << 16;

/// Buffers that are reused for every file.
pub(super) struct PackBuffers {
    buffer: Vec<u8>,
    list: Vec<u8>,
    /// How many attributes were left out.
    pub(super) left_out: u64,
}

impl Default for PackBuffers {
    fn default() -> Self {
        Self { buffer: vec![0; 1 << 17], list: vec![0; XATTR_MOST], left_out: 0 }
    }
}

/// The attributes of a file that are used.
#[derive(Default)]
pub(super) struct FileAttributes {
    pub(super) opaque: bool,
    pub(super) redirect: Option<Vec<u8>>,
    /// Whether only the metadata is here, and the content is in a lower layer.
    pub(super) is_metacopy: bool,
    pub(super) xattrs: Vec<Xattr>,
}

impl PackBuffers {
    pub(super) fn buffer(&mut self) -> &mut [u8] {
        &mut self.buffer
    }

    /// Reads the overlay's marks and the guest's own attributes. Attributes beyond the limit are
    /// left out.
    pub(super) fn read_attributes(
        &mut self,
        file: BorrowedFd<'_>,
        markers: OverlayXattrs,
    ) -> io::Result<FileAttributes> {
        let mut found = FileAttributes::default();
        let listed = match rustix::fs::flistxattr(file, &mut self.list[..]) {
            Ok(length) => length,
            Err(Errno::NOTSUP) => return Ok(found),
            Err(Errno::TOOBIG | Errno::RANGE) => {
                self.left_out += 1;
                return Ok(found);
            }
            Err(errno) => return Err(errno.into()),
        };
        let prefix = match markers {
            OverlayXattrs::Trusted => &b"trusted.overlay."[..],
            OverlayXattrs::User => USER_OVERLAY,
        };
        let mut bytes = 0;
        for name in self.list[..listed].split(|&byte| byte == 0) {
            let marker = name.strip_prefix(prefix);
            let guests = name.starts_with(USER) && !name.starts_with(USER_OVERLAY);
            if !guests && !matches!(marker, Some(b"opaque" | b"redirect" | b"metacopy")) {
                continue;
            }
            let value = match rustix::fs::fgetxattr(file, name, &mut self.buffer[..]) {
                Ok(length) => &self.buffer[..length],
                Err(Errno::NODATA) => continue,
                Err(Errno::TOOBIG) => {
                    self.left_out += 1;
                    continue;
                }
                Err(errno) => return Err(errno.into()),
            };
            match marker {
                Some(b"opaque") => found.opaque = value == b"y",
                Some(b"redirect") => found.redirect = Some(value.to_vec()),
                // An overlay with `userxattr` never sets it, so there the guest could have set it.
                Some(_) => found.is_metacopy = markers == OverlayXattrs::Trusted,
                None => {
                    let more = name.len() + value.len() + XATTR_PLACE;
                    if bytes + more > KEPT_XATTR_BYTES {
                        self.left_out += 1;
                        continue;
                    }
                    bytes += more;
                    found.xattrs.push((name.to_vec(), value.to_vec()));
                }
            }
        }
        found.xattrs.sort();
        Ok(found)
    }
}

/// The ranges of a file that contain data. `None` if the file has no holes.
pub(super) fn data_extents(file: &OwnedFd, stat: &Stat) -> io::Result<Option<Vec<Extent>>> {
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    if u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512) >= size {
        return Ok(None);
    }
    let mut extents = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start.min(size),
            Err(Errno::NXIO) => break,
            Err(errno) => return Err(errno.into()),
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(start))?.min(size);
        let end = if extents.len() + 1 == EXTENTS { size } else { end };
        if end > start {
            extents.push(Extent { offset: start, length: end - start });
        }
        at = end.max(at + 1);
    }
    let whole = matches!(extents[..], [Extent { offset: 0, length }] if length == size);
    Ok((!whole).then_some(extents))
}

/// Truncates a file so that it has at most `limit` bytes of data.
pub(super) fn truncate_content(file: EntryKind, limit: u64) -> EntryKind {
    let EntryKind::File { size, extents, data_at, hash } = file else { return file };
    let sparse = extents.is_some();
    let (mut left, mut kept) = (limit, Vec::new());
    for Extent { offset, length } in extents.unwrap_or(vec![Extent { offset: 0, length: size }]) {
        let length = length.min(left);
        if length > 0 {
            kept.push(Extent { offset, length });
        }
        left -= length;
    }
    let size = kept.last().map_or(0, |last| last.offset + last.length);
    EntryKind::File { size, extents: sparse.then_some(kept), data_at, hash }
}

/// Writes the data of a file.
pub(super) fn copy_data(
    file: &OwnedFd,
    kind: &EntryKind,
    buffer: &mut [u8],
    out: &mut impl Write,
) -> io::Result<()> {
    let EntryKind::File { size, extents, .. } = kind else { return Ok(()) };
    let whole = [Extent { offset: 0, length: *size }];
    for extent in extents.as_deref().unwrap_or(&whole) {
        let (mut at, mut rest) = (extent.offset, extent.length);
        while rest > 0 {
            let most = usize::try_from(rest).unwrap_or(usize::MAX).min(buffer.len());
            let count = match rustix::io::pread(file, &mut buffer[..most], at) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => count,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            out.write_all(&buffer[..count])?;
            at += count as u64;
            rest -= count as u64;
        }
    }
    Ok(())
}
