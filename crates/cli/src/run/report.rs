//! Messages of `cloche run`: missing walls, an unusual end, the JSON object.

use std::io::{self, Write};

use cloche_model::{DeniedAttempt, Language, NetworkReport, RunEnding, RunLimits, RunOutcome};
use serde::Serialize;

/// Prints the missing walls, except those that the user allowed.
#[expect(clippy::print_stderr, reason = "this is the terminal's edge")]
pub(super) fn print_missing_walls(missing: &[(String, String)], expected: &[String]) {
    let unexpected = missing.iter().map(|(wall, _)| wall.as_str());
    let unexpected: Vec<_> =
        unexpected.filter(|wall| !expected.iter().any(|name| name == wall)).collect();
    if !unexpected.is_empty() {
        let names = unexpected.join(",");
        eprintln!(
            "cloche: running without {}: see cloche doctor, or accept it with --allow-missing {names}",
            unexpected.join(" and ")
        );
    }
}

/// Explains an end that the program did not choose.
pub(super) fn print_ending(outcome: &RunOutcome, limits: &RunLimits) {
    if let Some(sentence) = explain_ending(outcome.ending, limits) {
        // A closed standard error is ignored.
        let _ = writeln!(io::stderr().lock(), "cloche: {sentence}");
    }
    for sentence in outcome.network.iter().flat_map(explain_network) {
        let _ = writeln!(io::stderr().lock(), "cloche: {sentence}");
    }
}

/// The most denied destinations that are printed.
const MOST_DENIED_LINES: usize = 8;

/// What the network denied, and whether it was lost.
fn explain_network(network: &NetworkReport) -> Vec<String> {
    let shown = network.denied.iter().take(MOST_DENIED_LINES);
    let mut lines: Vec<_> = shown
        .map(|denied| {
            let DeniedAttempt { host, port, protocol, reason, count } = denied;
            format!("the network denied {host} port {port} ({protocol}): {reason}, {count} times")
        })
        .collect();
    let more = network.denied.len().saturating_sub(MOST_DENIED_LINES) as u64 + network.denied_more;
    if more > 0 {
        lines.push(format!("the network denied {more} more"));
    }
    lines.extend(network.lost.clone());
    lines
}

fn explain_ending(ending: RunEnding, limits: &RunLimits) -> Option<String> {
    match ending {
        RunEnding::TimedOut => {
            let seconds = limits.timeout.as_secs_f64();
            Some(format!("timed out after {seconds} s; raise the limit with --timeout"))
        }
        RunEnding::OutOfMemory => Some(format!(
            "out of memory: the program reached its limit of {}; raise it with --memory",
            limits.memory
        )),
        RunEnding::Exited(_) | RunEnding::Signalled(_) | RunEnding::Cancelled => None,
    }
}

/// The result as one object.
#[derive(Serialize)]
struct RunReport {
    language: Language,
    status: &'static str,
    /// The exit code of `cloche run` itself.
    exit_code: u8,
    stdout: String,
    stderr: String,
    duration_ms: u64,
    cpu_ms: u64,
    peak_memory_bytes: u64,
    stdout_truncated: bool,
    stderr_truncated: bool,
    stdout_dropped_bytes: u64,
    stderr_dropped_bytes: u64,
    /// What it did over its network, if it had one.
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<NetworkReport>,
}

/// Prints the result as one line of JSON.
pub(super) fn print_json(language: Language, outcome: &RunOutcome, exit_code: u8) {
    let millis = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let report = RunReport {
        language,
        status: status_name(outcome.ending),
        exit_code,
        stdout: outcome.stdout.to_text_lossy(),
        stderr: outcome.stderr.to_text_lossy(),
        duration_ms: millis(outcome.usage.wall),
        cpu_ms: millis(outcome.usage.cpu),
        peak_memory_bytes: outcome.usage.peak_memory.bytes(),
        stdout_truncated: outcome.stdout.dropped > 0,
        stderr_truncated: outcome.stderr.dropped > 0,
        stdout_dropped_bytes: outcome.stdout.dropped,
        stderr_dropped_bytes: outcome.stderr.dropped,
        network: outcome.network.clone(),
    };
    let mut line = serde_json::to_vec(&report).unwrap_or_default();
    line.push(b'\n');
    // A closed standard output is ignored.
    let mut stdout = io::stdout().lock();
    let _ = stdout.write_all(&line).and_then(|()| stdout.flush());
}

const fn status_name(ending: RunEnding) -> &'static str {
    match ending {
        RunEnding::Exited(0) => "success",
        RunEnding::Exited(_) | RunEnding::Signalled(_) => "failed",
        RunEnding::TimedOut => "timeout",
        RunEnding::OutOfMemory => "oom",
        RunEnding::Cancelled => "cancelled",
    }
}
