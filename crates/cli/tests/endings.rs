//! How runs end: in time, for the reason that is reported, and with nothing left behind.
#![allow(clippy::unwrap_used, reason = "a test may fail at any line")]

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use cloche_executor::{Executor, ExecutorConfig, PoolSettings, RunError, RunIo};
use cloche_model::{ByteSize, Language, RunEnding, RunLimits, RunOutcome, RunSpec};
use tokio::sync::{Mutex, MutexGuard, mpsc};

#[path = "../src/verify/host.rs"]
#[allow(dead_code, reason = "verify uses the rest")]
mod host;
#[path = "support/cloche.rs"]
mod support;

use support::{binary, skip};

/// One at a time: they measure, and count what is on the host.
static QUIET: Mutex<()> = Mutex::const_new(());

struct Host {
    executor: Executor,
    _quiet: MutexGuard<'static, ()>,
}

impl Host {
    async fn start(pool: Option<PoolSettings>) -> Option<Self> {
        let quiet = QUIET.lock().await;
        let config = ExecutorConfig { pool, ..ExecutorConfig::with_program(binary()) };
        match Executor::start(config).await {
            Ok(executor) => Some(Self { executor, _quiet: quiet }),
            Err(error) => {
                skip(&error.to_string());
                None
            }
        }
    }

    /// Ends the executor, and waits for its spawner: the next test counts.
    async fn end(self) {
        self.executor.stop().await;
    }

    async fn run(&self, spec: RunSpec) -> RunOutcome {
        self.executor.run(spec, RunIo::default()).await.unwrap()
    }
}

fn python(code: &str, limits: RunLimits) -> RunSpec {
    RunSpec { limits, ..RunSpec::new(Language::Python, code) }
}

fn half_a_second() -> RunLimits {
    RunLimits { timeout: Duration::from_millis(500), pids: 64, ..RunLimits::default() }
}

fn little_memory() -> RunLimits {
    RunLimits { memory: ByteSize::mib(64), ..RunLimits::default() }
}

/// The best of five: others may be using this machine.
async fn assert_dead_in_time(spec: &RunSpec) {
    let Some(host) = Host::start(None).await else { return };
    host.run(RunSpec::new(Language::Python, "")).await;
    host.executor.wait_for_teardown().await;
    let before = host::HostCounts::take();
    let mut over = Duration::MAX;
    for _ in 0..5 {
        let started = Instant::now();
        let outcome = host.run(spec.clone()).await;
        assert_eq!(outcome.ending, RunEnding::TimedOut);
        over = over.min(started.elapsed().saturating_sub(spec.limits.timeout));
        host.executor.wait_for_teardown().await;
        assert_eq!(host::HostCounts::take().growth(&before), None);
    }
    let allowed = Duration::from_millis(100).mul_f64(business());
    assert!(over <= allowed, "dead {over:?} after the deadline, {allowed:?} allowed");
    host.end().await;
}

/// How many want each processor, at least one: dying takes processor time, too.
fn business() -> f64 {
    let load = fs::read_to_string("/proc/loadavg").unwrap();
    let load: f64 = load.split(' ').next().unwrap().parse().unwrap();
    let processors = std::thread::available_parallelism().unwrap().get();
    (load / f64::from(u32::try_from(processors).unwrap())).max(1.0)
}

#[tokio::test]
async fn a_program_that_ignores_every_signal_is_dead_at_the_deadline() {
    let code = "import signal\nfor n in set(signal.Signals) - {9, 19}: signal.signal(n, signal.SIG_IGN)\n\
                while True: pass";
    assert_dead_in_time(&python(code, half_a_second())).await;
}

#[tokio::test]
async fn a_program_that_stops_itself_is_dead_at_the_deadline() {
    let code = "import os, signal\nos.fork()\nos.fork()\nos.kill(os.getpid(), signal.SIGSTOP)";
    assert_dead_in_time(&python(code, half_a_second())).await;
}

#[tokio::test]
async fn a_program_that_forks_faster_than_it_dies_is_dead_at_the_deadline() {
    let code = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass";
    assert_dead_in_time(&python(code, half_a_second())).await;
}

#[tokio::test]
async fn a_daemon_that_holds_the_output_does_not_delay_the_answer() {
    let Some(host) = Host::start(None).await else { return };
    let code =
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\nprint('over')";
    let started = Instant::now();
    let outcome = host.run(RunSpec::new(Language::Python, code)).await;
    assert_eq!(
        (outcome.ending, outcome.stdout.to_text_lossy().as_str()),
        (RunEnding::Exited(0), "over\n")
    );
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    host.end().await;
}

