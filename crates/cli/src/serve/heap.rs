//! Runs in: server (no capabilities).
//!
//! Has large buffers go back to the kernel when they are freed. glibc raises the size from which a
//! block has a mapping of its own to that of the largest block freed so far, and keeps smaller ones
//! in its arenas: after one burst of output the server would stay as large as it was. A threshold that
//! is set stays as it is, and it can be set only when a process starts, see decision 18.

use std::{env, io, os::unix::process::CommandExt, process::Command};

/// Blocks from 128 KiB on have mappings of their own; threads share four arenas for the rest.
const SETTINGS: [(&str, &str); 2] =
    [("MALLOC_MMAP_THRESHOLD_", "131072"), ("MALLOC_ARENA_MAX", "4")];

/// Starts this process again with the settings, unless it has them or values of the operator's. To be
/// called first: nothing of this process is left but its id, its arguments and its descriptors.
///
/// # Errors
/// When it could not be started again; then it is as it was.
pub(super) fn restart_with_settings() -> io::Result<()> {
    if cfg!(not(target_env = "gnu")) || SETTINGS.iter().any(|(name, _)| env::var_os(name).is_some())
    {
        return Ok(());
    }
    let mut arguments = env::args_os();
    let name = arguments.next().unwrap_or_default();
    let program = env::current_exe()?;
    Err(Command::new(program).arg0(name).args(arguments).envs(SETTINGS).exec())
}
