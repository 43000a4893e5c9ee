//! As an ordinary user: everything works that the kernel allows, and what it does not is named.
#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};

mod network;
#[path = "../support/cloche.rs"]
mod support;

use support::{Ended, binary, ended, eventually, skip};

/// `cloche` as an ordinary user: directly where we are one, through `setpriv` where we are root.
fn cloche(arguments: &[&str]) -> Ended {
    cloche_fed(arguments, b"")
}

fn cloche_fed(arguments: &[&str], stdin: &[u8]) -> Ended {
    ended(command(arguments), stdin)
}

const NOBODY: u32 = 65534;

fn command(arguments: &[&str]) -> Command {
    if !rustix::process::geteuid().is_root() {
        let mut command = Command::new(binary());
        command.args(arguments);
        return command;
    }
    // By a descriptor: the build directory may be one that others cannot enter. With the limit of
    // open files that most services start with.
    let script = "ulimit -Sn 1024; exec 9<\"$0\"; exec setpriv --reuid 65534 --regid 65534 --clear-groups \
        /proc/self/fd/9 \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, binary()]).args(arguments).current_dir("/").env_clear();
    command
}

/// A server of an ordinary user; it ends with the test.
struct Server {
    child: Child,
    data: PathBuf,
    url: String,
    key: String,
}

impl Server {
    async fn start(directory: &Path) -> Self {
        Self::start_with(directory, &[]).await
    }

