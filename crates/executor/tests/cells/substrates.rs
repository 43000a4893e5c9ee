//! Runs in: test. One suite for all substrates: what a run is given, what it leaves, how it ends.
//!
//! Each test runs on every substrate that this host can start. One that it cannot start is a
//! failure where the kernel is required, unless the reason is on the list of known ones.

use std::time::{Duration, Instant};

use cloche_executor::{Executor, RunIo};
use cloche_model::{
    ByteSize, FileName, InputFile, Language, OciRuntime, RunEnding, RunLimits, RunOutcome, RunSpec,
    SandboxProfile, Substrate,
};
use cloche_test_support::{own_main::OwnTest, own_tests, skip};
use cloche_verify::HostCounts;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    homes_host::{HomesHost, Thread},
    host::start_executor,
};

pub(crate) const TESTS: &[OwnTest] = own_tests![
    a_program_gets_its_input_files_and_variables_on_every_substrate,
    exit_codes_and_signals_are_reported_on_every_substrate,
    a_run_ends_at_its_deadline_with_all_its_processes_on_every_substrate,
    a_cancelled_run_ends_at_once_on_every_substrate,
    memory_processes_and_disk_are_limited_on_every_substrate,
    as_many_processes_as_the_limit_allows_run_on_every_substrate,
    processes_share_semaphores_and_wait_for_descriptors_on_every_substrate,
    output_is_kept_up_to_its_limit_on_every_substrate,
    written_files_are_listed_on_every_substrate,
    a_thread_keeps_its_home_when_its_substrate_changes,
    walls_that_programs_see_are_up_on_every_substrate,
    the_strict_profile_refuses_network_sockets_on_every_substrate,
    many_runs_leave_nothing_behind_on_every_substrate,
];

/// Why a substrate cannot be started on a host where others can: a part of the runtime's own words.
/// There is none for the versions that `scripts/setup-tests` installs.
const KNOWN_REASONS: &[(&str, &str)] = &[];

/// The substrates that this host can start.
pub(crate) async fn startable(executor: &Executor) -> Vec<Substrate> {
    let mut all = Vec::new();
    for substrate in Substrate::ALL {
        match executor.try_substrate(substrate).await {
            Ok(()) => all.push(substrate),
            Err(error) => {
                let error = error.to_string();
                let is_known = |(name, words): &(&str, &str)| {
                    *name == substrate.name() && error.contains(words)
                };
                if !KNOWN_REASONS.iter().any(is_known) {
                    skip(&error);
                }
            }
        }
    }
    all
}

fn on(substrate: Substrate, language: Language, code: &str) -> RunSpec {
    let mut spec = RunSpec::new(language, code);
    spec.sandbox.substrate = substrate;
    spec
}

async fn run(executor: &Executor, spec: RunSpec) -> RunOutcome {
    let substrate = spec.sandbox.substrate;
    let outcome = executor.run(spec, RunIo::default()).await;
    outcome.unwrap_or_else(|error| panic!("{substrate}: {error}"))
}

async fn a_program_gets_its_input_files_and_variables_on_every_substrate() {
    let Some(executor) = start_executor(None).await else { return };
    let code = "import os, sys\nprint(os.getuid(), os.getgid(), os.getcwd(), sorted(os.listdir()))\n\
        print(os.environ['A'], open('data.bin', 'rb').read(), sys.stdin.read(), sys.argv)\n\
        print('to stderr', file=sys.stderr)";
    for substrate in startable(&executor).await {
        let mut spec = on(substrate, Language::Python, code);
        spec.env.insert("A".to_owned(), "b \"\\ \u{e9}\n".to_owned());
        let name = FileName::try_from("data.bin".to_owned()).unwrap();
        spec.files = vec![InputFile { name, content: vec![0, 255, 10] }];
        spec.stdin = b"from stdin".to_vec();
        let outcome = run(&executor, spec).await;
        let expected = "1000 1000 /home/baponi ['data.bin', 'main.py']\n\
            b \"\\ \u{e9}\n b'\\x00\\xff\\n' from stdin ['/home/baponi/main.py']\n";
        assert_eq!(outcome.stdout.to_text_lossy(), expected, "{substrate}: {outcome:?}");
        assert_eq!(outcome.stderr.to_text_lossy(), "to stderr\n", "{substrate}");
        assert_eq!(outcome.ending, RunEnding::Exited(0), "{substrate}");
        assert!(outcome.usage.cpu > Duration::ZERO, "{substrate}");
        assert!(outcome.usage.peak_memory > ByteSize::mib(1), "{substrate}");
    }
    executor.stop().await;
}

