//! Runs in: test.
//!
//! The server's user on the host, what it can access, and that its data directory is private.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::Command,
};

use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;

use crate::{
    host::Host,
    processes::below,
    support::{binary, ended, skip},
    threads::bash,
};

/// The id that the server becomes if there is no user named `cloche`.
const UNASSIGNED: u32 = 65_529;

fn is_root() -> bool {
    rustix::process::geteuid().is_root() || skip("only root can become another user")
}

/// The value of a line of `/proc/PID/status`.
fn status(pid: u32, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name}: {status}")).trim().to_owned()
}

fn oom_score(pid: u32) -> i32 {
    fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap().trim().parse().unwrap()
}

fn usual_user() -> (u32, u32) {
    let passwd = fs::read_to_string("/etc/passwd").unwrap();
    let line = passwd.lines().find(|line| line.starts_with("cloche:"));
    let field = |at| Some(line?.split(':').nth(at)?.parse().unwrap());
    (field(2).unwrap_or(UNASSIGNED), field(3).unwrap_or(UNASSIGNED))
}

#[tokio::test]
async fn a_server_started_as_root_becomes_its_own_user_under_a_filter() {
    let Some(host) = Host::start().await else { return };
    if !is_root() {
        return;
    }
    let (uid, gid) = usual_user();
    let pid = host.pid();
    for (name, id) in [("Uid", uid), ("Gid", gid)] {
        assert_eq!(status(pid, name), [id; 4].map(|id| id.to_string()).join("\t"));
    }
    assert_eq!(status(pid, "Groups"), "");
    assert_eq!(status(pid, "NoNewPrivs"), "1");
    assert_eq!(status(pid, "Seccomp"), "2");
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(status(pid, set), "0000000000000000", "{set}");
    }
    let mounts = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt")).unwrap();
    assert_ne!(mounts(&pid.to_string()), mounts("self"), "the host's mounts");
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    for gone in ["home", "root/.ssh", "var", "tmp/.X11-unix", "boot"] {
        assert!(!root.join(gone).exists(), "/{gone} is there");
    }
    // Its own user cannot inspect it: its files in /proc belong to root.
    assert_eq!(fs::metadata(format!("/proc/{pid}/environ")).unwrap().uid(), 0);
}

#[tokio::test]
async fn every_thread_of_the_server_is_confined() {
    let Some(host) = Host::start().await else { return };
    let (_, answer) = host.run(json!({"code": "print(1)"})).await;
    assert_eq!(answer["stdout"], "1\n", "{answer}");
    let mut seen = 0;
    for task in fs::read_dir(format!("/proc/{}/task", host.pid())).unwrap().flatten() {
        // A thread may end in the meantime.
        let Ok(status) = fs::read_to_string(task.path().join("status")) else { continue };
        assert!(status.contains("Seccomp:\t2") && status.contains("NoNewPrivs:\t1"), "{status}");
        assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
        seen += 1;
    }
    assert!(seen > 1, "{seen} threads");
}

#[tokio::test]
async fn server_and_spawner_are_protected_from_the_oom_killer_and_guests_are_not() {
    let Some(host) = Host::start().await else { return };
    if !is_root() {
        return;
    }
    // CAP_SYS_RESOURCE, which root in a container may lack.
    let capabilities = u64::from_str_radix(&status(std::process::id(), "CapEff"), 16).unwrap();
    let protected = if capabilities >> 24 & 1 == 1 { -900 } else { oom_score(std::process::id()) };
    assert_eq!(oom_score(host.pid()), protected);
    // The supervisor of the spawner and its event loop; cells follow.
    let spawner = below(host.pid());
    for (pid, _) in &spawner[..2] {
        assert_eq!(status(*pid, "NSpid"), pid.to_string(), "{spawner:?}");
        assert_eq!(oom_score(*pid), protected, "{spawner:?}");
    }
    for language in ["python", "bash"] {
        let code = match language {
            "python" => "print(open('/proc/self/oom_score_adj').read().strip())",
            _ => "cat /proc/self/oom_score_adj",
        };
        let (_, answer) = host.run(json!({"code": code, "language": language})).await;
        assert_eq!(answer["stdout"], "500\n", "{answer}");
    }
}

#[tokio::test]
async fn the_command_line_of_pid_1_has_no_host_path() {
    let Some(host) = Host::start().await else { return };
    let body =
        json!({"code": "tr '\\0' ' ' </proc/1/cmdline; cat /proc/1/comm", "language": "bash"});
    let (_, answer) = host.run(body).await;
    let said = answer["stdout"].as_str().unwrap();
    assert_eq!(said, "cloche __spawner cloche\n", "{answer}");
}

