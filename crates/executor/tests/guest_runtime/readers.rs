//! The three readers of a job, each in a process of its own, and jobs to feed to them.

use std::{
    collections::BTreeMap,
    ffi::CString,
    fs,
    io::{Read, Write},
    os::{
        fd::OwnedFd,
        unix::{fs::PermissionsExt, net::UnixStream},
    },
    path::Path,
    process::{Child, Command, Output, Stdio},
};

use cloche_jail::{
    job_writer::{self, ExecProgram},
    protocol::constants as protocol,
};

use crate::OUT;

pub(crate) const PYTHON: &str = "/usr/bin/python3";
pub(crate) const NODE: &str = "/usr/bin/node";

/// What a reader made of a job.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Understood {
    /// The exit code, where it took no job.
    pub(crate) refused: Option<i32>,
    directory: String,
    variables: Vec<String>,
    /// By name: mode and content.
    files: BTreeMap<String, (u32, Vec<u8>)>,
}

/// The readers: `take.rs`, `job.py` and `preload.cjs`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reader {
    Rust,
    Python,
    Node,
}

/// Has the reader in Rust take the job, by way of the library of templates.
const TAKE_IN_RUST: &str = r#"
import ctypes, json, os, sys
library, room = ctypes.CDLL(sys.argv[1]), 160 << 10
library.cloche_wait.restype = ctypes.c_size_t
buffer, packages = ctypes.create_string_buffer(room), ctypes.create_string_buffer(b"/")
at, present = ctypes.addressof(buffer), ctypes.addressof(packages)
given = (ctypes.c_size_t * 10)(0, 0, 0, at, 0, at, room, present, 0, 0)
length, variables = (library.cloche_wait(given) & (1 << 63) - 1) - 1, []
left = buffer.raw[:length]
while left:
    length = int.from_bytes(left[:8], "little")
    variables.append(left[8:8 + length - 1].decode())
    left = left[8 + length:]
print(json.dumps([os.getcwd(), variables]))
"#;
const SAY_IN_PYTHON: &str = "import json, os\n\
    print(json.dumps([os.getcwd(), ['='.join(pair) for pair in os.environ.items()]]))\n";
const SAY_IN_NODE: &str = "console.log(JSON.stringify([process.cwd(),\n\
    Object.entries(process.env).map((pair) => pair.join('='))]));\n";

impl Reader {
    /// Gives this reader a job, in a new home.
    pub(crate) fn take(self, job: &[u8]) -> Understood {
        let place = tempfile::tempdir().unwrap();
        let home = place.path().canonicalize().unwrap().join("home");
        fs::create_dir_all(home.join("directory")).unwrap();
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let child = self.start(&home, theirs.into());
        let mut ready = [0];
        let heard = ours.read_exact(&mut ready);
        assert!(heard.is_ok(), "{self:?}: {:?}", child.wait_with_output());
        assert_eq!(ready, protocol::READY.as_bytes(), "{self:?}");
        // A reader that refuses a job does not read all of it.
        let _ = ours.write_all(job);
        drop(ours);
        understand(&home, &child.wait_with_output().unwrap())
    }

