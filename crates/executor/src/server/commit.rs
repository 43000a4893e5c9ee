//! Keeping what a run has written to its home: looked at, packed, stored.
//!
//! Most runs write nothing, and that is seen without asking anyone. Otherwise the spawner's packer
//! reads the files, which may have any mode, and the archive is stored as a layer.

use std::{
    fs::File,
    io::{self, Read},
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, OnceLock},
};

use cloche_layers::{LayerBounds, LayerError, LayerIndex, Layers, survey_archive};
use cloche_model::{HomePath, HomeWrites, LayerDigest, OutputFile, RunSpec};
use rustix::fs::{Dir, Mode, OFlags, SeekFrom};
use sha2::{Digest, Sha256};

use super::{
    control_socket::ControlSocket,
    executor::RunError,
    spawner_client::{OverlayDirs, SpawnError, SpawnerClient},
};
use crate::protocol::{self, PackReport, PackRequest};

/// The most files that are named in an outcome.
const MOST_FILES: usize = 1000;
/// How much of an archive may wait in its pipe.
const PIPE: usize = 1 << 20;
/// The longest verdict of a packer: names of files.
const MOST_VERDICT: u64 = 16 << 20;
/// How much is kept of a file that belongs to no thread, and of all that a run wrote.
const MOST_OUTPUT: (u64, u64) = (32 << 20, 128 << 20);

