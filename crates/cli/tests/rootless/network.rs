//! Runs in: test. The networks of an ordinary user's cells: on a host with an internet of its own,
//! through the real binary.

use std::{
    fs,
    os::unix::fs::chown,
    path::Path,
    process::{Child, Command, Stdio},
};

use cloche_test_support::{
    internet::{HOST_ADDRESS, Internet, NAME_SERVER, WEB_ADDRESS},
    processes::{below, wait_until_gone},
};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    DISPENSABLE, NOBODY, Server, can_sandbox, command,
    support::{Ended, binary, ended, eventually, skip},
};

const SECRET: &str = "sk-live-0123456789-abcdef";

fn can_make_nodes() -> bool {
    rustix::process::geteuid().is_root() || skip("only root can make a node of tun devices")
}

/// `cloche run --network unrestricted` with a node of tun devices of this mode, in a mount namespace
/// of its own. Only root can make the node.
fn run_with_tun_node(mode: &str, code: &str) -> Ended {
    let script = "mount -t tmpfs none /dev/net && mknod -m \"$1\" /dev/net/tun c 10 200 || exit 99; \
        shift; exec 9<\"$0\"; exec setpriv --reuid 65534 --regid 65534 --clear-groups \
        /proc/self/fd/9 \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, binary(), mode]).current_dir("/").env_clear();
    command.args(["run", "--json", "--allow-missing", DISPENSABLE, "--network", "unrestricted"]);
    command.args(["-l", "python", "-c", code]);
    ended(command, b"")
}

#[test]
fn a_cell_gets_a_network_that_keeps_its_policy() {
    if !can_sandbox() || !can_make_nodes() {
        return;
    }
    let code = "import socket\n\
        print(sorted(name for _, name in socket.if_nameindex()))\n\
        try: socket.create_connection(('192.168.3.4', 80), 10)\n\
        except ConnectionRefusedError: print('refused')\n";
    let ended = run_with_tun_node("666", code);
    let result: Value = serde_json::from_str(&ended.printed()).unwrap();
    assert_eq!(result["stdout"], "['lo', 'net0']\nrefused\n", "{result}");
    let denied = json!([{"host": "192.168.3.4", "port": 80, "protocol": "tcp",
        "reason": "address_blocked", "count": 1}]);
    assert_eq!(result["network"]["denied"], denied, "{result}");
    assert_eq!(result["network"]["lost"], Value::Null, "{result}");
}

#[test]
fn a_node_of_tun_devices_that_cannot_be_opened_ends_the_run_before_its_program() {
    if !can_sandbox() || !can_make_nodes() {
        return;
    }
    let ended = run_with_tun_node("600", "print('started')");
    assert_eq!(ended.code, 125, "{ended:?}");
    let said = format!("{ended:?}");
    assert!(said.contains("its network could not be set up"), "{said}");
    assert!(said.contains("Permission denied"), "{said}");
    assert!(!said.contains("started\\n"), "{said}");
}

/// A server of an ordinary user, on a host with an internet and a node of tun devices for all.
struct RootlessHost {
    server: Server,
    internet: Internet,
    _files: [TempDir; 2],
}

impl RootlessHost {
    async fn start() -> Option<Self> {
        if !can_sandbox() {
            return None;
        }
        let (of_internet, of_server) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let Some(internet) = Internet::start(of_internet.path()) else {
            skip("this user cannot make network namespaces");
            return None;
        };
        make_tun_node();
        let config = of_server.path().join("cloche.toml");
        let text = format!("[network]\nresolvers = [\"{NAME_SERVER}\"]\n[tools.fetch]\n");
        fs::write(&config, text).unwrap();
        chown(&config, Some(NOBODY), Some(NOBODY)).unwrap();
        let arguments = ["--config", config.to_str().unwrap()];
        let server = Server::start_with(of_server.path(), &arguments).await;
        Some(Self { server, internet, _files: [of_internet, of_server] })
    }

    fn set_sandbox(&self, settings: &[&str]) {
        self.server.operate(&[&["sandbox", "set", "default/default"], settings].concat(), b"");
    }

    async fn run(&self, language: &str, code: &str) -> Value {
        self.server.run(json!({"language": language, "code": code, "timeout": 60})).await
    }
}

