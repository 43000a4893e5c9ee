//! The contestants: a name and one run, timed from the request until its output and its end are
//! known.

use std::{
    io,
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use cloche_executor::{Executor, RunIo};
use cloche_model::{Language, RunEnding, RunSpec, Substrate};

use crate::runtimes::{self, OciBundle};

/// The program that a contestant runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BenchProgram {
    /// `bash -c :`: next to nothing, so this measures the sandbox itself.
    Nothing,
    /// `python3 -c 'print(1)'`.
    Python,
}

impl BenchProgram {
    /// The program and its arguments.
    pub(crate) const fn argv(self) -> [&'static str; 3] {
        match self {
            Self::Nothing => ["/usr/bin/bash", "-c", ":"],
            Self::Python => ["/usr/bin/python3", "-c", "print(1)"],
        }
    }

    const fn expected_output(self) -> &'static [u8] {
        match self {
            Self::Nothing => b"",
            Self::Python => b"1\n",
        }
    }
}

/// How a contestant runs the program.
pub(crate) enum RunMethod {
    /// A cold cell of a running executor.
    Executor(Executor, Substrate),
    /// A command and its arguments, with an empty environment.
    Command(Vec<String>),
    /// An OCI runtime, its flags and its bundle. Every run needs an id of its own.
    Oci(&'static str, &'static [&'static str], OciBundle),
}

/// One way to run one program.
pub(crate) struct Contestant {
    pub(crate) name: String,
    pub(crate) program: BenchProgram,
    method: RunMethod,
}

impl Contestant {
    /// Runs once. Returns the time until the output and the end were known.
    pub(crate) async fn time_one_run(&self, round: usize) -> io::Result<Duration> {
        let began = Instant::now();
        match &self.method {
            RunMethod::Executor(executor, substrate) => {
                self.run_in_cell(executor, *substrate).await?;
            }
            RunMethod::Command(argv) => self.run_as_command(argv)?,
            RunMethod::Oci(runtime, flags, bundle) => {
                let id = format!("cloche-bench-{}-{round}", std::process::id());
                self.run_as_command(&bundle.run_argv(runtime, flags, id))?;
            }
        }
        Ok(began.elapsed())
    }

    async fn run_in_cell(&self, executor: &Executor, substrate: Substrate) -> io::Result<()> {
        let mut spec = match self.program {
            BenchProgram::Nothing => RunSpec::new(Language::Bash, ":"),
            BenchProgram::Python => RunSpec::new(Language::Python, "print(1)"),
        };
        spec.sandbox.substrate = substrate;
        let outcome = executor.run(spec, RunIo::default()).await.map_err(io::Error::other)?;
        if outcome.ending == RunEnding::Exited(0)
            && outcome.stdout.bytes == self.program.expected_output()
        {
            return Ok(());
        }
        Err(io::Error::other(format!("{}: {outcome:?}", self.name)))
    }

    fn run_as_command(&self, argv: &[String]) -> io::Result<()> {
        let (program, arguments) = argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        command.args(arguments).env_clear().env("PATH", "/usr/sbin:/usr/bin:/bin");
        let output = command.stdin(Stdio::null()).output()?;
        if output.status.success() && output.stdout == self.program.expected_output() {
            return Ok(());
        }
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(io::Error::other(format!("{} does not run here: {}", self.name, stderr.trim())))
    }
}

/// All possible contestants, in the order of the table.
pub(crate) fn list_contestants(executor: &Executor) -> io::Result<Vec<Contestant>> {
    let mut all = Vec::new();
    for program in [BenchProgram::Nothing, BenchProgram::Python] {
        let mut add = |name: &str, method: RunMethod| {
            let language = if program == BenchProgram::Nothing { "bash" } else { "python" };
            all.push(Contestant { name: format!("{name} {language}"), program, method });
        };
        add("bare", RunMethod::Command(program.argv().map(str::to_owned).into()));
        add("cloche cold", RunMethod::Executor(executor.clone(), Substrate::Native));
        for substrate in Substrate::ALL.into_iter().skip(1) {
            let method = RunMethod::Executor(executor.clone(), substrate);
            add(&format!("cloche {substrate}"), method);
        }
        add("bwrap", RunMethod::Command(runtimes::bubblewrap_argv(program)));
        if let Some(binary) = find_own_binary() {
            add("cloche run", RunMethod::Command(cloche_run_argv(binary, program)));
        }
        for (name, flags) in [
            ("crun", &["--cgroup-manager=cgroupfs"][..]),
            ("crun-without-cgroups", &["--cgroup-manager=disabled"]),
            ("runc", &[]),
        ] {
            let runtime = name.split('-').next().unwrap_or(name);
            let bundle = OciBundle::new(program)?;
            add(name, RunMethod::Oci(runtime, flags, bundle));
        }
    }
    Ok(all)
}

/// The `cloche` binary beside this one, if it was built.
fn find_own_binary() -> Option<PathBuf> {
    let path = std::env::current_exe().ok()?.with_file_name("cloche");
    path.exists().then_some(path)
}

fn cloche_run_argv(binary: PathBuf, program: BenchProgram) -> Vec<String> {
    let (language, code) = match program {
        BenchProgram::Nothing => ("bash", ":"),
        BenchProgram::Python => ("python", "print(1)"),
    };
    let mut argv = vec![binary.display().to_string()];
    argv.extend(["run", "--language", language, "-c", code].map(str::to_owned));
    argv
}
