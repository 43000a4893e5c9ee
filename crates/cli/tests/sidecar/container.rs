//! Runs in: test. The deployment of the contract: a sidecar as an ordinary user in a container
//! without capabilities and new privileges, with a read-only root and a tmpfs. The container is
//! imitated by a mount namespace and `setpriv`, and the filter of a container engine by
//! `engine_filter.py`: with it no namespace can be made.

use std::{
    fs::{self, File},
    process::{Child, Command, Stdio},
};

use reqwest::Client;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    executor::{KEY, Sidecar},
    processes::{below, count, mark, wait_for, wait_until_gone},
    support::{Ended, binary, ended, eventually, skip},
};

const FILTER: &str = include_str!("../support/engine_filter.py");
const ORDINARY: &str = "--reuid 65534 --regid 65534 --clear-groups";
const SETTINGS: [&str; 12] = [
    "--profile",
    "container",
    "--max-memory",
    "256M",
    "--max-disk",
    "64M",
    "--max-pids",
    "64",
    "--listen",
    "127.0.0.1:0",
    "--max-concurrent-jobs",
    "8",
];

/// What the engine of the container allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Engine {
    /// User namespaces, and mounts in them.
    Namespaces,
    /// Neither.
    NoNamespaces,
}

/// `cloche executor` in the container, as a user by these arguments of `setpriv`.
fn in_container(engine: Engine, user: &str, arguments: &[&str]) -> Command {
    let filter = match engine {
        Engine::Namespaces => "",
        Engine::NoNamespaces => "python3 -c \"$FILTER\"",
    };
    // By a descriptor: the build directory may be one that others cannot enter.
    let script = format!(
        "exec 9<\"$0\"; mount -t tmpfs -o mode=1777 tmpfs /tmp && \
         mount -o remount,ro,bind / && ! touch /writable 2>/dev/null && \
         exec setpriv {user} --bounding-set=-all --inh-caps=-all --no-new-privs \
         {filter} /proc/self/fd/9 executor \"$@\""
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", &script, binary()]);
    command.args(arguments).current_dir("/").env_clear();
    command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("FILTER", FILTER);
    command.env("SANDBOX_EXECUTOR_SERVICE_API_KEY", KEY);
    command
}

/// A sidecar in a container; dropping it removes everything.
struct Container {
    url: String,
    process: Child,
    directory: TempDir,
}

impl Container {
    async fn start(engine: Engine, more: &[&str]) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skip("only root can imitate a container");
            return None;
        }
        cloche_test_support::install_crypto();
        let directory = TempDir::new().unwrap();
        let file = |name: &str| File::create(directory.path().join(name)).unwrap();
        let arguments = [&SETTINGS[..], more].concat();
        let mut process = in_container(engine, ORDINARY, &arguments)
            .stdin(Stdio::null())
            .stdout(file("stdout"))
            .stderr(file("log"))
            .spawn()
            .unwrap();
        let said = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
        let url = eventually("the sidecar prints its address", async || {
            let ended = process.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?} {}", said("log"));
            let greeting = said("stdout");
            let url =
                greeting.trim_end().split_once("listening on ").map(|(_, url)| url.to_owned());
            url.ok_or_else(|| said("log"))
        })
        .await;
        Some(Self { url, process, directory })
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    async fn run(&self, body: Value) -> Value {
        let request = Client::new().post(format!("{}/execute", self.url));
        let response = request.header("X-Service-API-Key", KEY).json(&body).send().await.unwrap();
        let status = response.status();
        let answer: Value = response.json().await.unwrap();
        assert_eq!(status, 200, "{answer} {}", self.log());
        answer
    }

    async fn python(&self, code: &str) -> Value {
        self.run(json!({ "code": code })).await
    }

    /// What the program printed; it must have succeeded.
    async fn printed(&self, code: &str) -> String {
        let answer = self.python(code).await;
        assert_eq!(answer["exit_code"], 0, "{answer}");
        answer["stdout"].as_str().unwrap().to_owned()
    }

    /// The entries of the container's tmpfs and of the directories in it.
    fn scratch_entries(&self) -> Vec<String> {
        let root = format!("/proc/{}/root/tmp", self.process.id());
        let list = |path: &str| -> Vec<String> {
            let entries = fs::read_dir(path).into_iter().flatten().flatten();
            entries.map(|entry| entry.path().display().to_string()).collect()
        };
        list(&root).iter().flat_map(|below| list(below)).collect()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let processes = below(self.process.id());
        let _ = self.process.kill();
        let _ = self.process.wait();
        if !std::thread::panicking() {
            wait_until_gone(&processes);
        }
    }
}

