//! The first start: what it leaves, what it prints, what it holds.

use std::{fs, os::unix::fs::PermissionsExt, process::Command};

use serde_json::Value;

use crate::{host::Host, support::ended};

#[tokio::test]
async fn the_bootstrap_file_is_its_owner_s_and_says_everything() {
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
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kilobytes: u32 = line.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kilobytes <= 40_000, "{kilobytes} kB");
}
