//! Runs in: spawner (root), `cloche doctor`.
//!
//! The speculation misfeatures that can be disabled for one process and its children: speculative
//! store bypass (SSBD), and indirect branches that the other hardware thread of a core has trained
//! (STIBP).

use crate::sys;

/// The kernel's number of each kind, with the name of its step.
pub const KINDS: [(u32, &str); 2] =
    [(0, "speculation:store-bypass"), (1, "speculation:indirect-branch")];

/// Whether this host can disable a kind for one process.
#[must_use]
pub fn can_disable(kind: u32) -> bool {
    const PR_SPEC_PRCTL: usize = 1;
    sys::speculation_status(kind).is_ok_and(|status| status & PR_SPEC_PRCTL != 0)
}
