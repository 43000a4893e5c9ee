//! Who decides whether a wall held: the probe's own last line, or what the host saw.

use std::time::Duration;

use cloche_model::{RunEnding, RunOutcome};

use crate::{decoys::HostDecoys, host::HostCounts};

/// What there is to decide by.
pub struct ProbeEvidence<'a> {
    /// How the deciding run ended.
    pub outcome: &'a RunOutcome,
    /// What all of its runs printed.
    pub said: &'a str,
    /// From the request to the reply.
    pub took: Duration,
    /// The limits of its runs.
    pub limits: cloche_model::RunLimits,
    /// How long the neighbour waited; nothing if it was not served.
    pub neighbour: Option<Duration>,
    /// The host before the first run.
    pub before: HostCounts,
    /// The host after the last run.
    pub after: HostCounts,
    /// How much our own memory grew, in KiB.
    pub grown_kib: u64,
    /// The processor time that we used meanwhile ourselves.
    pub own_cpu: Duration,
    /// What the programs looked for.
    pub decoys: &'a HostDecoys,
}

/// Whether it held, and what was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeVerdict {
    /// Whether the wall held.
    pub held: bool,
    /// Whether it would have held, if its run had ended earlier.
    pub is_only_late: bool,
    /// What was seen.
    pub got: String,
}

/// Decides.
pub type Judge = fn(&ProbeEvidence<'_>) -> ProbeVerdict;

/// The processors that we may use to read what one guest prints: well above what a paced reader takes
/// in a build without optimisation, and below what one without a pace does.
const MOST_OWN_CORES: f64 = 0.3;

/// How long after its deadline everything of a run must be over.
const GRACE: Duration = Duration::from_millis(100);

fn to_verdict(held: bool, got: impl Into<String>) -> ProbeVerdict {
    ProbeVerdict { held, is_only_late: false, got: got.into() }
}

/// The probe's own word. One that says neither `HELD` nor `BROKE` was broken by something else.
pub fn probe_says(seen: &ProbeEvidence<'_>) -> ProbeVerdict {
    let line = |word: &str| {
        let mut lines = seen.said.lines();
        lines.find_map(|line| Some(line.strip_prefix(word)?.trim().to_owned()))
    };
    match (line("BROKE"), line("HELD")) {
        (Some(got), _) => to_verdict(false, got),
        (None, Some(got)) => to_verdict(true, got),
        (None, None) => {
            let error = seen.outcome.stderr.to_text_lossy();
            let last = error.lines().last().unwrap_or_default();
            to_verdict(false, format!("no verdict: {:?} {last}", seen.outcome.ending))
        }
    }
}

fn probe_says_and(seen: &ProbeEvidence<'_>, good: bool, what: &str) -> ProbeVerdict {
    let said = probe_says(seen);
    match said.held && !good {
        true => to_verdict(false, what),
        false => said,
    }
}

/// Its own word, and our program's file is as it was.
pub fn binary_unchanged(seen: &ProbeEvidence<'_>) -> ProbeVerdict {
    probe_says_and(seen, seen.decoys.binary_is_untouched(), "our own program was changed")
}

/// Its own word, and what was put out on the host is as it was, and nothing is left.
pub fn decoys_unchanged(seen: &ProbeEvidence<'_>) -> ProbeVerdict {
    match seen.decoys.is_untouched() {
        true => nothing_left(seen),
        false => to_verdict(false, "a file of the host's was changed"),
    }
}

/// Its own word, and the host's processes are all there.
pub fn host_unharmed(seen: &ProbeEvidence<'_>) -> ProbeVerdict {
    probe_says_and(
        seen,
        seen.after.processes >= seen.before.processes,
        "a process of the host's is gone",
    )
}

/// Its own word, and nothing of the run is left.
pub fn nothing_left(seen: &ProbeEvidence<'_>) -> ProbeVerdict {
    let left = seen.after.growth(&seen.before);
    probe_says_and(
        seen,
        left.is_none(),
        &format!("left behind: {}", left.as_deref().unwrap_or("nothing")),
    )
}

/// The memory limit ended it.
pub fn ran_out_of_memory(seen: &ProbeEvidence<'_>) -> ProbeVerdict {
    let ended = seen.outcome.ending;
    to_verdict(ended == RunEnding::OutOfMemory, format!("{ended:?}, {}", probe_says(seen).got))
}

/// Its own word, and then it was ended as if by the memory limit.
pub(crate) fn said_and_ran_out(seen: &ProbeEvidence<'_>) -> ProbeVerdict {
    let (said, ended) = (probe_says(seen), seen.outcome.ending);
    to_verdict(said.held && ended == RunEnding::OutOfMemory, format!("{ended:?}, {}", said.got))
}

/// Its own word, or the memory limit ended it; it never held more than the limit.
pub fn within_memory(seen: &ProbeEvidence<'_>) -> ProbeVerdict {
    let (peak, most) = (seen.outcome.usage.peak_memory, seen.limits.memory);
    let got = format!("{}, {} KiB at most", probe_says(seen).got, peak.bytes() >> 10);
    let ended = seen.outcome.ending == RunEnding::OutOfMemory || probe_says(seen).held;
    to_verdict(ended && peak <= most, got)
}

/// It was stopped in time, all of it, and a neighbour was served meanwhile.
pub fn stopped_at_deadline(seen: &ProbeEvidence<'_>) -> ProbeVerdict {
    let (ended, was_stopped) = (over_at_deadline(seen), seen.outcome.ending == RunEnding::TimedOut);
    let held = ended.held && was_stopped;
    ProbeVerdict { held, is_only_late: ended.is_only_late && was_stopped, got: ended.got }
}

/// It was over at its deadline or before, all of it, and a neighbour was served meanwhile.
pub(crate) fn over_at_deadline(seen: &ProbeEvidence<'_>) -> ProbeVerdict {
    let over = seen.took.saturating_sub(seen.limits.timeout);
    let waited = seen.neighbour;
    let served = waited.is_none_or(|waited| waited < Duration::from_secs(5));
    let left = seen.after.growth(&seen.before);
    let (in_time, is_clean) = (over <= GRACE, served && left.is_none());
    let mut got = format!("{:?} {} ms after the deadline", seen.outcome.ending, over.as_millis());
    if let Some(waited) = waited {
        got += &format!(", a neighbour was served in {} ms", waited.as_millis());
    }
    if let Some(left) = left {
        got += &format!(", left behind: {left}");
    }
    if seen.outcome.ending != RunEnding::TimedOut {
        let error = seen.outcome.stderr.to_text_lossy();
        got += &format!(", it said last: {:?}", error.lines().last().unwrap_or_default());
    }
    ProbeVerdict { held: in_time && is_clean, is_only_late: !in_time && is_clean, got }
}

/// The head was kept, the rest counted, and we did not grow with it.
pub fn flood_dropped(seen: &ProbeEvidence<'_>) -> ProbeVerdict {
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
    to_verdict(all && kept == seen.limits.output.bytes() && is_flat, got)
}

/// The reply did not wait for a daemon, and the daemon is gone.
pub fn replied_promptly(seen: &ProbeEvidence<'_>) -> ProbeVerdict {
    let in_time = seen.took < Duration::from_secs(2);
    let left = nothing_left(seen);
    match in_time {
        true => left,
        false => to_verdict(false, format!("the reply took {} ms", seen.took.as_millis())),
    }
}
