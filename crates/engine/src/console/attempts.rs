//! Runs in: server (no capabilities).
//!
//! Limits sign-in attempts: of one name from one address, of one address, and of one name. An
//! attempt counts from its beginning, so that many at once are limited, too; one that succeeds is
//! taken back.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    time::{Duration, Instant},
};

use cloche_model::ErrorCode;
use parking_lot::Mutex;

use crate::Refusal;

/// How long a failed attempt counts.
const WINDOW: Duration = Duration::from_mins(15);
/// The most failed attempts of one name from one network.
const PER_PAIR: u32 = 10;
/// The most failed attempts from one network, with any names.
const PER_NETWORK: u32 = 50;
/// The most failed attempts of one name, from everywhere. It is large, because whoever knows a name
/// could lock its owner out.
const PER_NAME: u32 = 500;
/// The most counters. Beyond it the ones that have run out are dropped.
const MOST: usize = 20_000;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum AttemptSubject {
    Pair(String, Option<IpAddr>),
    Network(Option<IpAddr>),
    Name(String),
}

/// The counters.
#[derive(Default)]
pub(super) struct SignInAttempts {
    counters: Mutex<HashMap<AttemptSubject, (u32, Instant)>>,
}

impl SignInAttempts {
    /// Counts an attempt.
    ///
    /// # Errors
    /// When there were too many; the caller must not even check the password then.
    pub(super) fn begin(&self, name: &str, address: Option<IpAddr>) -> Result<(), Refusal> {
        let now = Instant::now();
        let mut counters = self.counters.lock();
        if counters.len() >= MOST {
            counters.retain(|_, (_, since)| now.duration_since(*since) < WINDOW);
        }
        let subjects = subjects(name, address);
        for (subject, most) in &subjects {
            let counter = counters.get(subject);
            let Some((count, since)) = counter else { continue };
            let passed = now.duration_since(*since);
            if passed < WINDOW && count >= most {
                return Err(too_many_refusal(WINDOW.saturating_sub(passed)));
            }
        }
        if counters.len() >= MOST {
            return Err(too_many_refusal(WINDOW));
        }
        for (subject, _) in subjects {
            let (count, since) = counters.entry(subject).or_insert((0, now));
            if now.duration_since(*since) >= WINDOW {
                (*count, *since) = (0, now);
            }
            *count += 1;
        }
        Ok(())
    }

    /// Takes an attempt back that was no guess, because it succeeded.
    pub(super) fn succeed(&self, name: &str, address: Option<IpAddr>) {
        let mut counters = self.counters.lock();
        for (subject, _) in subjects(name, address) {
            if let Some((count, _)) = counters.get_mut(&subject) {
                *count = count.saturating_sub(1);
            }
        }
    }
}

fn subjects(name: &str, address: Option<IpAddr>) -> [(AttemptSubject, u32); 3] {
    let network = address.map(client_network);
    [
        (AttemptSubject::Pair(name.to_owned(), network), PER_PAIR),
        (AttemptSubject::Network(network), PER_NETWORK),
        (AttemptSubject::Name(name.to_owned()), PER_NAME),
    ]
}

/// For IPv6 the /64 network, because one client has a whole one.
pub(super) fn client_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        v4 => v4,
    }
}

fn too_many_refusal(wait: Duration) -> Refusal {
    let message = "too many sign-in attempts; wait some minutes and try again";
    Refusal { retry_after: Some(wait), ..Refusal::new(ErrorCode::RateLimited, message) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guesses_are_limited_by_name_and_by_network_and_successes_do_not_count() {
        let attempts = SignInAttempts::default();
        let here: Option<IpAddr> = Some("2001:db8::1".parse().unwrap());
        let beside: Option<IpAddr> = Some("2001:db8::2".parse().unwrap());
        let elsewhere: Option<IpAddr> = Some("192.0.2.1".parse().unwrap());
        for _ in 0..100 {
            attempts.begin("ada", here).unwrap();
            attempts.succeed("ada", here);
        }
        for _ in 0..PER_PAIR {
            attempts.begin("ada", here).unwrap();
        }
        let refused = attempts.begin("ada", beside).unwrap_err();
        assert_eq!(refused.code, ErrorCode::RateLimited);
        assert!(refused.retry_after.is_some_and(|wait| wait <= WINDOW));
        attempts.begin("ada", elsewhere).unwrap();
        for guess in 0..PER_NETWORK - PER_PAIR {
            attempts.begin(&format!("name-{guess}"), here).unwrap();
        }
        assert!(attempts.begin("another", here).is_err());
        assert!(attempts.begin("another", elsewhere).is_ok());
    }
}
