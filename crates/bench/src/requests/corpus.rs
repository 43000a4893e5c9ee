//! Runs in: benchmark. The programs of `tests/corpus`, as models write them: each over HTTP and
//! bare, in turns. The fidelity suite compares what they print; here only their times count.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::json;

use crate::{
    BenchResult,
    figures::{LatencyFigures, print_promise},
    print_line,
    server::BenchClient,
};

/// The pause before each request and each bare start.
const PAUSE: Duration = Duration::from_millis(30);
/// How often each program runs both ways. The medians count.
const TURNS: usize = 5;
/// A program that takes longer than this bare measures itself, not its start.
const LONGEST: Duration = Duration::from_millis(400);
/// The most that the median, and the 90th percentile, of the ratios may be.
const MOST: [(usize, f64); 2] = [(50, 0.12), (90, 0.25)];

/// Measures every Python program of the corpus that this host can run.
pub(super) fn measure_corpus(client: &mut BenchClient) -> BenchResult<()> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/corpus/python");
    let mut paths: Vec<_> = fs::read_dir(directory)?.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let mut ratios = Vec::new();
    let mut left_out = 0;
    for path in paths.iter().filter(|path| path.extension().is_some_and(|it| it == "py")) {
        let code = fs::read_to_string(path)?;
        match measure_case(client, &code)? {
            Some((request, bare)) => {
                let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                ratios.push((request / bare, name, request, bare));
            }
            None => left_out += 1,
        }
    }
    ratios.sort_by(|one, other| one.0.total_cmp(&other.0));
    print_line(
        "\n| slowest programs of the corpus | request ms | bare ms | ratio |\n|---|---|---|---|",
    );
    for (ratio, name, request, bare) in ratios.iter().rev().take(20) {
        print_line(&format!("| {name} | {request:.2} | {bare:.2} | {ratio:.3} |"));
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

/// The medians of a program, over HTTP and bare; `None` if it needs what this host lacks, or takes
/// long by itself.
fn measure_case(client: &mut BenchClient, code: &str) -> BenchResult<Option<(f64, f64)>> {
    let home = tempfile::TempDir::new()?;
    fs::write(home.path().join("main.py"), code)?;
    let body = json!({"language": "python", "code": code});
    let (mut requests, mut bares) = (Vec::new(), Vec::new());
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
        requests.push(began.elapsed());
        bares.push(bare);
    }
    let p50 = |times| LatencyFigures::new(String::new(), times).percentile(50);
    Ok(Some((p50(requests), p50(bares))))
}
