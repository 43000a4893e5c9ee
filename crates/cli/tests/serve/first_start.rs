//! The first start: the files it creates, its output, and its privileges.

use std::{
    fs,
    io::Read,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
};

use rustix::{
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    host::Host,
    support::{binary, can_sandbox, ended},
};

#[tokio::test]
async fn the_bootstrap_file_is_private_and_complete() {
    let Some(host) = Host::start().await else { return };
    let path = host.data().join("bootstrap.json");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let said: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let mut names: Vec<_> = said.as_object().unwrap().keys().collect();
    names.sort();
    assert_eq!(names, ["admin_token", "api_key", "url"]);
    assert!(host.key.starts_with("sk-us-"));
    assert!(host.url.starts_with("http://127.0.0.1:"));
}

#[tokio::test]
async fn the_curl_line_works_when_pasted() {
    let Some(host) = Host::start().await else { return };
    let said = host.said("stdout");
    let line = said.split_once("Try it:").unwrap().1;
    let mut bash = Command::new("bash");
    bash.args(["-c", line]);
    let ended = ended(bash, b"");
    assert_eq!(ended.json()["stdout"], "42\n", "{said}\n{ended:?}");
}

#[tokio::test]
async fn no_secret_is_printed_if_standard_output_is_a_file() {
    let Some(host) = Host::start().await else { return };
    for name in ["stdout", "log"] {
        let said = host.said(name);
        assert!(!said.contains(&host.key) && !said.contains(&host.admin), "{name}: {said}");
    }
    assert!(host.said("stdout").contains(host.data().join("bootstrap.json").to_str().unwrap()));
}

/// The output of a server on a terminal, up to its greeting.
fn greeting(data: &Path) -> String {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let terminal = fs::OpenOptions::new().read(true).write(true).open(name).unwrap();
    let mut server = Command::new(binary())
        .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(data)
        .stdin(Stdio::null())
        .stdout(terminal)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let (mut said, mut bytes) = (String::new(), [0; 4096]);
    let mut master = fs::File::from(master);
    while !said.contains("print(6 * 7)") {
        let length = master.read(&mut bytes).unwrap();
        assert!(length > 0, "{said}");
        said.push_str(&String::from_utf8_lossy(&bytes[..length]));
    }
    let pid = Pid::from_raw(i32::try_from(server.id()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    server.wait().unwrap();
    said
}

#[test]
fn the_key_is_printed_once_to_a_terminal() {
    if !can_sandbox() {
        return;
    }
    let directory = TempDir::new().unwrap();
    let data = directory.path().join("data");
    let (first, second) = (greeting(&data), greeting(&data));
    let said: Value =
        serde_json::from_slice(&fs::read(data.join("bootstrap.json")).unwrap()).unwrap();
    let key = said["api_key"].as_str().unwrap();
    assert!(first.contains(&format!("{key} (shown this once)")), "{first}");
    assert!(!second.contains(key) && second.contains("bootstrap.json"), "{second}");
}

#[tokio::test]
async fn the_server_holds_no_privilege() {
    let Some(host) = Host::start().await else { return };
    let status = fs::read_to_string(format!("/proc/{}/status", host.pid())).unwrap();
    for name in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        let line = format!("{name}:\t0000000000000000");
        assert!(status.lines().any(|it| it == line), "{status}");
    }
    assert!(status.contains("NoNewPrivs:\t1"), "{status}");
}

#[tokio::test]
async fn an_idle_server_is_small() {
    let Some(host) = Host::start().await else { return };
    let status = fs::read_to_string(format!("/proc/{}/status", host.pid())).unwrap();
    let kilobytes = |name: &str| -> u32 {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    };
    let (all, own) = (kilobytes("VmRSS:"), kilobytes("RssAnon:"));
    assert!(own <= 18_000, "{own} kB of its own");
    // The file of an unoptimised program is several times as large.
    assert!(cfg!(debug_assertions) || all <= 40_000, "{all} kB in all");
}
