//! Reads an archive entry by entry, and refuses whatever a layer cannot be. It trusts nothing and
//! touches no file.

use std::io::{self, Read};

use tar::{EntryType, Header};

use super::{
    BLOCK, GONE, LINK_NAME, NAME, OPAQUE, REDIRECT, USER, USER_OVERLAY, WHITEOUT, XATTR,
    check_path, join, pax, split,
};
use crate::{
    LayerError,
    entry::{Entry, Extent, Kind, Mtime, Xattr},
    error::{EXTENTS, FILE_BYTES, PATH_BYTES, PAX_BYTES, TARGET_BYTES, XATTR_BYTES},
};

/// How many zero bytes may follow the end of an archive.
const TRAILER: u64 = 1 << 20;

/// What comes next in an archive.
#[derive(Debug)]
pub(crate) enum Item {
    /// An entry; its data can be read until the next one is asked for.
    Entry(Entry),
    /// The directory at this path is opaque.
    Opaque(Vec<u8>),
}

/// An archive being read. Reading from it gives the data of the current entry.
pub(crate) struct Archive<R> {
    inner: R,
    at: u64,
    data: u64,
    padding: u64,
}

impl<R: Read> Archive<R> {
    pub(crate) fn new(inner: R) -> Self {
        Self { inner, at: 0, data: 0, padding: 0 }
    }

    /// The next entry; none at the end, which must be there.
    pub(crate) fn next(&mut self) -> Result<Option<Item>, LayerError> {
        let rest = self.data + self.padding;
        self.skip(rest)?;
        (self.data, self.padding) = (0, 0);
        let mut records = Records::default();
        loop {
            let block = self.block()?;
            if block == [0; BLOCK] {
                if records.seen {
                    return Err(refused("records without an entry"));
                }
                return self.finish().map(|()| None);
            }
            let header = check_header(&block)?;
            let size = header.size().map_err(|_| refused("a malformed size"))?;
            match header.entry_type() {
                EntryType::XHeader if !records.pax => {
                    records.pax = true;
                    let bytes = self.meta(size)?;
                    records.read(&bytes)?;
                }
                EntryType::GNULongName => records.long_name = Some(self.long(size)?),
                EntryType::GNULongLink => records.long_link = Some(self.long(size)?),
                EntryType::XHeader | EntryType::XGlobalHeader => {
                    return Err(refused("records for more than one entry"));
                }
                kind => return self.item(kind, header, records).map(Some),
            }
            records.seen = true;
        }
    }

    fn item(
        &mut self,
        kind: EntryType,
        header: &Header,
        records: Records,
    ) -> Result<Item, LayerError> {
        let size = match records.size {
            Some(size) => size,
            None => header.size().map_err(|_| refused("a malformed size"))?,
        };
        let name = records.archive_name(header)?;
        let regular = matches!(kind, EntryType::Regular);
        if !regular && size != 0 {
            return Err(refused("data where there can be none"));
        }
        if records.sparse_realsize.is_some() && !regular {
            return Err(refused("a sparse map without a file"));
        }
        self.begin(size)?;
        if split(&name).1.starts_with(WHITEOUT) {
            return deletion(regular && size == 0, &name, records);
        }
        let path = records.true_name.clone().unwrap_or(name);
        check_path(&path)?;
        if path.is_empty() && kind != EntryType::Directory {
            return Err(refused("something else than a directory in place of the home"));
        }
        let mode = header.mode().map_err(|_| refused("malformed permissions"))?;
        // A home has one user. A set-user-id file of its would be one of ours in the cache.
        let mode = if kind == EntryType::Directory { mode & 0o7777 } else { mode & 0o1777 };
        let mtime = match records.mtime {
            Some(mtime) => mtime,
            None => {
                let seconds = header.mtime().ok().and_then(|seconds| i64::try_from(seconds).ok());
                Mtime { seconds: seconds.ok_or_else(|| refused("a malformed time"))?, nanos: 0 }
            }
        };
        let kind = match kind {
            EntryType::Regular => self.file(size, records.sparse_realsize)?,
            EntryType::Directory => Kind::Directory { opaque: false, redirect: records.redirect },
            EntryType::Link => Kind::HardLink { target: records.hard_target(header)? },
            EntryType::Symlink => Kind::Symlink { target: records.soft_target(header)? },
            EntryType::Fifo => Kind::Fifo,
            EntryType::Char | EntryType::Block => return Err(refused("a device node")),
            EntryType::GNUSparse => return Err(refused("a sparse file of the old kind")),
            _ => return Err(refused("an entry of an unknown kind")),
        };
        Ok(Item::Entry(Entry { path, kind, mode, mtime, xattrs: records.xattrs }))
    }

