//! Runs in: test. A stack worker as a process of its own: its memory, and its death.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test stops at what it did not expect"
)]

#[path = "../network/internet.rs"]
#[allow(dead_code, reason = "this program uses a part of the harness")]
mod internet;
#[path = "../network/names.rs"]
#[allow(dead_code, reason = "this program uses a part of the harness")]
mod names;

use std::{io::Write, net::TcpStream, process::ExitCode};

use cloche_egress::SessionSpec;
use cloche_model::{NetworkLimits, NetworkPolicy};
use cloche_test_support::own_main::{OwnTest, run_tests};
use internet::{
    RunningWorker, TestInternet, WORKER_ARGUMENT, connect, get, is_possible, run_worker_process,
    settings,
};

/// The most memory of a worker.
const MOST_KIB: u64 = 64 * 1024;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if arguments == [WORKER_ARGUMENT] {
        return run_worker_process();
    }
    let tests = [
        OwnTest {
            path: "worker_process::stalled_connections_stay_within_the_memory_of_a_worker",
            run: stalled_connections_stay_within_the_memory_of_a_worker,
        },
        OwnTest {
            path: "worker_process::a_killed_worker_leaves_the_cell_without_network",
            run: a_killed_worker_leaves_the_cell_without_network,
        },
    ];
    run_tests(&tests, &arguments)
}

fn start() -> TestInternet {
    let limits = NetworkLimits { new_burst: 1000, ..NetworkLimits::default() };
    let spec = SessionSpec::new(NetworkPolicy::Unrestricted, limits);
    TestInternet::start_with(spec, settings(), RunningWorker::start_process)
}

fn peak_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Connections whose servers send without end to programs that do not read, while the programs
/// send to servers that do not read.
fn stalled_connections_stay_within_the_memory_of_a_worker() {
    if !is_possible() {
        return;
    }
    let mut internet = start();
    internet.serve("93.184.216.34:7000", |mut stream| {
        let chunk = [0; 65_536];
        while stream.write_all(&chunk).is_ok() {}
    });
    let stalled = internet.in_cell(|| {
        let open = || {
            let mut stream = connect("93.184.216.34:7000").unwrap();
            stream.set_nonblocking(true).unwrap();
            // Fills the buffers of the cell's kernel and of the worker.
            let chunk = [0; 65_536];
            while stream.write(&chunk).is_ok() {}
            stream
        };
        let streams: Vec<TcpStream> = (0..200).map(|_| open()).collect();
        for mut stream in &streams {
            let chunk = [0; 65_536];
            while stream.write(&chunk).is_ok() {}
        }
        streams
    });
    let peak = peak_kib(internet.worker_process().id());
    println!("200 stalled connections: peak {peak} KiB");
    assert!(peak <= MOST_KIB, "{peak} KiB");
    drop(stalled);
    internet.finish();
}

fn a_killed_worker_leaves_the_cell_without_network() {
    if !is_possible() {
        return;
    }
    let mut internet = start();
    internet.serve_http("93.184.216.34:80", "web");
    assert_eq!(internet.in_cell(|| get("93.184.216.34:80", "web.example")).unwrap(), "web");
    internet.worker_process().kill().unwrap();
    internet.worker_process().wait().unwrap();
    assert!(internet.in_cell(|| connect("93.184.216.34:80").map(drop)).is_err());
    let report = internet.finish();
    assert!(report.lost.is_some(), "{report:?}");
    assert_eq!(report.connections, 1);
}