async fn exit_codes_and_signals_are_reported_on_every_substrate() {
    let Some(executor) = start_executor(None).await else { return };
    for substrate in startable(&executor).await {
        for (code, ending) in [
            ("", RunEnding::Exited(0)),
            ("raise SystemExit(7)", RunEnding::Exited(7)),
            ("raise SystemExit(255)", RunEnding::Exited(255)),
            ("1/0", RunEnding::Exited(1)),
            ("import ctypes; ctypes.string_at(0)", RunEnding::Signalled(11)),
        ] {
            let outcome = run(&executor, on(substrate, Language::Python, code)).await;
            assert_eq!(outcome.ending, ending, "{substrate}: {code}: {outcome:?}");
        }
        let code = "import os; os.kill(os.getpid(), 15)";
        let outcome = run(&executor, on(substrate, Language::Python, code)).await;
        assert_eq!(outcome.ending, RunEnding::Signalled(15), "{substrate}: {outcome:?}");
        let outcome = run(&executor, on(substrate, Language::Bash, "exit 3")).await;
        assert_eq!(outcome.ending, RunEnding::Exited(3), "{substrate}");
    }
    executor.stop().await;
}

async fn a_run_ends_at_its_deadline_with_all_its_processes_on_every_substrate() {
    let Some(executor) = start_executor(None).await else { return };
    let code = "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n\
        print('here', flush=True)\nfor _ in range(3):\n    if os.fork() == 0: os.setsid(); break\n\
        while True: time.sleep(1)";
    for substrate in startable(&executor).await {
        executor.wait_for_teardown().await;
        let before = HostCounts::take();
        let mut spec = on(substrate, Language::Python, code);
        spec.limits.timeout = Duration::from_secs(2);
        let started = Instant::now();
        let outcome = run(&executor, spec).await;
        assert_eq!(outcome.ending, RunEnding::TimedOut, "{substrate}");
        assert_eq!(outcome.stdout.to_text_lossy(), "here\n", "{substrate}");
        assert!(started.elapsed() < Duration::from_secs(10), "{substrate}");
        executor.wait_for_teardown().await;
        assert_eq!(HostCounts::take().growth(&before), None, "{substrate}");
    }
    executor.stop().await;
}

async fn a_cancelled_run_ends_at_once_on_every_substrate() {
    let Some(executor) = start_executor(None).await else { return };
    for substrate in startable(&executor).await {
        let (output, mut printed) = mpsc::channel(4);
        let cancel = CancellationToken::new();
        let io = RunIo { output: Some(output), cancel: cancel.clone(), ..RunIo::default() };
        let spec = on(substrate, Language::Bash, "echo here; sleep 60");
        let running = executor.run(spec, io);
        let cancelling = async {
            printed.recv().await.unwrap();
            cancel.cancel();
            Instant::now()
        };
        let (outcome, cancelled) = tokio::join!(running, cancelling);
        assert_eq!(outcome.unwrap().ending, RunEnding::Cancelled, "{substrate}");
        assert!(cancelled.elapsed() < Duration::from_secs(5), "{substrate}");
        executor.wait_for_teardown().await;
    }
    executor.stop().await;
}

