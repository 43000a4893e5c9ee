//! `cloche doctor`: what it says of a host that has everything, and of hosts that do not.
#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::process::Command;

#[path = "support/cloche.rs"]
mod support;

use serde_json::Value;
use support::{Ended, binary, can_sandbox, cloche, ended, skip};

fn wall<'a>(report: &'a Value, name: &str) -> &'a Value {
    let walls = report["walls"].as_array().unwrap();
    walls.iter().find(|wall| wall["name"] == name).unwrap_or_else(|| panic!("no {name}: {report}"))
}

/// The doctor inside a user namespace in which a setting was changed first.
fn on_a_host_where(setting: &str) -> Option<Ended> {
    let mut command = Command::new("unshare");
    let script = format!("{setting} && exec {} doctor --json", binary());
    command.args(["--user", "--map-root-user", "sh", "-c", &script]);
    let ended = ended(command, b"");
    if ended.stdout.is_empty() {
        skip(&format!("no user namespace to change a setting in: {}", ended.stderr));
        return None;
    }
    Some(ended)
}

/// The setting of Ubuntu's AppArmor stands in a file over `/proc/sys/kernel`. An ordinary user of an
/// inner user namespace reads it there.
#[test]
fn ubuntus_restriction_of_user_namespaces_is_named_with_its_ways_out() {
    let setting = "k=$(mktemp -d) && mount -t tmpfs kernel $k && \
        cp /proc/sys/kernel/osrelease /proc/sys/kernel/core_pattern $k && \
        echo 1 >$k/apparmor_restrict_unprivileged_userns && \
        mount --bind $k /proc/sys/kernel && umount $k && rmdir $k";
    let script = format!(
        "{setting} && exec unshare --user --map-user 1000 --map-group 1000 {} doctor --json",
        binary()
    );
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &script]);
    let ended = ended(command, b"");
    if ended.stdout.is_empty() {
        skip(&format!("no user namespace to put a file over a setting in: {}", ended.stderr));
        return;
    }
    let report = ended.json();
    let notes = report["notes"].as_array().unwrap();
    let note = notes.iter().filter_map(Value::as_str).find(|note| note.contains("AppArmor"));
    let note = note.unwrap_or_else(|| panic!("{report}"));
    for way in ["run as root", "sysctl kernel.apparmor_restrict_unprivileged_userns=0", "userns,"] {
        assert!(note.contains(way), "{note}");
    }
    // Where that wall is missing, the same is the advice.
    let server = wall(&report, "server:root");
    assert!(server["state"] != "missing" || server["how"] == note, "{report}");
}

#[test]
fn the_verdict_is_the_exit_code() {
    let ended = cloche(["doctor", "--json"]);
    let report = ended.json();
    let missing = report["walls"].as_array().unwrap().iter().any(|wall| wall["state"] == "missing");
    assert_eq!(report["ok"], !missing);
    assert_eq!(ended.code, i32::from(missing));
    let text = cloche(["doctor"]);
    assert_eq!(text.code, ended.code);
    assert_eq!(text.stdout.contains("MISSING"), missing, "{}", text.stdout);
}

#[test]
fn a_server_is_tried_from_inside_and_every_attempt_is_held() {
    if !can_sandbox() {
        return;
    }
    let report = cloche(["doctor", "--json"]).json();
    let server = &report["server"];
    let attempts = server["attempts"].as_array().unwrap();
    let names: Vec<_> = attempts.iter().map(|tried| tried["attempt"].as_str().unwrap()).collect();
    for name in [
        "read-shadow",
        "read-outside",
        "write-outside",
        "write-inside",
        "execute",
        "fork",
        "mount",
        "become-root",
        "packer-execute",
    ] {
        assert!(names.contains(&name), "{name}: {server}");
    }
    assert!(attempts.iter().all(|tried| tried["held"] == true), "{server}");
    let how =
        |name: &str| attempts.iter().find(|tried| tried["attempt"] == name).unwrap()["how"].clone();
    for name in ["execute", "fork", "mount", "become-root", "packer-execute"] {
        assert_eq!(how(name), "killed (SIGSYS)", "{server}");
    }
    // Modes and mounts would allow it: this is Landlock's.
    assert_eq!(how("write-device"), "Permission denied (os error 13)", "{server}");
    let process = &server["process"];
    assert_eq!(process["no_new_privs"], true, "{server}");
    assert_eq!(process["seccomp"], true, "{server}");
    assert_eq!(process["capabilities"], false, "{server}");
    assert_eq!(process["data_dir_mode"], 0o700, "{server}");
    if rustix::process::geteuid().is_root() {
        assert_eq!(process["changed_user"], true, "{server}");
        assert_ne!(process["uid"], 0, "{server}");
        // 0 where root of a container lacks CAP_SYS_RESOURCE.
        assert!(process["oom_score_adj"].as_i64().unwrap() <= 0, "{server}");
    }
    for name in
        ["server:user", "server:root", "server:landlock", "server:seccomp", "packer:seccomp"]
    {
        assert_eq!(wall(&report, name)["state"], "present", "{report}");
    }
    let text = cloche(["doctor"]).stdout;
    for word in ["server user", "data directory", "oom_score_adj", "server:landlock"] {
        assert!(text.contains(word), "{text}");
    }
}

