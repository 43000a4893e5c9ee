//! Runs in: mount server (no capabilities). Which bytes of a file are in its spool.

use std::ops::Range;

/// Disjoint ranges in order. Ranges that touch are one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RangeSet(Vec<Range<u64>>);

impl RangeSet {
    pub(super) fn insert(&mut self, new: Range<u64>) {
        if new.is_empty() {
            return;
        }
        let first = self.0.partition_point(|range| range.end < new.start);
        let last = self.0.partition_point(|range| range.start <= new.end);
        let joined = self.0[first..last]
            .iter()
            .fold(new, |all, range| all.start.min(range.start)..all.end.max(range.end));
        self.0.splice(first..last, [joined]);
    }

    /// Drops everything from `end` on.
    pub(super) fn truncate(&mut self, end: u64) {
        self.0.retain(|range| range.start < end);
        if let Some(last) = self.0.last_mut() {
            last.end = last.end.min(end);
        }
    }

    /// The bytes of all ranges.
    pub(super) fn bytes(&self) -> u64 {
        self.0.iter().map(|range| range.end - range.start).sum()
    }

    /// The first part of a range that is all inside or all outside, and which it is.
    pub(super) fn split(&self, range: &Range<u64>) -> (u64, bool) {
        let at = self.0.partition_point(|known| known.end <= range.start);
        match self.0.get(at) {
            Some(known) if known.start <= range.start => (known.end.min(range.end), true),
            Some(known) => (known.start.min(range.end), false),
            None => (range.end, false),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::*;

    proptest! {
        #[test]
        fn it_has_the_bytes_that_were_inserted(
            steps in proptest::collection::vec((any::<bool>(), 0_u64..64, 0_u64..16), 0..40),
        ) {
            let (mut set, mut plain) = (RangeSet::default(), [false; 80]);
            for (inserts, start, len) in steps {
                if inserts {
                    set.insert(start..start + len);
                    plain[start as usize..(start + len) as usize].fill(true);
                } else {
                    set.truncate(start);
                    plain[start as usize..].fill(false);
                }
                prop_assert_eq!(set.bytes(), plain.iter().filter(|has| **has).count() as u64);
                let mut at = 0;
                while at < 80 {
                    let (end, inside) = set.split(&(at..80));
                    prop_assert!(end > at);
                    prop_assert!(plain[at as usize..end as usize].iter().all(|has| *has == inside));
                    at = end;
                }
            }
        }
    }
}
