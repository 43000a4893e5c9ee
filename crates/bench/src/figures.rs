//! Turns times into a table: percentiles, ratios, and the promised limits.

use std::time::Duration;

use crate::print_line;

/// The times of one contestant.
pub(crate) struct LatencyFigures {
    pub(crate) name: String,
    sorted: Vec<Duration>,
}

impl LatencyFigures {
    /// Takes times in any order.
    pub(crate) fn new(name: String, mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self { name, sorted: times }
    }

    /// The time in milliseconds that this percentage of runs did not exceed.
    pub(crate) fn percentile(&self, percent: usize) -> f64 {
        let at = (self.sorted.len() * percent / 100).min(self.sorted.len().saturating_sub(1));
        self.sorted.get(at).map_or(f64::NAN, |time| time.as_secs_f64() * 1000.0)
    }
}

/// Prints p50, p90 and p99 of each as a Markdown table.
pub(crate) fn print_table(all: &[LatencyFigures]) {
    print_line("\n| contestant | runs | p50 ms | p90 ms | p99 ms |\n|---|---|---|---|---|");
    for figures in all {
        let [p50, p90, p99] = [50, 90, 99].map(|percent| figures.percentile(percent));
        let runs = figures.sorted.len();
        print_line(&format!("| {} | {runs} | {p50:.2} | {p90:.2} | {p99:.2} |", figures.name));
    }
}

/// The promises: one contestant takes at most this many times as long as another, at the median.
const PROMISES: [(&str, &str, f64); 4] = [
    ("cloche cold bash", "bwrap bash", 0.8),
    ("cloche cold python", "bare python", 1.25),
    ("cloche cold python", "crun python", 0.6),
    ("cloche cold python", "runc python", 0.45),
];

/// The maximum ratio of p99 to p50.
const TAIL: f64 = 2.5;

/// Prints each promise beside the measured value.
pub(crate) fn print_promises(all: &[LatencyFigures]) {
    let median = |name: &str| {
        let figures = all.iter().find(|figures| figures.name == name);
        figures.map_or(f64::NAN, |figures| figures.percentile(50))
    };
    print_line("\n| promise | at most | measured | kept |\n|---|---|---|---|");
    for (ours, theirs, most) in PROMISES {
        print_promise(&format!("{ours} : {theirs}"), most, median(ours) / median(theirs));
    }
    print_tail_rows(all);
}

/// Prints the ratio of the slowest runs to the median.
pub(crate) fn print_tails(all: &[LatencyFigures]) {
    print_line("\n| promise | at most | measured | kept |\n|---|---|---|---|");
    print_tail_rows(all);
}

fn print_tail_rows(all: &[LatencyFigures]) {
    for figures in all.iter().filter(|figures| figures.name.starts_with("cloche cold")) {
        let ratio = figures.percentile(99) / figures.percentile(50);
        print_promise(&format!("{} p99 : p50", figures.name), TAIL, ratio);
    }
}

/// Prints one promise beside the measured value.
pub(crate) fn print_promise(what: &str, most: f64, measured: f64) {
    let kept = match measured {
        ratio if ratio.is_nan() => "not measured",
        ratio if ratio <= most => "yes",
        _ => "NO",
    };
    print_line(&format!("| {what} | {most} | {measured:.3} | {kept} |"));
}