    /// From here on the data of an entry can be read.
    fn begin(&mut self, size: u64) -> Result<(), LayerError> {
        if size > FILE_BYTES {
            return Err(LayerError::TooMuch("a file that is too large"));
        }
        self.data = size;
        self.padding = size.next_multiple_of(BLOCK as u64) - size;
        Ok(())
    }

    fn file(&mut self, stored: u64, realsize: Option<u64>) -> Result<Kind, LayerError> {
        let Some(size) = realsize else {
            return Ok(Kind::File { size: stored, extents: None, data_at: self.at });
        };
        if size > FILE_BYTES {
            return Err(LayerError::TooMuch("a file that is too large"));
        }
        let start = self.at;
        let mut line = SparseMap { archive: self, block: [0; BLOCK], next: BLOCK };
        let count = line.number()?;
        if count > EXTENTS as u64 {
            return Err(LayerError::TooMuch("a sparse file with too many parts"));
        }
        let (mut extents, mut end, mut data) = (Vec::new(), 0, 0);
        for _ in 0..count {
            let extent = Extent { offset: line.number()?, length: line.number()? };
            let stop = extent.offset.checked_add(extent.length).filter(|stop| *stop <= size);
            match stop {
                Some(stop) if extent.offset >= end => end = stop,
                _ => return Err(refused("a sparse map that makes no sense")),
            }
            data += extent.length;
            if extent.length > 0 {
                extents.push(extent);
            }
        }
        if self.at - start + data != stored {
            return Err(refused("a sparse map that makes no sense"));
        }
        Ok(Kind::File { size, extents: Some(extents), data_at: self.at })
    }

    /// The small data of an entry that describes another.
    fn meta(&mut self, size: u64) -> Result<Vec<u8>, LayerError> {
        if size > PAX_BYTES {
            return Err(LayerError::TooMuch("records that are too long"));
        }
        self.begin(size)?;
        let mut bytes = Vec::new();
        self.by_ref().take(size).read_to_end(&mut bytes).map_err(reading)?;
        if bytes.len() as u64 != size {
            return Err(refused("an archive that ends early"));
        }
        let padding = self.padding;
        self.skip(padding)?;
        (self.data, self.padding) = (0, 0);
        Ok(bytes)
    }

    fn long(&mut self, size: u64) -> Result<Vec<u8>, LayerError> {
        if size > PATH_BYTES as u64 + 1 {
            return Err(refused("a path that is too long"));
        }
        let mut name = self.meta(size)?;
        if name.last() == Some(&0) {
            name.pop();
        }
        Ok(name)
    }

    fn block(&mut self) -> Result<[u8; BLOCK], LayerError> {
        let mut block = [0; BLOCK];
        self.inner.read_exact(&mut block).map_err(reading)?;
        self.at += BLOCK as u64;
        Ok(block)
    }

    fn skip(&mut self, count: u64) -> Result<(), LayerError> {
        let skipped = io::copy(&mut self.inner.by_ref().take(count), &mut io::sink());
        self.at += count;
        match skipped.map_err(reading)? {
            all if all == count => Ok(()),
            _ => Err(refused("an archive that ends early")),
        }
    }

    /// After one block of zeros: another, and nothing else.
    fn finish(&mut self) -> Result<(), LayerError> {
        if self.block()? != [0; BLOCK] {
            return Err(refused("an archive with a gap in it"));
        }
        let mut buffer = [0; 4096];
        let mut trailing = 0;
        loop {
            let count = self.inner.read(&mut buffer).map_err(reading)?;
            trailing += count as u64;
            if count == 0 {
                return Ok(());
            }
            if trailing > TRAILER || buffer[..count].iter().any(|&byte| byte != 0) {
                return Err(refused("bytes after its end"));
            }
        }
    }
}

