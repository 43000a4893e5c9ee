//! File trees as layers: packed, stored by digest, unpacked once per host, compared and squashed.

mod config;
mod entry;
mod error;
mod layers;
mod pack;
mod wire;

pub use config::{LayersConfig, S3Config, StoreConfig};
pub use entry::{Entry, Extent, Kind, Mtime, Xattr};
pub use error::{Bounds, LayerError};
pub use layers::{
    Diff, ExportMeta, Index, LayerWriter, Layers, Mountable, Node, NodeKind, OpenFile, Stored,
    Swept, Tree, Usage,
};
pub use pack::{Markers, PackRequest, pack};
