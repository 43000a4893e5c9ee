//! Runs in: spawner (root).
//!
//! What the spawner does with a cell: it plans the steps, makes the cgroup, and clones pid 1.
//! `cloche doctor` also asks `walls`, `speculation` and `rlimits`.

pub mod cgroup;
mod landlock;
pub mod launch;
pub mod plan;
pub mod proc_masks;
pub mod rlimits;
pub mod speculation;
pub mod walls;
