//! Who decides whether a wall held: the probe's own last line, or what the host saw.

use std::time::Duration;

use cloche_model::{Ending, Outcome};

use super::{bait::Bait, host::Counts};

/// What there is to decide by.
pub(crate) struct Seen<'a> {
    pub(crate) outcome: &'a Outcome,
    /// What all of its runs printed.
    pub(crate) said: &'a str,
    /// From the request to the reply.
    pub(crate) took: Duration,
    pub(crate) limits: cloche_model::Limits,
    /// How long the neighbour waited; nothing if it was not served.
    pub(crate) neighbour: Option<Duration>,
    pub(crate) before: Counts,
    pub(crate) after: Counts,
    /// How much our own memory grew, in KiB.
    pub(crate) grown_kib: u64,
    /// The processor time that we used meanwhile ourselves.
    pub(crate) own_cpu: Duration,
    pub(crate) bait: &'a Bait,
}

/// Whether it held, and what was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) held: bool,
    pub(crate) got: String,
}

/// Decides.
pub(crate) type Judge = fn(&Seen<'_>) -> Verdict;

/// The processors that we may use to read what one guest prints: well above what a paced reader takes
/// in a build without optimisation, and below what one without a pace does.
const MOST_OWN_CORES: f64 = 0.3;

/// How long after its deadline everything of a run must be over.
const GRACE: Duration = Duration::from_millis(100);

fn verdict(held: bool, got: impl Into<String>) -> Verdict {
    Verdict { held, got: got.into() }
}

/// The probe's own word. One that says neither `HELD` nor `BROKE` was broken by something else.
pub(crate) fn says(seen: &Seen<'_>) -> Verdict {
    let line = |word: &str| {
        let mut lines = seen.said.lines();
        lines.find_map(|line| Some(line.strip_prefix(word)?.trim().to_owned()))
    };
    match (line("BROKE"), line("HELD")) {
        (Some(got), _) => verdict(false, got),
        (None, Some(got)) => verdict(true, got),
        (None, None) => {
            let error = seen.outcome.stderr.text();
            let last = error.lines().last().unwrap_or_default();
            verdict(false, format!("no verdict: {:?} {last}", seen.outcome.ending))
        }
    }
}

fn also(seen: &Seen<'_>, good: bool, what: &str) -> Verdict {
    let said = says(seen);
    match said.held && !good {
        true => verdict(false, what),
        false => said,
    }
}

/// Its own word, and our program's file is as it was.
pub(crate) fn binary_unchanged(seen: &Seen<'_>) -> Verdict {
    also(seen, seen.bait.binary_is_untouched(), "our own program was changed")
}

/// Its own word, and what was put out on the host is as it was, and nothing is left.
pub(crate) fn bait_unchanged(seen: &Seen<'_>) -> Verdict {
    match seen.bait.is_untouched() {
        true => nothing_left(seen),
        false => verdict(false, "a file of the host's was changed"),
    }
}

/// Its own word, and the host's processes are all there.
pub(crate) fn host_unharmed(seen: &Seen<'_>) -> Verdict {
    also(seen, seen.after.processes >= seen.before.processes, "a process of the host's is gone")
}

/// Its own word, and nothing of the run is left.
pub(crate) fn nothing_left(seen: &Seen<'_>) -> Verdict {
    let left = seen.after.growth(&seen.before);
    also(seen, left.is_none(), &format!("left behind: {}", left.as_deref().unwrap_or("nothing")))
}

/// The memory limit ended it.
pub(crate) fn ran_out(seen: &Seen<'_>) -> Verdict {
    let ended = seen.outcome.ending;
    verdict(ended == Ending::OutOfMemory, format!("{ended:?}, {}", says(seen).got))
}

/// Its own word, or the memory limit ended it; it never held more than the limit.
pub(crate) fn within_memory(seen: &Seen<'_>) -> Verdict {
    let (peak, most) = (seen.outcome.usage.peak_memory, seen.limits.memory);
    let got = format!("{}, {} KiB at most", says(seen).got, peak.bytes() >> 10);
    let ended = seen.outcome.ending == Ending::OutOfMemory || says(seen).held;
    verdict(ended && peak <= most, got)
}

/// It was stopped in time, all of it, and a neighbour was served meanwhile.
pub(crate) fn stopped_at_deadline(seen: &Seen<'_>) -> Verdict {
    let over = seen.took.saturating_sub(seen.limits.timeout);
    let waited = seen.neighbour;
    let served = waited.is_none_or(|waited| waited < Duration::from_secs(5));
    let left = seen.after.growth(&seen.before);
    let held = seen.outcome.ending == Ending::TimedOut && over <= GRACE && served && left.is_none();
    let mut got = format!("{:?} {} ms after the deadline", seen.outcome.ending, over.as_millis());
    if let Some(waited) = waited {
        got += &format!(", a neighbour was served in {} ms", waited.as_millis());
    }
    if let Some(left) = left {
        got += &format!(", left behind: {left}");
    }
    verdict(held, got)
}

/// The head was kept, the rest counted, and we did not grow with it.
pub(crate) fn flood_dropped(seen: &Seen<'_>) -> Verdict {
    let kept = seen.outcome.stdout.bytes.len() as u64;
    let dropped = seen.outcome.stdout.dropped;
    let all = kept + dropped == 1 << 28;
    // What we do for a cell is not within its quota.
    let cores = seen.own_cpu.as_secs_f64() / seen.took.as_secs_f64();
    let got = format!(
        "kept {kept}, dropped {dropped}, our memory grew by {} KiB, we used {cores:.2} cores",
        seen.grown_kib
    );
    let is_flat = seen.grown_kib < 64 << 10 && cores < MOST_OWN_CORES;
    verdict(all && kept == seen.limits.output.bytes() && is_flat, got)
}

/// The reply did not wait for a daemon, and the daemon is gone.
pub(crate) fn prompt(seen: &Seen<'_>) -> Verdict {
    let in_time = seen.took < Duration::from_secs(2);
    let left = nothing_left(seen);
    match in_time {
        true => left,
        false => verdict(false, format!("the reply took {} ms", seen.took.as_millis())),
    }
}