#[tokio::test]
async fn running_out_of_memory_is_told_from_every_other_end() {
    let Some(host) = Host::start(None).await else { return };
    for (how, code) in [
        ("pages", "x = b'x' * (200 << 20)"),
        (
            "tmpfs",
            "open('/tmp/x', 'wb').write(b'x' * (1 << 20) * 40)\nopen('/tmp/y', 'wb').write(b'x' * (40 << 20))",
        ),
        (
            "memfd",
            "import os\nfd = os.memfd_create('x')\nfor _ in range(200): os.write(fd, b'x' * (1 << 20))",
        ),
        (
            "a child",
            "import subprocess, sys\nsubprocess.run([sys.executable, '-c', \"x = b'x' * (200 << 20)\"], check=True)",
        ),
    ] {
        let outcome = host.run(python(code, little_memory())).await;
        assert_eq!(outcome.ending, RunEnding::OutOfMemory, "{how}: {outcome:?}");
    }
    let outcome = host.run(python("import os; os.kill(os.getpid(), 9)", little_memory())).await;
    assert_eq!(outcome.ending, RunEnding::Signalled(9));
    let outcome = host.run(python("raise SystemExit(137)", little_memory())).await;
    assert_eq!(outcome.ending, RunEnding::Exited(137));
    host.end().await;
}

/// Starts a program that prints and then sleeps; returns once it has printed.
async fn sleeper(executor: &Executor) -> tokio::task::JoinHandle<Result<RunOutcome, RunError>> {
    let (output, mut printed) = mpsc::channel(4);
    let spec = RunSpec::new(Language::Bash, "echo here; sleep 60");
    let (executor, io) = (executor.clone(), RunIo { output: Some(output), ..RunIo::default() });
    let running = tokio::spawn(async move { executor.run(spec, io).await });
    printed.recv().await.unwrap();
    running
}

fn kill(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[tokio::test]
async fn a_spawner_that_is_killed_ends_its_runs_and_the_next_one_works() {
    let Some(host) = Host::start(None).await else { return };
    let running = sleeper(&host.executor).await;
    let keeper = youngest_child(std::process::id());
    let worker = youngest_child(keeper);
    let below = host::list_descendants(worker);
    assert!(!below.is_empty());
    kill(worker);
    let ended = tokio::time::timeout(Duration::from_secs(5), running).await;
    assert!(matches!(ended, Ok(Ok(Err(_)))), "{ended:?}");
    gone(&below).await;
    let outcome = host.run(RunSpec::new(Language::Bash, "echo again")).await;
    assert_eq!(outcome.stdout.to_text_lossy(), "again\n");
    host.end().await;
}

fn youngest_child(of: u32) -> u32 {
    let started = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let since = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(19));
        since.and_then(|since| since.parse::<u64>().ok())
    };
    let children = host::list_descendants(of).into_iter();
    children.filter(|pid| host::parent_pid(*pid) == Some(of)).max_by_key(started).unwrap()
}

/// Waits until none of these processes is there.
async fn gone(pids: &[u32]) {
    for _ in 0..300 {
        let alive = |pid: &&u32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
        };
        if !pids.iter().any(|pid| alive(&pid)) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("still there: {pids:?}");
}

#[tokio::test]
async fn a_server_that_is_killed_leaves_no_process_cgroup_or_mount() {
    let Some(host) = Host::start(None).await else { return };
    let Host { executor, _quiet } = host;
    executor.stop().await;
    let mounts = || fs::read_to_string("/proc/self/mountinfo").unwrap().lines().count();
    let mounts_before = mounts();
    let mut server = Command::new(binary())
        .args(["run", "--language", "bash", "-c", "sleep 60"])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let mut below = Vec::new();
    // Keeper, worker, pid 1, and the shell or what it started.
    while below.len() < 4 {
        below = host::list_descendants(server.id());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    kill(server.id());
    server.wait().unwrap();
    gone(&below).await;
    for _ in 0..100 {
        if below.iter().all(|pid| cgroups_of(*pid).is_empty()) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for pid in below {
        assert_eq!(cgroups_of(pid), Vec::<String>::new());
    }
    assert_eq!(mounts(), mounts_before);
}

/// The directories that a spawner with this pid has among the cgroups.
fn cgroups_of(pid: u32) -> Vec<String> {
    fn look(dir: &Path, name: &str, depth: u32, found: &mut Vec<String>) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_name().to_str() == Some(name) {
                found.push(entry.path().display().to_string());
            } else if depth > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                look(&entry.path(), name, depth - 1, found);
            }
        }
    }
    let mut found = Vec::new();
    look(Path::new("/sys/fs/cgroup"), &format!("cloche.{pid}"), 5, &mut found);
    found
}

