//! Runs in: driver (root).
//!
//! The command lines of the OCI runtimes, what their versions look like, and how each says that it
//! failed.

use std::{
    fs,
    os::fd::{AsRawFd, OwnedFd, RawFd},
    path::PathBuf,
    process::Command,
};

use cloche_model::OciRuntime;
use rustix::process::{Pid, PidfdFlags, WaitOptions, pidfd_open, waitpid};
use serde_json::Value;

use super::{DriverFailure, DriverSetup, finish, stage::RUN};

/// Where a runtime is looked for, and the environment that it gets.
const DIRECTORIES: [&str; 4] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"];
const ENVIRONMENT: [(&str, &str); 2] =
    [("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"), ("XDG_RUNTIME_DIR", RUN)];
/// The options of the commands; all paths are below [`RUN`].
const STATE: &str = "--root=/run/state";
const LOG: &str = "--log=/run/log";
const BUNDLE: &str = "--bundle=/run/bundle";
const PID_FILE: &str = "--pid-file=/run/pid";
/// The name of the only container of a cell.
const CONTAINER: &str = "cell";

/// How the guest ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GuestEnd {
    Exited(i32),
    Killed(i32),
    /// The driver ended it: it held more sockets than a cell may have.
    TooManySockets,
}

/// An installed runtime.
pub(super) struct RuntimeProgram {
    runtime: OciRuntime,
    path: PathBuf,
}

/// A guest that was started. The process that ends with it is a child of the driver: of crun and
/// runc the guest itself, whose parent has ended; of runsc its command, which stays.
pub(super) struct StartedGuest {
    runtime: OciRuntime,
    process: Pid,
    pidfd: OwnedFd,
}

impl RuntimeProgram {
    /// Looks for the runtime on this host.
    pub(super) fn find(runtime: OciRuntime) -> Result<Self, DriverFailure> {
        let name = runtime.program();
        let paths = DIRECTORIES.iter().map(|directory| PathBuf::from(directory).join(name));
        let path = paths.into_iter().find(|path| path.is_file()).ok_or_else(|| {
            let directories = DIRECTORIES.join(", ");
            let words =
                format!("{name} is not installed: there is no such program in {directories}");
            DriverFailure::of_runtime(runtime, words)
        })?;
        Ok(Self { runtime, path })
    }

    /// Refuses a version that is older than the oldest one that was ever tried.
    pub(super) fn check_version(&self) -> Result<(), DriverFailure> {
        let fail = |words: String| DriverFailure::of_runtime(self.runtime, words);
        let said = self.bare_command().arg("--version").output();
        let said = said.map_err(|error| fail(format!("it does not start: {error}")))?;
        let text = String::from_utf8_lossy(&said.stdout).into_owned();
        let (version, least) = (parse_version(self.runtime, &text), least_version(self.runtime));
        match version {
            Some(version) if version >= least => Ok(()),
            Some(version) => Err(fail(format!(
                "version {} is too old; {} or later is needed",
                join_version(&version),
                join_version(&least)
            ))),
            None => {
                let stderr = String::from_utf8_lossy(&said.stderr).into_owned();
                let said = format!("{text}{stderr}");
                Err(fail(format!("it does not say its version, but: {}", shorten(&said))))
            }
        }
    }

