//! Runs in: server (no capabilities).
//!
//! The reserve of the host: how much of the file system of the data directory is free, and what is
//! refused once that is too little. A ballast file reserves a few megabytes for the ledger on a full
//! disk.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use cloche_model::{ByteSize, ErrorCode};
use rustix::fs::{FallocateFlags, StatVfs};

use super::StorageReserve;
use crate::Refusal;

/// The most that the ballast takes: some hundred records of executions.
const BALLAST: u64 = 16 << 20;

/// What is free on the file system of the data directory, and what must be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskSpace {
    /// Free bytes.
    pub free_bytes: u64,
    /// Free bytes below which nothing new is stored.
    pub reserve_bytes: u64,
    /// Free inodes.
    pub free_inodes: u64,
    /// Free inodes below which nothing new is stored; 0 where inodes are not counted.
    pub reserve_inodes: u64,
}

impl DiskSpace {
    fn from_statvfs(stat: &StatVfs, reserve: StorageReserve) -> Self {
        let total = stat.f_blocks.saturating_mul(stat.f_frsize);
        let usual = (total / 50).max((1 << 30).min(total / 10));
        Self {
            free_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
            reserve_bytes: reserve.bytes.map_or(usual, ByteSize::bytes),
            free_inodes: stat.f_favail,
            reserve_inodes: if stat.f_files == 0 {
                0
            } else {
                reserve.inodes.unwrap_or(stat.f_files / 50)
            },
        }
    }

    /// Whether nothing new may be stored.
    #[must_use]
    pub const fn is_short(&self) -> bool {
        self.free_bytes < self.reserve_bytes || self.free_inodes < self.reserve_inodes
    }
}

/// The file system of the data directory.
pub(crate) struct HostStorage {
    dir: PathBuf,
    ballast: PathBuf,
    reserve: StorageReserve,
    is_short: AtomicBool,
    has_ballast: AtomicBool,
    /// Refusals because the disk is short, for metrics.
    refused: AtomicU64,
}

impl HostStorage {
    pub(crate) fn open(data_dir: &Path, reserve: StorageReserve) -> Self {
        let host = Self {
            dir: data_dir.to_owned(),
            ballast: data_dir.join("ballast"),
            reserve,
            is_short: AtomicBool::new(false),
            has_ballast: AtomicBool::new(false),
            refused: AtomicU64::new(0),
        };
        host.measure();
        host.keep_ballast();
        host
    }

    /// What is free now. If `statvfs` fails, nothing is refused.
    pub(crate) fn measure(&self) -> DiskSpace {
        let room = match rustix::fs::statvfs(&self.dir) {
            Ok(stat) => DiskSpace::from_statvfs(&stat, self.reserve),
            Err(error) => {
                tracing::error!(%error, "the free space of the data directory is not known");
                DiskSpace::default()
            }
        };
        let was_short = self.is_short.swap(room.is_short(), Ordering::Relaxed);
        if was_short != room.is_short() {
            match room.is_short() {
                true => tracing::error!(?room, "the disk is short; new data is refused"),
                false => tracing::info!(?room, "the disk has room again; new data is taken"),
            }
        }
        room
    }

    /// Whether the last measurement found the disk short.
    pub(crate) fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Relaxed)
    }

    /// Whether the disk is short and the ballast is used up.
    pub(crate) fn is_full(&self) -> bool {
        self.is_short() && !self.has_ballast.load(Ordering::Relaxed)
    }

    pub(crate) fn refusal_count(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Measures the disk, and refuses new data if it is short.
    pub(crate) fn check_now(&self) -> Result<(), Refusal> {
        if self.measure().is_short() { Err(self.no_room_refusal()) } else { Ok(()) }
    }

    /// Refuses new data if the last measurement found the disk short. Makes no system call.
    pub(crate) fn check_lately(&self) -> Result<(), Refusal> {
        if self.is_short() { Err(self.no_room_refusal()) } else { Ok(()) }
    }

    fn no_room_refusal(&self) -> Refusal {
        self.refused.fetch_add(1, Ordering::Relaxed);
        Refusal::new(ErrorCode::InsufficientStorage, NO_ROOM)
    }

    /// Makes the ballast if there is room for it.
    pub(crate) fn keep_ballast(&self) {
        let room = self.measure();
        let size = BALLAST.min(room.reserve_bytes / 4);
        let is_made = fs::metadata(&self.ballast).is_ok_and(|found| found.len() == size);
        self.has_ballast.store(is_made, Ordering::Relaxed);
        if is_made || size == 0 || room.free_bytes < room.reserve_bytes.saturating_add(size) {
            return;
        }
        let made = File::create(&self.ballast).and_then(|file| {
            let flags = FallocateFlags::empty();
            rustix::fs::fallocate(&file, flags, 0, size).map_err(io::Error::from)
        });
        if let Err(error) = &made {
            tracing::warn!(%error, "no ballast for a full disk could be made");
            let _ = fs::remove_file(&self.ballast);
        }
        self.has_ballast.store(made.is_ok(), Ordering::Relaxed);
    }

    /// Deletes the ballast to make room for the ledger; false if there was none.
    pub(crate) fn release_ballast(&self) -> bool {
        let released = fs::remove_file(&self.ballast).is_ok();
        self.has_ballast.store(false, Ordering::Relaxed);
        if released {
            tracing::error!("the disk is full; the ballast was released for the ledger");
        }
        released
    }
}

/// The message of a refusal while the host is short of disk.
pub(crate) const NO_ROOM: &str = "this server is short of disk space and takes no new data; executions \
    without thread_id go on, and files can be read and deleted; try again later";

#[cfg(test)]
mod tests {
    use super::*;

    fn room(free_bytes: u64, free_inodes: u64) -> DiskSpace {
        DiskSpace { free_bytes, reserve_bytes: 100, free_inodes, reserve_inodes: 10 }
    }

    #[test]
    fn a_host_is_short_of_bytes_or_of_inodes() {
        assert!(!room(100, 10).is_short());
        assert!(room(99, 10).is_short() && room(100, 9).is_short());
        let uncounted = DiskSpace { reserve_inodes: 0, ..room(100, 0) };
        assert!(!uncounted.is_short());
    }

    #[test]
    fn the_ballast_is_made_and_released_once() {
        let directory = tempfile::TempDir::new().unwrap();
        let reserve = StorageReserve { bytes: Some(ByteSize::mib(1)), inodes: Some(0) };
        let host = HostStorage::open(directory.path(), reserve);
        assert_eq!(fs::metadata(directory.path().join("ballast")).unwrap().len(), 256 << 10);
        assert!(host.release_ballast());
        assert!(!host.release_ballast());
        host.keep_ballast();
        assert!(host.release_ballast());
    }

    #[test]
    fn nothing_new_is_taken_below_the_reserve() {
        let directory = tempfile::TempDir::new().unwrap();
        let reserve = StorageReserve { bytes: Some(ByteSize(u64::MAX)), inodes: None };
        let host = HostStorage::open(directory.path(), reserve);
        let refusal = host.check_now().unwrap_err();
        assert_eq!(refusal.code, ErrorCode::InsufficientStorage);
        assert!(host.check_lately().is_err());
        assert_eq!(host.refusal_count(), 2);
    }
}
