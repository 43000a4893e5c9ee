//! Runs in: a child of `cloche doctor`, confined like a server.
//!
//! Confines itself with a data directory of its own and then tries one thing that a server must not
//! be able to do. The doctor judges by the output, or by the signal that ends this process.

use std::{
    fs, io,
    os::unix::{fs::MetadataExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use clap::{Args, ValueEnum};
use cloche_jail::{
    seccomp,
    sys::{self, PrctlOption},
};
use serde::{Deserialize, Serialize};

use super::{Missing, ServerNeeds, ServerUser, build_walls, make_private, protect_from_oom};
use crate::serve::Failure;

/// What the confined process tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum EscapeAttempt {
    /// Nothing: reports the state of the process.
    Report,
    /// Read the host's passwords.
    ReadShadow,
    /// Read a file that every user of the host can read.
    ReadOutside,
    /// Create a file beside the data directory.
    WriteOutside,
    /// Open a device for writing that modes and mounts would allow; only Landlock forbids it.
    WriteDevice,
    /// Create a file in the data directory, which must succeed.
    WriteInside,
    /// Start a program.
    Execute,
    /// Start a second process.
    Fork,
    /// Mount a file system.
    Mount,
    /// Become root.
    BecomeRoot,
    /// Start a program under the seccomp filter of a packer.
    PackerExecute,
}

/// The arguments of the hidden command.
#[derive(Args)]
pub(crate) struct TrialArguments {
    attempt: EscapeAttempt,
    #[arg(long)]
    data_dir: PathBuf,
    /// A file outside that every user can read.
    #[arg(long)]
    decoy: PathBuf,
}

/// The state of a confined process.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct ConfinedProcess {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The name of its user, if it has one.
    pub(crate) user: Option<String>,
    /// Whether it became another user than the one that started it.
    pub(crate) changed_user: bool,
    /// Whether it has no supplementary groups.
    pub(crate) groups_dropped: bool,
    pub(crate) no_new_privs: bool,
    pub(crate) seccomp: bool,
    pub(crate) capabilities: bool,
    pub(crate) oom_score_adj: i32,
    /// The mode of its data directory.
    pub(crate) data_dir_mode: u32,
    pub(crate) missing: Vec<Missing>,
}

/// Confines this process and runs the attempt.
pub(crate) fn main(arguments: &TrialArguments) -> ExitCode {
    match confine_and_try(arguments) {
        Ok(text) => {
            print_line(&text);
            ExitCode::SUCCESS
        }
        Err(error) => {
            crate::print_error(&*error);
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stdout, reason = "this is what the doctor reads")]
fn print_line(text: &str) {
    println!("{text}");
}

fn confine_and_try(arguments: &TrialArguments) -> Result<String, Failure> {
    if arguments.attempt == EscapeAttempt::PackerExecute {
        sys::prctl(PrctlOption::NoNewPrivs, 1)
            .map_err(|errno| io::Error::from_raw_os_error(errno.0))?;
        sys::install_logged_seccomp(seccomp::packer_filter())
            .map_err(|errno| io::Error::from_raw_os_error(errno.0))?;
        return Ok(describe_result(exec_self()));
    }
    let user = ServerUser::choose(None)?;
    super::set_private_umask();
    make_private(&arguments.data_dir, &user)?;
    protect_from_oom();
    let data_dir = Some(arguments.data_dir.clone());
    let needs = ServerNeeds { data_dir, runs_cells: true, ..ServerNeeds::default() };
    let missing = build_walls(&user, &needs)?;
    let refused = |errno: sys::Errno| io::Error::from_raw_os_error(errno.0);
    Ok(match arguments.attempt {
        EscapeAttempt::Report => {
            serde_json::to_string(&report_process(&user, missing, &arguments.data_dir)?)?
        }
        EscapeAttempt::ReadShadow => describe_result(fs::read("/etc/shadow").map(drop)),
        EscapeAttempt::ReadOutside => describe_result(fs::read(&arguments.decoy).map(drop)),
        EscapeAttempt::WriteOutside => {
            describe_result(fs::write(arguments.decoy.with_extension("new"), ""))
        }
        EscapeAttempt::WriteDevice => {
            describe_result(fs::File::options().write(true).open("/dev/zero").map(drop))
        }
        EscapeAttempt::WriteInside => {
            describe_result(fs::write(arguments.data_dir.join("written"), ""))
        }
        EscapeAttempt::Execute | EscapeAttempt::PackerExecute => describe_result(exec_self()),
        EscapeAttempt::Fork => describe_result(sys::fork().map(drop).map_err(refused)),
        EscapeAttempt::Mount => {
            describe_result(sys::mount(c"t", c"/", c"tmpfs", 0, c"").map_err(refused))
        }
        EscapeAttempt::BecomeRoot => describe_result(sys::become_user(0, 0, true).map_err(refused)),
    })
}

fn exec_self() -> io::Result<()> {
    Err(Command::new("/proc/self/exe").arg("--version").exec())
}

/// `done`, or the error.
fn describe_result(tried: io::Result<()>) -> String {
    tried.map_or_else(|error| error.to_string(), |()| "done".to_owned())
}

fn report_process(
    user: &ServerUser,
    missing: Vec<Missing>,
    data_dir: &Path,
) -> io::Result<ConfinedProcess> {
    let status = fs::read_to_string("/proc/self/status")?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(|line| line.trim_start_matches(':').trim().to_owned()).unwrap_or_default()
    };
    let first = |name: &str| {
        let all = field(name);
        all.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or_default()
    };
    let name = match user {
        ServerUser::Become { name, .. } => name.clone(),
        ServerUser::Keep { .. } => None,
    };
    let oom_score_adj = fs::read_to_string("/proc/self/oom_score_adj")?;
    Ok(ConfinedProcess {
        uid: first("Uid"),
        gid: first("Gid"),
        user: name,
        changed_user: matches!(user, ServerUser::Become { .. }),
        groups_dropped: field("Groups").is_empty(),
        no_new_privs: field("NoNewPrivs") == "1",
        seccomp: field("Seccomp") == "2",
        capabilities: field("CapEff").chars().any(|digit| digit != '0'),
        oom_score_adj: oom_score_adj.trim().parse().unwrap_or_default(),
        data_dir_mode: fs::metadata(data_dir)?.mode() & 0o7777,
        missing,
    })
}