impl<R: Read> Read for Archive<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.data).unwrap_or(usize::MAX).min(buffer.len());
        if most == 0 {
            return Ok(0);
        }
        let count = self.inner.read(&mut buffer[..most])?;
        if count == 0 {
            return Err(refused("an archive that ends early").into_io());
        }
        self.data -= count as u64;
        self.at += count as u64;
        Ok(count)
    }
}

/// The lines before the data of a sparse file.
struct SparseMap<'a, R> {
    archive: &'a mut Archive<R>,
    block: [u8; BLOCK],
    next: usize,
}

impl<R: Read> SparseMap<'_, R> {
    fn number(&mut self) -> Result<u64, LayerError> {
        let mut digits = Vec::with_capacity(20);
        loop {
            if self.next == BLOCK {
                self.archive.read_exact(&mut self.block).map_err(reading)?;
                self.next = 0;
            }
            let byte = self.block[self.next];
            self.next += 1;
            match byte {
                b'0'..=b'9' if digits.len() < 20 => digits.push(byte),
                b'\n' => break,
                _ => return Err(refused("a malformed sparse map")),
            }
        }
        pax::number(&digits).ok_or_else(|| refused("a malformed sparse map"))
    }
}

/// What the records before an entry say about it.
#[derive(Default)]
struct Records {
    seen: bool,
    pax: bool,
    long_name: Option<Vec<u8>>,
    long_link: Option<Vec<u8>>,
    path: Option<Vec<u8>>,
    linkpath: Option<Vec<u8>>,
    size: Option<u64>,
    mtime: Option<Mtime>,
    sparse_name: Option<Vec<u8>>,
    sparse_realsize: Option<u64>,
    true_name: Option<Vec<u8>>,
    true_link: Option<Vec<u8>>,
    gone: Option<Vec<u8>>,
    redirect: Option<Vec<u8>>,
    xattrs: Vec<Xattr>,
}

impl Records {
    fn read(&mut self, mut bytes: &[u8]) -> Result<(), LayerError> {
        let mut version = (None, None);
        while let Some((key, value)) = pax::take(&mut bytes)? {
            let number = || pax::number(value).ok_or_else(|| refused("a malformed number"));
            match key {
                b"path" => self.path = Some(value.to_vec()),
                b"linkpath" => self.linkpath = Some(value.to_vec()),
                b"size" => self.size = Some(number()?),
                b"mtime" => {
                    let time = pax::parse_time(value);
                    self.mtime = Some(time.ok_or_else(|| refused("a malformed time"))?);
                }
                b"GNU.sparse.major" => version.0 = Some(number()?),
                b"GNU.sparse.minor" => version.1 = Some(number()?),
                b"GNU.sparse.name" => self.sparse_name = Some(value.to_vec()),
                b"GNU.sparse.realsize" => self.sparse_realsize = Some(number()?),
                key if key.starts_with(b"GNU.sparse.") => {
                    return Err(refused("a sparse file of the old kind"));
                }
                NAME => self.true_name = Some(value.to_vec()),
                LINK_NAME => self.true_link = Some(value.to_vec()),
                GONE => self.gone = Some(value.to_vec()),
                REDIRECT => self.redirect = Some(redirect(value)?),
                key => self.attribute(key, value)?,
            }
        }
        let wanted = if self.sparse_realsize.is_some() { (Some(1), Some(0)) } else { (None, None) };
        if version != wanted {
            return Err(refused("a sparse file of an unknown kind"));
        }
        self.xattrs.sort();
        Ok(())
    }

    fn attribute(&mut self, key: &[u8], value: &[u8]) -> Result<(), LayerError> {
        let Some(name) = key.strip_prefix(XATTR) else { return Ok(()) };
        let name = decode_key(name);
        if !name.starts_with(USER) || name.starts_with(USER_OVERLAY) {
            return Ok(());
        }
        if name.len() > 255 || name.len() == USER.len() || name.contains(&0) {
            return Err(refused("an attribute with an impossible name"));
        }
        let before: usize = self.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum();
        if value.len() > 65536 || before + name.len() + value.len() > XATTR_BYTES {
            return Err(LayerError::TooMuch("attributes that are too large"));
        }
        if self.xattrs.iter().any(|(other, _)| *other == name) {
            return Err(refused("an attribute that is there twice"));
        }
        self.xattrs.push((name, value.to_vec()));
        Ok(())
    }