async fn memory_processes_and_disk_are_limited_on_every_substrate() {
    let Some(executor) = start_executor(None).await else { return };
    let limits = RunLimits {
        memory: ByteSize::mib(192),
        pids: 24,
        disk: ByteSize::mib(16),
        ..RunLimits::default()
    };
    for substrate in startable(&executor).await {
        let limited = |code: &str| RunSpec { limits, ..on(substrate, Language::Python, code) };
        let outcome = run(&executor, limited("x = b'x' * (400 << 20)")).await;
        assert_eq!(outcome.ending, RunEnding::OutOfMemory, "{substrate}: {outcome:?}");
        let code = "import errno\ntry:\n    for n in range(64):\n        \
            open(f'/tmp/{n}', 'wb').write(b'x' * (1 << 20))\nexcept OSError as e:\n    \
            print(errno.errorcode[e.errno], 8 <= n <= 16)";
        let outcome = run(&executor, limited(code)).await;
        assert_eq!(outcome.stdout.to_text_lossy(), "ENOSPC True\n", "{substrate}: {outcome:?}");
        let code = "import os, time\nn = 0\nwhile n < 600:\n    try:\n        if os.fork() == 0: \
            time.sleep(60)\n    except OSError as e:\n        print(type(e).__name__, n < 24, flush=True)\n        \
            break\n    n += 1\nelse: print('no limit')\nos._exit(0)";
        let mut spec = limited(code);
        spec.limits.memory = ByteSize::gib(1);
        spec.limits.timeout = Duration::from_secs(20);
        let outcome = run(&executor, spec).await;
        let said = outcome.stdout.to_text_lossy();
        assert_eq!(said, "BlockingIOError True\n", "{substrate}: {outcome:?}");
    }
    executor.stop().await;
}

async fn as_many_processes_as_the_limit_allows_run_on_every_substrate() {
    let Some(executor) = start_executor(None).await else { return };
    let code = "import os, threading, time\nfor _ in range(60):\n    \
        if os.fork() == 0: time.sleep(60)\n\
        threads = [threading.Thread(target=time.sleep, args=[1]) for _ in range(30)]\n\
        for thread in threads: thread.start()\nprint('all', flush=True)\nos._exit(0)";
    for substrate in startable(&executor).await {
        let mut spec = on(substrate, Language::Python, code);
        spec.limits.pids = 96;
        let outcome = run(&executor, spec).await;
        assert_eq!(outcome.stdout.to_text_lossy(), "all\n", "{substrate}: {outcome:?}");
    }
    executor.stop().await;
}

/// With the start method `spawn` a child opens the semaphores of its parent by their names.
async fn processes_share_semaphores_and_wait_for_descriptors_on_every_substrate() {
    let Some(executor) = start_executor(None).await else { return };
    let code = "import multiprocessing, os, select\n\
        def square(x): return x * x\n\
        if __name__ == '__main__':\n    \
            r, w = os.pipe()\n    \
            print(select.select([r], [], [], 0)[0], os.write(w, b'x'), flush=True)\n    \
            print(select.select([r], [], [], 5)[0] == [r], flush=True)\n    \
            with multiprocessing.get_context('spawn').Pool(2) as pool:\n        \
                print(pool.map(square, range(4)), flush=True)";
    for substrate in startable(&executor).await {
        let outcome = run(&executor, on(substrate, Language::Python, code)).await;
        let said = outcome.stdout.to_text_lossy();
        assert_eq!(said, "[] 1\nTrue\n[0, 1, 4, 9]\n", "{substrate}: {outcome:?}");
    }
    executor.stop().await;
}

async fn output_is_kept_up_to_its_limit_on_every_substrate() {
    let Some(executor) = start_executor(None).await else { return };
    for substrate in startable(&executor).await {
        let mut spec = on(substrate, Language::Python, "print(('x' * 59 + '\\n') * 12_000)\n");
        spec.code.extend("print('x' * (1 << 19))\n".repeat(4).into_bytes());
        spec.limits.output = ByteSize::mib(1);
        let outcome = run(&executor, spec).await;
        assert_eq!(outcome.ending, RunEnding::Exited(0), "{substrate}");
        assert_eq!(
            outcome.stdout.bytes.len() as u64 + outcome.stdout.dropped,
            60 * 12_000 + 1 + 4 * ((1 << 19) + 1)
        );
        assert!(outcome.stdout.bytes.len() <= 1 << 20, "{substrate}");
        assert!(outcome.stdout.dropped > 0, "{substrate}");
    }
    executor.stop().await;
}

async fn written_files_are_listed_on_every_substrate() {
    let Some(host) = HomesHost::start(ByteSize::mib(64), None).await else { return };
    let code = "mkdir -p out; echo hello > out/a.txt; echo x > main.sh.txt; ln -s out/a.txt link";
    for substrate in startable(&host.executor).await {
        let outcome = host.run(on(substrate, Language::Bash, code)).await;
        let files: Vec<_> = outcome.written.files.iter().map(|file| &file.name[..]).collect();
        assert_eq!(files, ["main.sh.txt", "out/a.txt"], "{substrate}: {outcome:?}");
    }
    host.executor.stop().await;
}

