//! Runs in: server (no capabilities).
//!
//! Reads an archive that another tool wrote, as a layer of an image. It knows what such tools do and
//! our packer does not: absolute names, global records, devices, old headers, no end marker. It
//! trusts no input and accesses no file.

use std::io::Read;

use tar::{EntryType, Header};

use super::{
    BLOCK, OPAQUE, WHITEOUT,
    foreign_records::ForeignRecords,
    join_path,
    read::{ArchiveReader, check_sum, refused_archive},
    split_path,
};
use crate::{
    LayerError,
    entry::{EntryKind, LayerEntry, Mtime},
    error::{NAME_BYTES, TARGET_BYTES},
};

/// The longest path in an image.
const PATH: usize = 4096;
/// The deepest path in an image.
const DEPTH: usize = 256;
/// Files at the root that belong to the image format and not to the image.
const FORMAT_FILES: [&[u8]; 3] =
    [b".prefetch.landmark", b".no.prefetch.landmark", b"stargz.index.json"];

/// The next item of an archive.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ForeignItem {
    /// A directory, file, link or pipe. A path may occur several times.
    Entry(LayerEntry),
    /// This path of lower layers is hidden.
    Whiteout(Vec<u8>),
    /// The content of this directory in lower layers is hidden.
    Opaque(Vec<u8>),
}

/// What was left out of an image's layer, because no cell can use it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConversionNotes {
    /// Device nodes that were skipped.
    pub devices: u64,
    /// Files that lost their set-user-id or set-group-id bit.
    pub privileged: u64,
    /// Attributes outside `user.`, or too large.
    pub attributes: u64,
}

/// Reads an archive of another tool.
pub(crate) struct ForeignArchive<R> {
    blocks: ArchiveReader<R>,
    notes: ConversionNotes,
}

impl<R: Read> ForeignArchive<R> {
    pub(crate) fn new(inner: R) -> Self {
        Self { blocks: ArchiveReader::new(inner), notes: ConversionNotes::default() }
    }

    /// What was left out so far.
    pub(crate) fn notes(&self) -> ConversionNotes {
        self.notes
    }

    /// The next item. At the end of the archive everything after it is read too.
    pub(crate) fn next_item(&mut self) -> Result<Option<ForeignItem>, LayerError> {
        let mut records = ForeignRecords::default();
        loop {
            self.blocks.end_data()?;
            let Some(block) = self.blocks.read_block_or_end()? else { return Ok(None) };
            if block == [0; BLOCK] {
                return self.blocks.drain().map(|()| None);
            }
            let header = check_sum(&block)?;
            let size = || header.size().map_err(|_| refused_archive("a malformed size"));
            match header.entry_type() {
                EntryType::XHeader => {
                    let bytes = self.blocks.read_small_data(size()?)?;
                    records.read_pax(&bytes)?;
                }
                EntryType::XGlobalHeader => {
                    self.blocks.read_small_data(size()?)?;
                }
                EntryType::GNULongName => {
                    records.long_name = Some(self.blocks.read_long_name(size()?)?);
                }
                EntryType::GNULongLink => {
                    records.long_link = Some(self.blocks.read_long_name(size()?)?);
                }
                kind => {
                    let records = std::mem::take(&mut records);
                    if let Some(item) = self.read_item(kind, header, records)? {
                        return Ok(Some(item));
                    }
                }
            }
        }
    }

    /// Returns `None` for an entry that is skipped.
    fn read_item(
        &mut self,
        kind: EntryType,
        header: &Header,
        records: ForeignRecords,
    ) -> Result<Option<ForeignItem>, LayerError> {
        let given = match records.name()? {
            Some(name) => name.to_vec(),
            None => header.path_bytes().into_owned(),
        };
        let kind = match kind {
            EntryType::Continuous => EntryType::Regular,
            // Old tools have no entry type for directories.
            EntryType::Regular if given.ends_with(b"/") => EntryType::Directory,
            kind => kind,
        };
        if kind == EntryType::GNUSparse {
            return Err(refused_archive("a sparse file in an old format"));
        }
        // Only files have data, whatever the header of another kind claims: so says every reader.
        let size = match (kind, records.size) {
            (EntryType::Regular, Some(size)) => size,
            (EntryType::Regular, None) => {
                header.size().map_err(|_| refused_archive("a malformed size"))?
            }
            _ => 0,
        };
        self.blocks.begin_data(size)?;
        let path = normalize_path(&given)?;
        if let Some(hidden) = parse_whiteout(&path)? {
            return Ok(hidden);
        }
        if FORMAT_FILES.contains(&&path[..]) && kind == EntryType::Regular {
            return Ok(None);
        }
        if path.is_empty() && kind != EntryType::Directory {
            return Err(refused_archive("a root that is not a directory"));
        }
        let target = || -> Result<Vec<u8>, LayerError> {
            Ok(match records.link()? {
                Some(target) => target.to_vec(),
                None => header.link_name_bytes().unwrap_or_default().into_owned(),
            })
        };
        let entry_kind = match kind {
            EntryType::Regular => self.blocks.read_file_kind(size, records.sparse_realsize)?,
            EntryType::Directory => EntryKind::Directory { opaque: false, redirect: None },
            EntryType::Link => EntryKind::HardLink { target: parse_hard_target(&target()?)? },
            EntryType::Symlink => EntryKind::Symlink { target: parse_soft_target(target()?)? },
            EntryType::Fifo => EntryKind::Fifo,
            EntryType::Char | EntryType::Block => {
                self.notes.devices += 1;
                return Ok(None);
            }
            _ => return Err(refused_archive("an entry of an unknown kind")),
        };
        let mode = self.read_mode(header, kind)?;
        let mtime = records.mtime.unwrap_or_else(|| {
            let seconds = header.mtime().ok().and_then(|seconds| i64::try_from(seconds).ok());
            Mtime { seconds: seconds.unwrap_or(0), nanos: 0 }
        });
        self.notes.attributes += records.dropped;
        let xattrs = records.xattrs;
        Ok(Some(ForeignItem::Entry(LayerEntry { path, kind: entry_kind, mode, mtime, xattrs })))
    }

