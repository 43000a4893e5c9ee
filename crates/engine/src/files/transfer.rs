//! Runs in: server (no capabilities).
//!
//! The content of files: read by ranges from a stack of layers, written into a new layer, as streams.

use std::{ops::Range, time::Duration};

use cloche_layers::{Layers, NodeKind, Tree, TreeNode, crash};
use cloche_model::{
    ErrorCode, HomePath, HomeState, Layer, LayerDigest, Moment, SnapshotKind, Team, Thread,
    ThreadId,
};
use cloche_store::{HeadMoveOutcome, LayerAppend};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncSeekExt as _};

use super::{FileFilter, FileInfo, FilePage, Files, layer_refusal, over_quota_refusal};
use crate::{
    Refusal, VolumeFile, clock,
    threads::{moved_thread, thread_busy_refusal, thread_key},
};

/// The content of a file, or of a part of it.
pub type FileReader = Box<dyn AsyncRead + Send + Unpin>;

/// The permission bits of a file that was put there.
const MODE: u32 = 0o644;
/// How often a finished upload tries to append while the thread is held, and the pause in between.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// Where the content of a file is.
enum StoredContent {
    Layer(Layers, TreeNode),
    Volume(std::fs::File),
}

/// A file that was found.
pub struct StoredFile {
    content: StoredContent,
    path: HomePath,
    /// Its size.
    pub size: u64,
    /// When it was last written.
    pub modified: Moment,
    /// Changes whenever its content does.
    pub tag: String,
}

impl StoredFile {
    /// Its name, without the directories.
    #[must_use]
    pub fn file_name(&self) -> &[u8] {
        self.path.as_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default()
    }

    /// Reads a part of it.
    ///
    /// # Errors
    /// When its layer cannot be read.
    pub async fn read_range(self, range: Range<u64>) -> Result<FileReader, Refusal> {
        match self.content {
            StoredContent::Layer(layers, node) => {
                let opened = layers.open_node(&node, Some(range)).await;
                Ok(opened.map_err(layer_refusal)?.content)
            }
            StoredContent::Volume(file) => {
                let mut file = tokio::fs::File::from_std(file);
                let start = std::io::SeekFrom::Start(range.start);
                file.seek(start).await.map_err(Refusal::internal)?;
                Ok(Box::new(file.take(range.end.saturating_sub(range.start))))
            }
        }
    }

    /// A file of a volume.
    pub(super) fn from_volume(file: VolumeFile, path: HomePath) -> Self {
        let VolumeFile { file, size, modified, tag } = file;
        Self { content: StoredContent::Volume(file), path, size, modified, tag }
    }
}

/// A file that is about to arrive.
#[derive(Clone, Copy, Debug)]
pub struct FileUpload<'a> {
    /// The thread that it goes to; made if it is not there.
    pub thread: &'a ThreadId,
    /// Where it goes.
    pub path: &'a HomePath,
    /// Its exact size.
    pub length: u64,
    /// When it was allowed, if that was before now: not for a thread that was deleted since.
    pub allowed_at: Option<Moment>,
    /// The state of the thread that a person approved it for.
    pub approved: Option<&'a HomeState>,
}

/// Where a file goes: what is on the way, as far as it matters to the layer that brings it.
#[derive(Debug, PartialEq, Eq)]
struct UploadTarget {
    missing: usize,
    replaces: bool,
}

impl UploadTarget {
    fn find_in_tree(tree: &Tree, path: &HomePath) -> Result<Self, Refusal> {
        let path = path.as_bytes();
        let in_the_way = |what: &[u8], why: &str| {
            let what = HomePath::text_of(what);
            Refusal::new(ErrorCode::Validation, format!("path: {what:?} {why}"))
        };
        let mut missing = 0;
        for (at, _) in path.iter().enumerate().filter(|(_, byte)| **byte == b'/') {
            match tree.get(&path[..at]).map(|node| &node.kind) {
                Some(NodeKind::Directory) => {}
                Some(_) => return Err(in_the_way(&path[..at], "is not a directory")),
                None => missing += 1,
            }
        }
        match tree.get(path).map(|node| &node.kind) {
            Some(NodeKind::Directory) => Err(in_the_way(path, "is a directory")),
            found => Ok(Self { missing, replaces: found.is_some() }),
        }
    }
}

