//! Runs in: server (no capabilities).
//!
//! What a home is made of: its stack of layers, what it holds, what may still be written, what differs.

use std::collections::BTreeSet;

use cloche_layers::{LayerError, Layers, Tree};
use cloche_model::{
    ByteSize, ErrorCode, HomePath, HomeQuota, HomeUsage, LayerDigest, SnapshotRef, Team, Thread,
    ThreadHome, ThreadId,
};
use cloche_store::ThreadKey;

use super::Threads;
use crate::{Refusal, storage::NO_ROOM};

/// The most paths of each kind that a comparison names.
const MOST_PATHS: usize = 10_000;

/// What differs between two snapshots of a thread.
pub struct ThreadDiff {
    /// The number of the older one.
    pub from: u64,
    /// The number of the newer one.
    pub to: u64,
    /// Paths that only the newer one has.
    pub added: Vec<String>,
    /// Paths that both have, with other content or attributes.
    pub changed: Vec<String>,
    /// Paths that only the older one has.
    pub removed: Vec<String>,
    /// How many more there are than are named.
    pub omitted: u64,
}

/// The refusal for an error of the layer store.
pub(crate) fn layer_refusal(error: LayerError) -> Refusal {
    match error {
        LayerError::NoSuchPath(_) => Refusal::not_found("file"),
        LayerError::WrongKind(..)
        | LayerError::BadImage(_)
        | LayerError::Refused(_)
        | LayerError::TooMuch(_) => Refusal::new(ErrorCode::Validation, error.to_string()),
        error if error.is_disk_full() => Refusal {
            source: Some(Box::new(error)),
            ..Refusal::new(ErrorCode::InsufficientStorage, NO_ROOM)
        },
        error => Refusal::internal(error),
    }
}

/// What is left of a quota.
fn remaining_quota(quota: HomeQuota, usage: HomeUsage) -> HomeQuota {
    HomeQuota {
        bytes: ByteSize(quota.bytes.bytes().saturating_sub(usage.bytes.bytes())),
        inodes: quota.inodes.saturating_sub(usage.entries),
    }
}

/// A deletion takes an entry of its own in the diff, so that a home which is full could never be
/// cleared. The most entries that a home can have beyond its quota.
const DELETIONS: u64 = 8192;

/// Entries beyond the quota that a run may make, for what it removes.
fn for_deletions(quota: HomeQuota, entries: u64) -> u64 {
    let over = entries.saturating_sub(quota.inodes);
    entries.min(DELETIONS.saturating_sub(over))
}

/// Whether the sum of the layers is so near the quota that counting is worth its time.
fn is_tight(quota: HomeQuota, usage: HomeUsage) -> bool {
    let left = remaining_quota(quota, usage);
    left.bytes.bytes() < quota.bytes.bytes() / 2 || left.inodes < quota.inodes / 2
}

impl Threads {
    /// What a home of this team may hold.
    pub(crate) fn home_quota(&self, team: &Team) -> HomeQuota {
        let cap = self.homes.cap;
        team.effective_limits().home.map_or(cap, |plan| HomeQuota {
            bytes: plan.bytes.min(cap.bytes),
            inodes: plan.inodes.min(cap.inodes),
        })
    }

    /// The layers, if this server keeps any.
    pub(crate) fn layers(&self) -> Result<&Layers, Refusal> {
        self.homes.layers.as_ref().ok_or_else(|| {
            Refusal::new(
                ErrorCode::Unavailable,
                "this server keeps no layers, so it has no threads and no files; leave out thread_id",
            )
        })
    }

    pub(crate) async fn home_tree(&self, stack: &[LayerDigest]) -> Result<Tree, Refusal> {
        self.layers()?.load_tree(stack).await.map_err(layer_refusal)
    }

    /// What a thread holds, counted now if it was not.
    pub(super) async fn counted_usage(&self, thread: &Thread) -> Result<HomeUsage, Refusal> {
        if thread.usage.counted {
            return Ok(thread.usage);
        }
        let tree = self.home_tree(&thread.layers).await?;
        let bytes = ByteSize(tree.data_bytes());
        let usage = HomeUsage { bytes, entries: tree.entry_count(), counted: true };
        let key = ThreadKey { team: thread.team.clone(), id: thread.id.clone() };
        self.store.record_home_usage(&key, thread.head, usage).await?;
        Ok(usage)
    }

