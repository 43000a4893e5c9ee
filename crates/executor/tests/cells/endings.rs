//! Runs in: test. How runs end: in time, for the reason that is reported, and with nothing left
//! behind.
//!
//! These tests measure, and count what is on the host: they run one at a time.

use std::{
    env, fs,
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use cloche_executor::{Executor, PoolSettings, RunError, RunIo};
use cloche_model::{ByteSize, Language, RunEnding, RunLimits, RunOutcome, RunSpec};
use cloche_test_support::{
    eventually,
    own_main::{OwnTest, block_on},
    own_tests, processes,
};
use cloche_verify::HostCounts;
use tokio::sync::mpsc;

use crate::host::{own_config, start_executor};

pub(crate) const TESTS: &[OwnTest] = own_tests![
    a_program_that_ignores_every_signal_is_dead_at_the_deadline,
    a_program_that_stops_itself_is_dead_at_the_deadline,
    a_program_that_forks_faster_than_it_dies_is_dead_at_the_deadline,
    a_daemon_that_holds_the_output_does_not_delay_the_answer,
    running_out_of_memory_is_distinguished_from_every_other_ending,
    a_spawner_that_is_killed_ends_its_runs_and_the_next_one_works,
    a_server_that_is_killed_leaves_no_process_cgroup_or_mount,
    many_runs_leave_nothing_behind,
    nothing_of_a_run_is_in_the_memory_of_the_next,
];

async fn run(executor: &Executor, spec: RunSpec) -> RunOutcome {
    executor.run(spec, RunIo::default()).await.unwrap()
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
    let Some(executor) = start_executor(None).await else { return };
    run(&executor, RunSpec::new(Language::Python, "")).await;
    executor.wait_for_teardown().await;
    let before = HostCounts::take();
    let mut over = Duration::MAX;
    for _ in 0..5 {
        let started = Instant::now();
        let outcome = run(&executor, spec.clone()).await;
        assert_eq!(outcome.ending, RunEnding::TimedOut);
        over = over.min(started.elapsed().saturating_sub(spec.limits.timeout));
        executor.wait_for_teardown().await;
        assert_eq!(HostCounts::take().growth(&before), None);
    }
    let allowed = Duration::from_millis(100).mul_f64(load_per_processor());
    assert!(over <= allowed, "dead {over:?} after the deadline, {allowed:?} allowed");
    executor.stop().await;
}

/// The load of each processor, at least one: ending a process takes processor time, too.
fn load_per_processor() -> f64 {
    let load = fs::read_to_string("/proc/loadavg").unwrap();
    let load: f64 = load.split(' ').next().unwrap().parse().unwrap();
    let processors = std::thread::available_parallelism().unwrap().get();
    (load / f64::from(u32::try_from(processors).unwrap())).max(1.0)
}

async fn a_program_that_ignores_every_signal_is_dead_at_the_deadline() {
    let code = "import signal\nfor n in set(signal.Signals) - {9, 19}: signal.signal(n, signal.SIG_IGN)\n\
                while True: pass";
    assert_dead_in_time(&python(code, half_a_second())).await;
}

async fn a_program_that_stops_itself_is_dead_at_the_deadline() {
    let code = "import os, signal\nos.fork()\nos.fork()\nos.kill(os.getpid(), signal.SIGSTOP)";
    assert_dead_in_time(&python(code, half_a_second())).await;
}

async fn a_program_that_forks_faster_than_it_dies_is_dead_at_the_deadline() {
    let code = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass";
    assert_dead_in_time(&python(code, half_a_second())).await;
}

async fn a_daemon_that_holds_the_output_does_not_delay_the_answer() {
    let Some(executor) = start_executor(None).await else { return };
    let code =
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\nprint('over')";
    let started = Instant::now();
    let outcome = run(&executor, RunSpec::new(Language::Python, code)).await;
    assert_eq!(
        (outcome.ending, outcome.stdout.to_text_lossy().as_str()),
        (RunEnding::Exited(0), "over\n")
    );
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    executor.stop().await;
}

async fn running_out_of_memory_is_distinguished_from_every_other_ending() {
    let Some(executor) = start_executor(None).await else { return };
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
        let outcome = run(&executor, python(code, little_memory())).await;
        assert_eq!(outcome.ending, RunEnding::OutOfMemory, "{how}: {outcome:?}");
    }
    let outcome =
        run(&executor, python("import os; os.kill(os.getpid(), 9)", little_memory())).await;
    assert_eq!(outcome.ending, RunEnding::Signalled(9));
    let outcome = run(&executor, python("raise SystemExit(137)", little_memory())).await;
    assert_eq!(outcome.ending, RunEnding::Exited(137));
    executor.stop().await;
}

/// Starts a program that prints and then sleeps; returns once it has printed.
async fn start_sleeper(
    executor: &Executor,
) -> tokio::task::JoinHandle<Result<RunOutcome, RunError>> {
    let (output, mut printed) = mpsc::channel(4);
    let spec = RunSpec::new(Language::Bash, "echo here; sleep 60");
    let (executor, io) = (executor.clone(), RunIo { output: Some(output), ..RunIo::default() });
    let running = tokio::spawn(async move { executor.run(spec, io).await });
    printed.recv().await.unwrap();
    running
}

