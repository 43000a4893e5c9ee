//! Runs in: pid 1 of a cell or of a template, guest of a forked cell.
//!
//! Setting up a cell from inside: the code of a child between `clone` and the guest. Core only.

pub(crate) mod apply;
pub mod enter;
