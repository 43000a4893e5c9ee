//! The networks of sandboxes, end to end: the real binary on a host with an internet of its own,
//! requests over HTTP.

use std::{fs, sync::Arc};

use cloche_test_support::{
    eventually,
    internet::{HOST_ADDRESS, Internet, NAME_SERVER, WEB_ADDRESS},
    skip,
};
use reqwest::{Client, Method};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    host::Host,
    processes::below,
    support::{binary, can_sandbox, ended},
};

/// A server on a host with an internet.
struct NetworkHost {
    host: Host,
    internet: Internet,
    _files: TempDir,
}

impl NetworkHost {
    async fn start() -> Option<Self> {
        if !can_sandbox() {
            return None;
        }
        let files = TempDir::new().unwrap();
        let Some(internet) = Internet::start(files.path()) else {
            skip("this user cannot make network namespaces");
            return None;
        };
        let config = files.path().join("cloche.toml");
        fs::write(&config, format!("[network]\nresolvers = [\"{NAME_SERVER}\"]\n")).unwrap();
        let arguments = vec!["--config".to_owned(), config.display().to_string()];
        let host = Host::start_on(Arc::new(TempDir::new().unwrap()), arguments).await;
        Some(Self { host, internet, _files: files })
    }

    /// A key of a new sandbox with these settings.
    async fn key(&self, name: &str, settings: Value) -> String {
        let mut sandbox = json!({"team": "default", "name": name});
        for (field, value) in settings.as_object().unwrap() {
            sandbox[field] = value.clone();
        }
        self.host.admin_json(Method::POST, "sandboxes", sandbox).await;
        let key = json!({"team": "default", "sandbox": name, "name": name});
        let made = self.host.admin_json(Method::POST, "keys", key).await;
        made["key"].as_str().unwrap().to_owned()
    }

    async fn run(&self, key: &str, body: Value) -> Value {
        let request = Client::new().post(format!("{}/v1/sandbox/execute", self.host.url));
        let response = request.bearer_auth(key).json(&body).send().await.unwrap();
        let trace = response.headers().get("x-trace-id").cloned();
        let mut reply: Value = response.json().await.unwrap();
        if let Some(trace) = trace {
            reply["trace_id"] = json!(trace.to_str().unwrap());
        }
        reply
    }

    async fn bash(&self, key: &str, code: &str) -> Value {
        self.run(key, json!({"language": "bash", "code": code})).await
    }

    async fn record(&self, key: &str, reply: &Value) -> Value {
        let trace = reply["trace_id"].as_str().unwrap();
        let request = Client::new().get(format!("{}/v1/executions/{trace}", self.host.url));
        request.bearer_auth(key).send().await.unwrap().json().await.unwrap()
    }

    /// The stack workers and the broker of the server, by a descriptor or an argument of theirs.
    fn workers(&self) -> Vec<u32> {
        // The spawner has the node open, too, and is root. A worker has the device as its fd 3.
        let is_worker = |pid: &u32| {
            let device = fs::read_link(format!("/proc/{pid}/fd/3"));
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            device.is_ok_and(|device| device.ends_with("net/tun"))
                && status.contains("Uid:")
                && !status.contains("Uid:\t0\t")
        };
        below(self.host.pid()).into_iter().map(|(pid, _)| pid).filter(is_worker).collect()
    }

    /// The process of the server with this argument.
    fn process(&self, argument: &str) -> u32 {
        let has_argument = |pid: &u32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(argument)
        };
        let mut all = below(self.host.pid()).into_iter().map(|(pid, _)| pid);
        all.find(has_argument).unwrap_or_else(|| panic!("there is no {argument}"))
    }

    fn broker(&self) -> u32 {
        self.process("__network-broker")
    }
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
}

fn denied<'a>(reply: &'a Value, host: &str) -> &'a Value {
    let all = reply["network"]["denied"].as_array().unwrap();
    all.iter().find(|one| one["host"] == host).unwrap_or_else(|| panic!("{host} in {reply}"))
}

