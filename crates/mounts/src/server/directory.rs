//! Runs in: mount server (no capabilities). A mount of a directory: a managed volume with its quota,
//! or a directory of `cloche run --mount`.
//!
//! Paths are resolved beneath the root of the mount and through no link. A link that a guest makes is
//! only text here; the guest's kernel follows it in the cell.

mod attribute_change;
mod filesystem;
mod handles;
mod host_files;
mod kept_modes;
mod mount;
mod nodes;
mod quota;

pub(super) use filesystem::DirectoryFs;
pub(super) use mount::DirectoryMount;
