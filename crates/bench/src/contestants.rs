//! Who is measured: a name and one run of it, from asking to having its output and its end.

use std::{
    io,
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use cloche_executor::{Executor, RunIo};
use cloche_model::{Ending, Language, RunSpec};

use crate::runtimes::{self, Bundle};

/// What a contestant runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Job {
    /// `bash -c :`: next to nothing, so the sandbox itself.
    Nothing,
    /// `python3 -c 'print(1)'`.
    Python,
}

impl Job {
    /// The program and its arguments.
    pub(crate) const fn argv(self) -> [&'static str; 3] {
        match self {
            Self::Nothing => ["/usr/bin/bash", "-c", ":"],
            Self::Python => ["/usr/bin/python3", "-c", "print(1)"],
        }
    }

    const fn output(self) -> &'static [u8] {
        match self {
            Self::Nothing => b"",
            Self::Python => b"1\n",
        }
    }
}

/// How a contestant runs its job.
pub(crate) enum Way {
    /// A cold cell of a running executor.
    Executor(Executor),
    /// A command and its arguments, with an empty environment.
    Command(Vec<String>),
    /// An OCI runtime, its flags and its bundle; every run needs an id of its own.
    Oci(&'static str, &'static [&'static str], Bundle),
}

/// One way to run one job.
pub(crate) struct Contestant {
    pub(crate) name: String,
    pub(crate) job: Job,
    way: Way,
}

impl Contestant {
    /// Runs once: how long it took until the output and the end were there.
    pub(crate) async fn once(&self, round: usize) -> io::Result<Duration> {
        let began = Instant::now();
        match &self.way {
            Way::Executor(executor) => self.in_cell(executor).await?,
            Way::Command(argv) => self.as_command(argv)?,
            Way::Oci(runtime, flags, bundle) => {
                let id = format!("cloche-bench-{}-{round}", std::process::id());
                self.as_command(&bundle.command(runtime, flags, id))?;
            }
        }
        Ok(began.elapsed())
    }

    async fn in_cell(&self, executor: &Executor) -> io::Result<()> {
        let spec = match self.job {
            Job::Nothing => RunSpec::new(Language::Bash, ":"),
            Job::Python => RunSpec::new(Language::Python, "print(1)"),
        };
        let outcome = executor.run(spec, RunIo::default()).await.map_err(io::Error::other)?;
        if outcome.ending == Ending::Exited(0) && outcome.stdout.bytes == self.job.output() {
            return Ok(());
        }
        Err(io::Error::other(format!("{}: {outcome:?}", self.name)))
    }

    fn as_command(&self, argv: &[String]) -> io::Result<()> {
        let (program, arguments) = argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        command.args(arguments).env_clear().env("PATH", "/usr/sbin:/usr/bin:/bin");
        let output = command.stdin(Stdio::null()).output()?;
        if output.status.success() && output.stdout == self.job.output() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(io::Error::other(format!("{} does not run here: {}", self.name, said.trim())))
    }
}

/// Everyone who could take part, in the order of the table.
pub(crate) fn all(executor: &Executor) -> io::Result<Vec<Contestant>> {
    let mut all = Vec::new();
    for job in [Job::Nothing, Job::Python] {
        let mut add = |name: &str, way: Way| {
            let what = if job == Job::Nothing { "bash" } else { "python" };
            all.push(Contestant { name: format!("{name} {what}"), job, way });
        };
        add("bare", Way::Command(job.argv().map(str::to_owned).into()));
        add("cloche cold", Way::Executor(executor.clone()));
        add("bwrap", Way::Command(runtimes::bubblewrap(job)));
        if let Some(binary) = own_binary() {
            add("cloche run", Way::Command(command_line(binary, job)));
        }
        for (name, flags) in [
            ("crun", &["--cgroup-manager=cgroupfs"][..]),
            ("crun-without-cgroups", &["--cgroup-manager=disabled"]),
            ("runc", &[]),
        ] {
            let runtime = name.split('-').next().unwrap_or(name);
            let bundle = Bundle::new(job)?;
            add(name, Way::Oci(runtime, flags, bundle));
        }
    }
    Ok(all)
}

/// The `cloche` binary beside this one, if it was built.
fn own_binary() -> Option<PathBuf> {
    let path = std::env::current_exe().ok()?.with_file_name("cloche");
    path.exists().then_some(path)
}

fn command_line(binary: PathBuf, job: Job) -> Vec<String> {
    let (language, code) = match job {
        Job::Nothing => ("bash", ":"),
        Job::Python => ("python", "print(1)"),
    };
    let mut argv = vec![binary.display().to_string()];
    argv.extend(["run", "--language", language, "-c", code].map(str::to_owned));
    argv
}
