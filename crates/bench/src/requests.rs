//! Runs in: benchmark. What a client sees: requests to a real server over HTTP, beside bare starts
//! of the same programs, with pauses as an agent makes them.
//!
//! `breakdown` shows where the time of a request goes, `corpus` runs typical programs, `load` has
//! the first burst, the rates and many clients.

mod breakdown;
mod corpus;
mod load;

use std::{
    io,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use self::breakdown::{PhaseBreakdown, RequestSample};
use crate::{
    BenchArguments, BenchResult,
    figures::{LatencyFigures, print_promise},
    print_line,
    server::{BenchClient, BenchServer, find_binary},
};

/// The pauses before a request, in milliseconds.
const THINK_TIMES: [u64; 3] = [0, 30, 300];
/// Requests, and bare starts, that follow each other before it is the turn of the others.
const BLOCK: [usize; 2] = [10, 5];
/// The requests before the first measured one.
const WARM_UP: usize = 40;

/// A program and what is promised about it.
struct RequestProgram {
    name: &'static str,
    language: &'static str,
    code: &'static str,
    bare: &'static [&'static str],
    prints: &'static str,
    /// The most that the median may be, against the median of bare starts.
    most: f64,
}

const JSON: &str = "import json, sys; print(json.dumps({'a': [1, 2, 3], 'b': None}))";
const PROGRAMS: [RequestProgram; 4] = [
    RequestProgram {
        name: "http-python",
        language: "python",
        code: "print(1)",
        bare: &["/usr/bin/python3", "-c", "print(1)"],
        prints: "1\n",
        most: 0.10,
    },
    RequestProgram {
        name: "http-json",
        language: "python",
        code: JSON,
        bare: &["/usr/bin/python3", "-c", JSON],
        prints: "{\"a\": [1, 2, 3], \"b\": null}\n",
        most: 0.12,
    },
    RequestProgram {
        name: "http-node",
        language: "node",
        code: "console.log(1)",
        bare: &["/usr/bin/node", "-e", "console.log(1)"],
        prints: "1\n",
        most: 0.2,
    },
    RequestProgram {
        name: "http-bash",
        language: "bash",
        code: "echo 1",
        bare: &["/bin/bash", "-c", "echo 1"],
        prints: "1\n",
        most: 2.0,
    },
];

/// Measures what was requested of it.
pub(crate) fn measure_requests(arguments: &BenchArguments) -> BenchResult<()> {
    let wanted = |name: &str| {
        arguments.only.is_empty() || arguments.only.iter().any(|part| name.contains(part.as_str()))
    };
    let parts = ["http-corpus", "http-burst", "http-load", "http-rate"];
    if !PROGRAMS.iter().any(|it| wanted(it.name)) && !parts.into_iter().any(wanted) {
        return Ok(());
    }
    let Some(binary) = find_binary(arguments) else {
        print_line("\nskipped: requests: no cloche binary beside this one; give --server PATH");
        return Ok(());
    };
    if wanted("http-burst") {
        load::measure_first_bursts(&binary)?;
    }
    let server = BenchServer::start(&binary)?;
    let key = server.make_key("requests", json!({}))?;
    let mut client = BenchClient::connect(&server.address, &key)?;
    for program in PROGRAMS.iter().filter(|it| wanted(it.name)) {
        measure_program(&mut client, program, arguments.rounds)?;
    }
    if wanted("http-corpus") {
        corpus::measure_corpus(&server, &key)?;
    }
    if wanted("http-rate") {
        for program in &PROGRAMS {
            load::measure_rate(&server, &key, program, arguments.rounds * 2)?;
        }
    }
    if wanted("http-load") {
        load::measure_many_clients(&server, &key, arguments.soak)?;
    }
    Ok(())
}

/// One program with each pause.
fn measure_program(
    client: &mut BenchClient,
    program: &RequestProgram,
    rounds: usize,
) -> BenchResult<()> {
    let body = program.body();
    for _ in 0..WARM_UP {
        send_program(client, &body, program.prints)?;
        thread::sleep(Duration::from_millis(10));
    }
    let mut breakdowns = Vec::new();
    print_line(&format!(
        "\n| {}, pause | requests | p50 ms | p90 | p99 | bare p50 | p50 : bare | p90 : p50 |\n\
         |---|---|---|---|---|---|---|---|",
        program.name
    ));
    let mut promises = Vec::new();
    for think in THINK_TIMES {
        let rounds = if think > 100 { (rounds / 4).max(BLOCK[0]) } else { rounds };
        let pause = Duration::from_millis(think);
        let (samples, bare) = measure_pause(client, program, pause, rounds)?;
        let (count, times) = (samples.len(), samples.iter().map(|it| it.whole).collect());
        let figures = LatencyFigures::new(String::new(), times);
        let [p50, p90, p99] = [50, 90, 99].map(|percent| figures.percentile(percent));
        let bare = LatencyFigures::new(String::new(), bare).percentile(50);
        print_line(&format!(
            "| {think} ms | {count} | {p50:.2} | {p90:.2} | {p99:.2} | {bare:.2} | {:.3} | {:.2} |",
            p50 / bare,
            p90 / p50
        ));
        promises.push((format!("{}, {think} ms pause: p50 : bare", program.name), p50 / bare));
        if program.language == "python" {
            promises.push((format!("{}, {think} ms pause: p99 : bare", program.name), p99 / bare));
        }
        breakdowns.push(PhaseBreakdown::of_middle_half(samples));
    }
    breakdown::print_breakdowns(&breakdowns, &THINK_TIMES);
    print_line("\n| promise | at most | measured | kept |\n|---|---|---|---|");
    for (what, ratio) in promises {
        print_promise(&what, if what.contains("p99") { 0.4 } else { program.most }, ratio);
    }
    Ok(())
}

/// Requests with this pause before each, in turn with bare starts that have the same pause.
fn measure_pause(
    client: &mut BenchClient,
    program: &RequestProgram,
    think: Duration,
    rounds: usize,
) -> BenchResult<(Vec<RequestSample>, Vec<Duration>)> {
    let body = program.body();
    let (mut samples, mut bare) = (Vec::new(), Vec::new());
    while samples.len() < rounds {
        for _ in 0..BLOCK[0] {
            thread::sleep(think);
            samples.push(send_program(client, &body, program.prints)?);
        }
        for _ in 0..BLOCK[1] {
            thread::sleep(think);
            bare.push(time_bare_start(program.bare, program.prints)?);
        }
    }
    Ok((samples, bare))
}

impl RequestProgram {
    fn body(&self) -> Value {
        json!({"language": self.language, "code": self.code})
    }
}

/// Sends one program and checks what it printed.
fn send_program(
    client: &mut BenchClient,
    body: &Value,
    prints: &str,
) -> BenchResult<RequestSample> {
    let began = Instant::now();
    let (status, answer) = client.send_request("POST", "/v1/sandbox/execute", body)?;
    let whole = began.elapsed();
    if status != 200 || answer["stdout"] != prints {
        return Err(format!("{body}: {status} {answer}").into());
    }
    RequestSample::new(whole, &client.server_timing)
}

/// Starts a program without a sandbox and waits for its end.
fn time_bare_start(argv: &[&str], prints: &str) -> io::Result<Duration> {
    let began = Instant::now();
    let output =
        Command::new(argv[0]).args(&argv[1..]).env_clear().stdin(Stdio::null()).output()?;
    let took = began.elapsed();
    if output.stdout != prints.as_bytes() {
        return Err(io::Error::other(format!("{argv:?} printed {:?}", output.stdout)));
    }
    Ok(took)
}