    /// The entry's name as the archive has it, without the decoration.
    fn archive_name(&self, header: &Header) -> Result<Vec<u8>, LayerError> {
        let given = self.sparse_name.as_ref().or(self.path.as_ref()).or(self.long_name.as_ref());
        let name = match given {
            Some(name) => name.clone(),
            None => header.path_bytes().into_owned(),
        };
        plain(&name)
    }

    fn hard_target(&self, header: &Header) -> Result<Vec<u8>, LayerError> {
        match &self.true_link {
            Some(target) => plain(target),
            None => plain(&self.target(header)?),
        }
    }

    fn soft_target(&self, header: &Header) -> Result<Vec<u8>, LayerError> {
        let target = self.target(header)?;
        if target.len() > TARGET_BYTES || target.contains(&0) {
            return Err(refused("a symbolic link that is too long"));
        }
        Ok(target)
    }

    fn target(&self, header: &Header) -> Result<Vec<u8>, LayerError> {
        let target = match self.linkpath.as_ref().or(self.long_link.as_ref()) {
            Some(target) => target.clone(),
            None => header.link_name_bytes().unwrap_or_default().into_owned(),
        };
        if target.is_empty() { Err(refused("a link to nothing")) } else { Ok(target) }
    }
}

/// A path without `./` before it and `/` behind.
fn plain(path: &[u8]) -> Result<Vec<u8>, LayerError> {
    let mut rest = path;
    while let Some(shorter) = rest.strip_prefix(b"./") {
        rest = shorter;
    }
    rest = rest.strip_suffix(b"/").unwrap_or(rest);
    if path.is_empty() {
        return Err(refused("an entry without a name"));
    }
    let rest = if rest == b"." { &[] } else { rest };
    // The names of deletions are longer than those that they delete.
    let (directory, name) = split(rest);
    check_path(&join(
        directory,
        name.strip_prefix(WHITEOUT).filter(|n| !n.is_empty()).unwrap_or(name),
    ))?;
    Ok(rest.to_vec())
}

fn deletion(empty: bool, name: &[u8], records: Records) -> Result<Item, LayerError> {
    let (directory, base) = split(name);
    if !empty {
        return Err(refused("a deletion with something in it"));
    }
    if base == OPAQUE {
        let directory = records.true_name.unwrap_or_else(|| directory.to_vec());
        check_path(&directory)?;
        return Ok(Item::Opaque(directory));
    }
    let path = match records.gone {
        Some(path) => path,
        None if base.starts_with(b".wh..wh.") => {
            return Err(refused("a deletion of an unknown kind"));
        }
        None => join(directory, base.strip_prefix(WHITEOUT).unwrap_or_default()),
    };
    check_path(&path)?;
    if split(&path).1.is_empty() {
        return Err(refused("a deletion of nothing"));
    }
    let (mode, mtime) = (0, Mtime::default());
    Ok(Item::Entry(Entry { path, kind: Kind::Whiteout, mode, mtime, xattrs: Vec::new() }))
}

fn redirect(value: &[u8]) -> Result<Vec<u8>, LayerError> {
    let path = value.strip_prefix(b"/").unwrap_or_default();
    check_path(path)?;
    if path.is_empty() { Err(refused("a directory from nowhere")) } else { Ok(path.to_vec()) }
}

fn decode_key(key: &[u8]) -> Vec<u8> {
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

fn check_header(block: &[u8; BLOCK]) -> Result<&Header, LayerError> {
    let header = Header::from_byte_slice(block);
    let sum: u32 =
        block[..148].iter().chain(&[b' '; 8]).chain(&block[156..]).map(|&b| u32::from(b)).sum();
    if header.cksum().ok() != Some(sum) {
        return Err(refused("a header with a wrong checksum"));
    }
    if header.as_ustar().is_none() && header.as_gnu().is_none() {
        return Err(refused("a header of an unknown kind"));
    }
    Ok(header)
}

fn refused(what: &str) -> LayerError {
    LayerError::Refused(what.to_owned())
}

fn reading(source: io::Error) -> LayerError {
    match source.kind() {
        io::ErrorKind::UnexpectedEof => refused("an archive that ends early"),
        _ => LayerError::from_io("reading an archive", source),
    }
}
