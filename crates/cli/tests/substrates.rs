//! Substrates through the real binary: runtimes that are missing, too old or broken, and the escape
//! suite on each runtime.
#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::{fs, process::Command};

#[path = "support/cloche.rs"]
mod support;

use support::{Ended, binary, can_sandbox, cloche, ended, skip};

const RUNTIMES: [&str; 3] = ["crun", "runc", "runsc"];

/// Whether this host can start cells of a runtime, by its doctor.
fn can_start(runtime: &str) -> bool {
    let report = cloche(["doctor", "--json"]).json();
    let substrates = report["substrates"].as_array().unwrap();
    let name = format!("oci:{runtime}");
    let found = substrates.iter().find(|tried| tried["substrate"] == *name).unwrap();
    found["works"] == true || skip(&found["why"].to_string())
}

/// `cloche run` on a host where the program of a runtime is this script; with none, it is missing.
fn run_with_runtime(runtime: &str, script: Option<&str>) -> Ended {
    let dir = tempfile::tempdir().unwrap();
    let stand_in = dir.path().join("runtime");
    fs::write(&stand_in, script.unwrap_or_default()).unwrap();
    // A device is no program.
    let source = if script.is_some() { stand_in.to_str().unwrap() } else { "/dev/null" };
    let mut command = Command::new("unshare");
    let setup = format!(
        "chmod 755 {source} && mount --bind {source} $(command -v {runtime}) && exec {} run \
         --substrate oci:{runtime} --language bash -c 'echo ran'",
        binary()
    );
    let setup = setup.replace("chmod 755 /dev/null && ", "");
    command.args(["--mount", "--propagation", "private", "sh", "-c", &setup]);
    ended(command, b"")
}

fn can_mount() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    is_root || skip("only root can hide a program of the host")
}

#[test]
fn a_program_runs_on_every_runtime_with_its_exit_code() {
    for runtime in RUNTIMES.into_iter().filter(|runtime| can_sandbox() && can_start(runtime)) {
        let substrate = format!("oci:{runtime}");
        let code = "import sys; print(6 * 7); print('err', file=sys.stderr); sys.exit(9)";
        let ended = cloche(["run", "--substrate", &substrate, "-c", code]);
        assert_eq!((ended.code, &ended.stdout[..]), (9, "42\n"), "{ended:?}");
        assert_eq!(ended.stderr, "err\n", "{ended:?}");
        let ended = cloche([
            "run",
            "--substrate",
            &substrate,
            "--memory",
            "128M",
            "-c",
            "b'x' * (1 << 30)",
        ]);
        assert_eq!(ended.code, 137, "{ended:?}");
    }
}

#[test]
fn a_substrate_that_does_not_exist_is_a_usage_error() {
    let ended = cloche(["run", "--substrate", "oci:youki", "-c", "1"]);
    assert_eq!(ended.code, 2, "{ended:?}");
    assert!(ended.stderr.contains("native, oci:crun, oci:runc, oci:runsc"), "{ended:?}");
}

#[test]
fn a_runtime_that_is_missing_is_named_and_nothing_runs() {
    for runtime in RUNTIMES.into_iter().filter(|runtime| can_mount() && can_start(runtime)) {
        let ended = run_with_runtime(runtime, None);
        assert_eq!((ended.code, &ended.stdout[..]), (125, ""), "{ended:?}");
        let sentence =
            format!("the substrate oci:{runtime} cannot be used: {runtime} is not installed");
        assert!(ended.stderr.contains(&sentence), "{ended:?}");
    }
}

#[test]
fn a_runtime_that_is_too_old_is_named_with_the_version_that_is_needed() {
    for (runtime, version, needed) in [
        ("crun", "1.8", "1.8.1"),
        ("runc", "1.1.4", "1.1.5"),
        ("runsc", "release-20210101.0", "20221219"),
    ] {
        if !can_mount() || !can_start(runtime) {
            continue;
        }
        let script = format!("#!/bin/sh\necho {runtime} version {version}\n");
        let ended = run_with_runtime(runtime, Some(&script));
        assert_eq!((ended.code, &ended.stdout[..]), (125, ""), "{ended:?}");
        let sentence = format!("is too old; {needed} or later is needed");
        assert!(ended.stderr.contains(&sentence), "{ended:?}");
    }
}

#[test]
fn a_runtime_that_fails_is_quoted_and_nothing_runs_elsewhere() {
    for runtime in RUNTIMES.into_iter().filter(|runtime| can_mount() && can_start(runtime)) {
        let script = format!(
            "#!/bin/sh\n[ \"$1\" = --version ] && exec echo {runtime} version 99999999\n\
             echo '{{\"level\":\"error\",\"msg\":\"the moon is full\"}}' > /run/log\nexit 1\n"
        );
        let ended = run_with_runtime(runtime, Some(&script));
        assert_eq!((ended.code, &ended.stdout[..]), (125, ""), "{ended:?}");
        let sentence = format!("the substrate oci:{runtime} cannot be used: the moon is full");
        assert!(ended.stderr.contains(&sentence), "{ended:?}");
    }
}

/// A runtime that leaves out a wall without an error is found by the trial.
#[test]
fn a_runtime_that_builds_no_walls_is_refused() {
    if !can_mount() || !can_start("runsc") {
        return;
    }
    let script = "#!/bin/bash\n[ \"$1\" = --version ] && exec echo runsc version 99999999\n\
        cd /stage/home && exec bash main.sh\n";
    let ended = run_with_runtime("runsc", Some(script));
    assert_eq!((ended.code, &ended.stdout[..]), (125, ""), "{ended:?}");
    assert!(ended.stderr.contains("the program runs as user 0"), "{ended:?}");
}

#[test]
fn the_doctor_tries_every_substrate_and_shows_why_one_does_not_work() {
    if !can_sandbox() {
        return;
    }
    let report = cloche(["doctor", "--json"]).json();
    let substrates = report["substrates"].as_array().unwrap();
    let names: Vec<_> =
        substrates.iter().map(|tried| tried["substrate"].as_str().unwrap()).collect();
    assert_eq!(names, ["native", "oci:crun", "oci:runc", "oci:runsc"]);
    assert_eq!(substrates[0]["works"], true);
    for tried in substrates {
        assert_eq!(tried["works"] == true, tried["why"].is_null(), "{tried}");
    }
}

/// The escape suite on a runtime. What cannot apply is on a list with its reason.
fn escape_suite_holds(runtime: &str, least: usize) {
    if !can_sandbox() || !can_start(runtime) {
        return;
    }
    let ended = cloche(["verify", "--json", "--substrate", &format!("oci:{runtime}")]);
    let report = ended.json();
    let probes = report["probes"].as_array().unwrap();
    let broke: Vec<_> = probes.iter().filter(|probe| probe["held"] != true).collect();
    assert!(broke.is_empty(), "{broke:#?}");
    assert_eq!(ended.code, 0, "{ended:?}");
    let tried =
        |probe: &&serde_json::Value| !probe["got"].as_str().unwrap().starts_with("not tried");
    assert!(probes.iter().filter(tried).count() >= least, "{report}");
}

#[test]
fn every_probe_that_applies_holds_on_crun() {
    escape_suite_holds("crun", 60);
}

#[test]
fn every_probe_that_applies_holds_on_runc() {
    escape_suite_holds("runc", 60);
}

#[test]
fn every_probe_that_applies_holds_on_runsc() {
    escape_suite_holds("runsc", 55);
}
