//! Runs in: benchmark. Where the time of a request goes, by the `Server-Timing` of its answer. What
//! the server does not account for is the client, the kernel and the way between them.

use std::time::Duration;

use crate::{BenchResult, print_line};

/// One request.
pub(super) struct RequestSample {
    pub(super) whole: Duration,
    /// The phases of the server, in milliseconds.
    phases: Vec<(String, f64)>,
}

impl RequestSample {
    /// Reads the header of an answer. An older server, to compare with, sends none.
    pub(super) fn new(whole: Duration, header: &str) -> BenchResult<Self> {
        if header.is_empty() {
            return Ok(Self { whole, phases: Vec::new() });
        }
        let phases = header.split(", ").map(|phase| {
            let (name, time) = phase.split_once(";dur=")?;
            Some((name.to_owned(), time.parse().ok()?))
        });
        let phases: Option<Vec<_>> = phases.collect();
        let phases = phases.ok_or_else(|| format!("not a Server-Timing: {header:?}"))?;
        Ok(Self { whole, phases })
    }

    /// How long a phase of the server took, in milliseconds.
    pub(super) fn phase(&self, name: &str) -> Option<f64> {
        self.phases.iter().find(|(known, _)| known == name).map(|(_, time)| *time)
    }
}

/// The means of the phases over the middle half of requests. Means add up, medians do not.
pub(super) struct PhaseBreakdown {
    phases: Vec<(String, f64)>,
    whole: f64,
}

impl PhaseBreakdown {
    pub(super) fn of_middle_half(mut samples: Vec<RequestSample>) -> Self {
        samples.sort_by_key(|sample| sample.whole);
        let quarter = samples.len() / 4;
        let middle = &samples[quarter..samples.len() - quarter];
        let count = middle.len() as f64;
        let whole =
            middle.iter().map(|sample| sample.whole.as_secs_f64() * 1000.0).sum::<f64>() / count;
        let names = middle.first().map(|sample| &sample.phases[..]).unwrap_or_default();
        let mut phases: Vec<(String, f64)> = names
            .iter()
            .map(|(name, _)| {
                let all = middle.iter().flat_map(|sample| &sample.phases);
                let sum: f64 = all.filter(|(known, _)| known == name).map(|(_, time)| time).sum();
                (name.clone(), sum / count)
            })
            .collect();
        let known: f64 = phases.iter().map(|(_, time)| time).sum();
        phases.push(("outside".to_owned(), whole - known));
        Self { phases, whole }
    }
}

/// Prints one column for each pause.
pub(super) fn print_breakdowns(all: &[PhaseBreakdown], think_times: &[u64]) {
    let head: Vec<String> = think_times.iter().map(|think| format!("{think} ms pause")).collect();
    print_line(&format!("\n| phase, mean ms | {} |", head.join(" | ")));
    print_line(&format!("|---|{}", "---|".repeat(all.len())));
    let names = all.first().map(|one| &one.phases[..]).unwrap_or_default();
    for (at, (name, _)) in names.iter().enumerate() {
        let times = all.iter().map(|one| one.phases.get(at).map_or(f64::NAN, |(_, time)| *time));
        print_row(name, times);
    }
    print_row("whole", all.iter().map(|one| one.whole));
}

fn print_row(name: &str, times: impl Iterator<Item = f64>) {
    let times: Vec<String> = times.map(|time| format!("{time:.3}")).collect();
    print_line(&format!("| {name} | {} |", times.join(" | ")));
}