    /// Starts the guest of the bundle, with the driver's standard streams.
    pub(super) fn start(&self, setup: &DriverSetup) -> Result<StartedGuest, DriverFailure> {
        let fail = |words: String| DriverFailure::of_runtime(self.runtime, words);
        let process = match self.runtime {
            OciRuntime::Crun | OciRuntime::Runc => {
                self.run_command(&["create", BUNDLE, PID_FILE, CONTAINER])?;
                let written = fs::read_to_string(format!("{RUN}/pid")).unwrap_or_default();
                written.trim().parse().ok().and_then(Pid::from_raw)
            }
            OciRuntime::Runsc => {
                let child = self.command().args(["run", BUNDLE, CONTAINER]).spawn();
                let child = child.map_err(|error| fail(format!("it does not start: {error}")))?;
                Pid::from_raw(child.id().cast_signed())
            }
        };
        let process =
            process.ok_or_else(|| fail("it does not say which process it started".into()))?;
        let pidfd = pidfd_open(process, PidfdFlags::empty());
        let pidfd = pidfd.map_err(|error| fail(format!("its process is gone: {error}")))?;
        if self.runtime != OciRuntime::Runsc {
            let restricted = finish::restrict_mounts(setup, &pidfd);
            restricted.map_err(DriverFailure::of_wall("mount-flags"))?;
            self.run_command(&["start", CONTAINER])?;
        }
        Ok(StartedGuest { runtime: self.runtime, process, pidfd })
    }

    /// Runs a command of the runtime to its end.
    fn run_command(&self, arguments: &[&str]) -> Result<(), DriverFailure> {
        let fail = |words: String| DriverFailure::of_runtime(self.runtime, words);
        let ended = self.command().args(arguments).status();
        let ended = ended.map_err(|error| fail(format!("it does not start: {error}")))?;
        if ended.success() {
            return Ok(());
        }
        Err(fail(read_log().unwrap_or_else(|| format!("it ended with {ended}"))))
    }

    /// The runtime with its own options.
    fn command(&self) -> Command {
        let mut command = self.bare_command();
        let options: &[&str] = match self.runtime {
            OciRuntime::Crun => &["--cgroup-manager=disabled", "--log-format=json"],
            // It makes no cgroup, and it may not fail for want of one.
            OciRuntime::Runc => &["--rootless=true", "--log-format=json"],
            OciRuntime::Runsc => &["--network=none", "--ignore-cgroups", "--oci-seccomp"],
        };
        command.args([STATE, LOG]).args(options);
        command
    }

    fn bare_command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.env_clear().envs(ENVIRONMENT).current_dir("/");
        command
    }
}

impl StartedGuest {
    /// Readable when the guest has ended.
    pub(super) fn watch_fd(&self) -> RawFd {
        self.pidfd.as_raw_fd()
    }

    /// How the guest ended.
    pub(super) fn read_end(self) -> Result<GuestEnd, DriverFailure> {
        let fail = |words: String| DriverFailure::of_runtime(self.runtime, words);
        let waited = waitpid(Some(self.process), WaitOptions::empty());
        let waited = waited.map_err(|error| fail(format!("its process is gone: {error}")))?;
        let Some((_, status)) = waited else { return Err(fail("its process has no end".into())) };
        if let Some(signal) = status.terminating_signal() {
            return Ok(GuestEnd::Killed(signal));
        }
        let code = status.exit_status().unwrap_or(0);
        match self.runtime {
            OciRuntime::Crun | OciRuntime::Runc => Ok(GuestEnd::Exited(code)),
            OciRuntime::Runsc if code == 0 => Ok(GuestEnd::Exited(0)),
            OciRuntime::Runsc => match read_log() {
                Some(words) => Err(fail(words)),
                None => Ok(shell_end(code)),
            },
        }
    }
}

/// The end of a guest whose runtime reports a signal as shells do.
fn shell_end(code: i32) -> GuestEnd {
    /// The signals whose default action ends a process.
    const SIGNALS: std::ops::RangeInclusive<i32> = 1..=31;
    let signal = code - 128;
    if SIGNALS.contains(&signal) { GuestEnd::Killed(signal) } else { GuestEnd::Exited(code) }
}

/// The errors in the runtime's log.
fn read_log() -> Option<String> {
    let log = fs::read(format!("{RUN}/log")).ok()?;
    collect_errors(&String::from_utf8_lossy(&log))
}

