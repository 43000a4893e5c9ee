//! Unpacked layers on this host's disk: each layer once, up to a size limit. A layer in use is
//! never removed.
//!
//! `cache/<name>` is a layer's tree. `<name>.marks` lists the overlay marks that its directories
//! still need. `<name>.layer` records that both are complete, and the boot id of this host. Nothing
//! here is synced, so files of an earlier boot may have lost their content and are not trusted.

use std::{
    collections::{BTreeSet, HashMap},
    fs,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
};

use cloche_model::LayerDigest;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::{LayerError, LayersConfig, LayersUsage, beneath, entry::Mtime, unpack::UnpackedLayer};

/// A layer and the number of its copy. An overlay cannot use the same directory twice.
pub(crate) type CacheKey = (LayerDigest, u32);

pub(crate) struct LayerCache {
    dir: PathBuf,
    limit: u64,
    state: Mutex<CacheState>,
    /// A task that unpacks a layer holds its lock, so that other tasks wait for the result.
    unpack_locks: Mutex<HashMap<CacheKey, Arc<tokio::sync::Mutex<()>>>>,
    /// Locks the directory against other processes.
    _lock: OwnedFd,
}

#[derive(Default)]
struct CacheState {
    layers: HashMap<CacheKey, CachedLayer>,
    /// Numbers of directories that exist.
    taken: BTreeSet<u64>,
    bytes: u64,
    clock: u64,
}

impl CacheState {
    /// Takes a layer off the list. Its number stays taken until its files are removed.
    fn forget(&mut self, key: &CacheKey) -> Option<u64> {
        let layer = self.layers.remove(key)?;
        self.bytes -= layer.bytes;
        Some(layer.number)
    }
}

struct CachedLayer {
    number: u64,
    bytes: u64,
    uses: u64,
    used: u64,
    root: (u32, Mtime),
    /// Whether it is removed after its last use, because its layer is not stored any more.
    is_condemned: bool,
}

/// The content of `<name>.layer`.
#[derive(Serialize, Deserialize)]
struct CacheRecord {
    digest: LayerDigest,
    copy: u32,
    boot: String,
    bytes: u64,
    root: (u32, Mtime),
}

