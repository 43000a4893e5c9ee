//! Runs in: server (no capabilities).
//!
//! Where the time of one execution went, from its request to its record. The phases follow each
//! other without a gap, so their sum is the whole. Does not know who shows them, or how.

use std::time::{Duration, Instant};

use cloche_model::RunTimings;

/// The phases of one execution, in their order.
#[derive(Clone, Copy, Debug)]
pub struct RequestPhases {
    /// When the engine got the request.
    pub asked_at: Instant,
    /// When the end was in the ledger, and was announced.
    pub over_at: Instant,
    begun_at: Instant,
    ran_at: Instant,
    timings: RunTimings,
}

impl RequestPhases {
    /// Each phase with its name: `begin` checks the request and writes the running row, `dispatch`
    /// hands the run over to the executor and back, `cell` is the wait for a cell, `run` the
    /// program with its start, `seal` what follows in the executor, `end` writes the outcome.
    #[must_use]
    pub fn durations(&self) -> [(&'static str, Duration); 6] {
        let RunTimings { cell, run, seal, .. } = self.timings;
        let outside = self.ran_at.saturating_duration_since(self.begun_at);
        [
            ("begin", self.begun_at.saturating_duration_since(self.asked_at)),
            ("dispatch", outside.saturating_sub(cell + run + seal)),
            ("cell", cell),
            ("run", run),
            ("seal", seal),
            ("end", self.over_at.saturating_duration_since(self.ran_at)),
        ]
    }
}

/// Takes the times of one execution while it goes on.
#[derive(Clone, Copy, Debug)]
pub(super) struct PhaseClock {
    asked_at: Instant,
    begun_at: Instant,
}

impl PhaseClock {
    /// The engine has got the request.
    pub(super) fn start() -> Self {
        let now = Instant::now();
        Self { asked_at: now, begun_at: now }
    }

    /// The running row is written.
    pub(super) fn note_begun(self) -> Self {
        Self { begun_at: Instant::now(), ..self }
    }

    /// The end is recorded. `ran_at` is when the executor had returned.
    pub(super) fn finish(self, ran_at: Instant, timings: RunTimings) -> RequestPhases {
        let Self { asked_at, begun_at } = self;
        RequestPhases { asked_at, over_at: Instant::now(), begun_at, ran_at, timings }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_phases_add_up_to_the_whole() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let part = Duration::from_millis;
        let timings = RunTimings { cell: part(1), attach: part(1), run: part(5), seal: part(2) };
        let phases = RequestPhases {
            asked_at: at(0),
            begun_at: at(3),
            ran_at: at(15),
            over_at: at(19),
            timings,
        };
        let all = phases.durations();
        assert_eq!(all.iter().map(|(_, time)| *time).sum::<Duration>(), part(19));
        assert_eq!(all.map(|(_, time)| time), [3, 4, 1, 5, 2, 4].map(part));
    }
}
