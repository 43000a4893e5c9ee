//! Reads an archive entry by entry, and refuses everything that a layer may not contain. It trusts
//! no input and accesses no file.

use std::io::{self, Read};

use tar::{EntryType, Header};

use super::{
    BLOCK, OPAQUE, WHITEOUT, check_path, join_path, pax, records::EntryRecords, split_path,
};
use crate::{
    LayerError,
    entry::{EntryKind, Extent, LayerEntry, Mtime},
    error::{EXTENTS, FILE_BYTES, PATH_BYTES, PAX_BYTES},
};

/// How many zero bytes may follow the end of an archive.
const TRAILER: u64 = 1 << 20;

/// The next item of an archive.
#[derive(Debug)]
pub(crate) enum ArchiveItem {
    /// An entry. Its data can be read until the next item is requested.
    Entry(LayerEntry),
    /// The directory at this path is opaque.
    Opaque(Vec<u8>),
}

/// Reads an archive. `Read` returns the data of the current entry.
pub(crate) struct ArchiveReader<R> {
    inner: R,
    at: u64,
    data: u64,
    padding: u64,
}

impl<R: Read> ArchiveReader<R> {
    pub(crate) fn new(inner: R) -> Self {
        Self { inner, at: 0, data: 0, padding: 0 }
    }

    pub(crate) fn into_inner(self) -> R {
        self.inner
    }

    /// The next item. Returns `None` at the end marker, which is required.
    pub(crate) fn next_item(&mut self) -> Result<Option<ArchiveItem>, LayerError> {
        self.end_data()?;
        let mut records = EntryRecords::default();
        loop {
            let block = self.read_block()?;
            if block == [0; BLOCK] {
                if records.seen {
                    return Err(refused_archive("records that no entry follows"));
                }
                return self.expect_end().map(|()| None);
            }
            let header = check_header(&block)?;
            let size = header.size().map_err(|_| refused_archive("a malformed size"))?;
            match header.entry_type() {
                EntryType::XHeader if !records.pax => {
                    records.pax = true;
                    let bytes = self.read_small_data(size)?;
                    records.read_pax(&bytes)?;
                }
                EntryType::GNULongName => records.long_name = Some(self.read_long_name(size)?),
                EntryType::GNULongLink => records.long_link = Some(self.read_long_name(size)?),
                EntryType::XHeader | EntryType::XGlobalHeader => {
                    return Err(refused_archive("records that apply to more than one entry"));
                }
                kind => return self.read_item(kind, header, records).map(Some),
            }
            records.seen = true;
        }
    }

    fn read_item(
        &mut self,
        kind: EntryType,
        header: &Header,
        records: EntryRecords,
    ) -> Result<ArchiveItem, LayerError> {
        let size = match records.size {
            Some(size) => size,
            None => header.size().map_err(|_| refused_archive("a malformed size"))?,
        };
        let name = records.archive_name(header)?;
        let regular = matches!(kind, EntryType::Regular);
        if !regular && size != 0 {
            return Err(refused_archive("data in an entry that is not a file"));
        }
        if records.sparse_realsize.is_some() && !regular {
            return Err(refused_archive("a sparse map in an entry that is not a file"));
        }
        self.begin_data(size)?;
        if split_path(&name).1.starts_with(WHITEOUT) {
            return parse_whiteout(regular && size == 0, &name, records);
        }
        let path = records.true_name.clone().unwrap_or(name);
        check_path(&path)?;
        if path.is_empty() && kind != EntryType::Directory {
            return Err(refused_archive("a home that is not a directory"));
        }
        let mode = header.mode().map_err(|_| refused_archive("malformed permissions"))?;
        // A home has one user. In the cache, a set-user-id file would belong to the server's user.
        let mode = if kind == EntryType::Directory { mode & 0o7777 } else { mode & 0o1777 };
        let mtime = match records.mtime {
            Some(mtime) => mtime,
            None => {
                let seconds = header.mtime().ok().and_then(|seconds| i64::try_from(seconds).ok());
                Mtime {
                    seconds: seconds.ok_or_else(|| refused_archive("a malformed time"))?,
                    nanos: 0,
                }
            }
        };
        let kind = match kind {
            EntryType::Regular => self.read_file_kind(size, records.sparse_realsize)?,
            EntryType::Directory => {
                EntryKind::Directory { opaque: false, redirect: records.redirect }
            }
            EntryType::Link => EntryKind::HardLink { target: records.hard_target(header)? },
            EntryType::Symlink => EntryKind::Symlink { target: records.soft_target(header)? },
            EntryType::Fifo => EntryKind::Fifo,
            EntryType::Char | EntryType::Block => return Err(refused_archive("a device node")),
            EntryType::GNUSparse => return Err(refused_archive("a sparse file in an old format")),
            _ => return Err(refused_archive("an entry of an unknown kind")),
        };
        Ok(ArchiveItem::Entry(LayerEntry { path, kind, mode, mtime, xattrs: records.xattrs }))
    }

