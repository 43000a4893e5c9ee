//! Runs in: benchmark. The programs of `tests/corpus`, as models write them: each over HTTP and
//! bare, in turns. The fidelity suite compares what they print; here only their times count.
//! Programs that use data packages run in a sandbox that imports those ahead.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::json;

use super::breakdown::RequestSample;
use crate::{
    BenchResult,
    figures::{LatencyFigures, print_promise},
    print_line,
    server::{BenchClient, BenchServer},
};

/// The pause before each request and each bare start.
const PAUSE: Duration = Duration::from_millis(30);
/// How often each program runs both ways. The medians count.
const TURNS: usize = 5;
/// A program that takes longer than this bare measures itself, not its start.
const LONGEST: Duration = Duration::from_millis(400);
/// The most that the median, and the 90th percentile, of the ratios may be.
const MOST: [(usize, f64); 2] = [(50, 0.12), (90, 0.25)];
/// The packages that a sandbox for data imports ahead.
const DATA_PACKAGES: [&str; 2] = ["numpy", "pandas"];

/// The medians of one program, in milliseconds.
struct CorpusTimes {
    request: f64,
    /// The phase `run` of the request.
    run: f64,
    bare: f64,
}

/// Measures every Python program of the corpus that this host can run.
pub(super) fn measure_corpus(server: &BenchServer, key: &str) -> BenchResult<()> {
    let data_key = server.make_key("data", json!({"preload": DATA_PACKAGES}))?;
    let mut data_client = BenchClient::connect(&server.address, &data_key)?;
    warm_up_data_packages(&mut data_client)?;
    // The server closes a connection on which nothing is sent meanwhile.
    let mut client = BenchClient::connect(&server.address, key)?;
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/corpus/python");
    let mut paths: Vec<_> = fs::read_dir(directory)?.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let mut ratios = Vec::new();
    let mut left_out = 0;
    for path in paths.iter().filter(|path| path.extension().is_some_and(|it| it == "py")) {
        let code = fs::read_to_string(path)?;
        let uses_data = DATA_PACKAGES.iter().any(|name| code.contains(&format!("import {name}")));
        let client = if uses_data { &mut data_client } else { &mut client };
        match measure_case(client, &code)? {
            Some(times) => {
                let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                ratios.push((times.request / times.bare, name, times));
            }
            None => left_out += 1,
        }
    }
    ratios.sort_by(|one, other| one.0.total_cmp(&other.0));
    print_line("\n| program | request ms | of it run | bare ms | ratio |\n|---|---|---|---|---|");
    for (ratio, name, times) in ratios.iter().rev() {
        let CorpusTimes { request, run, bare } = times;
        print_line(&format!("| {name} | {request:.2} | {run:.2} | {bare:.2} | {ratio:.3} |"));
    }
    print_line(&format!("\n{} programs, {left_out} left out", ratios.len()));
    print_line("\n| promise | at most | measured | kept |\n|---|---|---|---|");
    for (percent, most) in MOST {
        let at = (ratios.len() * percent / 100).min(ratios.len().saturating_sub(1));
        let ratio = ratios.get(at).map_or(f64::NAN, |found| found.0);
        print_promise(&format!("corpus, p{percent} of the ratios to bare"), most, ratio);
    }
    Ok(())
}

/// Runs programs until the template of the sandbox for data is there.
fn warm_up_data_packages(client: &mut BenchClient) -> BenchResult<()> {
    const PATIENCE: Duration = Duration::from_secs(10);
    let body = json!({"language": "python", "code": "print(1)"});
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        client.send_request("POST", "/v1/sandbox/execute", &body)?;
        thread::sleep(PAUSE);
    }
    Ok(())
}

/// The medians of a program, over HTTP and bare; `None` if it needs what this host lacks, or takes
/// long by itself.
fn measure_case(client: &mut BenchClient, code: &str) -> BenchResult<Option<CorpusTimes>> {
    let home = tempfile::TempDir::new()?;
    fs::write(home.path().join("main.py"), code)?;
    let body = json!({"language": "python", "code": code});
    let (mut requests, mut runs, mut bares) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..TURNS {
        thread::sleep(PAUSE);
        let began = Instant::now();
        let output = Command::new("/usr/bin/python3")
            .arg("main.py")
            .current_dir(home.path())
            .env_clear()
            .stdin(Stdio::null())
            .output()?;
        let bare = began.elapsed();
        let is_missing = String::from_utf8_lossy(&output.stderr).contains("ModuleNotFoundError");
        if is_missing || bare > LONGEST {
            return Ok(None);
        }
        thread::sleep(PAUSE);
        let began = Instant::now();
        let (status, answer) = client.send_request("POST", "/v1/sandbox/execute", &body)?;
        if status != 200 {
            return Err(format!("{status} {answer}").into());
        }
        let sample = RequestSample::new(began.elapsed(), &client.server_timing)?;
        runs.push(Duration::from_secs_f64(sample.phase("run").unwrap_or_default() / 1000.0));
        requests.push(sample.whole);
        bares.push(bare);
    }
    let [request, run, bare] = [requests, runs, bares]
        .map(|times| LatencyFigures::new(String::new(), times).percentile(50));
    Ok(Some(CorpusTimes { request, run, bare }))
}
