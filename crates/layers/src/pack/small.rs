//! Packs a home of a few small files in the process that stores it.
//!
//! Runs in: server (no capabilities). It reads what anyone may read, and gives up on everything else:
//! then a packer does it, which the server has to wait for. The guest may still run. So every step
//! is bounded by constants, not by what an earlier step has seen, and each file has the size that was
//! read of it.

use std::{
    ffi::CString,
    io::Read,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::fs::{FileType, Mode, OFlags, RawDir, ResolveFlags, SeekFrom, Stat};

use super::{DIRECTORY, FILE, mtime_of};
use crate::{
    archive::{join_path, write},
    entry::{EntryKind, LayerEntry},
};

/// The most entries, the home itself included.
const MOST_ENTRIES: usize = 32;
/// The most bytes of all files together.
const MOST_BYTES: usize = 64 << 10;
/// The most directories within each other.
const MOST_LEVELS: usize = 8;
/// The buffer for the entries of a directory.
const LISTING_BYTES: usize = 4096;

/// Packs the tree below a directory as [`pack_upper_dir`](super::pack_upper_dir) does, without these
/// names at its top. `None` if it is not small, has anything but directories and plain files, or
/// may not be read.
#[must_use]
pub fn pack_small_dir(top: BorrowedFd<'_>, skip: &[&str]) -> Option<Vec<u8>> {
    let mut packer = SmallPacker { out: Vec::new(), entries: 0, bytes: 0 };
    // Others may not open it again, so its entries are read by the descriptor at hand.
    rustix::fs::seek(top, SeekFrom::Start(0)).ok()?;
    packer.pack_directory(top, &[], (MOST_LEVELS, skip))?;
    write::write_end(&mut packer.out).ok()?;
    Some(packer.out)
}

struct SmallPacker {
    out: Vec<u8>,
    entries: usize,
    bytes: usize,
}

impl SmallPacker {
    fn pack_directory(
        &mut self,
        here: BorrowedFd<'_>,
        path: &[u8],
        (levels, skip): (usize, &[&str]),
    ) -> Option<()> {
        let levels = levels.checked_sub(1)?;
        let stat = rustix::fs::fstat(here).ok()?;
        let kind = EntryKind::Directory { opaque: false, redirect: None };
        self.put_header(path, kind, (&stat, 0o7777), here)?;
        for name in list_few_names(here)? {
            if skip.iter().any(|skip| skip.as_bytes() == name.as_bytes()) {
                continue;
            }
            let path = join_path(path, name.as_bytes());
            let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
            let stat = rustix::fs::statat(here, &name, flags).ok()?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => {
                    let child = open_name(here, &name, DIRECTORY)?;
                    self.pack_directory(child.as_fd(), &path, (levels, &[]))?;
                }
                FileType::RegularFile => self.pack_file(&open_name(here, &name, FILE)?, &path)?,
                _ => return None,
            }
        }
        Some(())
    }

    fn pack_file(&mut self, file: &OwnedFd, path: &[u8]) -> Option<()> {
        let stat = rustix::fs::fstat(file).ok()?;
        // A file with several names would be several files, and a hole is not worth its map here.
        let is_plain = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && stat.st_nlink == 1
            && stat.st_blocks.cast_unsigned() * 512 >= stat.st_size.cast_unsigned();
        let left = MOST_BYTES - self.bytes;
        if !is_plain || stat.st_size.cast_unsigned() > left as u64 {
            return None;
        }
        let mut content = Vec::with_capacity(usize::try_from(stat.st_size).ok()? + 1);
        let mut file_reader = std::fs::File::from(file.try_clone().ok()?).take(left as u64 + 1);
        file_reader.read_to_end(&mut content).ok()?;
        if content.len() > left {
            return None;
        }
        self.bytes += content.len();
        let size = content.len() as u64;
        let kind = EntryKind::File { size, extents: None, data_at: 0, hash: [0; 16] };
        self.put_header(path, kind, (&stat, 0o1777), file.as_fd())?;
        self.out.extend_from_slice(&content);
        write::write_padding(&mut self.out, size).ok()
    }

    fn put_header(
        &mut self,
        path: &[u8],
        kind: EntryKind,
        (stat, mode): (&Stat, u32),
        file: BorrowedFd<'_>,
    ) -> Option<()> {
        self.entries += 1;
        let has_attributes = rustix::fs::flistxattr_query(file) != Ok(0);
        if self.entries > MOST_ENTRIES || has_attributes {
            return None;
        }
        let (mode, mtime) = (stat.st_mode & mode, mtime_of(stat));
        let entry = LayerEntry { path: path.to_vec(), kind, mode, mtime, xattrs: Vec::new() };
        write::write_header(&mut self.out, &entry).ok()
    }
}

/// The names in a directory in order, if they are few.
fn list_few_names(here: BorrowedFd<'_>) -> Option<Vec<CString>> {
    let mut buffer = [MaybeUninit::uninit(); LISTING_BYTES];
    let (mut entries, mut names) = (RawDir::new(here, &mut buffer), Vec::new());
    while let Some(entry) = entries.next() {
        let entry = entry.ok()?;
        if matches!(entry.file_name().to_bytes(), b"." | b"..") {
            continue;
        }
        if names.len() == MOST_ENTRIES {
            return None;
        }
        names.push(entry.file_name().to_owned());
    }
    names.sort_unstable();
    Some(names)
}

