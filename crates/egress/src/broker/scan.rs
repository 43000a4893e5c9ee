//! Runs in: broker (no capabilities).
//!
//! Recognises a port scan by its failures.

use std::{
    collections::HashSet,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

const PERIOD: Duration = Duration::from_secs(60);
const MOST_ADDRESSES: usize = 30;
const MOST_ENDS: usize = 100;

/// The failed attempts of the last minute.
pub(super) struct ScanWatch {
    since: Instant,
    addresses: HashSet<IpAddr>,
    ends: HashSet<SocketAddr>,
    cut_until: Option<Instant>,
}

impl ScanWatch {
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, addresses: HashSet::new(), ends: HashSet::new(), cut_until: None }
    }

    /// Notes an attempt that led nowhere.
    pub(super) fn note_failure(&mut self, remote: SocketAddr, now: Instant) {
        if now.saturating_duration_since(self.since) > PERIOD {
            self.since = now;
            self.addresses.clear();
            self.ends.clear();
        }
        self.addresses.insert(remote.ip());
        self.ends.insert(remote);
        if self.addresses.len() > MOST_ADDRESSES || self.ends.len() > MOST_ENDS {
            self.cut_until = Some(now + PERIOD);
            self.addresses.clear();
            self.ends.clear();
        }
    }

    /// Whether new connections are refused for now.
    pub(super) fn is_cut(&self, now: Instant) -> bool {
        self.cut_until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_failed_addresses_or_ports_are_a_scan() {
        let start = Instant::now();
        let mut hosts = ScanWatch::new(start);
        for n in 0..=30 {
            assert!(!hosts.is_cut(start), "{n}");
            hosts.note_failure(SocketAddr::from(([1, 1, 1, n], 80)), start);
        }
        assert!(hosts.is_cut(start) && !hosts.is_cut(start + PERIOD));

        let mut ports = ScanWatch::new(start);
        for port in 1..=100 {
            ports.note_failure(SocketAddr::from(([1, 1, 1, 1], port)), start);
        }
        assert!(!ports.is_cut(start));
        ports.note_failure(SocketAddr::from(([1, 1, 1, 1], 101)), start);
        assert!(ports.is_cut(start));
    }

    #[test]
    fn a_program_that_retries_one_host_is_no_scan() {
        let start = Instant::now();
        let mut watch = ScanWatch::new(start);
        for _ in 0..1000 {
            watch.note_failure(SocketAddr::from(([1, 1, 1, 1], 80)), start);
        }
        assert!(!watch.is_cut(start));
    }
}
