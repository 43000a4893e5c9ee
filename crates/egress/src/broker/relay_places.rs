//! Runs in: broker (no capabilities).
//!
//! Places for connections that the broker relays itself: plain HTTP under an allowlist, TLS to
//! hosts with a credential, DNS over TCP. Each has two descriptors and buffers in this process,
//! which serves all cells. So a session gets no more places than a quarter of those that are free:
//! however many sessions take what they can, a new one finds some.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use rustix::process::{Resource, getrlimit};

/// The places of all sessions.
#[derive(Debug)]
pub(super) struct RelayPlaces {
    total: usize,
    used: AtomicUsize,
}

/// The places of one session.
#[derive(Debug)]
pub(super) struct SessionPlaces {
    all: Arc<RelayPlaces>,
    used: AtomicUsize,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(super) struct RelayPlace(Arc<SessionPlaces>);

impl RelayPlaces {
    /// As many as this process can have descriptors for, with a quarter of them left for others.
    pub(super) fn within_descriptors() -> Arc<Self> {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Self::new(usize::try_from(limit / 8 * 3).unwrap_or(usize::MAX))
    }

    fn new(total: usize) -> Arc<Self> {
        Arc::new(Self { total, used: AtomicUsize::new(0) })
    }

    /// The places of a new session.
    pub(super) fn open_session(self: &Arc<Self>) -> Arc<SessionPlaces> {
        Arc::new(SessionPlaces { all: Arc::clone(self), used: AtomicUsize::new(0) })
    }
}

impl SessionPlaces {
    /// A place, if the session has not had its share.
    pub(super) fn take(self: &Arc<Self>) -> Option<RelayPlace> {
        // One thread serves all sessions, so the numbers do not change in between.
        let free = self.all.total.saturating_sub(self.all.used.load(Ordering::Relaxed));
        if self.used.load(Ordering::Relaxed) >= free / 4 {
            return None;
        }
        self.all.used.fetch_add(1, Ordering::Relaxed);
        self.used.fetch_add(1, Ordering::Relaxed);
        Some(RelayPlace(Arc::clone(self)))
    }
}

impl Drop for RelayPlace {
    fn drop(&mut self) {
        self.0.used.fetch_sub(1, Ordering::Relaxed);
        self.0.all.used.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(places: &Arc<SessionPlaces>) -> Vec<RelayPlace> {
        std::iter::from_fn(|| places.take()).collect()
    }

    #[test]
    fn sessions_that_take_what_they_can_leave_places_for_the_next_one() {
        let all = RelayPlaces::new(1000);
        let sessions: Vec<_> = (0..20).map(|_| all.open_session()).collect();
        let taken: Vec<_> = sessions.iter().map(take_all).collect();
        assert_eq!(taken[0].len(), 200);
        let next = all.open_session();
        assert!(!take_all(&next).is_empty());
        // What the first ones give back is for the others.
        drop(taken);
        assert_eq!(take_all(&next).len(), 200);
        assert_eq!(all.used.load(Ordering::Relaxed), 0);
    }
}
