//! Runs in: benchmark. Many requests at once: the first burst of a server, the highest rate, and
//! thousands of requests of sixteen clients.

use std::{
    fs,
    path::Path,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use serde_json::json;

use super::{PROGRAMS, RequestProgram, send_program, time_bare_start};
use crate::{
    BenchResult,
    figures::{LatencyFigures, print_promise},
    print_line,
    server::{BenchClient, BenchServer},
};

/// The requests of a burst, how many servers get one, and how long each was idle before.
const BURST: usize = 100;
const BURSTS: usize = 5;
const IDLE: Duration = Duration::from_secs(2);
/// The most that a burst may take, against as many bare starts on all processors.
const BURST_MOST: f64 = 0.25;
/// The clients of the long run.
const CLIENTS: usize = 16;
/// The most that p99 may be of p50 there.
const TAIL_MOST: f64 = 5.0;

/// A hundred requests at once to a server that has been idle since its start.
pub(super) fn measure_first_bursts(binary: &Path) -> BenchResult<()> {
    let program = &PROGRAMS[0];
    let (mut bursts, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..BURSTS {
        let server = BenchServer::start(binary)?;
        let key = server.make_key("burst", json!({}))?;
        let mut client = BenchClient::connect(&server.address, &key)?;
        send_program(&mut client, &program.body(), program.prints)?;
        thread::sleep(IDLE);
        for _ in 0..5 {
            bare.push(time_bare_start(program.bare, program.prints)?);
        }
        thread::sleep(IDLE);
        bursts.push(time_burst(&server, &key, program)?);
    }
    let cores = thread::available_parallelism().map_or(1, usize::from) as f64;
    let p50 = |times| LatencyFigures::new(String::new(), times).percentile(50);
    let (burst, bare) = (p50(bursts), p50(bare));
    print_line(&format!("\n{BURST} requests at once after idleness: {burst:.0} ms"));
    print_line("\n| promise | at most | measured | kept |\n|---|---|---|---|");
    let share = burst * cores / (BURST as f64 * bare);
    print_promise("http-burst, first : 100 x bare / cores", BURST_MOST, share);
    Ok(())
}

/// The time until the last of a burst is answered. Its connections are open before.
fn time_burst(server: &BenchServer, key: &str, program: &RequestProgram) -> BenchResult<Duration> {
    let start = Barrier::new(BURST + 1);
    thread::scope(|scope| {
        let clients: Vec<_> = (0..BURST)
            .map(|_| {
                scope.spawn(|| {
                    let client = BenchClient::connect(&server.address, key);
                    start.wait();
                    send_program(&mut client?, &program.body(), program.prints).map(drop)
                })
            })
            .collect();
        start.wait();
        let began = Instant::now();
        for client in clients {
            client.join().map_err(|_| "a client panicked")??;
        }
        Ok(began.elapsed())
    })
}

/// Requests a second, at the best of a few widths, against bare starts.
pub(super) fn measure_rate(
    server: &BenchServer,
    key: &str,
    program: &RequestProgram,
    runs: usize,
) -> BenchResult<()> {
    let mut best = [0.0_f64; 2];
    for width in [1, 2, 4, 8] {
        let each = runs.div_ceil(width);
        best[0] = best[0].max(measure_width(width, each, || {
            let mut client = BenchClient::connect(&server.address, key)?;
            Ok(move || send_program(&mut client, &program.body(), program.prints).map(drop))
        })?);
        best[1] = best[1].max(measure_width(width, each, || {
            Ok(move || Ok(time_bare_start(program.bare, program.prints).map(drop)?))
        })?);
    }
    let [requests, bare] = best;
    print_line(&format!(
        "\n{}: {requests:.0} requests a second, {bare:.0} bare starts: {:.2} x",
        program.name,
        requests / bare
    ));
    Ok(())
}

/// How often a second `make`'s work is done by this many threads.
fn measure_width<W: FnMut() -> BenchResult<()>>(
    width: usize,
    each: usize,
    make: impl Fn() -> BenchResult<W> + Sync,
) -> BenchResult<f64> {
    let began = Instant::now();
    thread::scope(|scope| {
        let all: Vec<_> = (0..width)
            .map(|_| {
                scope.spawn(|| {
                    let mut work = make()?;
                    (0..each).try_for_each(|_| work())
                })
            })
            .collect();
        all.into_iter().try_for_each(|one| one.join().map_err(|_| "a client panicked")?)
    })?;
    Ok((width * each) as f64 / began.elapsed().as_secs_f64())
}

/// Thousands of requests of sixteen clients: none may be lost, and memory must not grow.
pub(super) fn measure_many_clients(
    server: &BenchServer,
    key: &str,
    requests: usize,
) -> BenchResult<()> {
    let program = &PROGRAMS[0];
    time_clients(server, key, program, requests / 10)?;
    let before = own_memory_kib(server.pid());
    let began = Instant::now();
    let times = time_clients(server, key, program, requests)?;
    let (took, answered) = (began.elapsed().as_secs_f64(), times.len());
    thread::sleep(IDLE);
    let after = own_memory_kib(server.pid());
    let figures = LatencyFigures::new(String::new(), times);
    let [p50, p99] = [50, 99].map(|percent| figures.percentile(percent));
    print_line(&format!(
        "\n{answered} requests of {CLIENTS} clients, none lost: {:.0} a second, p50 {p50:.1} ms, \
         p99 {p99:.1} ms; memory of the server {before} KiB before, {after} KiB after",
        answered as f64 / took
    ));
    print_line("\n| promise | at most | measured | kept |\n|---|---|---|---|");
    print_promise("http-load, p99 : p50", TAIL_MOST, p99 / p50);
    Ok(())
}

/// The times of requests that sixteen clients share. An answer that is not right is an error.
fn time_clients(
    server: &BenchServer,
    key: &str,
    program: &RequestProgram,
    requests: usize,
) -> BenchResult<Vec<Duration>> {
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = BenchClient::connect(&server.address, key)?;
                    let body = program.body();
                    let each = requests.div_ceil(CLIENTS);
                    let times = (0..each).map(|_| {
                        send_program(&mut client, &body, program.prints).map(|it| it.whole)
                    });
                    times.collect::<BenchResult<Vec<_>>>()
                })
            })
            .collect();
        let mut all = Vec::new();
        for client in clients {
            all.extend(client.join().map_err(|_| "a client panicked")??);
        }
        Ok(all)
    })
}

/// The memory of a process that is its own, without mapped files.
fn own_memory_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