#[tokio::test]
async fn an_allowlist_reaches_its_hosts_and_denies_all_others() {
    let Some(host) = NetworkHost::start().await else { return };
    let allow = json!({"network": "allowlist", "network_allow": ["allowed.example"]});
    let key = host.key("listed", allow).await;
    let reply = host
        .bash(&key, "curl -sS http://allowed.example/ && curl -sS https://allowed.example/")
        .await;
    let hello = format!("hello from {WEB_ADDRESS}\n");
    assert_eq!(reply["stdout"], json!(hello.repeat(2)), "{reply}");
    assert_eq!(reply["network"]["denied"], json!([]), "{reply}");
    assert!(reply["network"]["bytes_in"].as_u64().unwrap() > 2 * 25, "{reply}");
    let (sent, got) = (&reply["network"]["bytes_out"], &reply["network"]["bytes_in"]);

    let record = host.record(&key, &reply).await;
    assert_eq!(record["network"], reply["network"], "{record}");
    let (_, usage) = host.host.get("/v1/usage").await;
    assert_eq!((&usage["network_bytes_out"], &usage["network_bytes_in"]), (sent, got), "{usage}");
    let metrics = host.host.metrics().await;
    assert!(metrics.contains("team_month_network_bytes{team="), "{metrics}");

    let reply = host.bash(&key, "curl -sS -m 10 http://other.example/").await;
    assert_eq!((&reply["success"], &reply["exit_code"]), (&json!(false), &json!(6)), "{reply}");
    let attempt = denied(&reply, "other.example");
    assert_eq!(attempt["reason"], "not_allowed", "{reply}");
    assert_eq!(host.record(&key, &reply).await["status"], "blocked");

    // An address is not a name, and a name that was resolved is not another one.
    for code in [
        "curl -sS -m 10 http://93.184.216.34/",
        "curl -sS -m 10 http://93.184.216.35/",
        "curl -sS -m 10 --resolve other.example:443:93.184.216.34 https://other.example/",
        "getent hosts allowed.example; curl -sS -m 10 -k --connect-to other.example:443:allowed.example:443 https://other.example/",
        "curl -sS -m 10 http://allowed.example:8080/",
    ] {
        let reply = host.bash(&key, code).await;
        assert_eq!(reply["success"], json!(false), "{code} {reply}");
        assert_ne!(reply["network"]["denied"], json!([]), "{code} {reply}");
    }
    // A program that copes with a refusal succeeds.
    let reply = host.bash(&key, "curl -sS -m 10 http://other.example/ || echo coped").await;
    assert_eq!((&reply["success"], &reply["stdout"]), (&json!(true), &json!("coped\n")));
    assert_ne!(reply["network"]["denied"], json!([]), "{reply}");
    assert_eq!(host.internet.reached_canaries(), [""; 0]);
}

/// Tries to connect, and prints each address with `open` or the name of the error.
const CONNECT: &str = r#"
import errno, socket, sys
for target in TARGETS:
    name, port = target.rsplit(":", 1)
    try:
        socket.create_connection((name.strip("[]"), int(port)), timeout=5).close()
        print(target, "open")
    except socket.gaierror:
        print(target, "unknown")
    except OSError as error:
        print(target, errno.errorcode.get(error.errno, "timeout"))
"#;

