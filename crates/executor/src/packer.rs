//! Runs in: packer (`DAC_READ_SEARCH` and `SYS_ADMIN`; also `FOWNER` while it completes hard
//! links). Reads what one run wrote and writes it to a pipe as an archive; then the process ends.
//!
//! Files may have any mode, and only root can read the marks of an overlay, so the server cannot
//! read them itself. The spawner forks the packer, see `spawner/packer_process.rs`. The packer
//! walks the tree beneath one file descriptor, under a system call filter of its own
//! (`policy/packer.json`). It opens nothing by a path of the host: `/layers` is a path of the
//! spawner's own root.

mod hard_links;
mod pack;

pub(crate) use pack::{PackInput, install_filter, keep_all_capabilities, pack_and_report};
