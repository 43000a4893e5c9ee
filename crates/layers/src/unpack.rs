//! Unpacks an archive into an empty directory of ours. The archive came from a guest, so every
//! entry is checked before it is unpacked, and every path is resolved beneath the directory.

use std::{
    fs::File,
    io::{self, Read},
    os::fd::{AsFd, OwnedFd},
    os::unix::fs::FileExt,
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, XattrFlags},
    io::Errno,
};

use crate::{
    LayerBounds, LayerError,
    archive::{
        read::{ArchiveItem, ArchiveReader},
        split_path,
    },
    beneath,
    entry::{EntryKind, Extent, LayerEntry, Mtime, Xattr},
    layer_index::IndexBuilder,
};

/// The result of unpacking an archive.
#[derive(Debug)]
pub(crate) struct UnpackedLayer {
    /// The mode and time of the home itself.
    pub(crate) root: (u32, Mtime),
    /// The overlay marks of its directories, each as kind, path, NUL, value, NUL.
    pub(crate) marks: Vec<u8>,
}

/// Unpacks into `top`, which must be empty. If this fails, the content of `top` must be discarded.
pub(crate) fn unpack_archive<R: Read>(
    archive: &mut ArchiveReader<R>,
    top: OwnedFd,
    bounds: LayerBounds,
) -> Result<UnpackedLayer, LayerError> {
    let mut builder = IndexBuilder::new(bounds);
    let mut unpacker = Unpacker {
        parent: (Vec::new(), dup_fd(&top).map_err(unpack_error)?),
        top,
        directories: Vec::new(),
        marks: Vec::new(),
        redirects: Vec::new(),
        buffer: vec![0; 1 << 17],
        attributes_lost: 0,
    };
    while let Some(item) = archive.next_item()? {
        builder.add_item(&item)?;
        match item {
            ArchiveItem::Entry(entry) => unpacker.unpack_entry(archive, entry)?,
            ArchiveItem::Opaque(path) => unpacker.add_mark(b'o', &path, b""),
        }
    }
    let index = builder.finish(Vec::new(), 0)?;
    unpacker.finish_directories().map_err(unpack_error)?;
    let root = index.get(b"").map_or((0o700, Mtime::default()), |root| (root.mode, root.mtime));
    Ok(UnpackedLayer { root, marks: unpacker.marks })
}

struct Unpacker {
    top: OwnedFd,
    /// The directory of the previous entry, which is often that of the next.
    parent: (Vec<u8>, OwnedFd),
    /// Directories get their modes and times last, when they are complete.
    directories: Vec<(Vec<u8>, u32, Mtime)>,
    marks: Vec<u8>,
    /// The renamed directories above the last directory, and their paths in older layers.
    redirects: Vec<(Vec<u8>, Vec<u8>)>,
    buffer: Vec<u8>,
    attributes_lost: u64,
}

impl Unpacker {
    fn unpack_entry<R: Read>(
        &mut self,
        archive: &mut ArchiveReader<R>,
        entry: LayerEntry,
    ) -> Result<(), LayerError> {
        if let EntryKind::File { size, extents, .. } = &entry.kind {
            return self.unpack_file(archive, &entry, *size, extents.as_deref());
        }
        self.unpack_without_data(entry).map_err(unpack_error)
    }

