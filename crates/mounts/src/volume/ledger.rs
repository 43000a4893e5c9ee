//! Runs in: server (no capabilities), mount server (no capabilities). How much of a volume is used,
//! for every process that writes to it.
//!
//! The ledger is a small file with a lock. A process adds to it before a file grows, and subtracts
//! after a file has shrunk, both under the lock. So several executions together never pass the
//! quota, and a process that dies in between has counted too much, never too little. While a volume
//! is in use the ledger is marked; if the mark is there and no process uses the volume, or the host
//! was started again, the files are counted anew.

use std::{
    collections::HashSet,
    ffi::OsStr,
    fs::File,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt as _,
        unix::fs::FileExt as _,
    },
};

use parking_lot::{Mutex, MutexGuard};
use rustix::{
    fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags},
    io::{Errno, Result},
};

use super::open_beneath;

/// The first word of a ledger: its format.
const MAGIC: u64 = 0x0001_6c6f_7665_6863;
const WORDS: usize = 5;
/// How deep directories are counted. A path has at most 4096 bytes.
const MAX_DEPTH: usize = 2048;

/// The limits of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VolumeQuota {
    pub(crate) bytes: u64,
}

impl VolumeQuota {
    /// The most files, directories and links. An empty file takes a host some space, too.
    pub(crate) const fn entries(self) -> u64 {
        const LEAST: u64 = 16 << 10;
        const BYTES_PER_ENTRY: u64 = 8 << 10;
        let entries = self.bytes / BYTES_PER_ENTRY;
        if entries < LEAST { LEAST } else { entries }
    }
}

/// How much of a volume is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeUsage {
    /// The sizes of all files together.
    pub bytes: u64,
    /// Files, directories and links.
    pub entries: u64,
}

/// The quota is used up.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error("the quota of the volume is used up")]
pub struct VolumeFull;

/// The ledger of one volume, open in this process.
pub(crate) struct VolumeLedger {
    root: OwnedFd,
    ledger: File,
    /// Locked by every process that uses the volume.
    users: File,
    quota: VolumeQuota,
    /// Differs after each start of the host.
    boot: u64,
    /// Whether this process is counted among the users. The lock of a file does not exclude other
    /// threads, this mutex does.
    joined: Mutex<bool>,
}

/// The ledger while it is locked.
pub(crate) struct LockedLedger<'l> {
    ledger: &'l VolumeLedger,
    usage: VolumeUsage,
    joined: MutexGuard<'l, bool>,
}

impl VolumeLedger {
    /// The files must have been opened for this call: their locks belong to the open files.
    pub(crate) fn new(
        root: OwnedFd,
        [ledger, users]: [File; 2],
        quota: VolumeQuota,
        boot: u64,
    ) -> Self {
        Self { root, ledger, users, quota, boot, joined: Mutex::new(false) }
    }

    /// Locks the ledger. The first call counts the files if that is needed.
    pub(crate) fn lock(&self) -> Result<LockedLedger<'_>> {
        let joined = self.joined.lock();
        flock(&self.ledger, FlockOperation::LockExclusive)?;
        // From here on a drop unlocks the file.
        let usage = VolumeUsage::default();
        let mut locked = LockedLedger { ledger: self, usage, joined };
        let [magic, bytes, entries, in_use, boot] = self.read_words()?;
        locked.usage = VolumeUsage { bytes, entries };
        if !*locked.joined {
            let alone = flock(&self.users, FlockOperation::NonBlockingLockExclusive).is_ok();
            let is_known = magic == MAGIC && boot == self.boot;
            if !is_known || (alone && in_use != 0) {
                locked.usage = count_files(&self.root)?;
            }
            flock(&self.users, FlockOperation::LockShared)?;
            self.write_words(locked.usage, true)?;
            // The mark must survive a crash of the host.
            rustix::fs::fdatasync(&self.ledger)?;
            *locked.joined = true;
        }
        Ok(locked)
    }

    /// Ends the use of the volume in order. The last user takes the mark away.
    pub(crate) fn leave(&self) {
        let mut joined = self.joined.lock();
        if !*joined || flock(&self.ledger, FlockOperation::LockExclusive).is_err() {
            return;
        }
        let alone = flock(&self.users, FlockOperation::NonBlockingLockExclusive).is_ok();
        if let (true, Ok([MAGIC, bytes, entries, ..])) = (alone, self.read_words()) {
            let _ = self.write_words(VolumeUsage { bytes, entries }, false);
        }
        let _ = flock(&self.users, FlockOperation::Unlock);
        let _ = flock(&self.ledger, FlockOperation::Unlock);
        *joined = false;
    }

    /// What is used, as far as other processes have said.
    pub(crate) fn usage(&self) -> VolumeUsage {
        match self.read_words() {
            Ok([MAGIC, bytes, entries, ..]) => VolumeUsage { bytes, entries },
            _ => VolumeUsage::default(),
        }
    }

    pub(crate) const fn quota(&self) -> VolumeQuota {
        self.quota
    }

    fn read_words(&self) -> Result<[u64; WORDS]> {
        let mut bytes = [0; WORDS * 8];
        let mut read = 0;
        while read < bytes.len() {
            let more = self.ledger.read_at(&mut bytes[read..], read as u64);
            match more.map_err(|error| to_errno(&error))? {
                0 => break,
                more => read += more,
            }
        }
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
        }
        Ok(words)
    }

    fn write_words(&self, usage: VolumeUsage, in_use: bool) -> Result<()> {
        let words = [MAGIC, usage.bytes, usage.entries, u64::from(in_use), self.boot];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.ledger.write_all_at(&bytes, 0).map_err(|error| to_errno(&error))
    }
}