    /// Skips what is left of the current entry.
    pub(super) fn end_data(&mut self) -> Result<(), LayerError> {
        let rest = self.data + self.padding;
        self.skip_bytes(rest)?;
        (self.data, self.padding) = (0, 0);
        Ok(())
    }

    /// Makes the data of an entry readable.
    pub(super) fn begin_data(&mut self, size: u64) -> Result<(), LayerError> {
        if size > FILE_BYTES {
            return Err(LayerError::TooMuch("a file that is too large"));
        }
        self.data = size;
        self.padding = size.next_multiple_of(BLOCK as u64) - size;
        Ok(())
    }

    pub(super) fn read_file_kind(
        &mut self,
        stored: u64,
        realsize: Option<u64>,
    ) -> Result<EntryKind, LayerError> {
        let Some(size) = realsize else {
            return Ok(EntryKind::File {
                size: stored,
                extents: None,
                data_at: self.at,
                hash: [0; 16],
            });
        };
        if size > FILE_BYTES {
            return Err(LayerError::TooMuch("a file that is too large"));
        }
        let start = self.at;
        let mut line = SparseMap { archive: self, block: [0; BLOCK], next: BLOCK };
        let count = line.read_number()?;
        if count > EXTENTS as u64 {
            return Err(LayerError::TooMuch("a sparse file with too many extents"));
        }
        let (mut extents, mut end, mut data) = (Vec::new(), 0, 0);
        for _ in 0..count {
            let extent = Extent { offset: line.read_number()?, length: line.read_number()? };
            let stop = extent.offset.checked_add(extent.length).filter(|stop| *stop <= size);
            match stop {
                Some(stop) if extent.offset >= end => end = stop,
                _ => return Err(refused_archive("an inconsistent sparse map")),
            }
            data += extent.length;
            if extent.length > 0 {
                extents.push(extent);
            }
        }
        if self.at - start + data != stored {
            return Err(refused_archive("an inconsistent sparse map"));
        }
        Ok(EntryKind::File { size, extents: Some(extents), data_at: self.at, hash: [0; 16] })
    }

    /// Reads the data of an entry that only describes the next one.
    pub(super) fn read_small_data(&mut self, size: u64) -> Result<Vec<u8>, LayerError> {
        if size > PAX_BYTES {
            return Err(LayerError::TooMuch("records that are too long"));
        }
        self.begin_data(size)?;
        let mut bytes = Vec::new();
        self.by_ref().take(size).read_to_end(&mut bytes).map_err(read_error)?;
        if bytes.len() as u64 != size {
            return Err(refused_archive("an archive that ends early"));
        }
        let padding = self.padding;
        self.skip_bytes(padding)?;
        (self.data, self.padding) = (0, 0);
        Ok(bytes)
    }

    pub(super) fn read_long_name(&mut self, size: u64) -> Result<Vec<u8>, LayerError> {
        if size > PATH_BYTES as u64 + 1 {
            return Err(refused_archive("a path that is too long"));
        }
        let mut name = self.read_small_data(size)?;
        if name.last() == Some(&0) {
            name.pop();
        }
        Ok(name)
    }

    /// The next block, or `None` if the archive ends before it.
    pub(super) fn read_block_or_end(&mut self) -> Result<Option<[u8; BLOCK]>, LayerError> {
        let mut block = [0; BLOCK];
        let mut filled = 0;
        while filled < BLOCK {
            match self.inner.read(&mut block[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(refused_archive("an archive that ends early")),
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(read_error(error)),
            }
        }
        self.at += BLOCK as u64;
        Ok(Some(block))
    }

    /// Reads everything after the end marker and ignores it.
    pub(super) fn drain(&mut self) -> Result<(), LayerError> {
        io::copy(&mut self.inner, &mut io::sink()).map(drop).map_err(read_error)
    }

    fn read_block(&mut self) -> Result<[u8; BLOCK], LayerError> {
        let mut block = [0; BLOCK];
        self.inner.read_exact(&mut block).map_err(read_error)?;
        self.at += BLOCK as u64;
        Ok(block)
    }

    fn skip_bytes(&mut self, count: u64) -> Result<(), LayerError> {
        let skipped = io::copy(&mut self.inner.by_ref().take(count), &mut io::sink());
        self.at += count;
        match skipped.map_err(read_error)? {
            all if all == count => Ok(()),
            _ => Err(refused_archive("an archive that ends early")),
        }
    }

    /// Expects a second block of zeros, and only zeros after it.
    fn expect_end(&mut self) -> Result<(), LayerError> {
        if self.read_block()? != [0; BLOCK] {
            return Err(refused_archive("an archive with a single zero block"));
        }
        let mut buffer = [0; 4096];
        let mut trailing = 0;
        loop {
            let count = self.inner.read(&mut buffer).map_err(read_error)?;
            trailing += count as u64;
            if count == 0 {
                return Ok(());
            }
            if trailing > TRAILER || buffer[..count].iter().any(|&byte| byte != 0) {
                return Err(refused_archive("bytes after its end"));
            }
        }
    }
}

impl<R: Read> Read for ArchiveReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.data).unwrap_or(usize::MAX).min(buffer.len());
        if most == 0 {
            return Ok(0);
        }
        let count = self.inner.read(&mut buffer[..most])?;
        if count == 0 {
            return Err(refused_archive("an archive that ends early").into_io());
        }
        self.data -= count as u64;
        self.at += count as u64;
        Ok(count)
    }
}