/// Opens a name of a directory without following links.
fn open_name(here: BorrowedFd<'_>, name: &CString, flags: OFlags) -> Option<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    rustix::fs::openat2(here, name, flags, Mode::empty(), resolve).ok()
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, File},
        os::unix::fs::{PermissionsExt, symlink},
        path::Path,
    };

    use proptest::prelude::*;

    use super::*;
    use crate::{OverlayXattrs, PackOptions, UpperDir, pack_upper_dir};

    fn pack_small(top: &Path, skip: &[&str]) -> Option<Vec<u8>> {
        pack_small_dir(File::open(top).unwrap().as_fd(), skip)
    }

    fn pack_as_a_packer(top: &Path, skip: &[&str]) -> Vec<u8> {
        let (dir, mut archive) = (File::open(top).unwrap(), Vec::new());
        let options = PackOptions {
            skip: skip.iter().map(Into::into).collect(),
            markers: OverlayXattrs::Trusted,
            home_mode: None,
            most: None,
        };
        let upper = UpperDir { dir: dir.as_fd(), merged: None };
        pack_upper_dir(upper, &options, &mut archive).unwrap();
        archive
    }

    #[test]
    fn a_tree_that_is_not_small_and_plain_is_left_to_a_packer() {
        type Spoil = fn(&Path);
        let spoils: [(&str, Spoil); 9] = [
            ("link", |top| symlink("a", top.join("b")).unwrap()),
            ("hard link", |top| fs::hard_link(top.join("a"), top.join("b")).unwrap()),
            ("fifo", |top| {
                let mode = Mode::from_raw_mode(0o644);
                let kind = FileType::Fifo;
                rustix::fs::mknodat(rustix::fs::CWD, top.join("b"), kind, mode, 0).unwrap();
            }),
            ("attribute", |top| {
                let flags = rustix::fs::XattrFlags::empty();
                rustix::fs::setxattr(top.join("a"), "user.x", b"1", flags).unwrap();
            }),
            ("attribute of the home", |top| {
                let flags = rustix::fs::XattrFlags::empty();
                rustix::fs::setxattr(top, "user.x", b"1", flags).unwrap();
            }),
            ("hole", |top| File::create(top.join("b")).unwrap().set_len(8192).unwrap()),
            ("large", |top| fs::write(top.join("b"), vec![1; MOST_BYTES]).unwrap()),
            ("many", |top| {
                (0..MOST_ENTRIES).for_each(|at| fs::write(top.join(at.to_string()), "").unwrap());
            }),
            ("deep", |top| fs::create_dir_all(top.join("a0/b/c/d/e/f/g/h")).unwrap()),
        ];
        for (what, spoil) in spoils {
            let home = tempfile::tempdir_in(".").unwrap();
            fs::write(home.path().join("a"), "1").unwrap();
            assert!(pack_small(home.path(), &[]).is_some(), "{what}");
            spoil(home.path());
            assert_eq!(pack_small(home.path(), &[]), None, "{what}");
        }
    }

    #[test]
    fn a_home_that_others_may_not_open_is_packed_by_its_descriptor() {
        let home = tempfile::tempdir_in(".").unwrap();
        fs::write(home.path().join("a"), "1").unwrap();
        let top = File::open(home.path()).unwrap();
        // The file may be read, the directory may not be listed.
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o311)).unwrap();
        let packed = std::thread::scope(|scope| {
            let packing = scope.spawn(|| {
                if rustix::process::geteuid().is_root() {
                    // Only this thread: root may open every directory.
                    rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(65_534)).unwrap();
                }
                let opened = rustix::fs::openat(&top, ".", DIRECTORY, Mode::empty());
                assert_eq!(opened.unwrap_err(), rustix::io::Errno::ACCESS);
                [pack_small_dir(top.as_fd(), &[]), pack_small_dir(top.as_fd(), &[])]
            });
            packing.join().unwrap()
        });
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o700)).unwrap();
        assert!(packed[0].is_some());
        assert_eq!(packed[0], packed[1]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn a_small_tree_gives_the_archive_of_a_packer(
            files in prop::collection::btree_map(
                "[a-c]{1,2}(/[a-cé]{1,2}){0,3}", prop::collection::vec(any::<u8>(), 0..3000), 0..12,
            ),
            modes in prop::collection::vec(0_u32..0o10000, 12),
        ) {
            let home = tempfile::tempdir().unwrap();
            for ((path, content), mode) in files.iter().zip(modes) {
                let path = home.path().join(path);
                // A name may be a file where another path needs a directory.
                if fs::create_dir_all(path.parent().unwrap()).is_ok()
                    && fs::write(&path, content).is_ok()
                {
                    fs::set_permissions(&path, fs::Permissions::from_mode(mode | 0o400)).unwrap();
                }
            }
            let whole = pack_small(home.path(), &[]);
            prop_assert_eq!(whole, Some(pack_as_a_packer(home.path(), &[])));
            let part = pack_small(home.path(), &["a", "bb"]);
            prop_assert_eq!(part, Some(pack_as_a_packer(home.path(), &["a", "bb"])));
        }
    }
}