/// Every file and directory of a tree.
fn all_below(directory: &Path) -> Vec<PathBuf> {
    let mut all = vec![directory.to_owned()];
    for entry in fs::read_dir(directory).unwrap().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => all.extend(all_below(&entry.path())),
            false => all.push(entry.path()),
        }
    }
    all
}

/// Whether an ordinary user of the host can read a file or list a directory.
fn can_others_read(path: &Path) -> bool {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "test", "-r"]);
    ended(
        {
            command.arg(path);
            command
        },
        b"",
    )
    .code
        == 0
}

#[tokio::test]
async fn a_readable_data_directory_is_made_private_at_start() {
    let Some(mut host) = Host::start().await else { return };
    if !is_root() {
        return;
    }
    assert_eq!(bash(&host, "t", "echo kept >f; cat f").await, "kept\n");
    host.signal(Signal::TERM);
    host.ended().await;
    fs::set_permissions(host.directory(), Permissions::from_mode(0o755)).unwrap();
    for path in all_below(&host.data()) {
        let mode = if path.is_dir() { 0o755 } else { 0o644 };
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    }
    assert!(can_others_read(&host.data().join("cloche.db")), "the test sees what it should");
    let host = host.again().await;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&host.data()), 0o700);
    for entry in fs::read_dir(host.data()).unwrap().flatten() {
        // Mount servers with an id of their own make files in the spool, and cannot list it.
        let wanted = match entry.path() {
            path if path.ends_with("spool") => 0o733,
            path if path.is_dir() => 0o700,
            _ => 0o600,
        };
        assert_eq!(mode(&entry.path()), wanted, "{:?}", entry.path());
    }
    for path in all_below(&host.data()) {
        assert!(!can_others_read(&path), "{path:?}");
    }
    assert_eq!(bash(&host, "t", "cat f").await, "kept\n");
}

#[tokio::test]
async fn a_data_directory_is_handed_over_to_another_user_with_its_threads() {
    if !is_root() {
        return;
    }
    let Some(host) = Host::start_with(&["--user", "7311:7312"]).await else { return };
    assert_eq!(status(host.pid(), "Uid"), "7311\t7311\t7311\t7311");
    assert_eq!(bash(&host, "t", "echo one >f; chmod 750 f; mkdir -p d/e").await, "");
    assert_eq!(
        bash(&host, "t", "cat f; echo two >d/e/g; ls -ln f | cut -d' ' -f3").await,
        "one\n1000\n"
    );
    let host = host.restart_with(&[]).await;
    let (uid, gid) = usual_user();
    for path in all_below(&host.data()) {
        let found = fs::symlink_metadata(&path).unwrap();
        assert_eq!((found.uid(), found.gid()), (uid, gid), "{path:?}");
    }
    let said = bash(&host, "t", "cat f d/e/g; stat -c '%a %U' f; echo more >>f; cat f").await;
    assert_eq!(said, "one\ntwo\n750 baponi\none\nmore\n");
}

#[test]
fn foreign_directories_are_refused_and_not_changed() {
    let serve = |directory: &Path| {
        let mut command = Command::new(binary());
        command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(directory);
        ended(command, b"")
    };
    for directory in ["/", "/home", "/tmp", "/usr"] {
        let before = fs::metadata(directory).unwrap().permissions().mode();
        let refused = serve(Path::new(directory));
        assert_eq!(refused.code, 1, "{refused:?}");
        assert!(refused.stderr.contains("directory of the system"), "{refused:?}");
        assert_eq!(fs::metadata(directory).unwrap().permissions().mode(), before);
    }
    let foreign = TempDir::new().unwrap();
    fs::set_permissions(foreign.path(), Permissions::from_mode(0o755)).unwrap();
    fs::write(foreign.path().join("photo.jpg"), "").unwrap();
    let refused = serve(foreign.path());
    assert!(refused.code == 1 && refused.stderr.contains("photo.jpg"), "{refused:?}");
    assert_eq!(fs::metadata(foreign.path()).unwrap().permissions().mode() & 0o777, 0o755);
    assert_eq!(fs::read_dir(foreign.path()).unwrap().count(), 1);
}

#[test]
fn a_user_that_the_server_cannot_become_is_an_error() {
    for (asked, said) in [("root", "does not run as root"), ("nosuchuser", "no such user")] {
        let directory = TempDir::new().unwrap();
        let mut command = Command::new(binary());
        command.args(["serve", "--listen", "127.0.0.1:0", "--user", asked, "--data-dir"]);
        let refused = ended(
            {
                command.arg(directory.path().join("data"));
                command
            },
            b"",
        );
        assert_eq!(refused.code, 1, "{refused:?}");
        let is_named = refused.stderr.contains(said) || refused.stderr.contains("only root");
        assert!(is_named, "{refused:?}");
    }
}
