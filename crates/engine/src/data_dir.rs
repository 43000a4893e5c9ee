//! Runs in: server (no capabilities).
//!
//! The data directory, held by one process at a time. A second server on the same directory would
//! end the executions of the first as leftovers of a crash.

use std::{
    fs::{self, DirBuilder, File, TryLockError},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use crate::EngineOpenError;

/// A data directory that this process holds until the value is dropped.
#[derive(Debug)]
pub struct LockedDataDir {
    path: PathBuf,
    lock: File,
}

impl LockedDataDir {
    /// Makes the directory, for its owner only, and takes its lock. Open the store only beneath it.
    ///
    /// # Errors
    /// When the directory cannot be made or written to, or another process holds it.
    pub fn lock(path: &Path) -> Result<Self, EngineOpenError> {
        let shown = path.display().to_string();
        let unusable = |source| EngineOpenError::Directory { path: shown.clone(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(unusable)?;
        let lock = File::create(path.join("lock")).map_err(unusable)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path: path.to_owned(), lock }),
            Err(TryLockError::WouldBlock) => Err(EngineOpenError::InUse { path: shown }),
            Err(TryLockError::Error(source)) => Err(unusable(source)),
        }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the directory for unfinished work, without what a crash left in it.
    pub(crate) fn reset_scratch(&self) -> Result<PathBuf, EngineOpenError> {
        let path = self.path.join("scratch");
        let cleared = match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => DirBuilder::new().mode(0o700).create(&path),
        };
        let shown = || self.path.display().to_string();
        cleared.map_err(|source| EngineOpenError::Directory { path: shown(), source })?;
        Ok(path)
    }

    /// Lets another process have the directory.
    pub(crate) fn unlock(&self) {
        if let Err(error) = self.lock.unlock() {
            tracing::warn!(%error, "the data directory is still locked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_held_by_one_at_a_time_and_its_scratch_is_empty_at_each_start() {
        let directory = tempfile::TempDir::new().unwrap();
        let held = LockedDataDir::lock(directory.path()).unwrap();
        let second = LockedDataDir::lock(directory.path()).unwrap_err();
        assert!(matches!(second, EngineOpenError::InUse { .. }), "{second}");
        fs::write(held.reset_scratch().unwrap().join("left"), "x").unwrap();
        assert_eq!(fs::read_dir(held.reset_scratch().unwrap()).unwrap().count(), 0);
        held.unlock();
        LockedDataDir::lock(directory.path()).unwrap();
    }
}