#[tokio::test]
async fn after_many_runs_nothing_is_left() {
    for pool in [None, Some(PoolSettings { floor: 1, ceiling: 1, ..PoolSettings::default() })] {
        // Others use the directory, too, and so do other tests of ours.
        let ours = |name: &str| name.starts_with("cloche") && !name.starts_with("cloche-verify");
        let names =
            || fs::read_dir(std::env::temp_dir()).unwrap().flatten().map(|at| at.file_name());
        let temporary = || names().filter(|name| name.to_str().is_some_and(ours)).count();
        let Some(host) = Host::start(pool.clone()).await else { return };
        let spec = || {
            RunSpec::new(
                Language::Python,
                "import os\nif os.fork(): print(1)\nelse:\n    import signal; signal.pause()",
            )
        };
        host.run(spec()).await;
        settled(&host).await;
        let (before, files) = (host::HostCounts::take(), temporary());
        for _ in 0..40 {
            let outcome = host.run(spec()).await;
            assert_eq!(outcome.stdout.to_text_lossy(), "1\n", "{outcome:?}");
        }
        settled(&host).await;
        assert_eq!(host::HostCounts::take().growth(&before), None);
        assert!(temporary() <= files);
        let below = host::list_descendants(std::process::id());
        host.end().await;
        assert!(host::list_descendants(std::process::id()).len() < below.len());
        for pid in below {
            assert_eq!(cgroups_of(pid), Vec::<String>::new());
        }
    }
}

/// Waits until past runs are gone, and the pool and the spawner hold what they should: both make
/// things ahead, and so the counts must have come to rest.
async fn settled(host: &Host) {
    let (mut last, mut same) = (host::HostCounts::default(), 0);
    for _ in 0..500 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        host.executor.wait_for_teardown().await;
        let now = host::HostCounts::take();
        same = if host.executor.is_warm() && now == last { same + 1 } else { 0 };
        last = now;
        if same == 5 {
            return;
        }
    }
}

/// Looks for what the last run had in its code, its variables and its input, in all memory it can
/// read. It finds a mark of its own, so it would find another's; it does not have the other itself.
const LOOK: &str = r#"
import re

own = "".join(["kept-", "here"])
marks = {name: re.compile(mark) for name, mark in
         (("own", rb"kept-[h]ere"), ("other", rb"secret-[o]f-the-[l]ast"))}
found = set()
with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
    for line in maps:
        addresses, access, *_, place = line.split()
        if access[0] != "r" or place.startswith("[v"):
            continue
        begin, end = (int(address, 16) for address in addresses.split("-"))
        memory.seek(begin)
        try:
            content = memory.read(end - begin)
        except OSError:
            continue
        found.update(name for name, mark in marks.items() if mark.search(content))
print(sorted(found))
"#;

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_run_is_in_the_memory_of_the_next() {
    let settings = PoolSettings { floor: 1, ceiling: 1, ..PoolSettings::default() };
    let Some(host) = Host::start(Some(settings)).await else { return };
    let look = RunSpec::new(Language::Python, LOOK);
    for _ in 0..4 {
        let code = "print(['secret-of-the-last' + str(n) for n in range(9)], input())";
        let mut spec = RunSpec::new(Language::Python, code);
        spec.env.insert("MARK".to_owned(), "secret-of-the-last".to_owned());
        spec.stdin = b"secret-of-the-last\n".to_vec();
        let outcome = host.run(spec).await;
        assert_eq!(outcome.ending, RunEnding::Exited(0), "{outcome:?}");
        let outcome = host.run(look.clone()).await;
        assert_eq!(outcome.stdout.to_text_lossy(), "['own']\n", "{outcome:?}");
    }
    // And where there is one, it is found.
    let code = format!("other = 'secret-of-the-last'\n{LOOK}");
    let outcome = host.run(RunSpec::new(Language::Python, code.as_str())).await;
    assert_eq!(outcome.stdout.to_text_lossy(), "['other', 'own']\n", "{outcome:?}");
    host.end().await;
}
