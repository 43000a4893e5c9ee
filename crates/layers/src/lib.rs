//! File trees as layers: packed, stored by digest, unpacked once per host, compared and squashed.

mod beneath;
mod blobs;
mod cache;
mod config;
mod content;
pub mod crash;
mod entry;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod index;
mod indexes;
mod ingest;
mod layers;
mod mount;
mod oci;
mod pack;
mod room;
mod squash;
mod sweep;
mod tree;
mod unpack;
mod verified;
mod wire;
mod writer;

pub use beneath::directory as directory_beneath;
pub use cache::remove_unpacked;
pub use config::{LayersConfig, S3Config, StoreConfig};
pub use content::OpenFile;
pub use entry::{ContentHash, Entry, Extent, Kind, Mtime, Xattr};
pub use error::{Bounds, LayerError};
pub use index::Index;
pub use layers::{Layers, Stored, Usage, survey};
pub use mount::Mountable;
pub use oci::ExportMeta;
pub use pack::{ENTER, Markers, Most, PackRequest, Packed, Upper, pack, relink};
pub use sweep::Swept;
pub use tree::{Diff, Node, NodeKind, Tree};
pub use writer::LayerWriter;