    /// What may still be written to a home. It is counted only where that could matter: a sum of
    /// layers is never less than what they hold.
    pub(crate) async fn remaining_home_quota(
        &self,
        thread: &Thread,
        team: &Team,
    ) -> Result<HomeQuota, Refusal> {
        let quota = self.home_quota(team);
        let usage = match is_tight(quota, thread.usage) {
            true => self.counted_usage(thread).await?,
            false => thread.usage,
        };
        Ok(remaining_quota(quota, usage))
    }

    /// The home that a run begins with. The caller holds the lease of the thread.
    pub(super) async fn thread_home(
        &self,
        key: &ThreadKey,
        team: &Team,
    ) -> Result<ThreadHome, Refusal> {
        let store = &self.store;
        let Some(mut thread) = store.find_thread(key).await? else {
            let room = self.home_quota(team);
            return Ok(ThreadHome { layers: Vec::new(), room });
        };
        if thread.layers.len() >= self.homes.squash_depth.saturating_mul(4) {
            self.squash_thread(key, team).await?;
            thread = store.find_thread(key).await?.unwrap_or(thread);
        }
        let mut room = self.remaining_home_quota(&thread, team).await?;
        room.inodes += for_deletions(self.home_quota(team), thread.usage.entries);
        Ok(ThreadHome { layers: thread.layers, room })
    }

    /// A snapshot's number and its stack; 0 is the empty home.
    pub(super) async fn stack_at(
        &self,
        team: &Team,
        id: &ThreadId,
        name: &SnapshotRef,
    ) -> Result<(u64, Vec<LayerDigest>), Refusal> {
        if *name == SnapshotRef::Seq(0) {
            return Ok((0, Vec::new()));
        }
        let point = self.find_snapshot(team, id, name).await?;
        Ok((point.seq, point.layers))
    }

    pub(super) async fn compare_stacks(
        &self,
        from: (u64, Vec<LayerDigest>),
        to: (u64, Vec<LayerDigest>),
    ) -> Result<ThreadDiff, Refusal> {
        let (old, new) = (self.home_tree(&from.1).await?, self.home_tree(&to.1).await?);
        let diff = Tree::diff(&old, &new);
        let (added, more_added) = path_names(diff.added);
        let (changed, more_changed) = path_names(diff.changed);
        let (removed, more_removed) = path_names(diff.removed);
        let omitted = more_added + more_changed + more_removed;
        Ok(ThreadDiff { from: from.0, to: to.0, added, changed, removed, omitted })
    }
}

/// Paths for people, without the home itself; and how many were left out.
fn path_names(paths: Vec<Vec<u8>>) -> (Vec<String>, u64) {
    let named: Vec<_> = paths.into_iter().filter(|path| !path.is_empty()).collect();
    let omitted = named.len().saturating_sub(MOST_PATHS) as u64;
    let shown = named.iter().take(MOST_PATHS).map(|path| HomePath::text_of(path));
    (shown.collect::<BTreeSet<_>>().into_iter().collect(), omitted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_is_counted_before_its_sum_can_refuse_anything() {
        let quota = HomeQuota { bytes: ByteSize(100), inodes: 10 };
        let usage = |bytes, entries| HomeUsage { bytes: ByteSize(bytes), entries, counted: false };
        assert!(!is_tight(quota, usage(50, 5)));
        assert!(is_tight(quota, usage(51, 0)) && is_tight(quota, usage(0, 6)));
        assert_eq!(
            remaining_quota(quota, usage(120, 12)),
            HomeQuota { bytes: ByteSize(0), inodes: 0 }
        );
    }

    #[test]
    fn a_full_home_can_be_cleared_and_grows_no_further() {
        let quota = HomeQuota { bytes: ByteSize(100), inodes: 10_000 };
        assert_eq!(for_deletions(quota, 5), 5);
        assert_eq!(for_deletions(quota, 10_000), DELETIONS);
        assert_eq!(for_deletions(quota, 10_000 + DELETIONS), 0);
    }
}