impl Files {
    /// Checks that a file of this length can go there; gives back the thread, if there is one.
    pub(super) async fn check_upload(
        &self,
        team: &Team,
        id: &ThreadId,
        path: &HomePath,
        length: u64,
    ) -> Result<Option<Thread>, Refusal> {
        let quota = self.threads.home_quota(team);
        let thread = self.store.find_thread(&thread_key(team, id)).await?;
        let (layers, room) = match &thread {
            Some(thread) => {
                (thread.layers.as_slice(), self.threads.remaining_home_quota(thread, team).await?)
            }
            None => (&[][..], quota),
        };
        let place = UploadTarget::find_in_tree(&self.threads.home_tree(layers).await?, path)?;
        let entries = place.missing as u64 + u64::from(!place.replaces);
        if length > room.bytes.bytes() || entries > room.inodes {
            return Err(over_quota_refusal(team, quota));
        }
        Ok(thread)
    }

    /// Puts a file of exactly that length into a thread, as a layer of its own. The thread is not held
    /// while the bytes arrive; it must be free before they do and when they are there.
    ///
    /// # Errors
    /// When an execution holds the thread, something is in the way, or the content is not as long.
    pub async fn upload_file(
        &self,
        team: &Team,
        file: FileUpload<'_>,
        content: impl AsyncRead + Send + Unpin,
    ) -> Result<(), Refusal> {
        let FileUpload { thread: id, path, length, allowed_at, approved } = file;
        self.lifecycle.check_taking_work()?;
        let _place = self.admission.enter_transfer(team).await?;
        let key = thread_key(team, id);
        if self.store.is_thread_held(&key, clock::now()).await? {
            return Err(thread_busy_refusal());
        }
        if let Some(moment) = allowed_at
            && self.store.was_thread_deleted_since(&key, moment).await?
        {
            return Err(Refusal::not_found("thread"));
        }
        let reservation = self.storage.reserve(team, packed_bound(path, length)).await?;
        let thread = self.check_upload(team, id, path, length).await?;
        let stack = thread.as_ref().map_or(&[][..], |thread| &thread.layers);
        // Looked at before the bytes arrive: the layers may be pruned once the head has moved.
        let place = UploadTarget::find_in_tree(&self.threads.home_tree(stack).await?, path)?;
        let mut writer = self.threads.layers()?.begin_layer(stack).await.map_err(layer_refusal)?;
        writer.put_file(path.as_bytes(), MODE, length, content).await.map_err(layer_refusal)?;
        let stored = writer.finish().await.map_err(layer_refusal)?;
        let Some(stored) = stored else { return Ok(()) };
        crash::reach_point("layer-durable");
        let head = thread.as_ref().map_or(0, |thread| thread.head);
        let (kind, at) = (SnapshotKind::Upload, clock::now());
        let (digest, budget) = (stored.layer.digest.clone(), reservation.append_budget());
        let (layer, approved) = (stored.layer, approved.cloned());
        let append =
            LayerAppend { thread: key, head, layer, kind, at, allowed_at, approved, budget };
        let put = self.append_upload(append, team, file, &place).await;
        match &put {
            Ok(()) => self.storage.settle_layer(&digest),
            Err(_) => self.storage.discard_layer(&digest).await,
        }
        crash::reach_point("head-moved");
        put
    }

