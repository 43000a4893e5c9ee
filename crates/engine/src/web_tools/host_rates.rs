//! Runs in: server (no capabilities).
//!
//! How often pages of one host are read: at most a number of requests in any minute.

use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

const MINUTE: Duration = Duration::from_secs(60);
/// The most hosts that are remembered. Beyond it, hosts without a request in the last minute go.
const MAX_HOSTS: usize = 4_096;

/// The requests of the last minute, by host.
pub(super) struct HostRates {
    per_minute: usize,
    recent: Mutex<HashMap<String, VecDeque<Instant>>>,
}

impl HostRates {
    pub(super) fn new(per_minute: u32) -> Self {
        Self { per_minute: per_minute.max(1) as usize, recent: Mutex::default() }
    }

    /// Counts a request to a host, or says how long until the next one may be made.
    pub(super) fn take(&self, host: &str, now: Instant) -> Result<(), Duration> {
        let mut recent = self.recent.lock();
        let is_old = |at: &Instant| now.saturating_duration_since(*at) >= MINUTE;
        if recent.len() >= MAX_HOSTS && !recent.contains_key(host) {
            recent.retain(|_, times| times.back().is_some_and(|last| !is_old(last)));
            if recent.len() >= MAX_HOSTS {
                return Err(MINUTE);
            }
        }
        let times = recent.entry(host.to_owned()).or_default();
        while times.front().is_some_and(is_old) {
            times.pop_front();
        }
        match times.front() {
            Some(first) if times.len() >= self.per_minute => {
                Err(MINUTE.saturating_sub(now.saturating_duration_since(*first)))
            }
            _ => {
                times.push_back(now);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_asked_so_often_in_any_minute() {
        let (rates, start) = (HostRates::new(2), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(rates.take("a", at(0)), Ok(()));
        assert_eq!(rates.take("a", at(10)), Ok(()));
        assert_eq!(rates.take("a", at(20)), Err(Duration::from_secs(40)));
        assert_eq!(rates.take("b", at(20)), Ok(()));
        assert_eq!(rates.take("a", at(60)), Ok(()));
        assert_eq!(rates.take("a", at(61)), Err(Duration::from_secs(9)));
    }

    #[test]
    fn the_number_of_hosts_is_bounded() {
        let (rates, now) = (HostRates::new(1), Instant::now());
        for host in 0..MAX_HOSTS {
            assert_eq!(rates.take(&host.to_string(), now), Ok(()));
        }
        assert_eq!(rates.take("one more", now), Err(MINUTE));
        assert_eq!(rates.take("one more", now + MINUTE), Ok(()));
    }
}
