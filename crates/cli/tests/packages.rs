//! Runs in: test. What a release ships: `make install`, the package for Debian in fresh systems,
//! the OCI image as a container, completions, the manual, and `make run`. The scripts do the work;
//! the binary is the one under test. `make check-packages` does the same with a release binary,
//! every probe of `cloche verify` and, if one is named, an older version to upgrade from.
#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

#[path = "support/cloche.rs"]
mod support;

use support::{binary, can_sandbox, cloche, ended, skip};

/// Probes that are quick, one for each kind of wall.
const PROBES: &str =
    "host-files,host-uid,kernel-calls,mounting,network-out,other-processes,privileges";

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn script(name: &str) -> Command {
    Command::new(top().join("scripts").join(name))
}

/// Runs `scripts/check-packages`, which prints each check that held.
fn check_packages(arguments: &[&str]) {
    let directory = TempDir::new().unwrap();
    let mut command = script("check-packages");
    command.args(["--binary", binary(), "--probes", PROBES]).args(arguments);
    // The temporary directory may be below a build directory, which is on an overlay.
    let output = command.arg("--work").arg(directory.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("all held"), "{said}");
}

/// Whether this user can make a fresh system, and there is one.
fn has_root_of(suite: &str) -> bool {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can install packages into a fresh system");
    }
    let archive = top().join(format!("target/roots/{suite}.tar"));
    archive.exists() || skip(&format!("there is no {archive:?}: run scripts/setup-tests"))
}

#[test]
fn the_package_is_installed_upgraded_used_and_purged_on_debian_12() {
    if has_root_of("bookworm") {
        check_packages(&["--parts", "deb", "--suite", "bookworm"]);
    }
}

#[test]
fn the_package_is_installed_upgraded_used_and_purged_on_debian_forky() {
    if has_root_of("forky") {
        check_packages(&["--parts", "deb", "--suite", "forky"]);
    }
}

#[test]
fn the_image_runs_as_the_container_of_the_contract() {
    if !rustix::process::geteuid().is_root() {
        skip("only root can imitate a container");
        return;
    }
    if !top().join("target/images/default/index.json").exists() {
        skip("there is no image target/images/default: run scripts/setup-tests");
        return;
    }
    check_packages(&["--parts", "oci"]);
}

/// Every file below a directory.
fn list_files(directory: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(list_files(&entry.path())),
            false => _ = found.insert(entry.path()),
        }
    }
    found
}

#[test]
fn an_installation_can_be_removed_again() {
    let root = TempDir::new().unwrap();
    let install = |arguments: &[&str]| {
        let mut command = script("install");
        command.args(arguments).env("DESTDIR", root.path()).env("CLOCHE_BINARY", binary());
        ended(command, b"").printed();
        list_files(root.path())
    };
    let installed = install(&["/opt/cloche"]);
    let file = |name: &str| root.path().join(name);
    for name in [
        "bin/cloche",
        "share/man/man1/cloche-run.1.gz",
        "lib/systemd/system/cloche.service",
        "share/doc/cloche/docs/alerts.yml",
    ] {
        assert!(installed.contains(&file("opt/cloche").join(name)), "{name} {installed:?}");
    }
    let unit = fs::read_to_string(file("opt/cloche/lib/systemd/system/cloche.service")).unwrap();
    let start =
        "ExecStart=/opt/cloche/bin/cloche serve --config /opt/cloche/etc/cloche/cloche.toml";
    assert!(unit.contains(start), "{unit}");
    let left = install(&["--remove", "/opt/cloche"]);
    assert_eq!(left, BTreeSet::from([file("opt/cloche/etc/cloche/cloche.toml")]));
}

/// The commands in the help of a command, by all their words.
fn commands_of(words: &[String]) -> Vec<Vec<String>> {
    let help = cloche(words.iter().map(String::as_str).chain(["--help"])).printed();
    let listed = help.split_once("\nCommands:\n").map_or("", |(_, after)| after);
    let names = listed.lines().take_while(|line| !line.is_empty());
    let names = names.filter_map(|line| line.split_whitespace().next());
    let mut found = Vec::new();
    for name in names.filter(|name| *name != "help") {
        let below = [words, &[name.to_owned()]].concat();
        found.extend(commands_of(&below));
        found.push(below);
    }
    found
}

#[test]
fn manual_and_completions_have_every_command() {
    let directory = TempDir::new().unwrap();
    cloche(["__manual".as_ref(), directory.path().as_os_str()]).printed();
    let pages = list_files(directory.path());
    let mut wanted = BTreeSet::from([directory.path().join("cloche.1")]);
    let commands = commands_of(&[]);
    wanted.extend(
        commands.iter().map(|words| directory.path().join(format!("cloche-{}.1", words.join("-")))),
    );
    assert_eq!(pages, wanted);
    for shell in ["bash", "zsh", "fish"] {
        let script = cloche(["completions", shell]).printed();
        for words in &commands {
            assert!(script.contains(words.last().unwrap()), "{shell} {words:?}");
        }
        assert!(!script.contains("__spawner"), "{shell} offers a hidden command");
    }
}

#[test]
fn make_run_sends_a_first_request_and_ends_with_an_interrupt() {
    use std::os::unix::process::CommandExt;
    if !can_sandbox() {
        return;
    }
    let directory = TempDir::new().unwrap();
    let data = directory.path().join("data");
    let mut running = script("run-server")
        .args([binary(), "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(&data)
        // As a terminal does: an interrupt goes to every process of the group.
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(fs::File::create(directory.path().join("log")).unwrap())
        .spawn()
        .unwrap();
    let mut said = String::new();
    for line in BufReader::new(running.stdout.take().unwrap()).lines() {
        said.push_str(&line.unwrap());
        said.push('\n');
        if said.contains("Ctrl-C stops the server.") {
            let group = Pid::from_raw(i32::try_from(running.id()).unwrap()).unwrap();
            kill_process_group(group, Signal::INT).unwrap();
        }
    }
    let log = fs::read_to_string(directory.path().join("log")).unwrap();
    assert!(running.wait().unwrap().success(), "{said} {log}");
    let (request, answer) = said.split_once("Its answer:").unwrap();
    assert!(request.contains("curl -s http://127.0.0.1:"), "{said}");
    assert!(answer.contains("\"stdout\":\"42\\n\""), "{said}");
}