/// Why what was written could not be kept.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The packer could not be started.
    #[error(transparent)]
    Packer(#[from] SpawnError),
    /// The archive could not be stored.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// The home or a pipe could not be read.
    #[error("the home could not be read")]
    Io(#[from] io::Error),
}

/// A file that was put into the home before the run.
pub(crate) struct PlacedFile {
    name: String,
    content: Vec<u8>,
    /// The program itself, which is nobody's file.
    is_program: bool,
}

impl PlacedFile {
    /// All of a run's.
    pub(crate) fn from_spec(spec: &RunSpec) -> Vec<Self> {
        let program = Self {
            name: spec.language.main_file().to_owned(),
            content: spec.code.clone(),
            is_program: true,
        };
        let inputs = spec.files.iter().map(|file| Self {
            name: file.name.as_str().to_owned(),
            content: file.content.clone(),
            is_program: false,
        });
        [program].into_iter().chain(inputs).collect()
    }
}

/// What is left of a run.
pub(crate) struct HomeDiff {
    /// Where it wrote to; nobody writes there any more.
    pub(crate) diff: OverlayDirs,
    pub(crate) placed: Vec<PlacedFile>,
    /// What the thread's home was before, if there is a thread.
    pub(crate) before: Option<HomeBaseline>,
}

/// What a thread's home was before the run.
pub(crate) struct HomeBaseline {
    stack: Vec<LayerDigest>,
    /// The mode of the home itself, if the stack says.
    mode: Option<u32>,
    /// When the home itself was last changed.
    changed: (i64, i64),
}

impl HomeBaseline {
    /// Before anything of the run has begun.
    pub(crate) fn from_upper(
        stack: Vec<LayerDigest>,
        mode: Option<u32>,
        diff: &OverlayDirs,
    ) -> io::Result<Self> {
        Ok(Self { stack, mode, changed: changed_at(&diff.upper)? })
    }
}

/// When a directory was last changed, in its names or itself.
fn changed_at(directory: &OwnedFd) -> io::Result<(i64, i64)> {
    let stat = rustix::fs::fstat(directory)?;
    Ok((stat.st_ctime, stat.st_ctime_nsec as i64))
}

impl HomeDiff {
    /// Whether a file is left out of the layer as long as it is what was put there.
    fn is_left_out(&self, placed: &PlacedFile) -> bool {
        placed.is_program || self.before.is_none()
    }

    /// Whether there is surely nothing to keep.
    fn is_surely_empty(&self) -> io::Result<bool> {
        if let Some(before) = &self.before
            && before.changed != changed_at(&self.diff.upper)?
        {
            return Ok(false);
        }
        rustix::fs::seek(&self.diff.upper, SeekFrom::Start(0))?;
        for entry in Dir::new(self.diff.upper.try_clone()?)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            let placed = self.placed.iter().find(|placed| placed.name.as_bytes() == name);
            match placed.filter(|placed| self.is_left_out(placed)) {
                Some(placed) if self.is_unchanged(placed) => {}
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Whether a file is what was put there, as far as we may see.
    fn is_unchanged(&self, placed: &PlacedFile) -> bool {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened =
            rustix::fs::openat(&self.diff.upper, placed.name.as_str(), flags, Mode::empty());
        let Ok(file) = opened else { return false };
        let Ok(stat) = rustix::fs::fstat(&file) else { return false };
        let size = placed.content.len();
        let alike = stat.st_mode == 0o100_644 && stat.st_nlink == 1 && stat.st_size == size as i64;
        let mut content = Vec::with_capacity(size + 1);
        alike
            && File::from(file).take(size as u64 + 1).read_to_end(&mut content).is_ok()
            && content == placed.content
    }

    /// Whether there is no room left for another page or another file.
    fn is_full(&self) -> io::Result<bool> {
        let room = rustix::fs::fstatfs(&self.diff.upper)?;
        Ok(room.f_bavail == 0 || room.f_ffree == 0)
    }

    fn pack_request(&self) -> PackRequest {
        let placed = self.placed.iter().map(|placed| protocol::PlacedDigest {
            name: placed.name.clone(),
            digest: Sha256::digest(&placed.content).into(),
            leave_out: self.is_left_out(placed),
        });
        let home_mode = self.before.as_ref().and_then(|before| before.mode);
        let most = self.before.is_none().then_some(MOST_OUTPUT);
        PackRequest { placed: placed.collect(), home_mode, most }
    }
}

/// What becomes of what a run has written.
#[derive(Clone, Copy)]
pub(crate) enum OutputSink<'a> {
    /// It is stored here.
    In(&'a Layers),
    /// It is named, and gone.
    NamesOnly,
}

/// Keeps what a run has written. A run of no thread has its outcome also without.
pub(crate) async fn commit_home(
    spawner: &SpawnerClient,
    keep: OutputSink<'_>,
    left: &HomeDiff,
    control: &mut ControlSocket,
) -> Result<HomeWrites, RunError> {
    match try_commit(spawner, keep, left, control).await {
        // The program has run, and its outcome does not depend on the disk of this host.
        Err(CommitError::Layer(error)) if error.is_disk_full() => {
            tracing::error!(%error, "the disk is full, so the files of a run were not kept");
            Ok(HomeWrites { quota_exceeded: true, ..HomeWrites::default() })
        }
        Err(error) if left.before.is_some() => Err(RunError::Commit(error)),
        Err(error) => {
            tracing::error!(%error, "the files of a run were not kept");
            Ok(HomeWrites::default())
        }
        Ok(written) => Ok(written),
    }
}

async fn try_commit(
    spawner: &SpawnerClient,
    keep: OutputSink<'_>,
    left: &HomeDiff,
    control: &mut ControlSocket,
) -> Result<HomeWrites, CommitError> {
    if left.is_surely_empty()? {
        return Ok(HomeWrites::default());
    }
    // Now: what is read next must not change any more.
    control.end_processes().await?;
    let is_full = left.before.is_some() && left.is_full()?;
    // Files of a run without a thread are named and dropped while the disk of the host is short.
    let is_short = matches!(keep, OutputSink::In(layers) if !layers.keeps_output());
    let drops_files = is_short && left.before.is_none();
    let keep = if drops_files { OutputSink::NamesOnly } else { keep };
    let (archive, verdict) = ArchivePipe::start_packing(left, spawner).await?;
    let (layer, index) = match (keep, &left.before) {
        (OutputSink::In(layers), Some(before)) => {
            let stored = layers.store_on_stack(&before.stack, archive).await?;
            stored.map(|it| (Some(it.layer), it.index))
        }
        (OutputSink::In(layers), None) => {
            layers.store_blocking(archive).await?.map(|it| (Some(it.layer), it.index))
        }
        (OutputSink::NamesOnly, _) => survey_archive(archive, LayerBounds::default())
            .await?
            .map(|index| (None, Arc::new(index))),
    }
    .unzip();
    let verdict = verdict.get().cloned().unwrap_or_default();
    let quota_exceeded = drops_files || is_full || left.before.is_some() && verdict.lost_attributes;
    let Some(index) = index else {
        return Ok(HomeWrites { quota_exceeded, ..HomeWrites::default() });
    };
    let (mut files, files_omitted) = list_output_files(&index, &verdict);
    if drops_files {
        files.iter_mut().for_each(|file| file.truncated = true);
    }
    Ok(HomeWrites { layer: layer.flatten(), files, files_omitted, quota_exceeded })
}

/// The files that a run wrote, and how many there are beside.
fn list_output_files(index: &LayerIndex, verdict: &PackReport) -> (Vec<OutputFile>, u64) {
    let (mut files, mut omitted) = (Vec::new(), 0);
    for (path, kept) in index.files() {
        let name = HomePath::text_of(path);
        if verdict.unchanged.contains(&name) {
            continue;
        }
        // A longer name could not be asked for.
        if files.len() == MOST_FILES || name.len() > HomePath::MAX_BYTES {
            omitted += 1;
            continue;
        }
        let cut = verdict.cut.get(&name);
        let (size, truncated) = (cut.copied().unwrap_or(kept), cut.is_some());
        files.push(OutputFile { name, size, truncated });
    }
    (files, omitted)
}

/// What the packer has said, once it has.
type SharedPackReport = Arc<OnceLock<PackReport>>;

/// An archive that is being packed. It ends well only if its packer said so.
struct ArchivePipe {
    bytes: io::PipeReader,
    verdict: io::PipeReader,
    said: SharedPackReport,
}

impl ArchivePipe {
    async fn start_packing(
        left: &HomeDiff,
        spawner: &SpawnerClient,
    ) -> Result<(Self, SharedPackReport), CommitError> {
        let (bytes, bytes_theirs) = io::pipe()?;
        let (verdict, verdict_theirs) = io::pipe()?;
        // Only to be woken less often.
        let _ = rustix::pipe::fcntl_setpipe_size(&bytes, PIPE);
        let three = [&left.diff.upper, &bytes_theirs.into(), &verdict_theirs.into()];
        let fds: Vec<_> = three.into_iter().chain(&left.diff.merged).map(AsFd::as_fd).collect();
        spawner.pack_upper_dir(left.pack_request(), &fds).await?;
        let said = SharedPackReport::default();
        Ok((Self { bytes, verdict, said: Arc::clone(&said) }, said))
    }
}

impl Read for ArchivePipe {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.bytes.read(buffer)?;
        if count > 0 || self.said.get().is_some() {
            return Ok(count);
        }
        let mut words = Vec::new();
        (&mut self.verdict).take(MOST_VERDICT).read_to_end(&mut words)?;
        let unfinished = io::Error::new(io::ErrorKind::UnexpectedEof, "the packer did not finish");
        let verdict = serde_json::from_slice(&words).map_err(|_| unfinished)?;
        self.said.get_or_init(|| verdict);
        Ok(0)
    }
}