#[tokio::test]
async fn an_unrestricted_network_reaches_no_private_or_host_address() {
    let Some(host) = NetworkHost::start().await else { return };
    let key = host.key("open", json!({"network": "unrestricted"})).await;
    let server_port = host.host.url.rsplit_once(':').unwrap().1.to_owned();
    let mut targets: Vec<String> = [
        "allowed.example:443",
        "93.184.216.35:80",
        "10.0.0.5:80",
        "192.168.7.7:80",
        "100.64.0.7:443",
        "169.254.169.254:80",
        "2852039166:80",
        "0xa9fea9fe:80",
        "0251.0376.0251.0376:80",
        "[::ffff:10.0.0.5]:80",
        "[64:ff9b::a00:5]:80",
        "private.example:80",
        "metadata.example:80",
        "changing.example:80",
        "changing.example:80",
        "changing.example:80",
        "5.6.7.1:80",
        "allowed.example:25",
    ]
    .map(str::to_owned)
    .into();
    targets.push(format!("{HOST_ADDRESS}:{server_port}"));
    let code = CONNECT.replace("TARGETS", &serde_json::to_string(&targets).unwrap());
    let reply = host.run(&key, json!({"code": code, "timeout": 90})).await;
    let said = reply["stdout"].as_str().unwrap();
    assert!(said.contains("allowed.example:443 open\n"), "{reply}");
    assert!(said.contains("93.184.216.35:80 open\n"), "{reply}");
    let opened = said.lines().filter(|line| line.ends_with(" open"));
    let opened: Vec<_> = opened.filter(|line| !line.starts_with("changing.example")).collect();
    assert_eq!(opened.len(), 2, "{said}");
    assert_eq!(said.lines().count(), targets.len(), "{said}");
    assert_eq!(denied(&reply, "169.254.169.254")["reason"], "address_blocked", "{reply}");
    assert_eq!(host.internet.reached_canaries(), [""; 0]);

    // Redirects are followed by the program, through the same checks.
    let to = "aHR0cDovLzE2OS4yNTQuMTY5LjI1NC9sYXRlc3Q="; // http://169.254.169.254/latest
    let code = format!("curl -sSL -m 10 http://allowed.example/redirect/{to}");
    let reply = host.bash(&key, &code).await;
    assert_eq!(reply["success"], json!(false), "{reply}");
    assert_eq!(host.internet.reached_canaries(), [""; 0]);

    let code =
        "fetch('http://allowed.example/').then(r => r.text()).then(t => console.log(t.trim()))";
    let reply = host.run(&key, json!({"language": "node", "code": code})).await;
    assert_eq!(reply["stdout"], json!(format!("hello from {WEB_ADDRESS}\n")), "{reply}");
}

#[tokio::test]
async fn a_blocked_sandbox_stays_without_a_network() {
    let Some(host) = NetworkHost::start().await else { return };
    let targets = json!(["93.184.216.34:80", "allowed.example:80", "192.0.0.1:53"]).to_string();
    let code = CONNECT.replace("TARGETS", &targets) + "\nprint(socket.if_nameindex())";
    let (_, reply) = host.host.run(json!({"code": code})).await;
    let expected = "93.184.216.34:80 ENETUNREACH\nallowed.example:80 unknown\n\
                    192.0.0.1:53 ENETUNREACH\n[(1, 'lo')]\n";
    assert_eq!(reply["stdout"], json!(expected), "{reply}");
    assert!(reply.get("network").is_none(), "{reply}");

    let refused =
        |body: Value| host.host.admin_request(Method::POST, "sandboxes").json(&body).send();
    for (settings, sentence) in [
        (json!({"network": "odd"}), "network must be one of"),
        (json!({"network": "allowlist"}), "at least one rule"),
        (json!({"network_allow": ["pypi.example"]}), "set network to"),
        (json!({"network": "allowlist", "network_allow": ["*.com"]}), "unrelated owners"),
        (json!({"network": "unrestricted", "profile": "strict"}), "strict"),
        (json!({"network_limits": {"connections": 0}}), "network_limits.connections"),
    ] {
        let mut body = json!({"team": "default", "name": "refused"});
        for (field, value) in settings.as_object().unwrap() {
            body[field] = value.clone();
        }
        let answer = refused(body).await.unwrap();
        let (status, text) = (answer.status(), answer.text().await.unwrap());
        assert!(status == 400 && text.contains(sentence), "{settings} {status} {text}");
    }
}

