//! What the network of a cell costs, over the same virtual link as the host's own connections.
//!
//! `cargo bench -p cloche-egress --bench network_path`; needs root and /dev/net/tun. With
//! `iptables` it also measures a veth pair with NAT, in namespaces of its own.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark reports to a person, and a set-up that fails ends it"
)]

#[path = "../tests/network/internet.rs"]
#[allow(dead_code, reason = "this program uses a part of the harness")]
mod internet;
#[path = "../tests/network/names.rs"]
#[allow(dead_code, reason = "this program uses a part of the harness")]
mod names;

use std::{
    io::{Read, Write},
    net::TcpStream,
    process::ExitCode,
    time::{Duration, Instant},
};

use cloche_egress::SessionSpec;
use cloche_model::{NetworkLimits, NetworkPolicy};
use internet::{
    RunningWorker, TestInternet, WORKER_ARGUMENT, connect, is_possible, run_worker_process,
    settings,
};

const DOWNLOAD: usize = 1_000_000_000;
const ROUNDS: usize = 5;
const CONNECTIONS: usize = 300;
/// Connections at once whose ends both send and do not read.
const STALLED: usize = 200;

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(WORKER_ARGUMENT) {
        return run_worker_process();
    }
    if !is_possible() {
        return ExitCode::SUCCESS;
    }
    let limits =
        NetworkLimits { new_per_second: 1000, new_burst: 1000, ..NetworkLimits::default() };
    let spec = SessionSpec::new(NetworkPolicy::Unrestricted, limits);
    let mut internet = TestInternet::start_with(spec, settings(), RunningWorker::start_process);
    serve(&internet);
    let nat = internet.add_nat();
    // The first rounds of each are not counted: they bring memory and caches.
    for round in 0..=ROUNDS {
        let direct = internet.host.run(download);
        let cell = internet.in_cell(download);
        let veth = nat.as_ref().map(|nat| nat.run(download));
        if round > 0 {
            let veth = veth.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.2}"));
            println!(
                "download GB/s: host {direct:.2}, cell {cell:.2} ({:.2} x), veth with NAT {veth}",
                cell / direct
            );
        }
    }
    for round in 0..=ROUNDS {
        let direct = internet.host.run(ask);
        let cell = internet.in_cell(ask);
        let veth = nat.as_ref().map(|nat| nat.run(ask));
        if round > 0 {
            println!(
                "connect + 1 kB, p50 / p99: host {direct:?}, cell {cell:?}, veth with NAT {veth:?}"
            );
        }
    }
    let pid = internet.worker_process().id();
    println!("stack worker after one connection at a time: {}", memory_of(pid, "VmHWM:"));
    let stalled = internet.in_cell(|| (0..STALLED).map(|_| stall()).collect::<Vec<_>>());
    let full = wait_until_steady(pid);
    println!("stack worker with {} connections, every buffer full: {full}", stalled.len());
    drop(stalled);
    println!("{:?}", internet.finish());
    ExitCode::SUCCESS
}

fn serve(internet: &TestInternet) {
    internet.serve("93.184.216.34:7000", |mut stream| {
        let chunk = vec![7; 256 * 1024];
        let mut left = DOWNLOAD;
        while left > 0 {
            let len = left.min(chunk.len());
            if stream.write_all(&chunk[..len]).is_err() {
                return;
            }
            left -= len;
        }
    });
    internet.serve("93.184.216.34:7001", |mut stream| {
        let mut request = [0; 1000];
        if stream.read_exact(&mut request).is_ok() {
            let _ = stream.write_all(&request);
        }
    });
}

/// GB in each second.
fn download() -> f64 {
    let start = Instant::now();
    let mut stream = connect("93.184.216.34:7000").unwrap();
    let mut buffer = vec![0; 256 * 1024];
    let mut received = 0;
    while let Ok(len @ 1..) = stream.read(&mut buffer) {
        received += len;
    }
    assert_eq!(received, DOWNLOAD);
    DOWNLOAD as f64 / 1e9 / start.elapsed().as_secs_f64()
}

/// A connection with as many bytes on their way as it takes, in both directions: the server sends
/// without end and reads nothing.
fn stall() -> TcpStream {
    let mut stream = connect("93.184.216.34:7000").unwrap();
    stream.set_nonblocking(true).unwrap();
    let chunk = vec![7; 256 * 1024];
    while matches!(stream.write(&chunk), Ok(1..)) {}
    stream
}

/// A line of the status of a process.
fn memory_of(pid: u32, field: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The peak memory of a process, once it has not grown for a second.
fn wait_until_steady(pid: u32) -> String {
    let mut last = memory_of(pid, "VmHWM:");
    loop {
        std::thread::sleep(Duration::from_secs(1));
        let now = memory_of(pid, "VmHWM:");
        if now == last {
            return now;
        }
        last = now;
    }
}

fn ask() -> (Duration, Duration) {
    let mut times: Vec<Duration> = (0..CONNECTIONS)
        .map(|_| {
            let start = Instant::now();
            let mut stream = connect("93.184.216.34:7001").unwrap();
            stream.write_all(&[7; 1000]).unwrap();
            let mut answer = [0; 1000];
            stream.read_exact(&mut answer).unwrap();
            start.elapsed()
        })
        .collect();
    times.sort();
    (times[CONNECTIONS / 2], times[CONNECTIONS * 99 / 100])
}
