//! Packs the upper directory of an overlay into an archive.
//!
//! Runs in: packer, a forked child of the spawner. It has no threads and uses only `std` and system
//! calls. One directory is open at a time, however deep the tree is, and no symbolic link is
//! followed. The tree belonged to a guest, so its content is not trusted. The guest must have ended
//! before.

mod copy_up;
mod file;
mod hard_links;
mod small;

use std::{
    collections::HashMap,
    ffi::{CString, OsString},
    io::{self, BufWriter, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};

pub use self::{copy_up::copy_up_hard_links, small::pack_small_dir};

use self::{
    file::{PackBuffers, copy_data, data_extents, truncate_content},
    hard_links::HardLinks,
};
use crate::{
    archive::{join_path, split_path, write},
    beneath,
    entry::{EntryKind, Extent, LayerEntry, Mtime},
    error::PATH_BYTES,
};

/// The namespace of the attributes with which the overlay marks its directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverlayXattrs {
    /// `trusted.overlay.*`.
    Trusted,
    /// `user.overlay.*`, as overlays mounted with `userxattr` do.
    User,
}

/// What to pack, and how to read it.
#[derive(Clone, Debug)]
pub struct PackOptions {
    /// Names at the top that are skipped.
    pub skip: Vec<OsString>,
    /// The namespace of the overlay's marks.
    pub markers: OverlayXattrs,
    /// The mode of the home before the run. The executor added the owner's execute bit for the run.
    pub home_mode: Option<u32>,
    /// Limits of file content. `None` keeps all of it.
    pub most: Option<ContentLimits>,
}

/// Limits of file content, holes not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentLimits {
    /// For each file.
    pub file: u64,
    /// For all files together, in the order of their paths.
    pub total: u64,
}

/// Parts of the tree that are missing in the archive, other than whole files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackOmissions {
    /// The number of attributes that were dropped because a file has more than a home keeps.
    pub attributes_left_out: u64,
    /// Truncated files and their real sizes; incomplete if there are more than a limit.
    pub cut: HashMap<Vec<u8>, u64>,
}

/// How many truncated files are listed.
const MOST_CUT: usize = 2000;

/// The mode bit that the owner of a home needs to enter it.
pub const OWNER_EXEC: u32 = 0o100;

/// A directory that a guest has written to.
#[derive(Clone, Copy, Debug)]
pub struct UpperDir<'a> {
    /// The directory itself.
    pub dir: BorrowedFd<'a>,
    /// The mounted overlay of this upper directory. If a run changed only the mode, time or name
    /// of a file, its content is read from there.
    pub merged: Option<BorrowedFd<'a>>,
}

/// Writes the tree below a directory to `out` as a pax archive. It is sorted: the same tree gives
/// the same bytes.
///
/// These are left out: sockets, entries with a path of more than 16 KiB, attributes beyond what a
/// home keeps, and set-user-id and set-group-id bits of files, because a home has one user.
///
/// # Errors
/// If a file cannot be read, `out` cannot be written, or the tree contains a device node.
pub fn pack_upper_dir(
    upper: UpperDir<'_>,
    request: &PackOptions,
    out: impl Write,
) -> io::Result<PackOmissions> {
    let mut packer = UpperPacker {
        home_mode: request.home_mode,
        most: request.most,
        cut: HashMap::new(),
        merged: upper.merged,
        out: BufWriter::with_capacity(1 << 16, out),
        markers: request.markers,
        path: Vec::new(),
        levels: Vec::new(),
        links: HardLinks::default(),
        scratch: PackBuffers::default(),
    };
    let top = rustix::fs::openat(upper.dir, ".", DIRECTORY, Mode::empty())?;
    let skipped = |name: &[u8]| request.skip.iter().any(|skip| skip.as_bytes() == name);
    let mut here = packer.enter_directory(top, None)?;
    if let Some(level) = packer.levels.last_mut() {
        level.names.retain(|name| !skipped(name.as_bytes()));
    }
    while let Some(level) = packer.levels.last_mut() {
        match level.names.pop() {
            Some(name) => here = packer.pack_entry(here, &name)?,
            None => here = packer.leave_directory(here)?,
        }
    }
    write::write_end(&mut packer.out)?;
    Ok(PackOmissions { attributes_left_out: packer.scratch.left_out, cut: packer.cut })
}

