//! Runs in: server (no capabilities).
//!
//! The limits of an image.

use cloche_layers::ConversionLimits;
use cloche_model::ByteSize;

/// The limits of an image. What exceeds one is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageLimits {
    /// Layers. Overlayfs can stack 500, and a home needs some of them.
    pub layers: usize,
    /// Bytes of all layers, decompressed.
    pub bytes: ByteSize,
    /// Files, directories, links and whiteouts of all layers.
    pub entries: u64,
    /// How many times larger than its compressed form a layer may be.
    pub ratio: u64,
}

impl Default for ImageLimits {
    fn default() -> Self {
        Self { layers: 128, bytes: ByteSize::gib(64), entries: 1 << 20, ratio: 200 }
    }
}

impl ImageLimits {
    /// The limits of the next layer, after layers of this many bytes and entries.
    pub(crate) fn of_next_layer(&self, bytes: u64, entries: u64) -> ConversionLimits {
        ConversionLimits {
            bytes: ByteSize(self.bytes.bytes().saturating_sub(bytes)),
            entries: self.entries.saturating_sub(entries),
            ratio: self.ratio,
        }
    }
}