/// The messages of all errors, of which the first is mostly the reason for the others. The entries
/// of runsc are not on lines of their own.
fn collect_errors(log: &str) -> Option<String> {
    let message = |entry: Value| {
        let is_error = matches!(entry["level"].as_str(), Some("error" | "fatal") | None);
        entry["msg"].as_str().filter(|_| is_error).map(str::to_owned)
    };
    let entries = serde_json::Deserializer::from_str(log).into_iter::<Value>();
    let (mut words, mut is_json) = (Vec::new(), true);
    for entry in entries {
        match entry {
            Ok(entry) => words.extend(message(entry)),
            Err(_) => is_json = false,
        }
    }
    let words = if is_json { words.join("; ") } else { log.to_owned() };
    Some(shorten(&words)).filter(|words| !words.is_empty())
}

/// The beginning of a text, on one line.
fn shorten(text: &str) -> String {
    const MOST: usize = 1000;
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(MOST).collect()
}

/// The oldest version that was tried.
fn least_version(runtime: OciRuntime) -> Vec<u32> {
    match runtime {
        OciRuntime::Crun => vec![1, 8, 1],
        OciRuntime::Runc => vec![1, 1, 5],
        OciRuntime::Runsc => vec![20_221_219],
    }
}

/// The numbers of a version, e.g. of `crun version 1.8.1` or `runsc version release-20240729.0`.
/// That of runsc is the date of its source.
fn parse_version(runtime: OciRuntime, text: &str) -> Option<Vec<u32>> {
    let prefix = format!("{} version ", runtime.program());
    let version = text.lines().find_map(|line| line.strip_prefix(&prefix))?;
    let words = version.split(|c: char| !c.is_ascii_digit()).filter(|word| !word.is_empty());
    let mut numbers = words.map_while(|word| word.parse().ok());
    match runtime {
        OciRuntime::Crun | OciRuntime::Runc => {
            let numbers: Vec<u32> = numbers.take(3).collect();
            (!numbers.is_empty()).then_some(numbers)
        }
        OciRuntime::Runsc => numbers.find(|number| *number > 20_000_000).map(|date| vec![date]),
    }
}

fn join_version(numbers: &[u32]) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_each_runtime_writes_them() {
        for (runtime, text, version) in [
            (OciRuntime::Crun, "crun version 1.8.1\ncommit: f8a096\n", Some(vec![1, 8, 1])),
            (OciRuntime::Crun, "crun version 1.28\n", Some(vec![1, 28])),
            (OciRuntime::Runc, "runc version 1.1.5+ds1\nspec: 1.0.2\n", Some(vec![1, 1, 5])),
            (OciRuntime::Runsc, "runsc version 0.0~20221219.0\n", Some(vec![20_221_219])),
            (OciRuntime::Runsc, "runsc version release-20240729.0\n", Some(vec![20_240_729])),
            (OciRuntime::Runsc, "runsc version VERSION_MISSING\n", None),
            (OciRuntime::Crun, "podman version 4\n", None),
        ] {
            assert_eq!(parse_version(runtime, text), version, "{text}");
        }
        assert!(vec![1, 28] > least_version(OciRuntime::Crun));
        assert!(vec![1, 1, 4] < least_version(OciRuntime::Runc));
    }

    #[test]
    fn the_errors_of_a_log_are_found_and_nothing_else() {
        let warning = "{\"level\":\"warning\",\"msg\":\"w\"}\n";
        let error = "{\"msg\":\"a\\n b\",\"level\":\"error\"}";
        let log = format!("{warning}{error}{error}{warning}");
        assert_eq!(collect_errors(&log).as_deref(), Some("a b; a b"));
        assert_eq!(collect_errors("plain words\n").as_deref(), Some("plain words"));
        assert_eq!(collect_errors(warning), None);
        assert_eq!(collect_errors(""), None);
    }

    #[test]
    fn only_the_codes_of_signals_count_as_signals() {
        assert_eq!(shell_end(137), GuestEnd::Killed(9));
        assert_eq!(shell_end(128), GuestEnd::Exited(128));
        assert_eq!(shell_end(255), GuestEnd::Exited(255));
        assert_eq!(shell_end(3), GuestEnd::Exited(3));
    }
}
