//! Runs in: packer (`DAC_READ_SEARCH`, `SYS_ADMIN` and `FOWNER`). Completes the hard links of files
//! that a run changed, so that every name of such a file is packed.
//!
//! An overlay with an index keeps its copy of a file with several names under the file handle that
//! the file has in its layer. Names that the run did not use are missing in the upper directory.
//! They are copied up before packing, or the next run would find the old content under them. The
//! index also has a file of which only one name was deleted; if nothing else changed, it is not
//! copied up.

use std::{
    collections::HashSet,
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use cloche_jail::sys;
use cloche_layers::copy_up_hard_links;
use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat},
    io::Errno,
    mount::{FsPickFlags, fsconfig_reconfigure, fsconfig_set_string, fspick},
};

use crate::spawner::{LAYERS, read_user_xattrs};

/// The size of the tmpfs while names are copied up: bytes and inodes. It takes names and their
/// parent directories; the content of the files is there already.
const COPY_UP_SIZE: (&str, &str) = ("1t", "100m");
/// The bytes before the handle itself: version, magic number, length, flags, type, file system id.
const HEAD: usize = 21;
const MAGIC: u8 = 0xfb;
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Copies every name of a changed file into the upper directory.
pub(super) fn complete_hard_links(upper: BorrowedFd<'_>, merged: BorrowedFd<'_>) -> io::Result<()> {
    let scratch = rustix::fs::openat(upper, "..", DIRECTORY, Mode::empty())?;
    let index = match rustix::fs::openat(&scratch, "work/index", DIRECTORY, Mode::empty()) {
        // An overlay has no index if its layers have no file handles.
        Err(Errno::NOENT) => return Ok(()),
        index => index?,
    };
    let inodes = changed_inodes(&index)?;
    if inodes.is_empty() {
        return Ok(());
    }
    // The home may be full, and the guest is not charged for what follows.
    let context =
        fspick(&scratch, "", FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH)?;
    fsconfig_set_string(&context, "size", COPY_UP_SIZE.0)?;
    fsconfig_set_string(&context, "nr_inodes", COPY_UP_SIZE.1)?;
    fsconfig_reconfigure(&context)?;
    copy_up_hard_links(merged, &inodes)
}

/// The inode numbers of changed files: those of their layers, which the overlay shows too.
fn changed_inodes(index: &OwnedFd) -> io::Result<HashSet<u64>> {
    let mut inodes = HashSet::new();
    for entry in Dir::read_from(index)? {
        let entry = entry?;
        // Other entries are the overlay's own.
        let Some(handle) = decode_file_handle(entry.file_name().to_bytes()) else { continue };
        let copy = rustix::fs::statat(index, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)?;
        let is_file = FileType::from_raw_mode(copy.st_mode) == FileType::RegularFile;
        let original = open_by_handle(&handle, is_file)?;
        let was = rustix::fs::fstat(&original)?;
        let has_no_name = copy.st_nlink == 1;
        if !(has_no_name && is_file && is_same_file(index, entry.file_name(), &copy, &original)?) {
            inodes.insert(was.st_ino);
        }
    }
    Ok(inodes)
}

/// Whether a copy equals its original: no content was copied, and the metadata is the same.
fn is_same_file(
    index: &OwnedFd,
    name: &std::ffi::CStr,
    copy: &Stat,
    original: &OwnedFd,
) -> io::Result<bool> {
    let was = rustix::fs::fstat(original)?;
    let metadata = |stat: &Stat| (stat.st_mode, stat.st_mtime, stat.st_mtime_nsec, stat.st_size);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let copied = rustix::fs::openat(index, name, flags, Mode::empty())?;
    let without_content =
        rustix::fs::fgetxattr(&copied, "trusted.overlay.metacopy", &mut [0; 64]).is_ok();
    Ok(without_content
        && metadata(copy) == metadata(&was)
        && read_user_xattrs(&copied)? == read_user_xattrs(original)?)
}

/// The file handle that an index name spells in hexadecimal, in the form that the kernel takes.
fn decode_file_handle(name: &[u8]) -> Option<[u32; 34]> {
    let digits = std::str::from_utf8(name).ok()?;
    let pair = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
    let bytes: Vec<u8> = (0..name.len()).step_by(2).map(pair).collect::<Option<_>>()?;
    let (head, rest) = bytes.split_at_checked(HEAD)?;
    if head[1] != MAGIC || usize::from(head[2]) != bytes.len() || rest.len() > 128 {
        return None;
    }
    let mut handle = [0; 34];
    handle[0] = u32::try_from(rest.len()).ok()?;
    handle[1] = u32::from(head[4]);
    for (word, part) in handle[2..].iter_mut().zip(rest.chunks(4)) {
        let mut four = [0; 4];
        four[..part.len()].copy_from_slice(part);
        *word = u32::from_ne_bytes(four);
    }
    Some(handle)
}

/// Opens a file of a layer by its file handle.
fn open_by_handle(handle: &[u32; 34], to_read: bool) -> io::Result<OwnedFd> {
    let layers = File::open(LAYERS)?;
    let how = if to_read { OFlags::RDONLY } else { OFlags::PATH };
    let flags = how | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let opened = sys::open_by_handle(layers.as_fd().as_raw_fd(), handle, flags);
    opened.map(sys::into_owned_fd).map_err(|errno| io::Error::from_raw_os_error(errno.0))
}