const DIRECTORY: OFlags =
    OFlags::DIRECTORY.union(OFlags::RDONLY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// `NONBLOCK`: opening must not wait if the file has become a pipe.
const FILE: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// A directory that is being walked.
struct PackLevel {
    /// The length of its path.
    path: usize,
    /// Its path in older layers, if that differs.
    redirect: Option<Vec<u8>>,
    /// Its device and inode, to check it on the way up.
    identity: (u64, u64),
    /// The names that remain, the next one last.
    names: Vec<CString>,
}

struct UpperPacker<'a, W: Write> {
    merged: Option<BorrowedFd<'a>>,
    home_mode: Option<u32>,
    most: Option<ContentLimits>,
    cut: HashMap<Vec<u8>, u64>,
    out: BufWriter<W>,
    markers: OverlayXattrs,
    path: Vec<u8>,
    levels: Vec<PackLevel>,
    links: HardLinks,
    scratch: PackBuffers,
}

impl<W: Write> UpperPacker<'_, W> {
    /// Packs one name in the directory `here`. Returns the directory in which to continue.
    fn pack_entry(&mut self, here: OwnedFd, name: &CString) -> io::Result<OwnedFd> {
        let parent = self.path.len();
        self.path = join_path(&self.path, name.as_bytes());
        if self.path.len() > PATH_BYTES {
            // No layer can hold this path. The rest of the home is packed.
            self.path.truncate(parent);
            return Ok(here);
        }
        let stat = rustix::fs::statat(&here, name, AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let child = self.open_name(&here, name, DIRECTORY)?;
                return self.enter_directory(child, Some(parent));
            }
            FileType::RegularFile => self.pack_file(&here, name)?,
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(&here, name, Vec::new())?.into_bytes();
                self.pack_special(&stat, EntryKind::Symlink { target })?;
            }
            FileType::Fifo => self.pack_special(&stat, EntryKind::Fifo)?,
            FileType::CharacterDevice if stat.st_rdev == 0 => {
                let entry = LayerEntry {
                    path: self.path.clone(),
                    kind: EntryKind::Whiteout,
                    mode: 0,
                    mtime: Mtime::default(),
                    xattrs: Vec::new(),
                };
                write::write_header(&mut self.out, &entry)?;
            }
            FileType::Socket => {}
            _ => return Err(self.path_error("a device node cannot be in a home")),
        }
        self.path.truncate(parent);
        Ok(here)
    }

    /// Opens a name of a directory without following links.
    fn open_name(&self, here: &OwnedFd, name: &CString, flags: OFlags) -> io::Result<OwnedFd> {
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(here, name, flags, Mode::empty(), resolve)
            .map_err(|errno| self.path_error(&io::Error::from(errno).to_string()))
    }

    /// Packs a directory and enters it. `parent` is the length of its parent's path.
    fn enter_directory(
        &mut self,
        directory: OwnedFd,
        parent: Option<usize>,
    ) -> io::Result<OwnedFd> {
        let stat = rustix::fs::fstat(&directory)?;
        let found = self.scratch.read_attributes(directory.as_fd(), self.markers)?;
        let redirect = match (found.redirect, parent) {
            (Some(redirect), Some(parent)) => Some(self.redirect_origin(redirect, parent)?),
            _ => None,
        };
        let kind = EntryKind::Directory { opaque: found.opaque, redirect: redirect.clone() };
        let mode = stat.st_mode & 0o7777;
        let closed =
            self.home_mode.filter(|before| parent.is_none() && before | OWNER_EXEC == mode);
        let entry = LayerEntry {
            path: self.path.clone(),
            kind,
            mode: closed.unwrap_or(mode),
            mtime: mtime_of(&stat),
            xattrs: found.xattrs,
        };
        write::write_header(&mut self.out, &entry)?;
        let mut names = Vec::new();
        for found in Dir::read_from(&directory)? {
            let found = found?;
            if !matches!(found.file_name().to_bytes(), b"." | b"..") {
                names.push(found.file_name().to_owned());
            }
        }
        names.sort_unstable_by(|a, b| b.cmp(a));
        let identity = (stat.st_dev, stat.st_ino);
        self.levels.push(PackLevel { path: self.path.len(), redirect, identity, names });
        Ok(directory)
    }

    /// Returns to the parent, and checks that it is the directory that was entered before.
    fn leave_directory(&mut self, here: OwnedFd) -> io::Result<OwnedFd> {
        self.levels.pop();
        let Some(level) = self.levels.last() else { return Ok(here) };
        let up = rustix::fs::openat(&here, "..", DIRECTORY, Mode::empty())?;
        let stat = rustix::fs::fstat(&up)?;
        if (stat.st_dev, stat.st_ino) != level.identity {
            return Err(self.path_error("the directory was moved while it was packed"));
        }
        self.path.truncate(level.path);
        Ok(up)
    }

    /// The path in older layers of a directory with this redirect marker. A single name is relative
    /// to the path of the directory's parent in older layers.
    fn redirect_origin(&self, marker: Vec<u8>, parent: usize) -> io::Result<Vec<u8>> {
        let path = match marker.strip_prefix(b"/") {
            Some(path) => path.to_vec(),
            None => {
                let moved = self.levels.iter().rev().find_map(|level| {
                    level.redirect.as_ref().map(|redirect| (redirect, level.path))
                });
                let parent = match moved {
                    Some((redirect, from)) => {
                        [&redirect[..], &self.path[from..parent.max(from)]].concat()
                    }
                    None => self.path[..parent].to_vec(),
                };
                join_path(&parent, &marker)
            }
        };
        crate::archive::check_path(&path).map_err(|error| self.path_error(&error.to_string()))?;
        if path.is_empty() {
            Err(self.path_error("a redirect marker without a path"))
        } else {
            Ok(path)
        }
    }

    fn pack_special(&mut self, stat: &Stat, kind: EntryKind) -> io::Result<()> {
        let kind = match self.links.earlier_name(stat, &self.path) {
            Some(target) => EntryKind::HardLink { target },
            None => kind,
        };
        let entry = LayerEntry {
            path: self.path.clone(),
            kind,
            mode: stat.st_mode & 0o1777,
            mtime: mtime_of(stat),
            xattrs: Vec::new(),
        };
        write::write_header(&mut self.out, &entry)
    }

    fn pack_file(&mut self, here: &OwnedFd, name: &CString) -> io::Result<()> {
        let file = self.open_name(here, name, FILE)?;
        let stat = rustix::fs::fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(self.path_error("the file was replaced while it was packed"));
        }
        if let Some(target) = self.links.earlier_name(&stat, &self.path) {
            if let Some(size) = self.cut.get(&target).copied() {
                self.note_truncated(size);
            }
            let kind = EntryKind::HardLink { target };
            let (path, mode) = (self.path.clone(), stat.st_mode & 0o1777);
            let entry = LayerEntry { path, kind, mode, mtime: mtime_of(&stat), xattrs: Vec::new() };
            return write::write_header(&mut self.out, &entry);
        }
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let found = self.scratch.read_attributes(file.as_fd(), self.markers)?;
        let data = if found.is_metacopy { self.open_merged_content()? } else { file };
        let extents = data_extents(&data, &rustix::fs::fstat(&data)?)?;
        let kind = self.limit_content(size, extents);
        let entry = LayerEntry {
            path: self.path.clone(),
            kind,
            mode: stat.st_mode & 0o1777,
            mtime: mtime_of(&stat),
            xattrs: found.xattrs,
        };
        write::write_header(&mut self.out, &entry)?;
        copy_data(&data, &entry.kind, self.scratch.buffer(), &mut self.out)?;
        write::write_padding(&mut self.out, entry.kind.data_bytes())
    }

    /// Truncates the content of a file to the limits.
    fn limit_content(&mut self, size: u64, extents: Option<Vec<Extent>>) -> EntryKind {
        let whole = EntryKind::File { size, extents, data_at: 0, hash: [0; 16] };
        let Some(most) = &mut self.most else { return whole };
        let limit = most.file.min(most.total);
        let kept = if whole.data_bytes() > limit { truncate_content(whole, limit) } else { whole };
        most.total -= kept.data_bytes();
        if !matches!(kept, EntryKind::File { size: kept, .. } if kept == size) {
            self.note_truncated(size);
        }
        kept
    }

    fn note_truncated(&mut self, size: u64) {
        if self.cut.len() < MOST_CUT {
            self.cut.insert(self.path.clone(), size);
        }
    }

    /// Opens the content of a file whose metadata alone is in the upper directory.
    fn open_merged_content(&self) -> io::Result<OwnedFd> {
        let merged = self
            .merged
            .ok_or_else(|| self.path_error("its content is not in the upper directory"))?;
        let (directory, name) = split_path(&self.path);
        let file = beneath::open_path(
            beneath::open_directory(merged, directory)?,
            name,
            FILE,
            Mode::empty(),
        )?;
        match FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) {
            FileType::RegularFile => Ok(file),
            _ => Err(self.path_error("its content is not a regular file")),
        }
    }

    fn path_error(&self, what: &str) -> io::Error {
        io::Error::other(format!("{:?}: {what}", String::from_utf8_lossy(&self.path)))
    }
}

fn mtime_of(stat: &Stat) -> Mtime {
    Mtime { seconds: stat.st_mtime, nanos: u32::try_from(stat.st_mtime_nsec).unwrap_or(0) }
}