impl LayerCache {
    /// Opens the cache and removes incomplete layers from it.
    pub(crate) fn open(config: &LayersConfig) -> Result<Self, LayerError> {
        let opening = || LayerError::io_context("opening the layer cache");
        let dir = config.dir.join("cache");
        {
            use std::os::unix::fs::DirBuilderExt;
            let mut builder = fs::DirBuilder::new();
            builder.recursive(true).mode(0o700).create(&dir).map_err(opening())?;
        }
        let lock = lock_directory(&config.dir)?;
        let state = scan_cache_dir(&dir).map_err(opening())?;
        let limit = config.cache_bytes.bytes();
        Ok(Self {
            dir,
            limit,
            state: Mutex::new(state),
            unpack_locks: Mutex::default(),
            _lock: lock,
        })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn usage(&self) -> LayersUsage {
        let state = self.state.lock();
        LayersUsage {
            cache_bytes: state.bytes,
            cached: state.layers.len() as u64,
            in_use: state.layers.values().filter(|layer| layer.uses > 0).count() as u64,
            ..LayersUsage::default()
        }
    }

    /// The lock that a task holds while it unpacks this layer.
    pub(crate) fn unpack_lock(&self, key: &CacheKey) -> Arc<tokio::sync::Mutex<()>> {
        let mut unpack_locks = self.unpack_locks.lock();
        unpack_locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        Arc::clone(unpack_locks.entry(key.clone()).or_default())
    }

    /// Takes a layer into use if it is cached.
    pub(crate) fn hold_layer(self: &Arc<Self>, key: &CacheKey) -> Option<HeldLayer> {
        let mut state = self.state.lock();
        state.clock += 1;
        let clock = state.clock;
        let layer = state.layers.get_mut(key)?;
        layer.uses += 1;
        layer.used = clock;
        // It was stored again.
        layer.is_condemned = false;
        let (name, root) = (encode_name(layer.number), layer.root);
        Some(HeldLayer { cache: Arc::clone(self), key: key.clone(), name, root })
    }

    /// Frees space by removing the least recently used layers that are not in use.
    pub(crate) fn make_room(&self, bytes: u64) {
        loop {
            let victim = {
                let mut state = self.state.lock();
                if state.bytes.saturating_add(bytes) <= self.limit {
                    return;
                }
                let idle = state.layers.iter().filter(|(_, layer)| layer.uses == 0);
                let oldest = idle.min_by_key(|(_, layer)| layer.used).map(|(key, _)| key.clone());
                let Some(number) = oldest.and_then(|key| state.forget(&key)) else { return };
                number
            };
            self.free_layer(victim);
        }
    }

    /// Removes a layer that is not stored any more: now, or after its last use.
    pub(crate) fn evict(&self, digest: &LayerDigest) {
        let numbers: Vec<u64> = {
            let mut state = self.state.lock();
            let mut idle = Vec::new();
            for (key, layer) in state.layers.iter_mut().filter(|(key, _)| key.0 == *digest) {
                layer.is_condemned = true;
                if layer.uses == 0 {
                    idle.push(key.clone());
                }
            }
            idle.iter().filter_map(|key| state.forget(key)).collect()
        };
        numbers.into_iter().for_each(|number| self.free_layer(number));
    }

    /// The layers that are unpacked here.
    pub(crate) fn cached_digests(&self) -> BTreeSet<LayerDigest> {
        self.state.lock().layers.keys().map(|(digest, _)| digest.clone()).collect()
    }

    /// Removes the files of a layer that was forgotten. If that fails, its name stays reserved.
    fn free_layer(&self, number: u64) {
        match self.remove_layer(number) {
            Ok(()) => _ = self.state.lock().taken.remove(&number),
            Err(error) => tracing::warn!(%error, "could not remove a layer from the cache"),
        }
    }

    /// Moves an unpacked layer to a name of its own, and takes it into use.
    pub(crate) fn adopt_unpacked(
        self: &Arc<Self>,
        key: &CacheKey,
        directory: &str,
        unpacked: &UnpackedLayer,
        bytes: u64,
    ) -> std::io::Result<HeldLayer> {
        let number = {
            let mut state = self.state.lock();
            let number = (1..).find(|number| !state.taken.contains(number)).unwrap_or(u64::MAX);
            state.taken.insert(number);
            number
        };
        let name = encode_name(number);
        if let Err(error) = self.put_in_place(key, directory, &name, (unpacked, bytes)) {
            if self.remove_layer(number).is_ok() {
                self.state.lock().taken.remove(&number);
            }
            return Err(error);
        }
        let root = unpacked.root;
        let mut state = self.state.lock();
        state.clock += 1;
        state.bytes += bytes;
        let used = state.clock;
        let layer = CachedLayer { number, bytes, uses: 1, used, root, is_condemned: false };
        state.layers.insert(key.clone(), layer);
        Ok(HeldLayer { cache: Arc::clone(self), key: key.clone(), name, root })
    }

    fn put_in_place(
        &self,
        key: &CacheKey,
        directory: &str,
        name: &str,
        (unpacked, bytes): (&UnpackedLayer, u64),
    ) -> std::io::Result<()> {
        if !unpacked.marks.is_empty() {
            fs::write(self.dir.join(format!("{name}.marks")), &unpacked.marks)?;
        }
        fs::rename(self.dir.join(directory), self.dir.join(name))?;
        let record = CacheRecord {
            digest: key.0.clone(),
            copy: key.1,
            boot: read_boot_id()?,
            bytes,
            root: unpacked.root,
        };
        let new = self.dir.join(format!("new-{name}.layer"));
        fs::write(&new, serde_json::to_vec(&record)?)?;
        fs::rename(new, self.dir.join(format!("{name}.layer")))
    }

    /// Removes the completeness record first and the tree last.
    fn remove_layer(&self, number: u64) -> std::io::Result<()> {
        remove_layer_files(&self.dir, &encode_name(number))
    }
}

fn remove_layer_files(dir: &Path, name: &str) -> std::io::Result<()> {
    for file in [format!("{name}.layer"), format!("{name}.marks")] {
        match fs::remove_file(dir.join(file)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    beneath::remove_tree(fs::File::open(dir)?, name)
}

/// Removes every unpacked layer below a layers directory that no process uses. They are unpacked
/// again on demand. Needed when the files get another owner.
///
/// # Errors
/// If a file or directory cannot be removed.
pub fn remove_unpacked(layers: &Path) -> std::io::Result<()> {
    let cache = layers.join("cache");
    for entry in fs::read_dir(&cache)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            beneath::remove_tree(fs::File::open(&cache)?, &entry.file_name().to_string_lossy())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// A layer in use. It is not removed before this is dropped.
pub(crate) struct HeldLayer {
    cache: Arc<LayerCache>,
    key: CacheKey,
    pub(crate) name: String,
    pub(crate) root: (u32, Mtime),
}

impl Drop for HeldLayer {
    fn drop(&mut self) {
        let number = {
            let mut state = self.cache.state.lock();
            let Some(layer) = state.layers.get_mut(&self.key) else { return };
            layer.uses -= 1;
            if layer.uses > 0 || !layer.is_condemned {
                return;
            }
            state.forget(&self.key)
        };
        let Some(number) = number else { return };
        // A large tree takes a while, and the caller may be a task.
        let cache = Arc::clone(&self.cache);
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => _ = runtime.spawn_blocking(move || cache.free_layer(number)),
            Err(_) => cache.free_layer(number),
        }
    }
}

impl std::fmt::Debug for HeldLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("HeldLayer").field(&self.name).finish()
    }
}

/// Encodes a number in base 36. Names are short because the length of mount options is limited.
fn encode_name(number: u64) -> String {
    let digits = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut name = Vec::new();
    let mut rest = number;
    while rest > 0 {
        name.push(char::from(digits[(rest % 36) as usize]));
        rest /= 36;
    }
    name.iter().rev().collect()
}

fn decode_name(name: &str) -> Option<u64> {
    let number = u64::from_str_radix(name, 36).ok()?;
    (encode_name(number) == name).then_some(number)
}

/// The id of this boot of the host.
fn read_boot_id() -> std::io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Loads every layer that is complete and of this boot, and removes everything else.
fn scan_cache_dir(dir: &Path) -> std::io::Result<CacheState> {
    let boot = read_boot_id()?;
    let mut state = CacheState::default();
    let mut found = Vec::new();
    let mut others = Vec::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let record = name.strip_suffix(".layer").and_then(decode_name).and_then(|number| {
            let path = dir.join(&name);
            let written = fs::metadata(&path).and_then(|meta| meta.modified()).ok()?;
            let record: CacheRecord = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
            let whole = record.boot == boot && dir.join(encode_name(number)).is_dir();
            whole.then_some((written, number, record))
        });
        match record {
            Some(record) => found.push(record),
            None => others.push(name),
        }
    }
    found.sort_by_key(|(written, ..)| *written);
    for (_, number, record) in found {
        state.taken.insert(number);
        state.clock += 1;
        state.bytes += record.bytes;
        let (used, bytes, root) = (state.clock, record.bytes, record.root);
        let layer = CachedLayer { number, bytes, uses: 0, used, root, is_condemned: false };
        state.layers.insert((record.digest, record.copy), layer);
    }
    for other in others {
        let stem = other.strip_suffix(".marks").unwrap_or(&other);
        if decode_name(stem).is_some_and(|number| state.taken.contains(&number)) {
            continue;
        }
        if dir.join(&other).is_dir() {
            beneath::remove_tree(fs::File::open(dir)?, &other)?;
        } else {
            fs::remove_file(dir.join(&other))?;
        }
    }
    Ok(state)
}

/// Locks the directory. Two processes must not share a cache, because each would remove what the
/// other uses. The lock belongs to the process, so a forked child does not hold it.
fn lock_directory(dir: &Path) -> Result<OwnedFd, LayerError> {
    lock_file(&dir.join("lock")).map_err(|error| match error {
        LockError::Held => {
            LayerError::Config(format!("{} is in use by another server", dir.display()))
        }
        LockError::Io(source) => LayerError::from_io("locking the directory of layers", source),
    })
}

/// Why a file is not locked.
pub(crate) enum LockError {
    /// Another process holds it.
    Held,
    /// It cannot be opened.
    Io(std::io::Error),
}

/// Creates a file if it is missing, and locks it.
pub(crate) fn lock_file(path: &Path) -> Result<OwnedFd, LockError> {
    let mut options = fs::File::options();
    options.create(true).truncate(false).write(true);
    let file = options.open(path).map_err(LockError::Io)?;
    let operation = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    rustix::fs::fcntl_lock(&file, operation).map_err(|_| LockError::Held)?;
    Ok(file.into())
}
