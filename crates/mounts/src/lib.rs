//! Runs in: server (no capabilities), mount server (no capabilities), spawner (root) only until the
//! mount server is forked.
//!
//! Storage mounts: what a cell sees at `/data/{slug}`. [`ObjectStorage`] reaches a bucket,
//! [`VolumeStore`] keeps the managed volumes of a host, and [`run_mount_server`] is the FUSE process
//! that shows both to one cell. It knows no tenant, no request and no cell.

mod error;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod objects;
mod protocol;
mod server;
mod volume;

pub use error::StorageError;
pub use objects::{
    EndpointAccess, ListPage, ListedObject, LookupFuture, ObjectBody, ObjectInfo, ObjectPath,
    ObjectStorage, PutCondition, SystemAccess, trusted_roots,
};
pub use protocol::{
    MountCommand, MountServerRequest, MountSetup, MountSetupSource, MountWireError, WireConnection,
    receive_mount_packet, send_mount_packet,
};
pub use server::{MountServerInput, ReadyConnection, prepare_mount_server, run_mount_server};
pub use volume::{
    VolumeArchiveReport, VolumeEntry, VolumeFiles, VolumeFull, VolumeStore, VolumeUsage,
};