    /// The permission bits. Files lose the bits that would give their owner's rights to a caller.
    fn read_mode(&mut self, header: &Header, kind: EntryType) -> Result<u32, LayerError> {
        let mode = header.mode().map_err(|_| refused_archive("malformed permissions"))?;
        if kind == EntryType::Directory {
            return Ok(mode & 0o7777);
        }
        if kind == EntryType::Regular && mode & 0o6000 != 0 {
            self.notes.privileged += 1;
        }
        Ok(mode & 0o1777)
    }
}

/// Passes every file and link of an archive of another tool to `visit`, with its data.
///
/// # Errors
/// If the archive is malformed, or `visit` fails.
pub fn visit_archive<E: From<LayerError>>(
    archive: impl Read,
    mut visit: impl FnMut(LayerEntry, &mut dyn Read) -> Result<(), E>,
) -> Result<(), E> {
    let mut archive = ForeignArchive::new(archive);
    while let Some(item) = archive.next_item()? {
        if let ForeignItem::Entry(entry) = item {
            visit(entry, &mut archive)?;
        }
    }
    Ok(())
}

impl<R: Read> Read for ForeignArchive<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.blocks.read(buffer)
    }
}

/// A path below the root, without empty names, `.` and slashes at its ends.
fn normalize_path(given: &[u8]) -> Result<Vec<u8>, LayerError> {
    let shown = || {
        let shown: String = String::from_utf8_lossy(given).chars().take(200).collect();
        format!("the path {shown:?}")
    };
    if given.is_empty() {
        return Err(refused_archive("an entry without a name"));
    }
    let mut names = Vec::new();
    for name in given.split(|&byte| byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => return Err(LayerError::Refused(format!("{} leads out of the root", shown()))),
            _ if name.contains(&0) => {
                return Err(LayerError::Refused(format!("{} contains a NUL byte", shown())));
            }
            // The name of a whiteout is longer than the name that it hides.
            _ if name.len() > NAME_BYTES + WHITEOUT.len() => {
                return Err(LayerError::Refused(format!(
                    "{} has a name that is too long",
                    shown()
                )));
            }
            _ => names.push(name),
        }
    }
    let path = names.join(&b'/');
    if path.len() > PATH || names.len() > DEPTH {
        return Err(LayerError::Refused(format!("{} is too long or too deep", shown())));
    }
    Ok(path)
}

/// What a name with the prefix of whiteouts hides. The inner `None` is a mark of another tool, which
/// means nothing; the outer `None` is an ordinary name.
fn parse_whiteout(path: &[u8]) -> Result<Option<Option<ForeignItem>>, LayerError> {
    const MARK: &[u8] = b".wh..wh.";
    let (directory, name) = split_path(path);
    if let Some(above) =
        directory.split(|&byte| byte == b'/').find(|above| above.starts_with(WHITEOUT))
    {
        if above.starts_with(MARK) {
            return Ok(Some(None));
        }
        return Err(refused_archive("a path below a whiteout"));
    }
    if name == OPAQUE {
        return Ok(Some(Some(ForeignItem::Opaque(directory.to_vec()))));
    }
    if name.starts_with(MARK) {
        return Ok(Some(None));
    }
    match name.strip_prefix(WHITEOUT) {
        None if name.len() > NAME_BYTES => Err(refused_archive("a name that is too long")),
        None => Ok(None),
        Some(b"" | b"." | b"..") => Err(refused_archive("a whiteout without a path")),
        Some(hidden) => Ok(Some(Some(ForeignItem::Whiteout(join_path(directory, hidden))))),
    }
}

/// The target of a hard link, which is relative to the root.
fn parse_hard_target(target: &[u8]) -> Result<Vec<u8>, LayerError> {
    if target.is_empty() {
        return Err(refused_archive("a link without a target"));
    }
    let path = normalize_path(target)?;
    if path.is_empty() { Err(refused_archive("a hard link to the root")) } else { Ok(path) }
}

fn parse_soft_target(target: Vec<u8>) -> Result<Vec<u8>, LayerError> {
    if target.is_empty() || target.len() > TARGET_BYTES || target.contains(&0) {
        return Err(refused_archive("a symbolic link whose target is empty or too long"));
    }
    Ok(target)
}
