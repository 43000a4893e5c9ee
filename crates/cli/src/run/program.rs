//! Converts the arguments to a run: reads the program and its files, guesses the language, and
//! checks what can be checked before a sandbox is built.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use cloche_model::{
    ByteSize, FileName, InputFile, Invalid, InvalidFileName, Language, MountSlug, MountSource,
    MountSpec, NetworkPolicy, RunLimits, RunSpec,
};

use super::RunArguments;

/// The run that the arguments describe.
pub(super) struct ResolvedRun {
    pub(super) spec: RunSpec,
    /// Print one JSON object at the end, and nothing before it.
    pub(super) json: bool,
    /// Whether our standard input is the program's.
    pub(super) feeds_stdin: bool,
    /// Walls that may be missing.
    pub(super) allow_missing: Vec<String>,
}

/// A command line that cannot be used, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub(super) enum UsageError {
    #[error("cannot read {}", .path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("cannot tell the language of {}: give --language python, node or bash", .0.display())]
    UnknownLanguage(PathBuf),
    #[error(transparent)]
    Language(#[from] Invalid),
    #[error("{} is a directory: --file takes files", .0.display())]
    Directory(PathBuf),
    #[error("{} has no file name to use in the sandbox", .0.display())]
    Nameless(PathBuf),
    #[error(transparent)]
    Name(#[from] InvalidFileName),
    #[error("two files would have the name {0} in the sandbox")]
    Twice(FileName),
    #[error("two mounts would have the path /data/{0}")]
    MountedTwice(MountSlug),
    #[error("{} is not a directory: --mount takes directories", .0.display())]
    NoDirectory(PathBuf),
    #[error("the program and its files exceed the disk limit of {0}; raise it with --disk")]
    TooBig(ByteSize),
}

impl ResolvedRun {
    /// Reads all files that the arguments name.
    pub(super) fn from_arguments(arguments: RunArguments) -> Result<Self, UsageError> {
        let limits = run_limits(&arguments);
        let mut budget = DiskBudget { left: limits.disk.bytes(), disk: limits.disk };
        let from_stdin =
            arguments.code.is_none() && arguments.file.as_deref() == Some(Path::new("-"));
        let (code, path) = match (arguments.code, arguments.file) {
            (Some(code), _) => (code.into_bytes(), None),
            (None, Some(_)) if from_stdin => {
                (budget.read_bounded(io::stdin().lock(), Path::new("-"))?, None)
            }
            (None, path) => {
                let path = path.unwrap_or_default();
                (budget.read_path(&path)?, Some(path))
            }
        };
        let language = match arguments.language {
            Some(language) => language,
            None => guess_language(path, &code)?,
        };
        let mut spec = RunSpec::new(language, code);
        spec.sandbox.check_language(language)?;
        spec.sandbox.network = NetworkPolicy::from_texts(&arguments.network, &arguments.allow)?;
        spec.files = read_input_files(&arguments.files, language, &mut budget)?;
        spec.env = arguments.env.into_iter().collect();
        spec.limits = limits;
        spec.sandbox.substrate = arguments.substrate;
        spec.mounts = check_mounts(arguments.mounts)?;
        Ok(Self {
            spec,
            json: arguments.json,
            feeds_stdin: !from_stdin,
            allow_missing: arguments.allow_missing,
        })
    }
}

/// Checks what would only be seen when the cell exists.
fn check_mounts(mounts: Vec<MountSpec>) -> Result<Vec<MountSpec>, UsageError> {
    for (at, mount) in mounts.iter().enumerate() {
        if mounts[..at].iter().any(|other| other.slug == mount.slug) {
            return Err(UsageError::MountedTwice(mount.slug.clone()));
        }
        if let MountSource::Directory(path) = &mount.source
            && !path.is_dir()
        {
            return Err(UsageError::NoDirectory(path.clone()));
        }
    }
    Ok(mounts)
}

fn run_limits(arguments: &RunArguments) -> RunLimits {
    let default = RunLimits::default();
    RunLimits {
        timeout: arguments.timeout.unwrap_or(default.timeout),
        memory: arguments.memory.unwrap_or(default.memory),
        cpus: arguments.cpus.unwrap_or(default.cpus),
        pids: arguments.pids.unwrap_or(default.pids),
        disk: arguments.disk.unwrap_or(default.disk),
        output: default.output,
    }
}

/// Guesses the language. A file must be recognized; code without a file is Python unless its first
/// line names another language.
fn guess_language(path: Option<PathBuf>, code: &[u8]) -> Result<Language, UsageError> {
    match path {
        Some(path) => {
            Language::guess_from_file(&path, code).ok_or(UsageError::UnknownLanguage(path))
        }
        None => Ok(Language::guess_from_file(Path::new(""), code).unwrap_or(Language::Python)),
    }
}

fn read_input_files(
    paths: &[PathBuf],
    language: Language,
    budget: &mut DiskBudget,
) -> Result<Vec<InputFile>, UsageError> {
    let mut files: Vec<InputFile> = Vec::new();
    for path in paths {
        let name = path.file_name().ok_or_else(|| UsageError::Nameless(path.clone()))?;
        let name = FileName::try_from(name.to_string_lossy().into_owned())?;
        let taken = name.as_str() == language.main_file();
        if taken || files.iter().any(|file| file.name == name) {
            return Err(UsageError::Twice(name));
        }
        if path.is_dir() {
            return Err(UsageError::Directory(path.clone()));
        }
        files.push(InputFile { name, content: budget.read_path(path)? });
    }
    Ok(files)
}

/// The rest of the program's disk limit, in whole pages as its file system counts.
struct DiskBudget {
    left: u64,
    disk: ByteSize,
}

impl DiskBudget {
    fn read_path(&mut self, path: &Path) -> Result<Vec<u8>, UsageError> {
        let file = File::open(path)
            .map_err(|source| UsageError::Unreadable { path: path.to_owned(), source })?;
        self.read_bounded(file, path)
    }

    /// Reads to the end, but never more than the budget: the file may be `/dev/zero`.
    fn read_bounded(&mut self, source: impl Read, path: &Path) -> Result<Vec<u8>, UsageError> {
        const PAGE: u64 = 4096;
        let mut bytes = Vec::new();
        source
            .take(self.left.saturating_add(1))
            .read_to_end(&mut bytes)
            .map_err(|source| UsageError::Unreadable { path: path.to_owned(), source })?;
        let size = (bytes.len() as u64).next_multiple_of(PAGE);
        self.left = self.left.checked_sub(size).ok_or(UsageError::TooBig(self.disk))?;
        Ok(bytes)
    }
}
