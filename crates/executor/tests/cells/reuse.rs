//! Runs in: test. Networks and cgroups are reused by later cells only if nothing of an earlier cell
//! is left in them.

use std::{collections::BTreeSet, time::Duration};

use cloche_executor::{Executor, PoolSettings, RunIo};
use cloche_model::{ByteSize, CpuShare, Language, RunEnding, RunLimits, RunOutcome, RunSpec};
use cloche_test_support::{eventually, own_main::OwnTest, own_tests};

use crate::host::start_executor;

pub(crate) const TESTS: &[OwnTest] = own_tests![
    a_netns_is_reused_only_if_no_socket_was_made_in_it,
    a_netns_of_a_cold_cell_is_reused_only_if_no_socket_was_made_in_it,
    cells_that_run_at_once_have_different_networks,
    a_program_may_make_many_sockets,
    usage_of_one_cell_is_not_counted_for_the_next,
    a_signal_does_not_interrupt_the_making_of_a_socket,
    a_program_that_has_reported_its_end_does_not_continue,
    an_announced_end_is_believed_once_every_child_and_thread_is_gone,
];

/// An executor whose cells are all forked by one template, when they are needed.
async fn start_with_template() -> Option<Executor> {
    let pool = PoolSettings { floor: 0, ceiling: 0, ..PoolSettings::default() };
    let executor = start_executor(Some(pool)).await?;
    eventually("a template was started", async || {
        // A run of this kind asks for a template.
        run(&executor, "").await;
        executor.read_metrics().buckets.iter().any(|bucket| bucket.templates > 0)
    })
    .await;
    Some(executor)
}

async fn run_with(executor: &Executor, code: &str, limits: RunLimits) -> RunOutcome {
    let spec = RunSpec { limits, ..RunSpec::new(Language::Python, code) };
    executor.run(spec, RunIo::default()).await.unwrap()
}

async fn run(executor: &Executor, code: &str) -> String {
    let outcome = run_with(executor, code, RunLimits::default()).await;
    let said = String::from_utf8(outcome.stderr.bytes).unwrap();
    assert_eq!((outcome.ending, said.as_str()), (RunEnding::Exited(0), ""), "{code}");
    String::from_utf8(outcome.stdout.bytes).unwrap()
}

/// Prints its netns; fails if there is a trace of an earlier cell in it.
const LOOK: &str = r#"
import os
found = []
for line in open("/proc/net/dev"):
    if line.strip().startswith("lo:") and any(map(int, line.split(":")[1].split())):
        found.append(line)
names = {}
for line in open("/proc/net/snmp"):
    kind, values = line.split(":")
    if kind in names and kind in ("Udp", "Tcp"):
        counts = dict(zip(names[kind].split(), map(int, values.split())))
        done = {k: v for k, v in counts.items() if v and k not in ("RtoAlgorithm", "RtoMin", "RtoMax", "MaxConn")}
        found += done.items()
    names[kind] = values
found += open("/proc/net/unix").read().splitlines()[1:]
assert not found, found
print(os.readlink("/proc/self/ns/net"))
"#;

/// Programs that leave traces in their netns, by every way to a socket.
const TRACES: [&str; 8] = [
    "import socket
s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('127.0.0.1', 0)); s.sendto(b'me', s.getsockname())",
    "import subprocess, sys
subprocess.run([sys.executable, '-c', 'import socket; s = socket.create_server((\"\", 0)); socket.create_connection(s.getsockname())'], check=True)",
    "import threading, socket
def leave():
    s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('127.0.0.1', 0)); s.sendto(b'me', s.getsockname())
t = threading.Thread(target=leave); t.start(); t.join()",
    "import os, socket
if os.fork() == 0:
    os.setsid()
    s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('127.0.0.1', 0))
    while True: s.sendto(b'still here', s.getsockname())
import time; time.sleep(0.05)",
    "import os, socket
