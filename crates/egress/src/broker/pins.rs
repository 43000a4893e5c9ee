//! Runs in: broker (no capabilities).
//!
//! The addresses that the names of a session have. A name that was allowed and resolved is pinned
//! to its addresses; under an allowlist a program reaches an address only by a name pinned to it.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
    time::{Duration, Instant},
};

use cloche_model::HostName;

/// How long a pin is kept after its last use, at least.
const LEAST_LIFE: Duration = Duration::from_secs(600);
/// The most addresses of one name.
pub(super) const MOST_ADDRESSES: usize = 64;
/// The most names of one session.
const MOST_NAMES: usize = 1024;

#[derive(Default)]
pub(super) struct PinTable {
    by_address: HashMap<IpAddr, HashMap<HostName, Instant>>,
    names: HashSet<HostName>,
}

impl PinTable {
    /// Whether a further name fits. Every name that is looked up takes a place for the whole
    /// session, so that names cannot carry data out without bound.
    pub(super) fn take_name(&mut self, name: &HostName) -> bool {
        if self.names.contains(name) {
            return true;
        }
        let fits = self.names.len() < MOST_NAMES;
        if fits {
            self.names.insert(name.clone());
        }
        fits
    }

    /// Pins a name to addresses.
    pub(super) fn pin(
        &mut self,
        name: &HostName,
        addresses: &[IpAddr],
        ttl: Duration,
        now: Instant,
    ) {
        let until = now + ttl.max(LEAST_LIFE);
        self.by_address.retain(|_, names| {
            names.retain(|_, until| *until > now);
            !names.is_empty()
        });
        for address in addresses.iter().take(MOST_ADDRESSES) {
            self.by_address.entry(*address).or_default().insert(name.clone(), until);
        }
    }

    /// The names pinned to an address; their pins live on from now.
    pub(super) fn names_of(&mut self, address: IpAddr, now: Instant) -> Vec<HostName> {
        let Some(names) = self.by_address.get_mut(&address) else {
            return Vec::new();
        };
        names.retain(|_, until| *until > now);
        for until in names.values_mut() {
            *until = (*until).max(now + LEAST_LIFE);
        }
        names.keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_lives_ten_minutes_after_its_last_use() {
        let mut pins = PinTable::default();
        let (name, start): (HostName, _) = ("a.example".parse().unwrap(), Instant::now());
        let address: IpAddr = "1.1.1.1".parse().unwrap();
        pins.pin(&name, &[address], Duration::from_secs(1), start);
        let minutes = |n: u64| start + Duration::from_secs(60 * n);
        assert_eq!(pins.names_of(address, minutes(9)), std::slice::from_ref(&name));
        assert_eq!(pins.names_of(address, minutes(18)), [name]);
        assert!(pins.names_of(address, minutes(29)).is_empty());
        assert!(pins.names_of("1.1.1.2".parse().unwrap(), start).is_empty());
    }

    #[test]
    fn names_of_a_session_are_bounded() {
        let mut pins = PinTable::default();
        let taken = (0..2000)
            .filter(|n| pins.take_name(&format!("n{n}.example.com").parse().unwrap()))
            .count();
        assert_eq!(taken, MOST_NAMES);
        assert!(pins.take_name(&"n5.example.com".parse().unwrap()));
    }
}