impl Drop for VolumeLedger {
    fn drop(&mut self) {
        self.leave();
    }
}

impl LockedLedger<'_> {
    /// Adds what will be used.
    pub(crate) fn reserve(
        &mut self,
        bytes: u64,
        entries: u64,
    ) -> std::result::Result<(), VolumeFull> {
        let usage = VolumeUsage {
            bytes: self.usage.bytes.checked_add(bytes).ok_or(VolumeFull)?,
            entries: self.usage.entries.checked_add(entries).ok_or(VolumeFull)?,
        };
        let quota = self.ledger.quota;
        let fits_bytes = bytes == 0 || usage.bytes <= quota.bytes;
        let fits_entries = entries == 0 || usage.entries <= quota.entries();
        if !fits_bytes || !fits_entries {
            return Err(VolumeFull);
        }
        self.store(usage)
    }

    /// Subtracts what is not used any more.
    pub(crate) fn release(&mut self, bytes: u64, entries: u64) {
        let usage = VolumeUsage {
            bytes: self.usage.bytes.saturating_sub(bytes),
            entries: self.usage.entries.saturating_sub(entries),
        };
        // If this fails, too much is counted until the files are counted anew.
        let _ = self.store(usage);
    }

    fn store(&mut self, usage: VolumeUsage) -> std::result::Result<(), VolumeFull> {
        self.ledger.write_words(usage, true).map_err(|_| VolumeFull)?;
        self.usage = usage;
        Ok(())
    }
}

impl Drop for LockedLedger<'_> {
    fn drop(&mut self) {
        let _ = flock(&self.ledger.ledger, FlockOperation::Unlock);
    }
}

fn flock(file: &File, operation: FlockOperation) -> Result<()> {
    loop {
        match rustix::fs::flock(file, operation) {
            Err(Errno::INTR) => {}
            locked => return locked,
        }
    }
}

pub(crate) fn to_errno(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}

/// Counts the files beneath a directory. A file with several hard links counts once in bytes.
fn count_files(root: &OwnedFd) -> Result<VolumeUsage> {
    let mut usage = VolumeUsage::default();
    let mut linked = HashSet::new();
    let mut pending: Vec<(Vec<u8>, usize)> = vec![(Vec::new(), 0)];
    while let Some((path, depth)) = pending.pop() {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let directory = open_beneath(root, &path, flags, Mode::empty())?;
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            usage.entries += 1;
            let name_os = OsStr::from_bytes(name);
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            let Ok(found) = rustix::fs::statat(directory.as_fd(), name_os, flags) else { continue };
            match FileType::from_raw_mode(found.st_mode) {
                FileType::Directory if depth < MAX_DEPTH => {
                    let mut below = path.clone();
                    if !below.is_empty() {
                        below.push(b'/');
                    }
                    below.extend_from_slice(name);
                    pending.push((below, depth + 1));
                }
                FileType::RegularFile if found.st_nlink < 2 || linked.insert(found.st_ino) => {
                    usage.bytes += u64::try_from(found.st_size).unwrap_or(0);
                }
                _ => {}
            }
        }
    }
    Ok(usage)
}