#[tokio::test]
async fn packages_are_installed_from_an_index_and_stay_in_a_thread() {
    let Some(host) = NetworkHost::start().await else { return };
    let rules = ["pypi.example", "files.example", "npm.example"];
    let allow = json!({"network": "allowlist", "network_allow": rules});
    let key = host.key("packages", allow).await;
    let install = "pip install --user --index-url https://pypi.example/simple smallpackage && \
                   NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt \
                   npm install --no-audit --no-fund --registry https://npm.example small-package";
    let body = json!({
        "language": "bash", "code": install, "thread_id": "t", "timeout": 110,
    });
    let reply = host.run(&key, body).await;
    assert_eq!(reply["success"], json!(true), "{reply}");
    let code = "import smallpackage; print(smallpackage.__file__)";
    let used = host.run(&key, json!({"code": code, "thread_id": "t"})).await;
    let path = used["stdout"].as_str().unwrap();
    assert!(path.starts_with("/home/baponi/.local/"), "{used}");
    let code = "console.log(require('small-package'))";
    let used = host.run(&key, json!({"language": "node", "code": code, "thread_id": "t"})).await;
    assert_eq!(used["stdout"], "installed\n", "{used}");
}

#[tokio::test]
async fn without_its_worker_a_cell_has_no_network() {
    let Some(host) = NetworkHost::start().await else { return };
    let key = host.key("open", json!({"network": "unrestricted"})).await;
    let running = host.run(&key, json!({"code": CONNECT_UNTIL_LOST, "timeout": 90}));
    let killed = async {
        let worker = eventually("the cell has a stack worker", async || {
            host.workers().first().copied().ok_or("no worker")
        });
        kill(worker.await);
    };
    let (reply, ()) = tokio::join!(running, killed);
    assert_eq!(reply["exit_code"], 7, "{reply}");
    assert!(reply["network"]["lost"].as_str().is_some_and(|why| !why.is_empty()), "{reply}");
    assert_eq!(reply["error"], reply["network"]["lost"], "{reply}");
    eventually("no worker is left", async || match host.workers().as_slice() {
        [] => Ok(()),
        left => Err(format!("{left:?}")),
    })
    .await;
}

/// A program that connects until it cannot any more.
const CONNECT_UNTIL_LOST: &str = r#"
import socket, sys, time
end = time.monotonic() + 60
while time.monotonic() < end:
    try:
        socket.create_connection(("93.184.216.34", 80), timeout=2).close()
    except OSError:
        sys.exit(7)
    time.sleep(0.02)
"#;

#[tokio::test]
async fn a_broker_that_ends_takes_the_networks_of_its_runs_and_is_started_again() {
    let Some(host) = NetworkHost::start().await else { return };
    let key = host.key("open", json!({"network": "unrestricted"})).await;
    for _ in 0..2 {
        let broker = host.broker();
        let running = host.run(&key, json!({"code": CONNECT_UNTIL_LOST, "timeout": 90}));
        let killed = async {
            eventually("the cell has a stack worker", async || {
                host.workers().first().copied().ok_or("no worker")
            })
            .await;
            kill(broker);
        };
        let (reply, ()) = tokio::join!(running, killed);
        assert_eq!(reply["exit_code"], 7, "{reply}");
        let lost = reply["network"]["lost"].as_str().unwrap_or_default();
        assert!(lost.contains("the network broker ended during the run"), "{reply}");
        assert_eq!(reply["error"], reply["network"]["lost"], "{reply}");
        assert_eq!(host.record(&key, &reply).await["network"]["lost"], json!(lost));
        // The next run waits for the new broker instead of being refused.
        let reply = host.bash(&key, "curl -sS http://allowed.example/").await;
        assert_eq!(reply["stdout"], json!(format!("hello from {WEB_ADDRESS}\n")), "{reply}");
        assert_eq!(reply["network"]["lost"], json!(null), "{reply}");
        assert_ne!(host.broker(), broker);
    }
    let log = host.host.said("log");
    assert_eq!(log.matches("a new network broker was started").count(), 2, "{log}");
}