    /// Starts a process in which this reader waits for a job as descriptor 3. Its main file is
    /// beside the home, except for Node.js, which goes to the directory of its main file.
    fn start(self, home: &Path, job: OwnedFd) -> Child {
        let beside = home.parent().unwrap();
        let archive = beside.join("cloche.zip");
        fs::copy(format!("{OUT}/cloche.zip"), &archive).unwrap();
        let (interpreter, main, source) = match self {
            Self::Rust => (PYTHON, beside.join("main.py"), TAKE_IN_RUST),
            Self::Python => (PYTHON, beside.join("main.py"), SAY_IN_PYTHON),
            Self::Node => (NODE, home.join("say.cjs"), SAY_IN_NODE),
        };
        fs::write(&main, source).unwrap();
        // A shell moves the job from standard input to its place.
        let mut command = Command::new("/bin/sh");
        command.args(["-c", r#"umask 022; exec "$@" 3<&0 0</dev/null"#, "sh", interpreter]);
        command.arg(&main).env_clear().current_dir(home).stdin(Stdio::from(job));
        match self {
            Self::Rust => command.arg(format!("{OUT}/{}", protocol::TEMPLATE_LIBRARY)),
            Self::Python => command
                .env("PYTHONPATH", archive)
                .env(protocol::START_VARIABLE, protocol::START_SINGLE),
            Self::Node => command.env("NODE_OPTIONS", format!("--require={OUT}/cloche.cjs")),
        };
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

fn understand(home: &Path, ended: &Output) -> Understood {
    let mut files = BTreeMap::new();
    if ended.stdout.is_empty() {
        // What a refused job has left is not compared: the cell ends.
        let refused = Some(ended.status.code().unwrap());
        return Understood { refused, directory: String::new(), variables: Vec::new(), files };
    }
    let (directory, variables): (String, _) = serde_json::from_slice(&ended.stdout).unwrap();
    let directory = directory.replace(home.to_str().unwrap(), "HOME");
    for path in [home, &home.join("directory")] {
        for entry in fs::read_dir(path).unwrap().map(Result::unwrap) {
            let name = entry.path().strip_prefix(home).unwrap().display().to_string();
            if entry.file_type().unwrap().is_file() && name != "say.cjs" {
                let mode = entry.metadata().unwrap().permissions().mode();
                files.insert(name, (mode, fs::read(entry.path()).unwrap()));
            }
        }
    }
    Understood { refused: None, directory, variables, files }
}

fn exec_of(variables: &[&str]) -> ExecProgram {
    let text = |text: &str| CString::new(text).unwrap();
    ExecProgram {
        program: text("/usr/bin/python3"),
        args: vec![text("python3"), text("main.py")],
        env: variables.iter().map(|pair| text(pair)).collect(),
        keeps_job: false,
    }
}

/// Jobs by name, whether they can be taken, and their bytes: first those of the executor's writer, then
/// some that it never writes.
pub(crate) fn jobs() -> Vec<(&'static str, bool, Vec<u8>)> {
    let mut usual = Vec::new();
    job_writer::append_directory(&mut usual, c"directory");
    job_writer::append_file(&mut usual, "main.py", 0o644, b"print(1)\n").unwrap();
    job_writer::append_file(&mut usual, "größe.txt", 0o600, &[0, 255, 10]).unwrap();
    job_writer::append_file(&mut usual, "large", 0o755, &vec![7; 300_000]).unwrap();
    job_writer::append_file(&mut usual, "main.py", 0o644, b"short").unwrap();
    let records = usual.clone();
    job_writer::append_exec(&mut usual, &exec_of(&["B=1", "A=x=y", "EMPTY=", "UMLAUT=ä"])).unwrap();
    let mut small = Vec::new();
    job_writer::append_exec(&mut small, &exec_of(&["ONLY=1"])).unwrap();
    let mut absent = Vec::new();
    job_writer::append_file(&mut absent, "absent/a", 0o644, b"").unwrap();
    let then = |bytes: &[u32]| {
        let words = bytes.iter().flat_map(|word| word.to_le_bytes());
        records.iter().copied().chain(words).collect::<Vec<u8>>()
    };
    let (go, exec) = (protocol::JOB_DIRECTORY, protocol::JOB_EXEC);
    let (path, strings) = (protocol::PATH_BYTES as u32, protocol::EXEC_BYTES as u32);
    let (in_files, in_strings) = (usual[..1000].to_vec(), small[..small.len() - 3].to_vec());
    vec![
        ("usual", true, usual),
        ("small", true, small),
        ("cut in its files", false, in_files),
        ("cut in its strings", false, in_strings),
        ("nothing", false, Vec::new()),
        ("an unknown record", false, then(&[9])),
        ("a path that is too long", false, then(&[go, path + 1])),
        ("a path without a NUL", false, then(&[go, 4, 0x6161_6161])),
        ("a directory that is absent", false, then(&[go, 4, 0x0061_6161])),
        ("a file in a directory that is absent", false, absent),
        ("too many bytes to exec", false, then(&[exec, 0, 0, 0, strings + 1])),
        ("a string that is too long", false, then(&[exec, 0, 0, 0, 12, 9, 0, 0x61])),
    ]
}
