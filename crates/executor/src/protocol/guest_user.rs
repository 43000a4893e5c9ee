//! Runs in: server (no capabilities) and spawner (root). The user that guest code runs as, and the
//! paths that every cell has.

/// The name of the user that guest code runs as.
pub const USER: &str = "baponi";
/// The home and working directory of guest code.
pub const HOME: &str = "/home/baponi";
/// Where a job writes the certificate authorities that it brings. Every cell has the directory.
pub(crate) const TRUST_DIR: &str = "/run/trust";
/// The name of the directory, in that of a contained cell, with what Python executes at its start.
pub(crate) const SITE_DIR: &str = "python";
/// The script that makes Node.js wait for its job. Every cell has it; a program never runs it.
pub(crate) const NODE_START: &str = "/etc/cloche.cjs";
/// The directory with the clients of the web tools. Every cell with a root of its own has it.
pub(crate) const TOOL_CLIENT_DIR: &str = "/run/cloche";
/// Where the socket of the web tools is mounted, in cells whose code may call one.
pub(crate) const TOOL_SOCKET_DIR: &str = "/run/cloche/socket";
/// The name of that socket.
pub(crate) const TOOL_SOCKET_NAME: &str = "tools";
/// The guest's user and group id, as it sees them.
pub(crate) const GUEST_ID: u32 = 1000;
