//! Runs in: server (no capabilities).
//!
//! The minimum pace of a request body: a timeout for each piece, and a rate for all of it. Only
//! time spent waiting for the client counts.

use std::time::Duration;

use cloche_model::ByteSize;
use tokio::time::{Instant, error::Elapsed, timeout};

/// The progress of a body.
#[derive(Debug)]
pub(crate) struct BodyPace {
    patience: Duration,
    rate: u64,
    waited: Duration,
    received: u64,
}

impl BodyPace {
    /// Each piece must arrive within `patience`; all of them within `patience` plus one second for
    /// each `rate` bytes.
    pub(crate) fn new(patience: Duration, rate: ByteSize) -> Self {
        Self { patience, rate: rate.bytes().max(1), waited: Duration::ZERO, received: 0 }
    }

    /// Waits for the next piece.
    pub(crate) async fn wait_for<F: Future>(&mut self, next: F) -> Result<F::Output, Elapsed> {
        let started = Instant::now();
        let next = timeout(self.time_left(), next).await;
        self.waited += started.elapsed();
        next
    }

    /// Counts received bytes.
    pub(crate) fn count_received(&mut self, bytes: usize) {
        self.received += bytes as u64;
    }

    fn time_left(&self) -> Duration {
        let earned = Duration::from_secs(self.received / self.rate);
        let all = self.patience.saturating_add(earned).saturating_sub(self.waited);
        all.min(self.patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn received_bytes_extend_the_time_limit() {
        let second = Duration::from_secs(1);
        let mut pace = BodyPace::new(10 * second, ByteSize(100));
        pace.waited = 8 * second;
        assert_eq!(pace.time_left(), 2 * second);
        pace.count_received(350);
        assert_eq!(pace.time_left(), 5 * second);
        pace.count_received(1_000_000);
        assert_eq!(pace.time_left(), 10 * second);
    }
}