a, b = socket.socketpair(); a.send(b'x')
s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('127.0.0.1', 0)); s.sendto(b'me', s.getsockname())
os._exit(0)",
    "import socket
left = socket.socket(socket.AF_UNIX); left.bind('\\0left behind'); left.listen()",
    "import array, os, socket
a, b = socket.socketpair()
for one, other in ((a, b), (b, a)):
    # In flight to itself: only the kernel's collector of garbage finds it.
    one.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [other.fileno()]))])
os._exit(0)",
    "import asyncio
async def main():
    server = await asyncio.start_server(lambda r, w: w.close(), '127.0.0.1', 0)
    r, w = await asyncio.open_connection(*server.sockets[0].getsockname())
    await r.read(); w.close(); server.close()
asyncio.run(main())",
];

async fn a_netns_is_reused_only_if_no_socket_was_made_in_it() {
    let Some(executor) = start_with_template().await else { return };
    check_reuse(executor).await;
}

async fn a_netns_of_a_cold_cell_is_reused_only_if_no_socket_was_made_in_it() {
    let Some(executor) = start_executor(None).await else { return };
    check_reuse(executor).await;
}

async fn check_reuse(executor: Executor) {
    let mut seen = BTreeSet::new();
    let mut again = 0;
    for code in TRACES {
        for _ in 0..4 {
            again += usize::from(!seen.insert(run(&executor, LOOK).await));
        }
        run(&executor, code).await;
    }
    for _ in 0..8 {
        again += usize::from(!seen.insert(run(&executor, LOOK).await));
    }
    assert!(again > 0, "no netns was ever reused, so nothing was tested");
    executor.stop().await;
}

async fn cells_that_run_at_once_have_different_networks() {
    let Some(executor) = start_with_template().await else { return };
    for _ in 0..3 {
        let code = "import os, time; print(os.readlink('/proc/self/ns/net')); time.sleep(0.2)";
        let runs = (0..8).map(|_| run(&executor, code));
        let seen: BTreeSet<String> = futures::future::join_all(runs).await.into_iter().collect();
        assert_eq!(seen.len(), 8);
    }
    executor.stop().await;
}

async fn a_program_may_make_many_sockets() {
    let Some(executor) = start_with_template().await else { return };
    let many = "import socket
for _ in range(3000): socket.socket().close()
pairs = [socket.socketpair() for _ in range(100)]
print(len(pairs))";
    assert_eq!(run(&executor, many).await, "100\n");
    executor.stop().await;
}

async fn usage_of_one_cell_is_not_counted_for_the_next() {
    let Some(executor) = start_with_template().await else { return };
    let limits = RunLimits {
        memory: ByteSize::mib(96),
        cpus: CpuShare::from_millicores(500),
        ..RunLimits::default()
    };
    let short = RunLimits { timeout: Duration::from_millis(700), ..limits };
    let wasteful = [
        ("x = bytearray(60 << 20); print(len(x))", RunEnding::Exited(0)),
        ("import time\nwhile time.process_time() < 0.2: pass", RunEnding::Exited(0)),
        ("x = [bytearray(1 << 20) for _ in range(1000)]", RunEnding::OutOfMemory),
        ("while True: pass", RunEnding::TimedOut),
        ("open('/tmp/much', 'wb').write(bytes(30 << 20))", RunEnding::Exited(0)),
    ];
    for (code, ending) in wasteful {
        let limits_now = if ending == RunEnding::TimedOut { short } else { limits };
        assert_eq!(run_with(&executor, code, limits_now).await.ending, ending, "{code}");
        for _ in 0..3 {
            let outcome = run_with(&executor, "raise SystemExit(3)", limits).await;
            assert_eq!(outcome.ending, RunEnding::Exited(3), "after {code}");
            assert!(outcome.usage.cpu < Duration::from_millis(100), "{:?}", outcome.usage);
            assert!(outcome.usage.peak_memory < ByteSize::mib(24), "{:?}", outcome.usage);
        }
    }
    executor.stop().await;
}

