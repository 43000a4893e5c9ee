//! Runs in: server (no capabilities).
//!
//! How far a pull or an import is. The work counts, and a caller looks when it likes to.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use serde::Serialize;

/// What is done at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProgressPhase {
    /// Another pull or import is under way.
    #[default]
    Waiting,
    /// The archive arrives.
    Receiving,
    /// The registry is asked which image it is.
    Resolving,
    /// Layers arrive.
    Downloading,
    /// Layers are checked, converted and stored.
    Storing,
    /// Interpreters are searched.
    Searching,
    /// Layers are unpacked on this host.
    Unpacking,
    /// An interpreter is tried in cells.
    Trying,
}

/// A view of the progress.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProgressReport {
    /// What is done at the moment.
    pub phase: ProgressPhase,
    /// Layers that are done in this phase.
    pub layers_done: usize,
    /// All layers, once known.
    pub layers: usize,
    /// Bytes that are done in this phase.
    pub bytes_done: u64,
    /// All bytes, once known.
    pub bytes: u64,
    /// The name of the interpreter that is being tried.
    pub trying: Option<String>,
}

/// Counts the progress of one pull or import. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct ImageProgress(Arc<ProgressCounters>);

#[derive(Debug, Default)]
struct ProgressCounters {
    phase: Mutex<ProgressPhase>,
    layers_done: AtomicUsize,
    layers: AtomicUsize,
    bytes_done: AtomicU64,
    bytes: AtomicU64,
    /// Bytes of the layer that is being stored.
    layer: Mutex<Arc<AtomicU64>>,
    trying: Mutex<Option<String>>,
}

impl ImageProgress {
    /// How far it is now.
    #[must_use]
    pub fn report(&self) -> ProgressReport {
        let counters = &self.0;
        let layer = counters.layer.lock().load(Ordering::Relaxed);
        ProgressReport {
            phase: *counters.phase.lock(),
            layers_done: counters.layers_done.load(Ordering::Relaxed),
            layers: counters.layers.load(Ordering::Relaxed),
            bytes_done: counters.bytes_done.load(Ordering::Relaxed).saturating_add(layer),
            bytes: counters.bytes.load(Ordering::Relaxed),
            trying: counters.trying.lock().clone(),
        }
    }

    /// The caller unpacks the layers, to try the interpreters.
    pub fn begin_unpacking(&self) {
        self.begin_phase(ProgressPhase::Unpacking, 0, 0);
    }

    /// The caller tries an interpreter with this name.
    pub fn begin_trial(&self, interpreter: &str) {
        self.begin_phase(ProgressPhase::Trying, 0, 0);
        *self.0.trying.lock() = Some(interpreter.to_owned());
    }

    /// Begins a phase with this many layers and bytes.
    pub(crate) fn begin_phase(&self, phase: ProgressPhase, layers: usize, bytes: u64) {
        *self.0.phase.lock() = phase;
        *self.0.layer.lock() = Arc::default();
        self.0.layers_done.store(0, Ordering::Relaxed);
        self.0.bytes_done.store(0, Ordering::Relaxed);
        self.0.layers.store(layers, Ordering::Relaxed);
        self.0.bytes.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_bytes(&self, bytes: u64) {
        self.0.bytes_done.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes back bytes of a download that begins again.
    pub(crate) fn take_back_bytes(&self, bytes: u64) {
        self.0.bytes_done.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// The counter for the bytes of the next layer.
    pub(crate) fn begin_layer(&self) -> Arc<AtomicU64> {
        let counter = Arc::new(AtomicU64::new(0));
        *self.0.layer.lock() = Arc::clone(&counter);
        counter
    }

    /// Ends a layer of this many bytes.
    pub(crate) fn end_layer(&self, bytes: u64) {
        *self.0.layer.lock() = Arc::default();
        self.add_bytes(bytes);
        self.0.layers_done.fetch_add(1, Ordering::Relaxed);
    }
}