/// The map before the data of a sparse file.
struct SparseMap<'a, R> {
    archive: &'a mut ArchiveReader<R>,
    block: [u8; BLOCK],
    next: usize,
}

impl<R: Read> SparseMap<'_, R> {
    fn read_number(&mut self) -> Result<u64, LayerError> {
        let mut digits = Vec::with_capacity(20);
        loop {
            if self.next == BLOCK {
                self.archive.read_exact(&mut self.block).map_err(read_error)?;
                self.next = 0;
            }
            let byte = self.block[self.next];
            self.next += 1;
            match byte {
                b'0'..=b'9' if digits.len() < 20 => digits.push(byte),
                b'\n' => break,
                _ => return Err(refused_archive("a malformed sparse map")),
            }
        }
        pax::parse_number(&digits).ok_or_else(|| refused_archive("a malformed sparse map"))
    }
}

fn parse_whiteout(
    empty: bool,
    name: &[u8],
    records: EntryRecords,
) -> Result<ArchiveItem, LayerError> {
    let (directory, base) = split_path(name);
    if !empty {
        return Err(refused_archive("a whiteout with content"));
    }
    if base == OPAQUE {
        let directory = records.true_name.unwrap_or_else(|| directory.to_vec());
        check_path(&directory)?;
        return Ok(ArchiveItem::Opaque(directory));
    }
    let path = match records.whiteout_path {
        Some(path) => path,
        None if base.starts_with(b".wh..wh.") => {
            return Err(refused_archive("a whiteout of an unknown kind"));
        }
        None => join_path(directory, base.strip_prefix(WHITEOUT).unwrap_or_default()),
    };
    check_path(&path)?;
    if split_path(&path).1.is_empty() {
        return Err(refused_archive("a whiteout without a path"));
    }
    let (mode, mtime) = (0, Mtime::default());
    Ok(ArchiveItem::Entry(LayerEntry {
        path,
        kind: EntryKind::Whiteout,
        mode,
        mtime,
        xattrs: Vec::new(),
    }))
}

fn check_header(block: &[u8; BLOCK]) -> Result<&Header, LayerError> {
    let header = check_sum(block)?;
    if header.as_ustar().is_none() && header.as_gnu().is_none() {
        return Err(refused_archive("a header of an unknown kind"));
    }
    Ok(header)
}

/// A header whose checksum is right.
pub(super) fn check_sum(block: &[u8; BLOCK]) -> Result<&Header, LayerError> {
    let header = Header::from_byte_slice(block);
    let sum: u32 =
        block[..148].iter().chain(&[b' '; 8]).chain(&block[156..]).map(|&b| u32::from(b)).sum();
    if header.cksum().ok() != Some(sum) {
        return Err(refused_archive("a header with a wrong checksum"));
    }
    Ok(header)
}

pub(super) fn refused_archive(what: &str) -> LayerError {
    LayerError::Refused(what.to_owned())
}

fn read_error(source: io::Error) -> LayerError {
    match source.kind() {
        io::ErrorKind::UnexpectedEof => refused_archive("an archive that ends early"),
        _ => LayerError::from_io("reading an archive", source),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::write;

    #[test]
    fn sizes_beyond_the_octal_digits_round_trip() {
        for size in [0, (8 << 30) - 1, 8 << 30, FILE_BYTES] {
            let entry = LayerEntry {
                path: b"large".to_vec(),
                kind: EntryKind::File { size, extents: None, data_at: 0, hash: [0; 16] },
                mode: 0o644,
                mtime: Mtime { seconds: 1 << 34, nanos: 5 },
                xattrs: Vec::new(),
            };
            let mut bytes = Vec::new();
            write::write_header(&mut bytes, &entry).unwrap();
            let Some(ArchiveItem::Entry(mut read)) =
                ArchiveReader::new(&bytes[..]).next_item().unwrap()
            else {
                panic!("no entry");
            };
            if let EntryKind::File { data_at, .. } = &mut read.kind {
                assert_eq!(*data_at, bytes.len() as u64);
                *data_at = 0;
            }
            assert_eq!(read, entry);
        }
    }
}
