//! Runs in: server (no capabilities).
//!
//! The audit log: who changed what, when, from where.

use cloche_model::AuditEntry;
use cloche_store::AuditFilter;

use super::Console;
use crate::{Refusal, clock};

/// Some entries, and where the list goes on.
pub struct AuditPage {
    /// The entries, newest first.
    pub entries: Vec<AuditEntry>,
    /// The number before which the next page begins, if there is one.
    pub next: Option<i64>,
}

impl Console {
    /// Adds an entry. A failure is logged with the entry, so that the change is still on record.
    pub async fn record_change(&self, entry: AuditEntry) {
        let shown = format!("{entry:?}");
        if let Err(error) = self.store.record_audit(entry).await {
            tracing::error!(%error, entry = shown, "a change was not written to the audit log");
        }
    }

    /// Entries of the log.
    ///
    /// # Errors
    /// When they cannot be read.
    pub async fn list_audit(&self, mut filter: AuditFilter) -> Result<AuditPage, Refusal> {
        let limit = filter.limit as usize;
        filter.limit += 1;
        let mut entries = self.store.list_audit(&filter).await?;
        let more = entries.len() > limit;
        entries.truncate(limit);
        let next = entries.last().filter(|_| more).map(|last| last.seq);
        Ok(AuditPage { entries, next })
    }

    /// Deletes sign-ins that have ended and entries that are too old.
    pub(crate) async fn delete_old_rows(&self) {
        let now = clock::now();
        if let Err(error) = self.store.prune_console_sessions(now).await {
            tracing::error!(%error, "ended sign-ins were not deleted");
        }
        let old = now.saturating_sub(self.config.keep_audit);
        if let Err(error) = self.store.prune_audit(old).await {
            tracing::error!(%error, "old entries of the audit log were not deleted");
        }
    }
}