    /// A server with further arguments.
    async fn start_with(directory: &Path, further: &[&str]) -> Self {
        cloche_test_support::install_crypto();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(directory, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let data = directory.join("data");
        let arguments = ["serve", "--listen", "127.0.0.1:0", "--allow-missing", DISPENSABLE];
        let mut command =
            command(&[&arguments[..], &["--data-dir", data.to_str().unwrap()], further].concat());
        let log = fs::File::create(directory.join("log")).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = command.spawn().unwrap();
        let mut server = Self { child, data: data.clone(), url: String::new(), key: String::new() };
        eventually("the server is ready", async || {
            let said = fs::read_to_string(directory.join("log")).unwrap();
            assert!(server.child.try_wait().unwrap().is_none(), "{said}");
            let bootstrap = fs::read(data.join("bootstrap.json")).unwrap_or_default();
            let bootstrap: Value = serde_json::from_slice(&bootstrap).map_err(|_| said.clone())?;
            let text = |name: &str| bootstrap[name].as_str().unwrap().to_owned();
            (server.url, server.key) = (text("url"), text("api_key"));
            let ready = reqwest::get(format!("{}/readyz", server.url)).await;
            ready.ok().filter(|answer| answer.status() == 200).map(drop).ok_or(said)
        })
        .await;
        server
    }

    /// Runs Bash on a thread.
    async fn bash(&self, code: &str) -> Value {
        self.run(json!({"code": code, "language": "bash", "thread_id": "t"})).await
    }

    async fn run(&self, body: Value) -> Value {
        let url = format!("{}/v1/sandbox/execute", self.url);
        let request = reqwest::Client::new().post(url).bearer_auth(&self.key).json(&body);
        request.send().await.unwrap().json().await.unwrap()
    }

    async fn get(&self, path: &str) -> Value {
        let request = reqwest::Client::new().get(format!("{}{path}", self.url));
        request.bearer_auth(&self.key).send().await.unwrap().json().await.unwrap()
    }

    /// A command of the operator, which has to succeed.
    fn operate(&self, words: &[&str], stdin: &[u8]) {
        let mut command = Command::new(binary());
        command.args(words).arg("--data-dir").arg(&self.data);
        ended(command, stdin).printed();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What an ordinary user cannot have on this host, as `run` and `doctor` name it.
const DISPENSABLE: &str = "cgroups,cgroup:memory,cgroup:pids,cgroup:cpu,host-uid";

fn run(language: &str, code: &str) -> Ended {
    cloche(&["run", "--allow-missing", DISPENSABLE, "--language", language, "-c", code])
}

#[track_caller]
fn can_sandbox() -> bool {
    let tried = run("bash", ":");
    tried.code == 0 || skip(&format!("no sandbox for an ordinary user: {}", tried.stderr))
}

#[test]
fn every_language_runs() {
    if !can_sandbox() {
        return;
    }
    assert_eq!(run("python", "print(6 * 7)").printed(), "42\n");
    assert_eq!(run("node", "console.log(6 * 7)").printed(), "42\n");
    assert_eq!(run("bash", "echo $((6 * 7)); id -un").printed(), "42\nbaponi\n");
}

#[test]
fn what_is_missing_is_said_once_unless_it_was_accepted() {
    if !can_sandbox() {
        return;
    }
    let warned = cloche(&["run", "-c", "print(1)"]);
    assert_eq!((warned.code, warned.stdout.as_str()), (0, "1\n"));
    assert_eq!(warned.stderr.lines().count(), 1, "{warned:?}");
    assert!(warned.stderr.starts_with("cloche: running without "), "{warned:?}");
    assert!(warned.stderr.contains("host-uid"), "{warned:?}");
    assert_eq!(run("python", "print(1)").stderr, "");
}

#[test]
fn the_doctor_names_what_is_missing() {
    if !can_sandbox() {
        return;
    }
    let ended = cloche(&["doctor", "--json"]);
    let report = ended.json();
    assert_eq!((ended.code, &report["root"]), (1, &false.into()));
    let walls = report["walls"].as_array().unwrap();
    for wall in walls.iter().filter(|wall| wall["state"] != "present") {
        let name = wall["name"].as_str().unwrap();
        assert!(DISPENSABLE.split(',').any(|known| known == name), "{wall}");
        assert!(wall["how"].is_string(), "{wall}");
    }
    let flag = report["serve"]["flag"].as_str().unwrap();
    assert!(flag.starts_with("--allow-missing ") && flag.contains("host-uid"), "{flag}");
}

#[test]
fn the_walls_that_are_left_stand() {
    if !can_sandbox() {
        return;
    }
    let status = run("bash", "cat /proc/self/status").printed();
    for line in
        ["CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"]
    {
        assert!(status.contains(line), "{line}: {status}");
    }
    assert_eq!(run("bash", "ls /proc | grep -c '^[0-9]'").printed(), "4\n");
    assert_ne!(run("bash", "touch /usr/x /etc/x /dev/x").code, 0);
    let root = run("bash", "ls /").printed();
    assert!(!root.contains("boot"), "{root}");
    let net = run("python", "import socket; socket.create_connection(('192.0.2.1', 80), 1)");
    assert!(net.stderr.contains("Network is unreachable"), "{net:?}");
}

#[test]
fn time_and_disk_are_limited_without_control_groups() {
    if !can_sandbox() {
        return;
    }
    let accepted = ["run", "--allow-missing", DISPENSABLE, "-l", "bash"];
    let late = cloche(&[&accepted[..], &["--timeout", "0.3", "-c", "sleep 60"]].concat());
    assert_eq!(late.code, 124, "{late:?}");
    let full =
        cloche(&[&accepted[..], &["--disk", "1M", "-c", "head -c 2M /dev/zero > x"]].concat());
    assert!(full.stderr.contains("No space left on device"), "{full:?}");
    let bomb = "import os, time\ntry:\n    \
        while True:\n        os.fork() or time.sleep(60)\n\
        except BlockingIOError:\n    print('limited')";
    assert_eq!(run("python", bomb).printed(), "limited\n");
}

#[test]
fn a_program_can_use_its_home_pipes_and_terminals() {
    if !can_sandbox() {
        return;
    }
    let code = "import os, pty, tempfile, subprocess, multiprocessing as mp\n\
        open('a', 'w').write('x'); os.mkdir('d'); os.rename('a', 'd/a')\n\
        tempfile.TemporaryFile().write(b'x')\n\
        print(subprocess.run(['ls', 'd'], capture_output=True, text=True).stdout.strip())\n\
        print(os.ttyname(pty.openpty()[1]))\n\
        print(mp.Pool(2).map(abs, [-1, -2]))\n";
    assert_eq!(run("python", code).printed(), "a\n/dev/pts/0\n[1, 2]\n");
}

#[test]
fn input_reaches_the_program() {
    if !can_sandbox() {
        return;
    }
    let arguments = ["run", "--allow-missing", DISPENSABLE, "-c", "print(input())"];
    assert_eq!(cloche_fed(&arguments, b"hello\n").printed(), "hello\n");
}

#[tokio::test]
async fn a_thread_keeps_its_home() {
    if !can_sandbox() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path()).await;
    let made = server
        .bash("mkdir d e; echo one >d/f; ln d/f hard; ln -s d/f soft; chmod 750 d/f; echo 1 >gone; echo 2 >e/x; chmod 700 .")
        .await;
    assert_eq!(made["success"], true, "{made}");
    let changed = server.bash("rm gone e/x; rmdir e; mkdir e; echo two >new; mv new moved").await;
    assert_eq!(changed["success"], true, "{changed}");
    let code = "ls -A . e; cat soft moved; stat -c '%a %h' d/f; stat -c %a .; [ d/f -ef hard ] && echo same";
    let seen = server.bash(code).await;
    let expected = ".:\nd\ne\nhard\nmain.sh\nmoved\nsoft\n\ne:\none\ntwo\n750 2\n700\nsame\n";
    assert_eq!(seen["stdout"], expected, "{seen}");
    // What an overlay cannot do without root is said by the system call, and nothing is lost.
    let renamed = server
        .bash("python3 -c 'import os; os.rename(\"d\", \"r\")' 2>&1 | tail -1; mv d s && cat s/f")
        .await;
    assert_eq!(
        renamed["stdout"], "OSError: [Errno 18] Invalid cross-device link: 'd' -> 'r'\none\n",
        "{renamed}"
    );
    assert_eq!(server.bash("cat s/f hard; ls -d d; true").await["stdout"], "one\none\n");
}
