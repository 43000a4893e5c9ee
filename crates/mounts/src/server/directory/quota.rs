//! Runs in: mount server (no capabilities). Changes of files that the quota of a volume counts.
//!
//! Every change happens under the lock of the ledger. A file that was deleted while it is open
//! counts until its last handle in any cell is closed: open files hold a shared lock, and who gets
//! the exclusive one is the last.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::FileExt as _,
    },
};

use rustix::{
    fs::{AtFlags, FallocateFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags, Stat},
    io::{Errno, Result},
};

use super::handles::OpenMountFile;
use crate::volume::{Beneath, VolumeLedger, to_errno};

/// The accounting of a mount; a plain directory has none.
pub(super) struct QuotaGuard(pub(super) Option<VolumeLedger>);

fn size_of(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

impl QuotaGuard {
    /// Marks an open file as in use by this process.
    pub(super) fn hold(&self, file: &File) -> Result<()> {
        match &self.0 {
            Some(_) => rustix::fs::flock(file, FlockOperation::LockShared),
            None => Ok(()),
        }
    }

    /// Does what makes one more entry.
    pub(super) fn add_entry<T>(&self, make: impl FnOnce() -> Result<T>) -> Result<T> {
        let Some(ledger) = &self.0 else { return make() };
        let mut locked = ledger.lock()?;
        locked.reserve(0, 1).map_err(|_| Errno::NOSPC)?;
        let made = make();
        if made.is_err() {
            locked.release(0, 1);
        }
        made
    }

    /// Writes at an offset, or at the end of a file that is open to append.
    pub(super) fn write(&self, open: &OpenMountFile, data: &[u8], offset: u64) -> Result<usize> {
        let write = |at: u64| match open.appends {
            true => rustix::io::write(&open.file, data),
            false => open.file.write_at(data, at).map_err(|error| to_errno(&error)),
        };
        let Some(ledger) = &self.0 else { return write(offset) };
        let end = |size: u64| {
            let start = if open.appends { size } else { offset };
            start.checked_add(data.len() as u64).ok_or(Errno::FBIG)
        };
        let before = size_of(&rustix::fs::fstat(&open.file)?);
        if end(before)? <= before {
            return write(offset);
        }
        let mut locked = ledger.lock()?;
        // Another cell may have changed it.
        let before = size_of(&rustix::fs::fstat(&open.file)?);
        let growth = end(before)?.saturating_sub(before);
        locked.reserve(growth, 0).map_err(|_| Errno::NOSPC)?;
        let written = write(offset);
        let after = size_of(&rustix::fs::fstat(&open.file)?);
        locked.release(growth.saturating_sub(after.saturating_sub(before)), 0);
        written
    }

    /// Changes the size of a file.
    pub(super) fn resize(&self, file: impl AsFd, size: u64) -> Result<()> {
        let Some(ledger) = &self.0 else { return rustix::fs::ftruncate(file, size) };
        let mut locked = ledger.lock()?;
        let before = size_of(&rustix::fs::fstat(&file)?);
        locked.reserve(size.saturating_sub(before), 0).map_err(|_| Errno::NOSPC)?;
        match rustix::fs::ftruncate(&file, size) {
            Ok(()) => locked.release(before.saturating_sub(size), 0),
            Err(error) => {
                locked.release(size.saturating_sub(before), 0);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Allocates space, and makes the file longer if it is shorter.
    pub(super) fn allocate(&self, file: &File, offset: u64, length: u64) -> Result<()> {
        let end = offset.checked_add(length).ok_or(Errno::FBIG)?;
        let size = size_of(&rustix::fs::fstat(file)?);
        if end > size {
            self.resize(file, end)?;
        }
        rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, offset, length)
    }

    /// Removes a name.
    pub(super) fn remove(&self, at: &Beneath<'_>, flags: AtFlags) -> Result<()> {
        let Some(ledger) = &self.0 else {
            return rustix::fs::unlinkat(&at.parent, at.name, flags);
        };
        let mut locked = ledger.lock()?;
        let doomed = DoomedFile::find(at);
        rustix::fs::unlinkat(&at.parent, at.name, flags)?;
        locked.release(doomed.freed_bytes(), 1);
        Ok(())
    }

    /// Renames, and frees what the new name was before.
    pub(super) fn rename(
        &self,
        from: &Beneath<'_>,
        to: &Beneath<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let rename =
            || rustix::fs::renameat_with(&from.parent, from.name, &to.parent, to.name, flags);
        let Some(ledger) = &self.0 else { return rename() };
        if flags.contains(RenameFlags::EXCHANGE) {
            return rename();
        }
        let mut locked = ledger.lock()?;
        let stat = |at: &Beneath<'_>| {
            rustix::fs::statat(&at.parent, at.name, AtFlags::SYMLINK_NOFOLLOW).ok()
        };
        let (source, target) = (stat(from), stat(to));
        let doomed = DoomedFile::find(to);
        rename()?;
        // Two names of one file: the kernel then leaves both.
        let same = matches!((&source, &target), (Some(a), Some(b)) if a.st_ino == b.st_ino);
        if target.is_some() && !same {
            locked.release(doomed.freed_bytes(), 1);
        }
        Ok(())
    }

    /// Closes a file. If it has no name and no other user, its space is free.
    pub(super) fn close(&self, file: &File) -> io::Result<()> {
        let Some(ledger) = &self.0 else { return Ok(()) };
        let found = rustix::fs::fstat(file)?;
        if found.st_nlink > 0 {
            return Ok(());
        }
        let mut locked = ledger.lock()?;
        if rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            locked.release(size_of(&rustix::fs::fstat(file)?), 0);
        }
        // Whoever closes next must not find this lock.
        let _ = rustix::fs::flock(file, FlockOperation::Unlock);
        Ok(())
    }
}

/// A file whose name is about to go: its last one, if it is a regular file with one link.
struct DoomedFile(Option<OwnedFd>);

impl DoomedFile {
    fn find(at: &Beneath<'_>) -> Self {
        let found = rustix::fs::statat(&at.parent, at.name, AtFlags::SYMLINK_NOFOLLOW);
        let is_last = found.is_ok_and(|found| {
            found.st_nlink < 2 && FileType::from_raw_mode(found.st_mode) == FileType::RegularFile
        });
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Self(
            is_last
                .then(|| rustix::fs::openat(&at.parent, at.name, flags, Mode::empty()).ok())
                .flatten(),
        )
    }

    /// Its size, unless a process has it open: then the last one that closes it frees it.
    fn freed_bytes(self) -> u64 {
        let Some(file) = self.0 else { return 0 };
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => rustix::fs::fstat(&file).map_or(0, |found| size_of(&found)),
            Err(_) => 0,
        }
    }
}