async fn a_thread_keeps_its_home_when_its_substrate_changes() {
    let Some(host) = HomesHost::start(ByteSize::mib(64), None).await else { return };
    let all = startable(&host.executor).await;
    let (mut thread, mut expected) = (Thread::default(), String::new());
    for substrate in all.iter().chain(&all) {
        let code =
            format!("cat log 2>/dev/null; echo {substrate} >> log; mkdir -p d; mv d e$RANDOM");
        let outcome = thread.run(&host, on(*substrate, Language::Bash, &code)).await;
        assert_eq!(outcome.ending, RunEnding::Exited(0), "{substrate}: {outcome:?}");
        assert_eq!(outcome.stdout.to_text_lossy(), expected, "{substrate}: {outcome:?}");
        expected += &format!("{substrate}\n");
        let owner = "find . ! -user baponi; for d in e*; do touch $d/x; done; find log main.sh -printf '%m\\n'";
        let outcome = thread.run(&host, on(*substrate, Language::Bash, owner)).await;
        assert_eq!(outcome.stdout.to_text_lossy(), "644\n644\n", "{substrate}: {outcome:?}");
    }
    host.executor.stop().await;
}

async fn walls_that_programs_see_are_up_on_every_substrate() {
    let Some(executor) = start_executor(None).await else { return };
    let code = "import os, socket\nstatus = dict(l.split(':', 1) for l in open('/proc/self/status'))\n\
        print({status[k].strip() for k in status if k.startswith('Cap')})\n\
        print(sorted(l.split(':')[0].strip() for l in open('/proc/net/dev') if ':' in l))\n\
        try: socket.create_connection(('1.1.1.1', 53), 2)\nexcept OSError as e: print('no network')\n\
        s = socket.create_server(('127.0.0.1', 0)); socket.create_connection(s.getsockname())\n\
        for p in '/usr/x', '/etc/x', '/x', '/dev/x', '/proc/sys/kernel/hostname':\n    \
            try: open(p, 'w'); print('wrote', p)\n    except OSError: pass\n\
        print(os.uname().nodename, sorted(os.listdir('/proc/self/fd'))[:3])\n\
        print(open('/dev/null').read() == '', len(open('/dev/urandom', 'rb').read(4)))";
    for substrate in startable(&executor).await {
        let outcome = run(&executor, on(substrate, Language::Python, code)).await;
        let expected = "{'0000000000000000'}\n['lo']\nno network\ncloche ['0', '1', '2']\nTrue 4\n";
        assert_eq!(outcome.stdout.to_text_lossy(), expected, "{substrate}: {outcome:?}");
    }
    executor.stop().await;
}

async fn the_strict_profile_refuses_network_sockets_on_every_substrate() {
    let Some(executor) = start_executor(None).await else { return };
    let code = "import socket\nfor family in socket.AF_UNIX, socket.AF_INET:\n    \
        try: socket.socket(family); print('made')\n    except OSError as e: print(e.strerror)";
    for substrate in startable(&executor).await {
        let mut spec = on(substrate, Language::Python, code);
        spec.sandbox.profile = SandboxProfile::Strict;
        let said = run(&executor, spec).await.stdout.to_text_lossy();
        // gVisor has one error for all that a filter refuses.
        let error = match substrate {
            Substrate::Oci(OciRuntime::Runsc) => "Operation not permitted",
            _ => "Address family not supported by protocol",
        };
        assert_eq!(said, format!("made\n{error}\n"), "{substrate}");
    }
    executor.stop().await;
}

async fn many_runs_leave_nothing_behind_on_every_substrate() {
    let Some(executor) = start_executor(None).await else { return };
    for substrate in startable(&executor).await {
        executor.wait_for_teardown().await;
        let before = HostCounts::take();
        for _ in 0..5 {
            run(&executor, on(substrate, Language::Bash, "sleep 60 & echo x > y")).await;
        }
        executor.wait_for_teardown().await;
        assert_eq!(HostCounts::take().growth(&before), None, "{substrate}");
    }
    executor.stop().await;
}
