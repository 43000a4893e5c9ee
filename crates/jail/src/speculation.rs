//! Runs in: spawner, pid 1 of a cell, guest. What the processor may guess while a guest runs.
//!
//! Two kinds of guessing can be switched off for one process and all that come from it: reading
//! memory before an earlier store to it is done (SSBD), and following indirect branches that the
//! other thread of a core has trained (STIBP). Core only.

use crate::{
    sys::{Result, call_with_numbers},
    syscall_table::PlainCall,
};

#[cfg(not(cloche_template))]
const PR_GET_SPECULATION_CTRL: usize = 52;
const PR_SET_SPECULATION_CTRL: usize = 53;
/// In an answer: this process may change it.
#[cfg(not(cloche_template))]
const PER_PROCESS: usize = 1;
/// Off, and never on again.
const FORCE_DISABLE: usize = 8;

/// The kinds, as the kernel numbers them, with the names of their steps.
#[cfg(not(cloche_template))]
pub const KINDS: [(u32, &str); 2] =
    [(0, "speculation:store-bypass"), (1, "speculation:indirect-branch")];

/// Whether this host can switch a kind off for one process.
#[cfg(not(cloche_template))]
#[must_use]
pub fn can_disable(kind: u32) -> bool {
    let asked =
        call_with_numbers(PlainCall::Prctl, [PR_GET_SPECULATION_CTRL, kind as usize, 0, 0, 0, 0]);
    asked.is_ok_and(|answer| answer & PER_PROCESS != 0)
}

/// Switches a kind off for this process and all that come from it.
pub(crate) fn force_disable(kind: u32) -> Result<()> {
    let arguments = [PR_SET_SPECULATION_CTRL, kind as usize, FORCE_DISABLE, 0, 0, 0];
    call_with_numbers(PlainCall::Prctl, arguments).map(drop)
}
