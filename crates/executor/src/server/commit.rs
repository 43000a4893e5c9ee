//! Runs in: server (no capabilities). Keeps what a run has written to its home.
//!
//! Most runs write nothing, which the server sees by itself. Otherwise a packer reads the files,
//! which may have any mode, and the server stores the archive as a layer. The layer is durable when
//! [`commit_home`] returns.

use std::{
    io::{self, Read},
    mem::{self, MaybeUninit},
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, OnceLock},
};

use cloche_layers::{LayerBounds, LayerError, LayerIndex, Layers, pack_small_dir, survey_archive};
use cloche_model::{HomePath, HomeWrites, LayerDigest, OutputFile, RunSpec};
use rustix::fs::{Mode, OFlags, RawDir, SeekFrom};
use sha2::{Digest, Sha256};

use super::{
    cell_waiters::OverlayDirs,
    control_socket::ControlSocket,
    home_mount::MountedHome,
    run_error::RunError,
    spawner_client::{SpawnError, SpawnerClient},
};
use crate::protocol::{PackReport, PackRequest, PlacedDigest};

/// The most files that an outcome names.
const MAX_FILES: usize = 1000;
/// The size of the pipe between packer and server.
const PIPE_SIZE: usize = 1 << 20;
/// The buffer for the entries of a home. Most homes have one.
const LISTING_BYTES: usize = 2048;
/// The longest report of a packer, which names files.
const MAX_REPORT: u64 = 16 << 20;
/// Without a thread: the most bytes that are kept of one file, and of all files of a run.
const MAX_OUTPUT: (u64, u64) = (32 << 20, 128 << 20);

/// Why the files of a run could not be stored.
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

/// A file that the server placed in the home before the run.
pub(crate) struct PlacedFile {
    name: String,
    content: Vec<u8>,
    /// Whether it is the program itself, which is no file of the user.
    is_program: bool,
}

impl PlacedFile {
    /// Takes all files of a run out of its spec. The job has its own copy of them.
    pub(crate) fn take_from(spec: &mut RunSpec) -> Vec<Self> {
        let program = Self {
            name: spec.language.main_file().to_owned(),
            content: mem::take(&mut spec.code),
            is_program: true,
        };
        let inputs = mem::take(&mut spec.files).into_iter().map(|file| Self {
            name: file.name.as_str().to_owned(),
            content: file.content,
            is_program: false,
        });
        [program].into_iter().chain(inputs).collect()
    }
}

/// The directory that a run wrote to.
pub(crate) enum WrittenHome {
    /// The home of a thread.
    Thread(MountedHome),
    /// The home that the cell came with, for a run without a thread.
    Cell(OwnedFd),
}

/// What a run wrote.
pub(crate) struct HomeDiff {
    pub(crate) home: WrittenHome,
    pub(crate) placed: Vec<PlacedFile>,
}

/// A thread's home before the run.
pub(crate) struct HomeBaseline {
    stack: Vec<LayerDigest>,
    /// The mode of the home directory, if a layer has it.
    mode: Option<u32>,
    /// The change time of the upper directory.
    changed: (i64, i64),
}

impl HomeBaseline {
    /// To be called before the run has begun.
    pub(crate) fn from_upper(
        stack: Vec<LayerDigest>,
        mode: Option<u32>,
        dirs: &OverlayDirs,
    ) -> io::Result<Self> {
        Ok(Self { stack, mode, changed: changed_at(&dirs.upper)? })
    }
}

/// The change time of a directory: of its entries or its metadata.
fn changed_at(directory: &OwnedFd) -> io::Result<(i64, i64)> {
    let stat = rustix::fs::fstat(directory)?;
    Ok((stat.st_ctime, stat.st_ctime_nsec as i64))
}

/// Whether the rest of a file is this.
fn holds_exactly(file: &OwnedFd, content: &[u8]) -> io::Result<bool> {
    // One byte more, so that one read shows that nothing follows.
    let mut bytes = vec![0; content.len() + 1];
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::io::read(file, &mut bytes[filled..])? {
            0 => break,
            count => filled += count,
        }
        if filled == content.len() {
            break;
        }
    }
    Ok(bytes[..filled] == *content)
}

impl HomeDiff {
    /// The thread's home before the run; `None` without a thread.
    fn baseline(&self) -> Option<&HomeBaseline> {
        match &self.home {
            WrittenHome::Thread(mounted) => Some(&mounted.baseline),
            WrittenHome::Cell(_) => None,
        }
    }