const ENGINES: [Engine; 2] = [Engine::Namespaces, Engine::NoNamespaces];

#[tokio::test(flavor = "multi_thread")]
async fn the_three_languages_run_in_a_container_and_what_is_missing_is_logged() {
    for engine in ENGINES {
        let Some(container) = Container::start(engine, &[]).await else { return };
        for (language, code) in [
            ("python", "print(6 * 7)"),
            ("node", "console.log(6 * 7)"),
            ("bash", "echo $((6 * 7))"),
        ] {
            let answer = container.run(json!({"code": code, "language": language})).await;
            assert_eq!(answer["stdout"], "42\n", "{engine:?} {answer}");
        }
        let code = "import subprocess, sys, tempfile, threading\n\
            open('out.txt', 'w').write(sys.stdin.read() + open('in.txt').read())\n\
            tempfile.TemporaryFile().write(b'x')\n\
            thread = threading.Thread(target=print, args=['thread'])\n\
            thread.start(); thread.join()\n\
            print(subprocess.run(['cat', 'out.txt'], capture_output=True, text=True).stdout)";
        let body =
            json!({"code": code, "stdin": "a", "files": [{"name": "in.txt", "content": "b"}]});
        let answer = container.run(body).await;
        assert_eq!(answer["stdout"], "thread\nab\n", "{engine:?} {answer}");
        assert_eq!(answer["output_files"][0]["name"], "out.txt", "{engine:?} {answer}");
        let log = container.log();
        for word in ["cgroups", "host-uid", "acceptable"] {
            assert!(log.contains(word), "{word}: {log}");
        }
        assert_eq!(log.contains("namespace:pid"), engine == Engine::NoNamespaces, "{log}");
    }
}

/// Fills memory in one process.
const HOG: &str = "data = []\nwhile True: data.append(b'x' * (1 << 20))";
/// Fills it in twenty, none of which has much.
const HOGS: &str = "import os, time\n\
    for _ in range(20):\n    if os.fork() == 0:\n        data = b'x' * (30 << 20)\n        \
    time.sleep(60)\ntime.sleep(60)";
/// Forks after its parent has filled half of the limit, which all share.
const SHARED: &str = "import os, time\ndata = b'x' * (120 << 20)\n\
    children = [os.fork() or (time.sleep(0.5), os._exit(0)) for _ in range(8)]\n\
    [os.waitpid(child, 0) for child in children]\nprint('shared')";

