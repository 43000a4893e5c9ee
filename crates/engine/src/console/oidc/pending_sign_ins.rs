//! Runs in: server (no capabilities).
//!
//! Sign-ins that are under way at the provider. Each is good once, in the browser that began it,
//! for ten minutes.

use std::{
    collections::VecDeque,
    net::IpAddr,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use subtle::ConstantTimeEq;

use crate::{Refusal, console::attempts::client_network, secrets};

/// How long someone may take at the provider.
pub(super) const LIFETIME: Duration = Duration::from_mins(10);
/// The most at once. Beyond it the oldest is forgotten.
const MOST: usize = 10_000;
/// The most of one network at once. Beyond it the oldest of that network is forgotten.
const MOST_PER_NETWORK: usize = 200;

/// A sign-in that has begun.
pub(super) struct PendingSignIn {
    state: String,
    /// The digest of what the browser holds.
    browser: String,
    network: Option<IpAddr>,
    since: Instant,
    pub(super) nonce: String,
    /// The proof that whoever redeems the code began the sign-in.
    pub(super) verifier: String,
    /// The page to go to afterwards.
    pub(super) return_to: String,
}

impl PendingSignIn {
    /// With new random values. `browser` is the token of its cookie.
    pub(super) fn new(
        browser: &str,
        address: Option<IpAddr>,
        return_to: String,
    ) -> Result<Self, Refusal> {
        Ok(Self {
            state: hex::encode(secrets::random_bytes::<32>()?),
            browser: secrets::digest_secret(browser),
            network: address.map(client_network),
            since: Instant::now(),
            nonce: hex::encode(secrets::random_bytes::<32>()?),
            verifier: hex::encode(secrets::random_bytes::<32>()?),
            return_to,
        })
    }

    pub(super) fn state(&self) -> &str {
        &self.state
    }
}

/// All of them, the oldest first.
#[derive(Default)]
pub(super) struct PendingSignIns(Mutex<VecDeque<PendingSignIn>>);

impl PendingSignIns {
    pub(super) fn add(&self, pending: PendingSignIn) {
        let mut all = self.0.lock();
        while all.front().is_some_and(|oldest| oldest.since.elapsed() > LIFETIME) {
            all.pop_front();
        }
        let is_near = |other: &PendingSignIn| other.network == pending.network;
        if all.iter().filter(|other| is_near(other)).count() >= MOST_PER_NETWORK {
            let oldest = all.iter().position(is_near);
            oldest.and_then(|place| all.remove(place));
        } else if all.len() >= MOST {
            all.pop_front();
        }
        all.push_back(pending);
    }

    /// Takes one out, whoever asks. `None` if there is none, it is too old, or another browser began
    /// it.
    pub(super) fn take(&self, state: &str, browser: Option<&str>) -> Option<PendingSignIn> {
        let mut all = self.0.lock();
        let place = all
            .iter()
            .position(|pending| pending.state.as_bytes().ct_eq(state.as_bytes()).into())?;
        let pending = all.remove(place)?;
        let browser = secrets::digest_secret(browser?);
        let is_same: bool = pending.browser.as_bytes().ct_eq(browser.as_bytes()).into();
        (is_same && pending.since.elapsed() <= LIFETIME).then_some(pending)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_good_once_in_its_own_browser() {
        let all = PendingSignIns::default();
        let begin = |browser: &str| {
            let pending = PendingSignIn::new(browser, None, "/console/".to_owned()).unwrap();
            let state = pending.state.clone();
            all.add(pending);
            state
        };
        let state = begin("mine");
        assert!(all.take("another", Some("mine")).is_none());
        assert!(all.take(&state, Some("mine")).is_some());
        assert!(all.take(&state, Some("mine")).is_none(), "it was good twice");
        let state = begin("mine");
        assert!(all.take(&state, Some("theirs")).is_none());
        assert!(all.take(&state, Some("mine")).is_none(), "a stolen state stays good");
        assert!(all.take(&begin("mine"), None).is_none());
    }

    #[test]
    fn one_network_pushes_out_its_own_sign_ins_only() {
        let all = PendingSignIns::default();
        let begin = |address: &str| {
            let address = Some(address.parse().unwrap());
            let pending = PendingSignIn::new("b", address, String::new()).unwrap();
            let state = pending.state.clone();
            all.add(pending);
            state
        };
        let (other, first) = (begin("192.0.2.9"), begin("192.0.2.1"));
        for _ in 0..MOST_PER_NETWORK {
            begin("192.0.2.1");
        }
        assert!(all.take(&first, Some("b")).is_none());
        assert!(all.take(&other, Some("b")).is_some());
    }
}
