//! Runs in: server (no capabilities).
//!
//! Makes the allocator return large buffers to the kernel when they are freed. glibc raises the
//! size from which a block gets its own mapping to the largest block freed so far, and keeps
//! smaller ones in its arenas. After one burst of output the server would stay that large. A
//! threshold that is set is not raised, and it can be set only when a process starts, see decision
//! 18.

use std::{env, io, os::unix::process::CommandExt, process::Command};

/// Blocks from 128 KiB on get their own mapping; threads share four arenas for the rest.
const SETTINGS: [(&str, &str); 2] =
    [("MALLOC_MMAP_THRESHOLD_", "131072"), ("MALLOC_ARENA_MAX", "4")];

/// Restarts this process with the settings, unless it has them or the operator set other values.
/// Must be called first: only the process id, its arguments and its descriptors survive.
///
/// # Errors
/// If the restart failed; the process is unchanged then.
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