    /// Moves the head. If it moved meanwhile, the layer still fits as long as the way to the file is
    /// the same.
    async fn append_upload(
        &self,
        mut append: LayerAppend,
        team: &Team,
        file: FileUpload<'_>,
        place: &UploadTarget,
    ) -> Result<(), Refusal> {
        let mut is_pruned = false;
        for _ in 0..TRIES {
            append.at = clock::now();
            match self.store.append_layer(append.clone()).await? {
                HeadMoveOutcome::Done(thread) => {
                    self.threads.squash_in_background(append.thread);
                    tracing::debug!(thread = %thread.id, head = thread.head, "a file was put");
                    return Ok(());
                }
                HeadMoveOutcome::Stale => {
                    // Another write came first, so there may be less room now.
                    let now = self.check_upload(team, file.thread, file.path, file.length).await?;
                    let stack = now.as_ref().map_or(&[][..], |thread| &thread.layers);
                    let found = UploadTarget::find_in_tree(
                        &self.threads.home_tree(stack).await?,
                        file.path,
                    )?;
                    if found.missing != place.missing {
                        return moved_thread(HeadMoveOutcome::Stale).map(drop);
                    }
                    append.head = now.map_or(0, |thread| thread.head);
                }
                HeadMoveOutcome::Busy => tokio::time::sleep(PAUSE).await,
                HeadMoveOutcome::OverBudget if is_pruned => {
                    return Err(self.storage.over_budget(team));
                }
                HeadMoveOutcome::OverBudget => {
                    self.storage.make_room(team, append.layer.disk_bytes()).await?;
                    is_pruned = true;
                }
                other => return moved_thread(other).map(drop),
            }
        }
        Err(thread_busy_refusal())
    }

    /// A file of a stack.
    pub(super) async fn file_in(
        &self,
        stack: Vec<LayerDigest>,
        path: &HomePath,
    ) -> Result<StoredFile, Refusal> {
        let layers = self.threads.layers()?.clone();
        let tree = self.threads.home_tree(&stack).await?;
        let node = tree.get(path.as_bytes()).filter(|node| node.kind == NodeKind::File);
        let node = node.ok_or_else(|| Refusal::not_found("file"))?;
        Ok(StoredFile {
            size: node.size,
            modified: modified_at(node),
            tag: entity_tag(node),
            content: StoredContent::Layer(layers, node.clone()),
            path: path.clone(),
        })
    }

    pub(super) async fn files_of(
        &self,
        stack: &[LayerDigest],
        filter: &FileFilter,
    ) -> Result<FilePage, Refusal> {
        let tree = self.threads.home_tree(stack).await?;
        let after = filter.after.as_deref().map(HomePath::bytes_of);
        let mut page = FilePage { files: Vec::new(), next: None, unnamed: 0 };
        for (path, node) in tree.walk().filter(|(_, node)| node.kind == NodeKind::File) {
            if !is_wanted(path, filter.below.as_ref(), after.as_deref()) {
                continue;
            }
            let path = HomePath::text_of(path);
            if path.len() > HomePath::MAX_BYTES {
                page.unnamed += 1;
                continue;
            }
            if page.files.len() == filter.limit {
                page.next = page.files.last().map(|file| file.path.clone());
                break;
            }
            page.files.push(FileInfo { path, size: node.size, modified: modified_at(node) });
        }
        Ok(page)
    }
}

/// The most that a file of this length can take as a layer: what does not get smaller by compression
/// gets a little larger, and its directories have heads of their own.
fn packed_bound(path: &HomePath, length: u64) -> u64 {
    const HEADS: u64 = 16 << 10;
    let names = path.as_bytes().len() as u64;
    let stored =
        length.saturating_add(length / 128).saturating_add(HEADS).saturating_add(4 * names);
    Layer::disk_bytes_for(stored)
}

fn is_wanted(path: &[u8], below: Option<&HomePath>, after: Option<&[u8]>) -> bool {
    let below = below.is_none_or(|below| {
        let rest = path.strip_prefix(below.as_bytes());
        rest.is_some_and(|rest| rest.first().is_none_or(|next| *next == b'/'))
    });
    below && after.is_none_or(|after| path > after)
}

fn modified_at(node: &TreeNode) -> Moment {
    let micros = node.mtime.seconds.saturating_mul(1_000_000);
    Moment(micros.saturating_add(i64::from(node.mtime.nanos / 1000)))
}

/// The layer and the place in it: the same file has another one as soon as it is written again.
fn entity_tag(node: &TreeNode) -> String {
    use sha2::{Digest, Sha256};
    let mut hash = Sha256::new();
    hash.update(node.layer.as_str().as_bytes());
    hash.update(&node.path_in_layer);
    hex::encode(&hash.finalize()[..16])
}