#[test]
fn languages_are_found_as_a_sandbox_sees_them() {
    if !can_sandbox() {
        return;
    }
    let report = cloche(["doctor", "--json"]).json();
    let languages = report["languages"].as_array().unwrap();
    let names: Vec<_> = languages.iter().map(|found| found["language"].as_str().unwrap()).collect();
    assert_eq!(names, ["python", "node", "bash"]);
    let bash = &languages[2];
    assert!(bash["path"].as_str().unwrap().ends_with("/bash"), "{bash}");
    assert!(bash["version"].as_str().unwrap().starts_with(char::is_numeric), "{bash}");
}

#[test]
fn the_memory_of_parked_cells_is_weighed() {
    if !can_sandbox() {
        return;
    }
    let report = cloche(["doctor", "--json"]).json();
    let parked = report["parked"].as_array().unwrap();
    let names: Vec<_> = parked.iter().map(|cells| cells["language"].as_str().unwrap()).collect();
    assert_eq!(names, ["python", "node", "bash"]);
    for cells in parked {
        assert!(cells["cells"].as_u64().unwrap() > 0, "{cells}");
        // Smaller than the least process, or larger than the largest idle interpreter: not weighed.
        let kib = cells["pss_kib"].as_u64().unwrap();
        assert!((16..200 << 10).contains(&kib), "{cells}");
    }
    assert!(cloche(["doctor"]).stdout.contains("MiB each (PSS"));
}

#[test]
fn a_namespace_that_is_switched_off_is_named_with_its_setting() {
    let setting = "echo 0 > /proc/sys/user/max_net_namespaces";
    let Some(ended) = on_a_host_where(setting) else { return };
    let report = ended.json();
    assert_eq!(ended.code, 1);
    let net = wall(&report, "namespace:net");
    assert_eq!(net["state"], "missing", "{report}");
    assert_eq!(net["how"], "`sysctl user.max_net_namespaces=28633`");
    assert_eq!(wall(&report, "namespace:pid")["state"], "present");
    assert_eq!(wall(&report, "seccomp")["state"], "unknown");
    assert_eq!(report["serve"]["flag"], Value::Null);
}

#[test]
fn without_user_namespaces_nothing_is_promised() {
    let setting = "echo 0 > /proc/sys/user/max_user_namespaces";
    let Some(ended) = on_a_host_where(setting) else { return };
    let report = ended.json();
    let user = wall(&report, "namespace:user");
    assert_eq!(user["state"], "missing", "{report}");
    assert_eq!(user["how"], "`sysctl user.max_user_namespaces=28633`");
    assert!(report["serve"]["refuses"].as_array().unwrap().contains(&"namespace:user".into()));
}

#[test]
fn a_run_without_a_sandbox_fails_with_125_and_says_why() {
    let mut command = Command::new("unshare");
    let script = format!(
        "echo 0 > /proc/sys/user/max_net_namespaces && exec {} run -c 'print(1)'",
        binary()
    );
    command.args(["--user", "--map-root-user", "sh", "-c", &script]);
    let ended = ended(command, b"");
    if ended.stderr.starts_with("unshare") {
        skip(&ended.stderr);
        return;
    }
    assert_eq!((ended.code, ended.stdout.as_str()), (125, ""), "{ended:?}");
    assert!(ended.stderr.starts_with("cloche: "), "{ended:?}");
}