/// In the mount namespace of this thread, where the processes are that it starts.
fn make_tun_node() {
    let script = "mount -t tmpfs none /dev/net && mknod -m 666 /dev/net/tun c 10 200";
    let mut command = Command::new("sh");
    command.args(["-ec", script]);
    ended(command, b"").printed();
}

fn is_denied(reply: &Value, host: &str, reason: &str) -> bool {
    let all = reply["network"]["denied"].as_array().unwrap();
    all.iter().any(|one| one["host"] == host && one["reason"] == reason)
}

#[tokio::test]
async fn policies_names_and_meters_are_those_of_a_server_of_root() {
    let Some(host) = RootlessHost::start().await else { return };
    host.set_sandbox(&["--network", "allowlist", "--allow", "allowed.example"]);
    let code = "curl -sS http://allowed.example/ && curl -sS https://allowed.example/";
    let reply = host.run("bash", code).await;
    let hello = format!("hello from {WEB_ADDRESS}\n");
    assert_eq!(reply["stdout"], json!(hello.repeat(2)), "{reply}");
    assert_eq!(reply["network"]["denied"], json!([]), "{reply}");
    let usage = host.server.get("/v1/usage").await;
    let counted = (&usage["network_bytes_in"], &usage["network_bytes_out"]);
    assert_eq!(counted, (&reply["network"]["bytes_in"], &reply["network"]["bytes_out"]));
    assert!(usage["network_bytes_in"].as_u64().unwrap() > 50, "{usage}");
    for (target, named, reason) in [
        ("http://other.example/", "other.example", "not_allowed"),
        ("http://93.184.216.35/", "93.184.216.35", "not_allowed"),
        ("http://169.254.169.254/", "169.254.169.254", "not_allowed"),
    ] {
        let reply = host.run("bash", &format!("curl -sS -m 10 {target}")).await;
        assert!(is_denied(&reply, named, reason), "{target}: {reply}");
        assert_eq!(reply["success"], json!(false), "{target}: {reply}");
    }

    host.set_sandbox(&["--network", "unrestricted"]);
    let own = format!("http://{HOST_ADDRESS}:{}/", host.server.url.rsplit_once(':').unwrap().1);
    for target in ["http://169.254.169.254/", "http://10.0.0.5/", "http://2852039166/", &own] {
        let reply = host.run("bash", &format!("curl -sS -m 10 {target}")).await;
        let reasons = reply["network"]["denied"].to_string();
        assert!(reasons.contains("address_blocked"), "{target}: {reply}");
    }
    let reply = host.run("bash", "curl -sS http://allowed.example/").await;
    assert_eq!(reply["stdout"], json!(hello), "{reply}");
    host.set_sandbox(&["--network", "blocked"]);
    let reply = host.run("bash", "curl -sS -m 10 http://93.184.216.34/").await;
    assert_eq!((&reply["exit_code"], &reply["network"]), (&json!(7), &Value::Null), "{reply}");
    assert_eq!(host.internet.reached_canaries(), [""; 0]);
}

#[tokio::test]
async fn brokered_credentials_stay_outside_of_the_cell() {
    let Some(host) = RootlessHost::start().await else { return };
    host.set_sandbox(&["--network", "allowlist", "--allow", "allowed.example"]);
    let create =
        ["credential", "create", "api", "--host", "allowed.example", "--sandbox", "default"];
    host.server.operate(&create, SECRET.as_bytes());
    let reply = host.run("bash", "curl -sS https://allowed.example/echo").await;
    assert!(reply["stdout"].as_str().unwrap().contains("Bearer ****"), "{reply}");
    let sent = format!("https://allowed.example/echo Bearer {SECRET}");
    assert_eq!(host.internet.echoed_requests(), [sent]);
    let search = "m=sk-li; m=${m}ve\n\
        env | grep -c $m; cat /proc/[0-9]*/environ 2>/dev/null | grep -ac $m\n\
        grep -rls $m /run /etc /tmp /dev/shm ~ | grep -vc main; true";
    let reply = host.run("bash", search).await;
    assert_eq!(reply["stdout"], "0\n0\n0\n", "{reply}");
}

