//! Updates that are compare-and-set: each names the revision of the row that it was computed from.
//!
//! Two writers may read the same row, in one process or in several. The first update takes place;
//! the second finds another revision, changes nothing, and has to be computed again.

/// A row and the number of its changes so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revisioned<T> {
    /// The row.
    pub row: T,
    /// The revision that it was read at.
    pub revision: i64,
}

/// What became of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateOutcome {
    /// The row is as the update says.
    Done,
    /// The row has changed since it was read; nothing was written.
    Stale,
    /// There is no such row; nothing was written.
    Missing,
}
