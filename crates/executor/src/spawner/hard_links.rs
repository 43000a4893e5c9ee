//! Files with several names of which a run changed one, so that all of them are packed.
//!
//! An overlay keeps what it copied up of such a file in an index, under the handle of the file in
//! its layer. The names that nobody used are not in the upper directory; they are put there before
//! it is packed, or the next run would find the old file under them. A file of which a name was only
//! deleted is in the index too, and is left as it is in its layer.

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

use super::home_mounter::LAYERS;

/// Room for names and directories on the way to them; files have their content already.
const ROOM: (&str, &str) = ("1t", "100m");
/// Before the handle itself: version, magic number, length, flags, kind and a file system's id.
const HEAD: usize = 21;
const MAGIC: u8 = 0xfb;
const MOST_XATTRS: usize = 1 << 16;
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Puts every name of what was changed into the upper directory.
pub(super) fn complete_hard_links(upper: BorrowedFd<'_>, merged: BorrowedFd<'_>) -> io::Result<()> {
    let scratch = rustix::fs::openat(upper, "..", DIRECTORY, Mode::empty())?;
    let index = match rustix::fs::openat(&scratch, "work/index", DIRECTORY, Mode::empty()) {
        // An overlay whose layers have no handles keeps none.
        Err(Errno::NOENT) => return Ok(()),
        index => index?,
    };
    let inodes = changed_inodes(&index)?;
    if inodes.is_empty() {
        return Ok(());
    }
    // The home may be full, and what follows is not the guest's doing.
    let context =
        fspick(&scratch, "", FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH)?;
    fsconfig_set_string(&context, "size", ROOM.0)?;
    fsconfig_set_string(&context, "nr_inodes", ROOM.1)?;
    fsconfig_reconfigure(&context)?;
    copy_up_hard_links(merged, &inodes)
}

/// The numbers that changed files have in their layers, and in the overlay.
fn changed_inodes(index: &OwnedFd) -> io::Result<HashSet<u64>> {
    let mut inodes = HashSet::new();
    for entry in Dir::read_from(index)? {
        let entry = entry?;
        // Others are the overlay's own.
        let Some(handle) = decode_file_handle(entry.file_name().to_bytes()) else { continue };
        let copy = rustix::fs::statat(index, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)?;
        let is_file = FileType::from_raw_mode(copy.st_mode) == FileType::RegularFile;
        let original = open_by_handle(&handle, is_file)?;
        let was = rustix::fs::fstat(&original)?;
        let unnamed = copy.st_nlink == 1;
        if !(unnamed && is_file && is_same_file(index, entry.file_name(), &copy, &original)?) {
            inodes.insert(was.st_ino);
        }
    }
    Ok(inodes)
}

/// Whether a copy differs in nothing from the file that it is of.
fn is_same_file(
    index: &OwnedFd,
    name: &std::ffi::CStr,
    copy: &Stat,
    original: &OwnedFd,
) -> io::Result<bool> {
    let was = rustix::fs::fstat(original)?;
    let about = |stat: &Stat| (stat.st_mode, stat.st_mtime, stat.st_mtime_nsec, stat.st_size);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let copied = rustix::fs::openat(index, name, flags, Mode::empty())?;
    let without_content =
        rustix::fs::fgetxattr(&copied, "trusted.overlay.metacopy", &mut [0; 64]).is_ok();
    Ok(without_content
        && about(copy) == about(&was)
        && read_user_xattrs(&copied)? == read_user_xattrs(original)?)
}

/// The guest's own attributes, in order.
pub(super) fn read_user_xattrs(file: &OwnedFd) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    // Most files have next to none.
    let mut list = vec![0; 1 << 10];
    let length = match rustix::fs::flistxattr(file, &mut list[..]) {
        Err(Errno::RANGE) => {
            list.resize(MOST_XATTRS, 0);
            rustix::fs::flistxattr(file, &mut list[..])?
        }
        length => length?,
    };
    let guests = |name: &&[u8]| name.starts_with(b"user.") && !name.starts_with(b"user.overlay.");
    let names = list[..length].split(|byte| *byte == 0).filter(guests);
    let mut found = Vec::new();
    for name in names {
        let mut value = vec![0; MOST_XATTRS];
        let length = rustix::fs::fgetxattr(file, name, &mut value[..])?;
        found.push((name.to_vec(), value[..length].to_vec()));
    }
    found.sort();
    Ok(found)
}

/// The handle that a name of the index is written from, as the kernel takes it.
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

/// Opens a file of a layer by its handle.
fn open_by_handle(handle: &[u32; 34], to_read: bool) -> io::Result<OwnedFd> {
    let layers = File::open(LAYERS)?;
    let how = if to_read { OFlags::RDONLY } else { OFlags::PATH };
    let flags = how | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let opened = sys::open_by_handle(layers.as_fd().as_raw_fd(), handle, flags);
    opened.map(sys::into_owned_fd).map_err(|errno| io::Error::from_raw_os_error(errno.0))
}