#[tokio::test]
async fn web_tools_read_public_pages_and_no_address_of_the_server() {
    let Some(host) = RootlessHost::start().await else { return };
    host.server.operate(&["team", "set", "default", "fetch_url=allow"], b"");
    host.set_sandbox(&["--tools", "fetch_url"]);
    let code = format!("cloche-tool fetch http://{WEB_ADDRESS}/; grep -c : /proc/net/dev");
    let reply = host.run("bash", &code).await;
    let said = reply["stdout"].as_str().unwrap();
    let page = format!("hello from {WEB_ADDRESS}");
    assert!(said.contains(&page) && said.ends_with("\n1\n"), "{reply}");
    for (target, why) in [
        (format!("http://{HOST_ADDRESS}/"), "an address of this server"),
        ("http://169.254.169.254/latest".to_owned(), "not a public address"),
        ("http://2852039166/".to_owned(), "not a public address"),
    ] {
        let reply = host.run("bash", &format!("cloche-tool fetch {target}")).await;
        assert_eq!(reply["exit_code"], 1, "{target}: {reply}");
        assert!(reply["stderr"].as_str().unwrap().contains(why), "{target}: {reply}");
    }
    assert_eq!(host.internet.reached_canaries(), [""; 0]);
}

/// A program that holds a connection open.
const HOLD: &str = "import socket, time\n\
    held = socket.create_connection(('93.184.216.34', 80))\nprint('held', flush=True)\n\
    time.sleep(50)";

#[tokio::test]
async fn the_processes_of_a_network_end_with_the_server() {
    let Some(host) = RootlessHost::start().await else { return };
    host.set_sandbox(&["--network", "unrestricted"]);
    let RootlessHost { mut server, internet, _files } = host;
    let url = format!("{}/v1/sandbox/execute", server.url);
    let body = json!({"code": HOLD, "timeout": 60});
    let request = reqwest::Client::new().post(url).bearer_auth(&server.key).json(&body);
    let running = tokio::spawn(request.send());
    let worker = wait_for_worker(server.child.id()).await;
    assert_eq!(limits_of_files(worker), ["1024", "1024"]);
    let all = below(server.child.id());
    let is_broker = |pid: &u32| has_argument(*pid, "__network-broker");
    let broker = all.iter().map(|(pid, _)| *pid).find(is_broker).unwrap();
    let [soft, hard] = limits_of_files(broker);
    assert_eq!(soft, hard, "the broker serves all cells");
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    wait_until_gone(&all);
    drop((running, internet));
}

#[tokio::test]
async fn the_processes_of_a_network_end_with_a_run() {
    if !can_sandbox() || !can_make_nodes() {
        return;
    }
    let files = TempDir::new().unwrap();
    let Some(internet) = Internet::start(files.path()) else { return };
    make_tun_node();
    let arguments =
        ["run", "--allow-missing", DISPENSABLE, "--network", "unrestricted", "-c", HOLD];
    let mut command = command(&arguments);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut run = KilledAtEnd(command.spawn().unwrap());
    wait_for_worker(run.0.id()).await;
    let all = below(run.0.id());
    run.0.kill().unwrap();
    run.0.wait().unwrap();
    wait_until_gone(&all);
    drop(internet);
}

struct KilledAtEnd(Child);

impl Drop for KilledAtEnd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The soft and the hard limit of open files of a process.
fn limits_of_files(pid: u32) -> [String; 2] {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let mut numbers = line.split_whitespace().skip(3).map(str::to_owned);
    [numbers.next().unwrap(), numbers.next().unwrap()]
}

fn has_argument(pid: u32, argument: &str) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).contains(argument)
}

/// Waits until a process below this one has a tun device as its descriptor 3: a stack worker.
async fn wait_for_worker(root: u32) -> u32 {
    let is_worker = |pid: u32| {
        let device = fs::read_link(Path::new("/proc").join(pid.to_string()).join("fd/3"));
        device.is_ok_and(|device| device.file_name().is_some_and(|name| name == "tun"))
    };
    eventually("the cell has a stack worker", async || {
        let all: Vec<u32> = below(root).into_iter().map(|(pid, _)| pid).collect();
        all.iter().copied().find(|pid| is_worker(*pid)).ok_or_else(|| format!("{all:?}"))
    })
    .await
}
