//! Remembers the first name of files that have several names.

use std::collections::HashMap;

use rustix::fs::Stat;

/// How many bytes may be remembered. Beyond it a second name becomes a second file.
const MOST_BYTES: usize = 64 << 20;

#[derive(Default)]
pub(super) struct HardLinks {
    first: HashMap<(u64, u64), Vec<u8>>,
    bytes: usize,
}

impl HardLinks {
    /// The name under which this file was packed before. If there is none, remembers this one.
    pub(super) fn earlier_name(&mut self, stat: &Stat, path: &[u8]) -> Option<Vec<u8>> {
        if stat.st_nlink < 2 {
            return None;
        }
        let identity = (stat.st_dev, stat.st_ino);
        if let Some(first) = self.first.get(&identity) {
            return Some(first.clone());
        }
        if self.bytes + path.len() <= MOST_BYTES {
            self.bytes += path.len();
            self.first.insert(identity, path.to_vec());
        }
        None
    }
}