#[tokio::test(flavor = "multi_thread")]
async fn memory_is_limited_without_cgroups() {
    for engine in ENGINES {
        let Some(container) = Container::start(engine, &[]).await else { return };
        for code in [HOG, HOGS] {
            let answer = container.python(code).await;
            assert_eq!(
                (&answer["oom"], &answer["killed"]),
                (&json!(true), &json!(false)),
                "{answer}"
            );
            let peak = answer["usage"]["peak_memory_bytes"].as_u64().unwrap() >> 20;
            assert!((256..512).contains(&peak), "{engine:?}: {peak} MiB");
        }
        assert_eq!(container.printed(SHARED).await, "shared\n", "{engine:?}");
        let hidden = "import os\ntry: os.memfd_create('x')\nexcept OSError as e: print(e.errno)";
        assert_eq!(container.printed(hidden).await, "38\n", "{engine:?}");
        // Memory that stays in use without being mapped, by name and by the device of zeros.
        let shared = "import mmap, os\n\
            def use(open_file):\n    \
            try: memory = mmap.mmap(open_file(), 512 << 20)\n    \
            except OSError as e: return e.errno\n    \
            for at in range(0, 512 << 20, 1 << 20):\n        \
            memory[at:at + (1 << 20)] = bytes(1 << 20)\n        \
            memory.madvise(mmap.MADV_DONTNEED, at, 1 << 20)\n    \
            return 'used'\n\
            print(use(lambda: -1), use(lambda: os.open('/dev/zero', os.O_RDWR)))\n\
            print(len(open('/dev/zero', 'rb').read(9)), open('/dev/null', 'w').write('x'))";
        assert_eq!(container.printed(shared).await, "38 13\n9 1\n", "{engine:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_time_files_and_descriptors_are_limited_without_cgroups() {
    for engine in ENGINES {
        let Some(container) = Container::start(engine, &[]).await else { return };
        let word = mark();
        let bomb = format!(
            "import os\nwhile True:\n    try:\n        if os.fork() == 0: \
             os.execvp('sleep', ['sleep', '{word}'])\n    except BlockingIOError: pass"
        );
        let answer = container.run(json!({"code": bomb, "timeout_ms": 2000})).await;
        assert_ne!(answer["exit_code"], 0, "{engine:?} {answer}");
        wait_for(&word, 0);
        let spin = json!({"code": "while True: pass", "timeout_ms": 500});
        let answer = container.run(spin).await;
        assert_eq!(answer["killed"], true, "{engine:?} {answer}");
        let limits = "import resource as r\n\
            print([0 < r.getrlimit(w)[1] < 1 << 41 for w in \
            (r.RLIMIT_CPU, r.RLIMIT_FSIZE, r.RLIMIT_NPROC, r.RLIMIT_NOFILE, r.RLIMIT_DATA)])";
        assert_eq!(container.printed(limits).await, "[True, True, True, True, True]\n");
        let spins =
            "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (1, 1))\nwhile 1: pass";
        let answer = container.python(spins).await;
        assert_eq!(
            (&answer["killed"], &answer["exit_code"]),
            (&json!(false), &json!(137)),
            "{answer}"
        );
        let file = "with open('big', 'wb') as file:\n    for _ in range(1024): \
            file.write(bytes(1 << 20))";
        let answer = container.python(file).await;
        assert_eq!(answer["exit_code"], 1, "{engine:?} {answer}");
        let full = ["No space left on device", "File too large"];
        let stderr = answer["stderr"].as_str().unwrap();
        assert!(full.iter().any(|text| stderr.contains(text)), "{engine:?} {stderr}");
        let open = "files = []\ntry:\n    while True: files.append(open('/dev/null'))\n\
            except OSError as e: print(e.errno, len(files) < 5000)";
        assert_eq!(container.printed(open).await, "24 True\n", "{engine:?}");
    }
}

/// A daemon as every manual has it: two forks, its own session, and no signal ends it.
fn daemon(word: &str, rest: &str) -> String {
    format!(
        "import os, signal, time\nif os.fork() == 0:\n    os.setsid()\n    \
         [signal.signal(s, signal.SIG_IGN) for s in (1, 2, 15)]\n    if os.fork() == 0:\n        \
         os.execvp('sleep', ['sleep', '{word}'])\n    os._exit(0)\nos.wait()\n{rest}"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn no_process_and_no_file_of_a_job_is_left() {
    for engine in ENGINES {
        let Some(container) = Container::start(engine, &[]).await else { return };
        let word = mark();
        let left = daemon(&word, "open('left', 'w').write('x')\nprint('up')");
        assert_eq!(container.printed(&left).await, "up\n");
        assert_eq!(count(&word), 0, "{engine:?}: dead when the reply is there");
        let late = daemon(&word, "os.mkdir('d', 0)\ntime.sleep(60)");
        let answer = container.run(json!({"code": late, "timeout_ms": 700})).await;
        assert_eq!(answer["killed"], true, "{engine:?} {answer}");
        assert_eq!(count(&word), 0, "{engine:?}");
        eventually("the directories of jobs are removed", async || {
            let entries = container.scratch_entries();
            entries.is_empty().then_some(()).ok_or_else(|| format!("{entries:?}"))
        })
        .await;
        // The sidecar dies, and so does everything of it.
        let id = format!("{}/execute", container.url);
        let body = json!({"code": daemon(&word, "time.sleep(60)")});
        let request = Client::new().post(id).header("X-Service-API-Key", KEY).json(&body);
        let request = tokio::spawn(request.send());
        wait_for(&word, 1);
        drop(container);
        wait_for(&word, 0);
        let _ = request.await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_reaches_nothing_of_the_container_or_of_other_jobs() {
    for engine in ENGINES {
        let Some(container) = Container::start(engine, &[]).await else { return };
        let keys = "import os; print([k for k in os.environ if 'SANDBOX' in k or k == 'FILTER'])";
        assert_eq!(container.printed(keys).await, "[]\n", "{engine:?}");
        let word = mark();
        let sleeper =
            json!({"code": format!("import os; os.execvp('sleep', ['sleep', '{word}'])")});
        let other = Client::new().post(format!("{}/execute", container.url));
        let other = tokio::spawn(other.header("X-Service-API-Key", KEY).json(&sleeper).send());
        wait_for(&word, 1);
        let pids = below(container.process.id()).into_iter().map(|(pid, _)| pid);
        let pids: Vec<u32> = pids.chain([container.process.id()]).collect();
        let code = format!(
            "import os, resource, signal\nreached = []\ndef attack(name, act):\n    \
             try: act(); reached.append(name)\n    except OSError: pass\n\
             for pid in {pids:?}:\n    \
             attack(f'signal {{pid}}', lambda: os.kill(pid, 9))\n    \
             attack(f'limit {{pid}}', \
             lambda: resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0)))\n    \
             for name in ('environ', 'cmdline', 'mem'): \
             attack(f'{{name}} {{pid}}', lambda: open(f'/proc/{{pid}}/{{name}}', 'rb').read(1))\n\
             for path in ('/etc/shadow', '/etc/machine-id', '/var/lib/dpkg/status'): \
             attack(path, \
             lambda: os.listdir(path) if os.path.isdir(path) else open(path).read(1))\n\
             for path in ('/tmp/../usr/x', '/etc/x', '/dev/x', '/var/x'): \
             attack('write ' + path, lambda: open(path, 'w'))\n\
             print(reached)"
        );
        let answer = container.python(&code).await;
        assert_eq!(answer["stdout"], "[]\n", "{engine:?} {answer}");
        assert_eq!(count(&word), 1, "{engine:?}");
        let port = container.url.rsplit_once(':').unwrap().1;
        let network = format!(
            "import socket\nfor family, to in ((socket.AF_INET, ('127.0.0.1', {port})), \
             (socket.AF_INET, ('192.0.2.1', 80)), (socket.AF_UNIX, '\\0x')):\n    \
             try: socket.socket(family).connect(to); print('connected')\n    \
             except OSError: print('refused')"
        );
        assert_eq!(container.printed(&network).await, "refused\nrefused\nrefused\n", "{engine:?}");
        // It owns the directories above its home, but closing them closes nothing for others.
        let close = "import os\npath = os.path.dirname(os.getcwd())\nclosed = []\n\
            for path in (path, path.rpartition('-')[0], os.path.dirname(path)):\n    \
            try: os.chmod(path, 0); closed.append(path)\n    except OSError: pass\n\
            print(len(closed) > 0 and '/tmp' not in closed)";
        let has_closed = container.printed(close).await;
        assert!(engine == Engine::Namespaces || has_closed == "True\n", "{has_closed}");
        assert_eq!(container.printed("print(1)").await, "1\n", "{engine:?}");
        // It may kill what is its own, and only that.
        let all = container.python("import os; os.kill(-1, 9)").await;
        assert!([json!(0), json!(1)].contains(&all["exit_code"]), "{engine:?} {all}");
        assert_eq!(count(&word), 1, "{engine:?}");
        assert_eq!(container.printed("print(1)").await, "1\n");
        drop(container);
        let _ = other.await;
    }
}

/// A sidecar that must not start, and what it says.
fn refused(engine: Engine, user: &str, arguments: &[&str]) -> Ended {
    let ended = ended(in_container(engine, user, arguments), b"");
    assert_ne!(ended.code, 0, "{ended:?}");
    ended
}

#[test]
fn without_the_profile_or_as_root_the_sidecar_refuses_to_start() {
    if !rustix::process::geteuid().is_root() {
        skip("only root can imitate a container");
        return;
    }
    for engine in ENGINES {
        let said = refused(engine, ORDINARY, &["--listen", "127.0.0.1:0"]).stderr;
        assert!(said.contains("this host cannot build"), "{engine:?} {said}");
    }
    // A contained cell of root would be root.
    let as_root = refused(Engine::NoNamespaces, "", &SETTINGS).stderr;
    assert!(as_root.contains("root cannot run jobs without namespaces"), "{as_root}");
    let no_tmpfs = ["--profile", "container", "--scratch", "/usr", "--listen", "127.0.0.1:0"];
    let said = refused(Engine::NoNamespaces, ORDINARY, &no_tmpfs).stderr;
    assert!(said.contains("/usr") && said.contains("not on a tmpfs"), "{said}");
}

/// A module of the host that is not part of the standard library.
fn host_package() -> Option<String> {
    let code = "import glob, os\nfound = [os.path.dirname(path) for parent in \
        ('/usr/lib/python3', '/usr/lib/python3.*', '/usr/local/lib/python3.*') for packages in \
        ('dist-packages', 'site-packages') for path in \
        glob.glob(f'{parent}/{packages}/[a-z]*/__init__.py')]\n\
        import importlib\n\
        for path in found:\n    name = os.path.basename(path)\n    \
        try: module = importlib.import_module(name)\n    except BaseException: continue\n    \
        if 'packages' in (module.__file__ or ''): print(name); break";
    let mut command = Command::new("python3");
    command.args(["-c", code]);
    let name = ended(command, b"").stdout.trim().to_owned();
    (!name.is_empty()).then_some(name)
}

const STANDARD: &str = "import asyncio, bz2, ctypes, curses, dbm, decimal, email, hashlib, json, \
    lzma, multiprocessing, sqlite3, ssl, unittest, uuid, venv, xml.etree.ElementTree, zoneinfo\n\
    print('all')";

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_has_the_standard_library_only_unless_configured_otherwise() {
    let Some(sidecar) = Sidecar::start().await else { return };
    let Some(name) = host_package() else {
        skip("this host has no Python package");
        return;
    };
    let import = format!("import {name}; print('imported')");
    for template in [true, false] {
        let (_, answer) = sidecar.run(json!({"code": import, "template": template})).await;
        let stderr = answer["stderr"].as_str().unwrap();
        assert!(stderr.contains("ModuleNotFoundError: No module named"), "{name}: {answer}");
        let (_, answer) = sidecar.run(json!({"code": STANDARD, "template": template})).await;
        assert_eq!(answer["stdout"], "all\n", "{answer}");
    }
    let Some(sidecar) = Sidecar::start_with(&["--python-packages", "host"]).await else { return };
    for template in [true, false] {
        let (_, answer) = sidecar.run(json!({"code": import, "template": template})).await;
        assert_eq!(answer["stdout"], "imported\n", "{name}: {answer}");
    }
    for engine in ENGINES {
        let Some(container) = Container::start(engine, &[]).await else { return };
        let answer = container.python(&import).await;
        let stderr = answer["stderr"].as_str().unwrap();
        assert!(stderr.contains("ModuleNotFoundError: No module named"), "{engine:?} {answer}");
        assert_eq!(container.printed(STANDARD).await, "all\n", "{engine:?}");
        let shown = Container::start(engine, &["--python-packages", "host"]).await.unwrap();
        assert_eq!(shown.printed(&import).await, "imported\n", "{engine:?}");
    }
}