    /// The directory that has what was written.
    fn upper(&self) -> &OwnedFd {
        match &self.home {
            WrittenHome::Thread(mounted) => &mounted.dirs.upper,
            WrittenHome::Cell(upper) => upper,
        }
    }

    /// The overlay, for a thread's home with layers.
    fn merged(&self) -> Option<&OwnedFd> {
        match &self.home {
            WrittenHome::Thread(mounted) => mounted.dirs.merged.as_ref(),
            WrittenHome::Cell(_) => None,
        }
    }

    /// Whether the layer leaves a placed file out if the run did not change it.
    fn is_left_out(&self, placed: &PlacedFile) -> bool {
        placed.is_program || self.baseline().is_none()
    }

    /// Whether there is certainly nothing to keep. Needs no packer.
    fn is_surely_empty(&self) -> io::Result<bool> {
        if let Some(baseline) = self.baseline()
            && baseline.changed != changed_at(self.upper())?
        {
            return Ok(false);
        }
        rustix::fs::seek(self.upper(), SeekFrom::Start(0))?;
        let mut buffer = [MaybeUninit::uninit(); LISTING_BYTES];
        let mut entries = RawDir::new(self.upper(), &mut buffer);
        while let Some(entry) = entries.next() {
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

    /// Whether a placed file is unchanged, as far as the server can read it.
    fn is_unchanged(&self, placed: &PlacedFile) -> bool {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(self.upper(), placed.name.as_str(), flags, Mode::empty());
        let Ok(file) = opened else { return false };
        let Ok(stat) = rustix::fs::fstat(&file) else { return false };
        let size = placed.content.len();
        let looks_unchanged =
            stat.st_mode == 0o100_644 && stat.st_nlink == 1 && stat.st_size == size as i64;
        looks_unchanged && holds_exactly(&file, &placed.content).unwrap_or(false)
    }

    /// The archive of a few small files of a run without a thread, which the server can read itself.
    /// The program may still write to them: it gets what was read.
    fn pack_if_small(&self) -> Option<Vec<u8>> {
        let WrittenHome::Cell(upper) = &self.home else { return None };
        let unchanged = self.placed.iter().filter(|placed| self.is_unchanged(placed));
        let skip: Vec<&str> = unchanged.map(|placed| placed.name.as_str()).collect();
        pack_small_dir(upper.as_fd(), &skip)
    }

    /// Whether the home has no space for another page or another file.
    fn is_full(&self) -> io::Result<bool> {
        let space = rustix::fs::fstatfs(self.upper())?;
        Ok(space.f_bavail == 0 || space.f_ffree == 0)
    }

    fn pack_request(&self) -> PackRequest {
        let placed = self.placed.iter().map(|placed| PlacedDigest {
            name: placed.name.clone(),
            digest: Sha256::digest(&placed.content).into(),
            leave_out: self.is_left_out(placed),
        });
        let home_mode = self.baseline().and_then(|baseline| baseline.mode);
        let most = self.baseline().is_none().then_some(MAX_OUTPUT);
        PackRequest { placed: placed.collect(), home_mode, most }
    }
}

/// What happens to the files that a run wrote.
#[derive(Clone, Copy)]
pub(crate) enum OutputSink<'a> {
    /// They are stored as a layer.
    Store(&'a Layers),
    /// The outcome names them, and they are discarded.
    NamesOnly,
}

/// Stores what a run has written. Without a thread, a failure here is logged and the run still
/// succeeds.
pub(crate) async fn commit_home(
    spawner: &SpawnerClient,
    sink: OutputSink<'_>,
    diff: &HomeDiff,
    control: &mut ControlSocket,
) -> Result<HomeWrites, RunError> {
    match try_commit(spawner, sink, diff, control).await {
        // The program has run. Its outcome does not depend on the disk of this host.
        Err(CommitError::Layer(error)) if error.is_disk_full() => {
            tracing::error!(%error, "the disk is full: the files of a run were not stored");
            Ok(HomeWrites { quota_exceeded: true, ..HomeWrites::default() })
        }
        Err(error) if diff.baseline().is_some() => Err(RunError::Commit(error)),
        Err(error) => {
            tracing::error!(%error, "the files of a run were not stored");
            Ok(HomeWrites::default())
        }
        Ok(written) => Ok(written),
    }
}

async fn try_commit(
    spawner: &SpawnerClient,
    sink: OutputSink<'_>,
    diff: &HomeDiff,
    control: &mut ControlSocket,
) -> Result<HomeWrites, CommitError> {
    if diff.is_surely_empty()? {
        return Ok(HomeWrites::default());
    }
    let has_thread = diff.baseline().is_some();
    // While the disk of the host is short, files of a run without a thread are only named.
    let is_short = matches!(sink, OutputSink::Store(layers) if !layers.keeps_output());
    let drops_files = is_short && !has_thread;
    if let OutputSink::Store(layers) = sink
        && !drops_files
        && let Some(archive) = diff.pack_if_small()
    {
        let stored = layers.store_small_output(archive).await?;
        return Ok(stored.map_or_else(HomeWrites::default, |stored| {
            let (files, files_omitted) = list_output_files(&stored.index, &PackReport::default());
            let layer = Some(stored.layer);
            HomeWrites { layer, files, files_omitted, ..HomeWrites::default() }
        }));
    }
    // What the packer reads must not change any more.
    control.end_processes().await?;
    let is_full = has_thread && diff.is_full()?;
    let sink = if drops_files { OutputSink::NamesOnly } else { sink };
    let (archive, report) = ArchivePipe::start_packing(diff, spawner).await?;
    let (layer, index) = match (sink, diff.baseline()) {
        (OutputSink::Store(layers), Some(baseline)) => {
            let stored = layers.store_on_stack(&baseline.stack, archive).await?;
            stored.map(|it| (Some(it.layer), it.index))
        }
        (OutputSink::Store(layers), None) => {
            layers.store_blocking(archive).await?.map(|it| (Some(it.layer), it.index))
        }
        (OutputSink::NamesOnly, _) => survey_archive(archive, LayerBounds::default())
            .await?
            .map(|index| (None, Arc::new(index))),
    }
    .unzip();
    let report = report.get().cloned().unwrap_or_default();
    let quota_exceeded = drops_files || is_full || has_thread && report.lost_attributes;
    let Some(index) = index else {
        return Ok(HomeWrites { quota_exceeded, ..HomeWrites::default() });
    };
    let (mut files, files_omitted) = list_output_files(&index, &report);
    if drops_files {
        files.iter_mut().for_each(|file| file.truncated = true);
    }
    Ok(HomeWrites { layer: layer.flatten(), files, files_omitted, quota_exceeded })
}

/// The files that a run wrote, and how many more there are than an outcome names.
fn list_output_files(index: &LayerIndex, report: &PackReport) -> (Vec<OutputFile>, u64) {
    let (mut files, mut omitted) = (Vec::new(), 0);
    for (path, kept) in index.files() {
        let name = HomePath::text_of(path);
        if report.unchanged.contains(&name) {
            continue;
        }
        // No request can name a file by a longer path.
        if files.len() == MAX_FILES || name.len() > HomePath::MAX_BYTES {
            omitted += 1;
            continue;
        }
        let cut = report.cut.get(&name);
        let (size, truncated) = (cut.copied().unwrap_or(kept), cut.is_some());
        files.push(OutputFile { name, size, truncated });
    }
    (files, omitted)
}

/// The report of the packer, once it has arrived.
type SharedPackReport = Arc<OnceLock<PackReport>>;

/// An archive that a packer writes. Its end is an error unless the packer has reported.
struct ArchivePipe {
    bytes: io::PipeReader,
    report_pipe: io::PipeReader,
    report: SharedPackReport,
}

impl ArchivePipe {
    async fn start_packing(
        diff: &HomeDiff,
        spawner: &SpawnerClient,
    ) -> Result<(Self, SharedPackReport), CommitError> {
        let (bytes, bytes_theirs) = io::pipe()?;
        let (report_pipe, report_theirs) = io::pipe()?;
        // A larger pipe only means fewer wake-ups.
        let _ = rustix::pipe::fcntl_setpipe_size(&bytes, PIPE_SIZE);
        let three = [diff.upper(), &bytes_theirs.into(), &report_theirs.into()];
        let fds: Vec<_> = three.into_iter().chain(diff.merged()).map(AsFd::as_fd).collect();
        spawner.pack_upper_dir(diff.pack_request(), &fds).await?;
        let report = SharedPackReport::default();
        Ok((Self { bytes, report_pipe, report: Arc::clone(&report) }, report))
    }
}

impl Read for ArchivePipe {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.bytes.read(buffer)?;
        if count > 0 || self.report.get().is_some() {
            return Ok(count);
        }
        let mut text = Vec::new();
        (&mut self.report_pipe).take(MAX_REPORT).read_to_end(&mut text)?;
        let unfinished = io::Error::new(io::ErrorKind::UnexpectedEof, "the packer did not finish");
        let report = serde_json::from_slice(&text).map_err(|_| unfinished)?;
        self.report.get_or_init(|| report);
        Ok(0)
    }
}
