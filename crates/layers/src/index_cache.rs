//! Recently used indexes, in memory.

use std::{collections::HashMap, sync::Arc};

use cloche_model::LayerDigest;
use parking_lot::Mutex;

use crate::LayerIndex;

/// How many entries the cached indexes may have together.
const MOST_ENTRIES: usize = 1 << 18;

#[derive(Default)]
pub(crate) struct IndexCache(Mutex<RecentIndexes>);

#[derive(Default)]
struct RecentIndexes {
    indexes: HashMap<LayerDigest, (Arc<LayerIndex>, u64)>,
    entries: usize,
    clock: u64,
}

impl IndexCache {
    pub(crate) fn get(&self, digest: &LayerDigest) -> Option<Arc<LayerIndex>> {
        let mut recent = self.0.lock();
        recent.clock += 1;
        let clock = recent.clock;
        let (index, used) = recent.indexes.get_mut(digest)?;
        *used = clock;
        Some(Arc::clone(index))
    }

    pub(crate) fn put(&self, digest: LayerDigest, index: &Arc<LayerIndex>) {
        let mut recent = self.0.lock();
        recent.clock += 1;
        let clock = recent.clock;
        if recent.indexes.insert(digest, (Arc::clone(index), clock)).is_none() {
            recent.entries += index.entries().len();
        }
        while recent.entries > MOST_ENTRIES {
            let oldest = recent.indexes.iter().min_by_key(|(_, (_, used))| *used);
            let Some(digest) = oldest.map(|(digest, _)| digest.clone()) else { break };
            recent.forget(&digest);
        }
    }

    pub(crate) fn forget(&self, digest: &LayerDigest) {
        self.0.lock().forget(digest);
    }
}

impl RecentIndexes {
    fn forget(&mut self, digest: &LayerDigest) {
        if let Some((index, _)) = self.indexes.remove(digest) {
            self.entries -= index.entries().len();
        }
    }
}
