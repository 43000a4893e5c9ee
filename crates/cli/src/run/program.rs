//! From arguments as typed to a run as meant: reads the program and its files, guesses the
//! language, checks what can be checked before a sandbox is built.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use cloche_model::{ByteSize, FileName, InputFile, InvalidFileName, Language, Limits, RunSpec};

use super::RunArguments;

/// A run as it was meant.
pub(super) struct Meant {
    pub(super) spec: RunSpec,
    /// One JSON object at the end, nothing before it.
    pub(super) json: bool,
    /// Whether our standard input is the program's.
    pub(super) feeds_stdin: bool,
    /// Walls that were said to be dispensable.
    pub(super) allow_missing: Vec<String>,
}

/// A command line that makes no sense, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub(super) enum Misuse {
    #[error("cannot read {}", .path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("cannot tell the language of {}: give --language python, node or bash", .0.display())]
    UnknownLanguage(PathBuf),
    #[error("{} is a directory: --file takes files", .0.display())]
    Directory(PathBuf),
    #[error("{} has no name that it could have in the sandbox", .0.display())]
    Nameless(PathBuf),
    #[error(transparent)]
    Name(#[from] InvalidFileName),
    #[error("two files would both be called {0} in the sandbox")]
    Twice(FileName),
    #[error(
        "the program and its files take more than the {0} of disk it has; give it more with --disk"
    )]
    TooBig(ByteSize),
}

impl Meant {
    /// Reads everything that the arguments name.
    pub(super) fn from_arguments(arguments: RunArguments) -> Result<Self, Misuse> {
        let limits = limits(&arguments);
        let mut room = Room { left: limits.disk.bytes(), disk: limits.disk };
        let from_stdin =
            arguments.code.is_none() && arguments.file.as_deref() == Some(Path::new("-"));
        let (code, path) = match (arguments.code, arguments.file) {
            (Some(code), _) => (code.into_bytes(), None),
            (None, Some(_)) if from_stdin => (room.read(io::stdin().lock(), Path::new("-"))?, None),
            (None, path) => {
                let path = path.unwrap_or_default();
                (room.open(&path)?, Some(path))
            }
        };
        let language = match arguments.language {
            Some(language) => language,
            None => guess(path, &code)?,
        };
        let mut spec = RunSpec::new(language, code);
        spec.files = input_files(&arguments.files, language, &mut room)?;
        spec.env = arguments.env.into_iter().collect();
        spec.limits = limits;
        Ok(Self {
            spec,
            json: arguments.json,
            feeds_stdin: !from_stdin,
            allow_missing: arguments.allow_missing,
        })
    }
}

fn limits(arguments: &RunArguments) -> Limits {
    let default = Limits::default();
    Limits {
        timeout: arguments.timeout.unwrap_or(default.timeout),
        memory: arguments.memory.unwrap_or(default.memory),
        cpus: arguments.cpus.unwrap_or(default.cpus),
        pids: arguments.pids.unwrap_or(default.pids),
        disk: arguments.disk.unwrap_or(default.disk),
        output: default.output,
    }
}

/// A file says what it is, or we ask; code without a file is Python unless its first line says
/// otherwise.
fn guess(path: Option<PathBuf>, code: &[u8]) -> Result<Language, Misuse> {
    match path {
        Some(path) => Language::guess(&path, code).ok_or(Misuse::UnknownLanguage(path)),
        None => Ok(Language::guess(Path::new(""), code).unwrap_or(Language::Python)),
    }
}

fn input_files(
    paths: &[PathBuf],
    language: Language,
    room: &mut Room,
) -> Result<Vec<InputFile>, Misuse> {
    let mut files: Vec<InputFile> = Vec::new();
    for path in paths {
        let name = path.file_name().ok_or_else(|| Misuse::Nameless(path.clone()))?;
        let name = FileName::try_from(name.to_string_lossy().into_owned())?;
        let taken = name.as_str() == language.main_file();
        if taken || files.iter().any(|file| file.name == name) {
            return Err(Misuse::Twice(name));
        }
        if path.is_dir() {
            return Err(Misuse::Directory(path.clone()));
        }
        files.push(InputFile { name, content: room.open(path)? });
    }
    Ok(files)
}

/// What is left of the program's disk, in whole pages as its file system counts.
struct Room {
    left: u64,
    disk: ByteSize,
}

impl Room {
    fn open(&mut self, path: &Path) -> Result<Vec<u8>, Misuse> {
        let file = File::open(path)
            .map_err(|source| Misuse::Unreadable { path: path.to_owned(), source })?;
        self.read(file, path)
    }

    /// Reads to the end, but never more than there is room for: the file may be `/dev/zero`.
    fn read(&mut self, source: impl Read, path: &Path) -> Result<Vec<u8>, Misuse> {
        const PAGE: u64 = 4096;
        let mut bytes = Vec::new();
        source
            .take(self.left.saturating_add(1))
            .read_to_end(&mut bytes)
            .map_err(|source| Misuse::Unreadable { path: path.to_owned(), source })?;
        let takes = (bytes.len() as u64).next_multiple_of(PAGE);
        self.left = self.left.checked_sub(takes).ok_or(Misuse::TooBig(self.disk))?;
        Ok(bytes)
    }
}