#[tokio::test]
async fn without_a_broker_and_its_supervisor_only_runs_with_a_network_are_refused() {
    let Some(host) = NetworkHost::start().await else { return };
    let key = host.key("open", json!({"network": "unrestricted"})).await;
    // The broker goes on without its supervisor.
    let broker = host.broker();
    kill(host.process("__network-supervisor"));
    let reply = host.bash(&key, "curl -sS http://allowed.example/").await;
    assert_eq!(reply["success"], json!(true), "{reply}");
    kill(broker);
    eventually("runs with a network are refused", async || {
        let reply = host.run(&key, json!({"code": "print(1)"})).await;
        let refused = reply["message"].as_str().is_some_and(|why| why.starts_with("network: "));
        if refused { Ok(()) } else { Err(reply) }
    })
    .await;
    let (status, reply) = host.host.run(json!({"code": "print(1)"})).await;
    assert_eq!((status, &reply["stdout"]), (200, &json!("1\n")), "{reply}");
}

#[tokio::test]
async fn the_limits_of_a_network_hold() {
    let Some(host) = NetworkHost::start().await else { return };
    let limits = json!({"bytes_per_run": 200_000});
    let settings = json!({"network": "unrestricted", "network_limits": limits});
    let key = host.key("limited", settings).await;
    let code = "curl -sS -m 20 http://allowed.example/bytes/10000000 -o got; code=$?; \
                stat -c %s got; exit $code";
    let reply = host.bash(&key, code).await;
    assert_eq!(reply["success"], json!(false), "{reply}");
    let got: u64 = reply["stdout"].as_str().unwrap().trim().parse().unwrap();
    assert!(got < 1_000_000, "{reply}");
    let reasons = reply["network"]["denied"].as_array().unwrap();
    assert!(reasons.iter().any(|one| one["reason"] == "limit_reached"), "{reply}");
}

#[tokio::test]
async fn a_program_on_the_command_line_can_have_a_network() {
    let Some(host) = NetworkHost::start().await else { return };
    let run = |words: &[&str]| {
        let mut command = std::process::Command::new(binary());
        command.arg("run").args(words);
        ended(command, b"")
    };
    let code = "import socket; socket.create_connection(('93.184.216.34', 80)); print('open')";
    let open = run(&["--network", "unrestricted", "-c", code]);
    assert_eq!((open.code, open.stdout.as_str()), (0, "open\n"), "{open:?}");
    let closed = run(&["--network", "allowlist", "--allow", "allowed.example", "-c", code]);
    assert_eq!(closed.code, 1, "{closed:?}");
    assert!(closed.stderr.contains("the network denied 93.184.216.34 port 80"), "{closed:?}");
    let wrong = run(&["--allow", "allowed.example", "-c", code]);
    assert_eq!(wrong.code, 2, "{wrong:?}");
    drop(host);
}

/// A netns without a socket would be reused if no network was ever attached to it. Then the next
/// device of the same name could not be made.
#[tokio::test]
async fn every_run_has_a_netns_and_a_device_of_its_own() {
    let Some(host) = NetworkHost::start().await else { return };
    let key = host.key("open", json!({"network": "unrestricted"})).await;
    let code =
        "print(sorted(line.split(':')[0].strip() for line in list(open('/proc/net/dev'))[2:]))";
    for _ in 0..30 {
        let reply = host.run(&key, json!({"code": code})).await;
        assert_eq!(reply["stdout"], "['lo', 'net0']\n", "{reply} {}", host.host.said("log"));
        assert_eq!(reply["network"]["lost"], json!(null), "{reply}");
    }
    eventually("no worker is left", async || match host.workers().as_slice() {
        [] => Ok(()),
        left => Err(format!("{left:?}")),
    })
    .await;
}
