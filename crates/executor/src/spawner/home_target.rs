//! Runs in: spawner (root). Where the home of a cell is mounted.

use std::os::fd::BorrowedFd;

use crate::{
    driver::{STAGE, STAGE_HOME},
    protocol::HOME,
};

/// Where the home of a cell is mounted, and the tmpfs of its other writable directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HomeMountPoint {
    /// In the root of the cell.
    InCell,
    /// Where a driver prepares the root of its cell.
    OnStage,
}

impl HomeMountPoint {
    /// The paths of the home and of that tmpfs.
    pub(super) const fn paths(self) -> (&'static str, &'static str) {
        match self {
            Self::InCell => (HOME, "/tmp"),
            Self::OnStage => (STAGE_HOME, STAGE),
        }
    }
}

/// The cell that a home is mounted in.
pub(super) struct HomeTarget<'a> {
    /// The slot of its host id.
    pub(super) slot: u32,
    /// The pidfd of its pid 1.
    pub(super) cell: BorrowedFd<'a>,
    pub(super) place: HomeMountPoint,
}