    fn unpack_without_data(&mut self, entry: LayerEntry) -> io::Result<()> {
        let name = split_path(&entry.path).1.to_vec();
        match &entry.kind {
            EntryKind::Directory { redirect, .. } => {
                if let Some(redirect) = redirect {
                    let value = self.redirect_value(&entry.path, redirect);
                    self.add_mark(b'r', &entry.path, &value);
                    self.redirects.push((entry.path.clone(), redirect.clone()));
                }
                if !entry.path.is_empty() {
                    rustix::fs::mkdirat(self.open_parent(&entry.path)?, &name[..], Mode::RWXU)?;
                }
                if !entry.xattrs.is_empty() {
                    let directory = beneath::open_directory(&self.top, &entry.path)?;
                    self.set_xattrs(&directory, &entry.xattrs)?;
                }
                self.directories.push((entry.path, entry.mode, entry.mtime));
            }
            EntryKind::HardLink { target } => {
                let from = beneath::open_directory(&self.top, split_path(target).0)?;
                let to = self.open_parent(&entry.path)?;
                rustix::fs::linkat(from, split_path(target).1, to, &name[..], AtFlags::empty())?;
            }
            EntryKind::Symlink { target } => {
                let parent = self.open_parent(&entry.path)?;
                rustix::fs::symlinkat(&target[..], parent, &name[..])?;
                let times = timestamps_of(entry.mtime);
                rustix::fs::utimensat(parent, &name[..], &times, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            EntryKind::Fifo => {
                let parent = self.open_parent(&entry.path)?;
                rustix::fs::mknodat(parent, &name[..], FileType::Fifo, Mode::RUSR, 0)?;
                set_metadata(parent, &name, entry.mode, entry.mtime)?;
            }
            EntryKind::Whiteout => {
                let parent = self.open_parent(&entry.path)?;
                let mode = Mode::empty();
                rustix::fs::mknodat(parent, &name[..], FileType::CharacterDevice, mode, 0)?;
            }
            EntryKind::File { .. } => {}
        }
        Ok(())
    }

    fn unpack_file<R: Read>(
        &mut self,
        archive: &mut ArchiveReader<R>,
        entry: &LayerEntry,
        size: u64,
        extents: Option<&[Extent]>,
    ) -> Result<(), LayerError> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW;
        let mode = Mode::RUSR | Mode::WUSR;
        let parent = self.open_parent(&entry.path).map_err(unpack_error)?;
        let file = beneath::open_path(parent, split_path(&entry.path).1, flags, mode)
            .map_err(unpack_error)?;
        let file = File::from(file);
        let whole = [Extent { offset: 0, length: size }];
        for extent in extents.unwrap_or(&whole) {
            self.copy_extent(archive, &file, *extent)?;
        }
        self.finish_file(&file, entry, extents.map(|_| size)).map_err(unpack_error)
    }

    fn copy_extent<R: Read>(
        &mut self,
        archive: &mut ArchiveReader<R>,
        file: &File,
        extent: Extent,
    ) -> Result<(), LayerError> {
        let (mut at, end) = (extent.offset, extent.offset + extent.length);
        while at < end {
            let most = usize::try_from(end - at).unwrap_or(usize::MAX).min(self.buffer.len());
            let count = archive.read(&mut self.buffer[..most]);
            let count = count.map_err(LayerError::io_context("reading a layer"))?;
            if count == 0 {
                return Err(LayerError::Refused("an archive that ends early".to_owned()));
            }
            file.write_all_at(&self.buffer[..count], at).map_err(unpack_error)?;
            at += count as u64;
        }
        Ok(())
    }

    fn finish_file(
        &mut self,
        file: &File,
        entry: &LayerEntry,
        sparse: Option<u64>,
    ) -> io::Result<()> {
        if let Some(size) = sparse {
            file.set_len(size)?;
        }
        self.set_xattrs(file, &entry.xattrs)?;
        rustix::fs::fchmod(file, Mode::from_raw_mode(entry.mode))?;
        rustix::fs::futimens(file, &timestamps_of(entry.mtime))?;
        Ok(())
    }

    /// Sets attributes. Attributes that the file system cannot store are skipped, because a home
    /// without an attribute is better than one that cannot be mounted.
    fn set_xattrs(&mut self, file: impl AsFd, xattrs: &[Xattr]) -> io::Result<()> {
        for (name, value) in xattrs {
            match rustix::fs::fsetxattr(&file, &name[..], value, XattrFlags::empty()) {
                Err(Errno::NOTSUP | Errno::NOSPC | Errno::TOOBIG | Errno::RANGE | Errno::DQUOT) => {
                    self.attributes_lost += 1;
                }
                other => other?,
            }
        }
        Ok(())
    }

    fn open_parent(&mut self, path: &[u8]) -> io::Result<&OwnedFd> {
        let wanted = split_path(path).0;
        if self.parent.0 != wanted {
            // Continues from the previous directory if it is an ancestor. Walking from the top is
            // slow in deep trees.
            let rest = match wanted.strip_prefix(&self.parent.0[..]) {
                Some(rest) if self.parent.0.is_empty() => Some(rest),
                Some(rest) => rest.strip_prefix(b"/"),
                None => None,
            };
            let directory = match rest {
                Some(rest) => beneath::open_directory(&self.parent.1, rest)?,
                None => beneath::open_directory(&self.top, wanted)?,
            };
            self.parent = (wanted.to_vec(), directory);
        }
        Ok(&self.parent.1)
    }

    /// The value of a redirect mark: the old name if the directory was renamed in place, else its
    /// whole old path. In deep trees a whole path would not fit into an attribute.
    fn redirect_value(&mut self, path: &[u8], from: &[u8]) -> Vec<u8> {
        let (parent, _) = split_path(path);
        let beneath = |to: &[u8]| {
            let rest = parent.strip_prefix(to)?;
            (rest.is_empty() || rest.starts_with(b"/")).then_some(rest)
        };
        // In an archive of ours a directory comes directly before its content.
        while self.redirects.pop_if(|(to, _)| beneath(to).is_none()).is_some() {}
        let moved =
            self.redirects.last().and_then(|(to, from)| Some([&from[..], beneath(to)?].concat()));
        let held = moved.unwrap_or_else(|| parent.to_vec());
        match split_path(from) {
            (beside, name) if beside == held => name.to_vec(),
            _ => [b"/", from].concat(),
        }
    }

    fn add_mark(&mut self, kind: u8, path: &[u8], value: &[u8]) {
        self.marks.push(kind);
        for field in [path, value] {
            self.marks.extend_from_slice(field);
            self.marks.push(0);
        }
    }

    /// Sets modes and times of directories. A directory comes before its content, so the reverse
    /// order is deepest first.
    fn finish_directories(&mut self) -> io::Result<()> {
        while let Some((path, mode, mtime)) = self.directories.pop() {
            if path.is_empty() {
                rustix::fs::fchmod(&self.top, Mode::from_raw_mode(mode))?;
                rustix::fs::futimens(&self.top, &timestamps_of(mtime))?;
            } else {
                let name = split_path(&path).1;
                set_metadata(self.open_parent(&path)?, name, mode, mtime)?;
            }
        }
        if self.attributes_lost > 0 {
            let lost = self.attributes_lost;
            tracing::warn!(lost, "the cache's file system could not store all attributes");
        }
        Ok(())
    }
}

/// Sets the mode and time of a file by name.
fn set_metadata(parent: &OwnedFd, name: &[u8], mode: u32, mtime: Mtime) -> io::Result<()> {
    rustix::fs::utimensat(parent, name, &timestamps_of(mtime), AtFlags::SYMLINK_NOFOLLOW)?;
    rustix::fs::chmodat(parent, name, Mode::from_raw_mode(mode), AtFlags::empty())?;
    Ok(())
}

fn timestamps_of(mtime: Mtime) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: mtime.seconds, tv_nsec: i64::from(mtime.nanos) },
    }
}

fn dup_fd(fd: &OwnedFd) -> io::Result<OwnedFd> {
    fd.try_clone()
}

fn unpack_error(source: io::Error) -> LayerError {
    LayerError::from_io("unpacking a layer", source)
}
