//! Runs in: mount server (no capabilities). Counts what a run does with one mount.

use std::sync::atomic::{AtomicU64, Ordering};

use cloche_model::{MountReport, MountSlug};
use parking_lot::Mutex;

use crate::StorageError;

/// The counters of one mount.
#[derive(Debug, Default)]
pub(super) struct MountMeter {
    read: AtomicU64,
    written: AtomicU64,
    errors: AtomicU64,
    first_error: Mutex<Option<String>>,
}

impl MountMeter {
    pub(super) fn add_read(&self, bytes: usize) {
        self.read.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn add_written(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts an error of the storage, and keeps the first one for the owner of the mount.
    pub(super) fn add_error(&self, error: &StorageError) {
        if error.is_storage_fault() {
            self.errors.fetch_add(1, Ordering::Relaxed);
            self.first_error.lock().get_or_insert_with(|| error.to_string());
        }
    }

    pub(super) fn report(&self, slug: MountSlug) -> MountReport {
        MountReport {
            slug,
            bytes_read: self.read.load(Ordering::Relaxed),
            bytes_written: self.written.load(Ordering::Relaxed),
            errors: self.errors.load(Ordering::Relaxed),
            first_error: self.first_error.lock().clone(),
        }
    }
}
