//! A program in its interpreter, started bare: the same root, files and variables as in a cell, and
//! nothing of Cloche.

use std::{
    fs,
    io::Write,
    os::unix::process::ExitStatusExt,
    process::{Command, Stdio},
};

use cloche_model::{Language, RunEnding};

use crate::{
    case::Case,
    image::TestImage,
    ways::{Seen, Way, Ways, without_addresses},
};

/// Prints, on lines of its own, the path of the interpreter and each variable.
const PYTHON_START: &str =
    "import os, sys\nprint(sys.executable)\nfor pair in os.environ.items(): print('='.join(pair))";
const NODE_START: &str = "console.log(process.execPath);\n\
    for (const pair of Object.entries(process.env)) console.log(pair.join('='));";
const SHELL_START: &str = "echo; env";

/// How programs of a language are started on a root.
pub(crate) struct BareStart {
    language: Language,
    interpreter: String,
    variables: Vec<(String, String)>,
}

impl BareStart {
    /// Asks an interpreter that was started cold in a cell.
    pub(crate) async fn ask(cold: &Ways, image: Option<&TestImage>, language: Language) -> Self {
        assert_eq!(cold.way, Way::Cold);
        let code = match language {
            Language::Python => PYTHON_START,
            Language::Node => NODE_START,
            _ => SHELL_START,
        };
        let seen = cold.run(&Case::new(language, "start", code)).await;
        let said = String::from_utf8(seen.stdout).unwrap();
        let mut lines = said.lines();
        let printed = lines.next().unwrap();
        let interpreter = match (printed, image) {
            // A shell does not know its path, and may be one of many names of a program.
            ("", Some(image)) => image.root.interpreter_of(language).unwrap().path.clone(),
            ("", None) => "/bin/bash".to_owned(),
            (path, _) => path.to_owned(),
        };
        let variables = lines.filter_map(|line| line.split_once('='));
        let variables = variables.filter(|(name, _)| !["_", "SHLVL", "OLDPWD"].contains(name));
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Self { language, interpreter, variables: variables.collect() }
    }

    /// Runs a program in bubblewrap, with the root of this host or of an image.
    pub(crate) fn run(&self, image: Option<&TestImage>, case: &Case) -> Seen {
        let home = tempfile::tempdir().unwrap();
        let spec = case.spec();
        fs::write(home.path().join(self.language.main_file()), &spec.code).unwrap();
        let root = tempfile::tempdir().unwrap();
        let mounted = image.map_or_else(
            || "root=/; ".to_owned(),
            |image| {
                // The places that bubblewrap mounts on, which an image need not have.
                let places = root.path().join("places");
                for place in ["proc", "dev", "tmp", "home"] {
                    fs::create_dir_all(places.join(place)).unwrap();
                }
                let mut layers = vec![places];
                layers.extend(image.layer_directories());
                let layers: Vec<_> = layers.iter().map(|path| path.display().to_string()).collect();
                let merged = root.path().join("merged");
                fs::create_dir(&merged).unwrap();
                let (layers, root) = (layers.join(":"), merged.display());
                format!("mount -t overlay none -o ro,lowerdir={layers} {root}; root={root}; ")
            },
        );
        let script = format!(
            "set -e; {mounted} home=$0; exec bwrap --ro-bind \"$root\" / --proc /proc --dev /dev \
             --tmpfs /tmp --tmpfs /home --bind \"$home\" /home/baponi --chdir /home/baponi \
             --unshare-user --uid 1000 --gid 1000 --unshare-pid --unshare-net --clearenv \"$@\""
        );
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", &script]).arg(home.path());
        let own = self.variables.iter().map(|(name, value)| (name, value));
        for (name, value) in own.chain(&spec.env) {
            command.args(["--setenv", name, value]);
        }
        command.arg("--").arg(&self.interpreter);
        command.args(self.language.arguments());
        command.arg(format!("/home/baponi/{}", self.language.main_file()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let _ = child.stdin.take().unwrap().write_all(&spec.stdin);
        let output = child.wait_with_output().unwrap();
        Seen {
            stdout: without_addresses(&output.stdout),
            stderr: without_addresses(&output.stderr),
            ending: ending_of(output.status),
        }
    }
}

/// How the program ended: bubblewrap exits as it did, and with 128 and the number of a signal.
fn ending_of(status: std::process::ExitStatus) -> RunEnding {
    match (status.code(), status.signal()) {
        (Some(code @ 129..160), _) => RunEnding::Signalled(u8::try_from(code - 128).unwrap()),
        (Some(code), _) => RunEnding::Exited(u8::try_from(code).unwrap()),
        (None, signal) => RunEnding::Signalled(u8::try_from(signal.unwrap()).unwrap()),
    }
}
