//! Runs in: server (no capabilities), spawner (root) and packer. What these processes say to each
//! other, and what all of them know about a cell.
//!
//! The spawner is privileged and trusts no packet to name a path or a mount. It receives limits,
//! the number of an image, and plain names of layers and files; it builds the rest itself.

mod guest_user;
mod messages;
mod pack_messages;
mod packet;

pub(crate) use guest_user::{
    GUEST_ID, NODE_START, SITE_DIR, TOOL_CLIENT_DIR, TOOL_SOCKET_DIR, TOOL_SOCKET_NAME, TRUST_DIR,
};
pub use guest_user::{HOME, USER};
pub(crate) use messages::{
    CellConfig, CellId, CellUsage, HomeRequest, ImageNumber, MountServerUser, RequestPacket,
    SPAWNER_ARG0, SPAWNER_CONTAINED, SpawnKind, SpawnerEvent, SpawnerRequest, SpawnerSetup,
    StorageMountRequest, contained_cell_dir, inodes_for_disk, is_plain_name,
};
pub(crate) use pack_messages::{PackReport, PackRequest, PlacedDigest};
pub(crate) use packet::{PacketBuffer, ProtocolError, send_packet};
