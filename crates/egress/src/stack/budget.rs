//! Runs in: stack worker (no capabilities).
//!
//! Rates, the bytes of a run, and the memory of buffers.

use std::time::{Duration, Instant};

/// A token bucket.
#[derive(Debug)]
pub(crate) struct TokenBucket {
    per_second: u64,
    burst: u64,
    /// In millionths of a token, so that short waits count.
    millionths: u64,
    filled: Instant,
}

impl TokenBucket {
    /// A full bucket.
    pub(crate) fn new(per_second: u64, burst: u64, now: Instant) -> Self {
        let millionths = burst.saturating_mul(1_000_000);
        Self { per_second, burst, millionths, filled: now }
    }

    /// The tokens that there are.
    pub(crate) fn available(&mut self, now: Instant) -> u64 {
        let passed = now.saturating_duration_since(self.filled).min(Duration::from_secs(60));
        let micros = u64::try_from(passed.as_micros()).unwrap_or(u64::MAX);
        self.filled = now;
        let gained = self.per_second.saturating_mul(micros);
        let most = self.burst.saturating_mul(1_000_000);
        self.millionths = self.millionths.saturating_add(gained).min(most);
        self.millionths / 1_000_000
    }

    /// Takes tokens that `available` has just counted.
    pub(crate) fn take(&mut self, tokens: u64) {
        self.millionths = self.millionths.saturating_sub(tokens.saturating_mul(1_000_000));
    }

    /// Takes one token if there is one.
    pub(crate) fn try_take(&mut self, now: Instant) -> bool {
        let available = self.available(now) > 0;
        if available {
            self.take(1);
        }
        available
    }
}

/// Bytes of the run and their rate in one direction.
#[derive(Debug)]
pub(super) struct ByteRate {
    bucket: Option<TokenBucket>,
    /// Bytes since the last report to the broker.
    pub(super) unreported: u64,
}

impl ByteRate {
    pub(super) fn new(per_second: Option<u64>, now: Instant) -> Self {
        // A burst of a quarter of a second, and at least one large segment.
        let bucket = per_second.map(|rate| TokenBucket::new(rate, (rate / 4).max(65_536), now));
        Self { bucket, unreported: 0 }
    }

    /// How many bytes may be moved now.
    pub(super) fn available(&mut self, now: Instant) -> usize {
        match &mut self.bucket {
            Some(bucket) => usize::try_from(bucket.available(now)).unwrap_or(usize::MAX),
            None => usize::MAX,
        }
    }

    pub(super) fn count(&mut self, bytes: usize) {
        let bytes = bytes as u64;
        self.unreported += bytes;
        if let Some(bucket) = &mut self.bucket {
            bucket.take(bytes);
        }
    }
}

/// What both directions may still move.
pub(super) struct Rates {
    pub(super) inward: ByteRate,
    pub(super) outward: ByteRate,
    /// What is left of the bytes of the run.
    pub(super) left: Option<u64>,
}

impl Rates {
    fn limit_to_run(&self, most: usize) -> usize {
        match self.left {
            Some(left) => most.min(usize::try_from(left).unwrap_or(usize::MAX)),
            None => most,
        }
    }

    pub(super) fn outward_available(&mut self, now: Instant) -> usize {
        let most = self.outward.available(now);
        self.limit_to_run(most)
    }

    pub(super) fn inward_available(&mut self, now: Instant) -> usize {
        let most = self.inward.available(now);
        self.limit_to_run(most)
    }

    pub(super) fn count_outward(&mut self, bytes: usize) {
        self.outward.count(bytes);
        self.take_from_run(bytes);
    }

    pub(super) fn count_inward(&mut self, bytes: usize) {
        self.inward.count(bytes);
        self.take_from_run(bytes);
    }

    fn take_from_run(&mut self, bytes: usize) {
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(bytes as u64);
        }
    }
}

/// The memory of the buffers of all connections.
#[derive(Debug, Default)]
pub(super) struct BufferBudget {
    used: usize,
}

impl BufferBudget {
    /// The receive buffer of a connection. Not larger: smoltcp mistakes the window of a SYN-ACK for
    /// a scaled one, and a peer could then write past the end of a larger buffer.
    pub(super) const RECEIVE: usize = 65_535;
    const LARGE: usize = 1024 * 1024;
    const SMALL: usize = 64 * 1024;
    /// The first connections get large buffers, up to this sum; all others small ones.
    const LARGE_UNTIL: usize = 20 * 1024 * 1024;

    /// Takes the send buffer of a new connection and returns its size.
    pub(super) fn take_send_buffer(&mut self) -> usize {
        let size = match self.used + Self::LARGE <= Self::LARGE_UNTIL {
            true => Self::LARGE,
            false => Self::SMALL,
        };
        self.used += size + Self::RECEIVE;
        size
    }

    /// Gives the buffers of a connection back.
    pub(super) fn give_back(&mut self, send_buffer: usize) {
        self.used = self.used.saturating_sub(send_buffer + Self::RECEIVE);
    }
}

#[cfg(test)]
mod tests {
    use cloche_model::NetworkLimits;

    use super::*;

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(50, 200, start);
        assert_eq!((0..1000).filter(|_| bucket.try_take(start)).count(), 200);
        let later = start + Duration::from_millis(500);
        assert_eq!((0..1000).filter(|_| bucket.try_take(later)).count(), 25);
        assert_eq!(bucket.available(later + Duration::from_secs(3600)), 200);
    }

    #[test]
    fn the_buffers_of_the_most_connections_fit_the_bound() {
        let mut budget = BufferBudget::default();
        let sizes: Vec<usize> =
            (0..NetworkLimits::MOST_CONNECTIONS).map(|_| budget.take_send_buffer()).collect();
        assert!(budget.used <= 52 * 1024 * 1024, "{}", budget.used);
        sizes.into_iter().for_each(|size| budget.give_back(size));
        assert_eq!(budget.used, 0);
    }
}
