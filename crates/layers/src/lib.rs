//! Stores file trees as layers: packs them, stores them by digest, unpacks each once per host,
//! compares and squashes them.

mod archive;
mod backup;
mod beneath;
mod blob_store;
mod checked_blob;
mod config;
mod content;
pub mod crash;
mod disk_space;
mod entry;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod index_cache;
mod ingest;
mod layer_cache;
mod layer_index;
mod layer_writer;
mod layers;
mod oci;
mod pack;
mod shared_store;
mod squash;
mod sweep;
mod tree;
mod unpack;
mod unpacked_stack;

pub use archive::foreign::{ConversionNotes, visit_archive};
pub use backup::DeletionHold;
pub use beneath::open_directory as directory_beneath;
pub use blob_store::install_crypto_provider;
pub use config::{LayersConfig, S3Config, StoreConfig};
pub use content::OpenFile;
pub use entry::{ContentHash, EntryKind, Extent, LayerEntry, Mtime, Xattr};
pub use error::{LayerBounds, LayerError};
pub use layer_cache::remove_unpacked;
pub use layer_index::LayerIndex;
pub use layer_writer::LayerWriter;
pub use layers::{Layers, LayersUsage, StoredLayer, survey_archive};
pub use oci::{ConversionLimits, ConvertedLayer, ExpectedLayer, ExportMeta};
pub use pack::{
    ContentLimits, OWNER_EXEC, OverlayXattrs, PackOmissions, PackOptions, UpperDir,
    copy_up_hard_links, pack_small_dir, pack_upper_dir,
};
pub use sweep::SweepReport;
pub use tree::{NodeKind, Tree, TreeDiff, TreeNode};
pub use unpacked_stack::UnpackedStack;