async fn a_spawner_that_is_killed_ends_its_runs_and_the_next_one_works() {
    let Some(executor) = start_executor(None).await else { return };
    let running = start_sleeper(&executor).await;
    let supervisor = processes::youngest_child(std::process::id());
    let spawner = processes::youngest_child(supervisor);
    let cells = processes::below(spawner);
    assert!(!cells.is_empty());
    processes::kill(spawner);
    let ended = tokio::time::timeout(Duration::from_secs(5), running).await;
    assert!(matches!(ended, Ok(Ok(Err(_)))), "{ended:?}");
    processes::wait_until_gone(&cells);
    let outcome = run(&executor, RunSpec::new(Language::Bash, "echo again")).await;
    assert_eq!(outcome.stdout.to_text_lossy(), "again\n");
    executor.stop().await;
}

/// The argument with which this binary is a server that runs one long program.
pub(crate) const SERVER: &str = "__server";

/// Runs a program that does not end, until it is killed.
pub(crate) fn run_server() -> ExitCode {
    block_on(async {
        let executor = Executor::start(own_config(None)).await.unwrap();
        run(&executor, RunSpec::new(Language::Bash, "sleep 60")).await;
    });
    ExitCode::SUCCESS
}

async fn a_server_that_is_killed_leaves_no_process_cgroup_or_mount() {
    // Skips where no cell can be built.
    let Some(executor) = start_executor(None).await else { return };
    executor.stop().await;
    let mounts = || fs::read_to_string("/proc/self/mountinfo").unwrap().lines().count();
    let mounts_before = mounts();
    let own = env::current_exe().unwrap();
    let mut server = Command::new(own).arg(SERVER).stdin(Stdio::null()).spawn().unwrap();
    // The supervisor, the spawner, pid 1 of the cell, and the shell or what it started.
    let below = eventually("the program runs", async || {
        Some(processes::below(server.id())).filter(|below| below.len() >= 4)
    })
    .await;
    processes::kill(server.id());
    server.wait().unwrap();
    processes::wait_until_gone(&below);
    eventually("the cgroups are removed", async || {
        let left = processes::cgroups_of(&below);
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
    assert_eq!(mounts(), mounts_before);
}

async fn many_runs_leave_nothing_behind() {
    for pool in [None, Some(PoolSettings { floor: 1, ceiling: 1, ..PoolSettings::default() })] {
        // Other programs and other tests use the directory, too.
        let ours = |name: &str| name.starts_with("cloche") && !name.starts_with("cloche-verify");
        let names = || fs::read_dir(env::temp_dir()).unwrap().flatten().map(|at| at.file_name());
        let temporary = || names().filter(|name| name.to_str().is_some_and(ours)).count();
        let Some(executor) = start_executor(pool.clone()).await else { return };
        let spec = || {
            RunSpec::new(
                Language::Python,
                "import os\nif os.fork(): print(1)\nelse:\n    import signal; signal.pause()",
            )
        };
        run(&executor, spec()).await;
        settle(&executor).await;
        let (before, files) = (HostCounts::take(), temporary());
        for _ in 0..40 {
            let outcome = run(&executor, spec()).await;
            assert_eq!(outcome.stdout.to_text_lossy(), "1\n", "{outcome:?}");
        }
        settle(&executor).await;
        assert_eq!(HostCounts::take().growth(&before), None);
        assert!(temporary() <= files);
        let below = processes::below(std::process::id());
        executor.stop().await;
        assert!(processes::below(std::process::id()).len() < below.len());
        assert_eq!(processes::cgroups_of(&below), Vec::<PathBuf>::new());
    }
}

/// Waits until past runs are torn down, and the pool and the spawner hold what they should: both
/// make things ahead of time, so the counts must have stayed the same for a while.
async fn settle(executor: &Executor) {
    let (mut last, mut same) = (HostCounts::default(), 0);
    eventually("the counts of the host stay the same", async || {
        executor.wait_for_teardown().await;
        let now = HostCounts::take();
        same = if executor.is_warm() && now == last { same + 1 } else { 0 };
        last = now;
        same == 20
    })
    .await;
}

/// Looks in all memory that it can read for text of the last run: its code, variables and input. It
/// finds its own mark, so it would find the other; its own code does not contain the other.
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

async fn nothing_of_a_run_is_in_the_memory_of_the_next() {
    let settings = PoolSettings { floor: 1, ceiling: 1, ..PoolSettings::default() };
    let Some(executor) = start_executor(Some(settings)).await else { return };
    let look = RunSpec::new(Language::Python, LOOK);
    for _ in 0..4 {
        let code = "print(['secret-of-the-last' + str(n) for n in range(9)], input())";
        let mut spec = RunSpec::new(Language::Python, code);
        spec.env.insert("MARK".to_owned(), "secret-of-the-last".to_owned());
        spec.stdin = b"secret-of-the-last\n".to_vec();
        let outcome = run(&executor, spec).await;
        assert_eq!(outcome.ending, RunEnding::Exited(0), "{outcome:?}");
        let outcome = run(&executor, look.clone()).await;
        assert_eq!(outcome.stdout.to_text_lossy(), "['own']\n", "{outcome:?}");
    }
    // A mark that is there is found.
    let code = format!("other = 'secret-of-the-last'\n{LOOK}");
    let outcome = run(&executor, RunSpec::new(Language::Python, code.as_str())).await;
    assert_eq!(outcome.stdout.to_text_lossy(), "['other', 'own']\n", "{outcome:?}");
    executor.stop().await;
}