async fn a_signal_does_not_interrupt_the_making_of_a_socket() {
    let Some(executor) = start_with_template().await else { return };
    let signalled = "import os, signal, socket
signal.signal(signal.SIGCHLD, lambda *_: None)
for _ in range(300):
    child = os.fork()
    if child == 0: os._exit(0)
    [end.close() for end in socket.socketpair()]
    socket.socket(socket.AF_UNIX).close()
    os.waitpid(child, 0)
print('done')";
    assert_eq!(run(&executor, signalled).await, "done\n");
    executor.stop().await;
}

/// A program that reports its end, stops, and has a timer continue it a little later.
const UNDEAD: &str = r#"
import ctypes, os, signal, time
libc = ctypes.CDLL(None)
class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_void_p), ("signal", ctypes.c_int), ("notify", ctypes.c_int), ("rest", ctypes.c_char * 48)]
timer = ctypes.c_int()
for n in range(3000): open("%d" % n, "w").close()
libc.timer_create(1, ctypes.byref(Event(None, signal.SIGCONT, 0, b"")), ctypes.byref(timer))
libc.timer_settime(timer, 0, (ctypes.c_long * 4)(0, 0, 0, 5_000_000), None)
libc.prctl(15, b"cloche end 7")
os.kill(os.getpid(), signal.SIGSTOP)
while True: print("still here", flush=True)
"#;

async fn a_program_that_has_reported_its_end_does_not_continue() {
    let Some(executor) = start_with_template().await else { return };
    let limits = RunLimits { timeout: Duration::from_secs(10), ..RunLimits::default() };
    let (mut seen, mut missed) = (0, 0);
    // If pid 1 does not run between the stop and the timer, the kernel no longer reports the stop.
    // The program has then not ended for anyone, and runs in view until its time limit.
    while seen < 3 {
        let outcome = run_with(&executor, UNDEAD, limits).await;
        if outcome.ending == RunEnding::TimedOut {
            missed += 1;
            assert!(outcome.stdout.to_text_lossy().starts_with("still here\n"), "{outcome:?}");
            assert!(missed <= 3, "pid 1 does not see that programs stop");
            continue;
        }
        assert_eq!(outcome.ending, RunEnding::Exited(7));
        assert!(outcome.usage.wall < Duration::from_secs(10), "{:?}", outcome.usage);
        seen += 1;
    }
    executor.wait_for_teardown().await;
    executor.stop().await;
}

/// What a program does before it announces its end, and how it ends. One that is not believed is
/// continued and exits with 9.
const ANNOUNCEMENTS: [(&str, u8); 6] = [
    ("pass", 7),
    ("os.waitpid(os.fork() or os._exit(0), 0)", 7),
    ("os.waitid(os.P_PID, os.fork() or os._exit(0), os.WEXITED | os.WNOWAIT)", 9),
    ("os.fork() or (time.sleep(60), os._exit(0))", 9),
    ("for _ in range(300): os.waitpid(os.fork() or os._exit(0), 0)", 9),
    (
        "threading.Thread(target=str).start()
while os.listdir('/proc/self/task')[1:]: pass",
        7,
    ),
];

async fn an_announced_end_is_believed_once_every_child_and_thread_is_gone() {
    let Some(executor) = start_with_template().await else { return };
    for (before, code) in ANNOUNCEMENTS {
        let program = format!(
            "import ctypes, os, signal, threading, time
{before}
ctypes.CDLL(None).prctl(15, b'cloche end 7')
os.kill(os.getpid(), signal.SIGSTOP)
os._exit(9)"
        );
        let outcome = run_with(&executor, &program, RunLimits::default()).await;
        assert_eq!(outcome.ending, RunEnding::Exited(code), "{before}: {outcome:?}");
    }
    executor.wait_for_teardown().await;
    executor.stop().await;
}
