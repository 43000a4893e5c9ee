//! Runs in: server (no capabilities).
//!
//! The sidecars: the health of each, what it offers, and how many of our runs it has.

use std::{sync::Arc, time::Duration};

use cloche_model::DisplaySeconds;
use parking_lot::Mutex;
use url::Url;

use crate::{DispatchError, NodeHealth, NodeLoad, RunNeeds};

/// Every sidecar.
#[derive(Clone)]
pub(super) struct SidecarRegistry {
    urls: Arc<[Url]>,
    state: Arc<Mutex<RegistryState>>,
}

struct RegistryState {
    entries: Vec<SidecarEntry>,
    /// Where the search begins, so that equals take turns.
    turn: usize,
}

struct SidecarEntry {
    in_flight: u64,
    health: SidecarHealth,
    /// What it offered when it was last well; nothing is known before.
    offer: Option<SidecarOffer>,
}

/// What a sidecar offers beyond the contract.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SidecarOffer {
    /// Whether it uses the layer store of this server.
    pub(super) shares_store: bool,
    /// The longest time limit that it takes, if it says so.
    pub(super) max_timeout: Option<Duration>,
}

impl SidecarOffer {
    fn allows_time(&self, needs: &RunNeeds) -> bool {
        self.max_timeout.is_none_or(|most| needs.timeout <= most)
    }

    fn meets(&self, needs: &RunNeeds) -> bool {
        (self.shares_store || !needs.home) && self.allows_time(needs)
    }
}

impl SidecarEntry {
    /// Whether a run with these needs may be sent there. A home goes only to a sidecar that is
    /// known to share the store.
    fn may_take(&self, needs: &RunNeeds) -> bool {
        self.offer.map_or(!needs.home, |offer| offer.meets(needs))
    }
}

enum SidecarHealth {
    /// No health check has answered yet.
    Unknown,
    Up,
    /// Left out, for this reason.
    Down(String),
}

/// The refusal of a run with storage mounts. Credentials of storage stay with the server.
pub(super) const NO_MOUNTS: &str = "storage: this server runs code on sidecars, which cannot mount storage; unbind the storage from \
     the sandbox and the key, or use a server that runs code itself";
/// The refusal of a run on an image.
pub(super) const NO_IMAGES: &str = "image: this server runs code on sidecars, which cannot run images yet; set the sandbox's image \
     to \"host\"";
/// The refusal of a run with a network.
pub(super) const NO_NETWORK: &str = "network: this server runs code on sidecars, which give programs no network; set the sandbox's \
     network to \"blocked\"";
/// The sentence for a run with a thread if no sidecar shares the layer store.
const NO_HOMES: &str = "thread_id cannot be used here: this server's executors do not share its \
    layer store, so they keep nothing between runs; leave out thread_id";

/// The sentence for a time limit that no executor allows.
pub(super) fn timeout_sentence(asked: Duration, most: Duration) -> String {
    format!(
        "timeout: {} exceeds the {} that this server's executors allow",
        DisplaySeconds(asked),
        DisplaySeconds(most)
    )
}

/// One run's place with a sidecar; dropping it gives the place back.
pub(super) struct SidecarSlot {
    registry: SidecarRegistry,
    pub(super) index: usize,
    pub(super) url: Url,
    /// Whether it uses the layer store of this server.
    pub(super) shares_store: bool,
}

impl SidecarRegistry {
    pub(super) fn new(urls: Vec<Url>) -> Self {
        let entry = |_| SidecarEntry { in_flight: 0, health: SidecarHealth::Unknown, offer: None };
        let entries = urls.iter().map(entry).collect();
        Self { urls: urls.into(), state: Arc::new(Mutex::new(RegistryState { entries, turn: 0 })) }
    }

    pub(super) fn urls(&self) -> &[Url] {
        &self.urls
    }

    /// The least busy of those that are well, meet the needs and were not tried.
    pub(super) fn take(&self, needs: &RunNeeds, tried: &[usize]) -> Option<SidecarSlot> {
        let mut state = self.state.lock();
        let count = state.entries.len();
        let turn = state.turn;
        let in_turn = (0..count).map(|step| (turn + step) % count);
        let usable = in_turn.filter(|index| !tried.contains(index)).filter_map(|index| {
            let entry = Some(&state.entries[index]).filter(|entry| entry.may_take(needs))?;
            let unknown = match entry.health {
                SidecarHealth::Up => false,
                SidecarHealth::Unknown => true,
                SidecarHealth::Down(_) => return None,
            };
            Some((unknown, entry.in_flight, index))
        });
        let (_, _, index) = usable.min_by_key(|(unknown, busy, _)| (*unknown, *busy))?;
        state.entries[index].in_flight += 1;
        state.turn = (index + 1) % count;
        let shares_store = state.entries[index].offer.is_some_and(|offer| offer.shares_store);
        let url = self.urls[index].clone();
        Some(SidecarSlot { registry: self.clone(), index, url, shares_store })
    }

    /// Whether a run with these needs can be taken, as far as the health checks know.
    pub(super) fn check_run(&self, needs: &RunNeeds) -> Result<(), DispatchError> {
        if needs.mounts {
            return Err(DispatchError::Refused(NO_MOUNTS.to_owned()));
        }
        if needs.image {
            return Err(DispatchError::Refused(NO_IMAGES.to_owned()));
        }
        if needs.network {
            return Err(DispatchError::Refused(NO_NETWORK.to_owned()));
        }
        let state = self.state.lock();
        let entries = &state.entries;
        let is_down = |entry: &SidecarEntry| matches!(entry.health, SidecarHealth::Down(_));
        if entries.iter().any(|entry| entry.may_take(needs) && !is_down(entry)) {
            return Ok(());
        }
        // A sidecar that has never answered may turn out to meet the needs.
        let could = |entry: &SidecarEntry| entry.offer.is_none_or(|offer| offer.meets(needs));
        if entries.iter().any(could) {
            drop(state);
            return Err(DispatchError::Unavailable(self.left_out(&[]).join("; ")));
        }
        let offers = || entries.iter().filter_map(|entry| entry.offer);
        if needs.home && !offers().any(|offer| offer.shares_store) {
            return Err(DispatchError::Refused(NO_HOMES.to_owned()));
        }
        let fitting = offers().filter(|offer| offer.shares_store || !needs.home);
        let most = fitting.filter_map(|offer| offer.max_timeout).max().unwrap_or_default();
        Err(DispatchError::Refused(timeout_sentence(needs.timeout, most)))
    }

    /// Whether a sidecar is known that shares the layer store.
    pub(super) fn shares_store(&self) -> bool {
        let state = self.state.lock();
        state.entries.iter().filter_map(|entry| entry.offer).any(|offer| offer.shares_store)
    }

    /// What a health check found.
    pub(super) fn note_health(&self, index: usize, found: Result<SidecarOffer, String>) {
        let mut state = self.state.lock();
        let entry = &mut state.entries[index];
        let url = &self.urls[index];
        match (&entry.health, &found) {
            (SidecarHealth::Down(_), Ok(_)) => tracing::info!(%url, "an executor is back"),
            (SidecarHealth::Up | SidecarHealth::Unknown, Err(why)) => {
                tracing::warn!(%url, why, "an executor is left out");
            }
            _ => {}
        }
        entry.offer = found.as_ref().ok().copied().or(entry.offer);
        entry.health = found.map_or_else(SidecarHealth::Down, |_| SidecarHealth::Up);
    }

    /// Whether one is known to be well.
    pub(super) fn check_ready(&self) -> Result<(), String> {
        let state = self.state.lock();
        if state.entries.iter().any(|entry| matches!(entry.health, SidecarHealth::Up)) {
            return Ok(());
        }
        drop(state);
        Err(format!("no executor is well: {}", self.left_out(&[]).join("; ")))
    }

    /// Why each was left out that was not tried.
    pub(super) fn left_out(&self, tried: &[usize]) -> Vec<String> {
        let state = self.state.lock();
        let all = state.entries.iter().enumerate().filter(|(index, _)| !tried.contains(index));
        let said = all.map(|(index, entry)| match &entry.health {
            SidecarHealth::Down(why) => format!("{}: {why}", self.urls[index]),
            SidecarHealth::Up | SidecarHealth::Unknown => {
                format!("{}: not asked yet", self.urls[index])
            }
        });
        said.collect()
    }

    /// Each sidecar as operators see it.
    pub(super) fn current_nodes(&self) -> Vec<NodeLoad> {
        let state = self.state.lock();
        let node = |(url, entry): (&Url, &SidecarEntry)| NodeLoad {
            url: url.to_string(),
            health: match &entry.health {
                SidecarHealth::Unknown => NodeHealth::Unknown,
                SidecarHealth::Up => NodeHealth::Up,
                SidecarHealth::Down(why) => NodeHealth::Down(why.clone()),
            },
            running: entry.in_flight,
            keeps_homes: entry.offer.is_some_and(|offer| offer.shares_store),
            max_timeout: entry.offer.and_then(|offer| offer.max_timeout),
        };
        self.urls.iter().zip(&state.entries).map(node).collect()
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.state.lock().entries.iter().map(|entry| entry.in_flight).sum()
    }
}

impl SidecarSlot {
    /// Leaves this sidecar out until a health check is good again.
    pub(super) fn mark_down(&self, why: &str) {
        self.registry.note_health(self.index, Err(why.to_owned()));
    }

    /// Sends no homes there until a health check says that it shares the store.
    pub(super) fn mark_other_store(&self) {
        let mut state = self.registry.state.lock();
        if let Some(offer) = &mut state.entries[self.index].offer {
            offer.shares_store = false;
        }
    }
}

impl Drop for SidecarSlot {
    fn drop(&mut self) {
        self.registry.state.lock().entries[self.index].in_flight -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: RunNeeds = RunNeeds {
        timeout: Duration::from_secs(60),
        home: false,
        image: false,
        network: false,
        mounts: false,
    };
    const HOME: RunNeeds = RunNeeds { home: true, ..PLAIN };

    fn unchecked(count: usize) -> SidecarRegistry {
        let url = |n| format!("http://host{n}/").parse().unwrap();
        SidecarRegistry::new((0..count).map(url).collect())
    }

    fn registry(count: usize) -> SidecarRegistry {
        let registry = unchecked(count);
        (0..count).for_each(|index| registry.note_health(index, Ok(SidecarOffer::default())));
        registry
    }

    fn offer(shares_store: bool, seconds: u64) -> SidecarOffer {
        SidecarOffer { shares_store, max_timeout: Some(Duration::from_secs(seconds)) }
    }

    #[test]
    fn a_home_goes_only_to_a_sidecar_that_shares_the_store() {
        let registry = unchecked(2);
        assert!(matches!(registry.check_run(&HOME), Err(DispatchError::Unavailable(_))));
        assert!(registry.take(&HOME, &[]).is_none(), "nothing is known yet");
        registry.note_health(0, Ok(offer(false, 60)));
        assert!(matches!(registry.check_run(&HOME), Err(DispatchError::Unavailable(_))));
        registry.note_health(1, Ok(offer(false, 60)));
        let error = registry.check_run(&HOME).unwrap_err();
        assert!(matches!(&error, DispatchError::Refused(why) if why.contains("thread_id")));
        assert!(!registry.shares_store());
        registry.note_health(1, Ok(offer(true, 60)));
        assert!(registry.check_run(&HOME).is_ok() && registry.shares_store());
        for _ in 0..3 {
            assert_eq!(registry.take(&HOME, &[]).unwrap().index, 1);
        }
        registry.take(&HOME, &[]).unwrap().mark_down("gone");
        assert!(matches!(registry.check_run(&HOME), Err(DispatchError::Unavailable(_))));
        assert!(registry.take(&HOME, &[]).is_none() && registry.check_run(&PLAIN).is_ok());
        assert!(registry.shares_store(), "it may come back");
    }

    #[test]
    fn a_time_limit_goes_to_a_sidecar_that_allows_it() {
        let registry = unchecked(2);
        registry.note_health(0, Ok(offer(true, 60)));
        registry.note_health(1, Ok(offer(false, 600)));
        let long = RunNeeds {
            timeout: Duration::from_secs(300),
            home: false,
            image: false,
            network: false,
            mounts: false,
        };
        assert_eq!(registry.take(&long, &[]).unwrap().index, 1);
        let refusal = |needs| registry.check_run(&needs).unwrap_err().to_string();
        assert_eq!(refusal(RunNeeds { image: true, ..PLAIN }), NO_IMAGES);
        assert_eq!(refusal(RunNeeds { network: true, ..PLAIN }), NO_NETWORK);
        assert_eq!(refusal(RunNeeds { mounts: true, ..PLAIN }), NO_MOUNTS);
        assert!(refusal(RunNeeds { home: true, ..long }).contains("the 60s"));
        let longer = RunNeeds {
            timeout: Duration::from_secs(601),
            home: false,
            image: false,
            network: false,
            mounts: false,
        };
        assert!(refusal(longer).contains("601s exceeds the 600s"));
        registry.note_health(1, Err("gone".to_owned()));
        assert!(matches!(registry.check_run(&long), Err(DispatchError::Unavailable(_))));
    }

    #[test]
    fn the_least_busy_is_asked_first_and_equals_take_turns() {
        let registry = registry(3);
        let first: Vec<_> = (0..3).map(|_| registry.take(&PLAIN, &[]).unwrap()).collect();
        let mut indices: Vec<_> = first.iter().map(|place| place.index).collect();
        indices.sort_unstable();
        assert_eq!(indices, [0, 1, 2]);
        let freed = first.into_iter().nth(1).unwrap();
        assert_eq!(registry.in_flight(), 1);
        let next = registry.take(&PLAIN, &[]).unwrap();
        assert_ne!(next.index, freed.index);
    }

    #[test]
    fn one_that_failed_is_left_out_until_it_is_well() {
        let registry = registry(2);
        registry.take(&PLAIN, &[1]).unwrap().mark_down("gone");
        assert_eq!(registry.take(&PLAIN, &[]).unwrap().index, 1);
        assert!(registry.take(&PLAIN, &[1]).is_none());
        assert!(registry.check_ready().is_ok());
        registry.note_health(1, Err("gone, too".to_owned()));
        assert!(registry.take(&PLAIN, &[]).is_none());
        assert!(registry.check_ready().unwrap_err().contains("gone, too"));
        registry.note_health(0, Ok(SidecarOffer::default()));
        assert_eq!(registry.take(&PLAIN, &[]).unwrap().index, 0);
    }

    #[test]
    fn a_sidecar_without_a_health_check_comes_last() {
        let urls = ["http://a/", "http://b/"].map(|url| url.parse().unwrap());
        let registry = SidecarRegistry::new(urls.to_vec());
        registry.note_health(1, Ok(SidecarOffer::default()));
        let held: Vec<_> = (0..3).map(|_| registry.take(&PLAIN, &[]).unwrap().index).collect();
        assert_eq!(held, [1, 1, 1]);
        assert_eq!(registry.take(&PLAIN, &[1]).unwrap().index, 0);
    }

    #[test]
    fn operators_see_which_sidecars_are_well_busy_and_left_out() {
        let registry = unchecked(3);
        registry.note_health(0, Ok(offer(true, 90)));
        registry.note_health(1, Err("it refuses the key".to_owned()));
        let place = registry.take(&HOME, &[]).unwrap();
        let nodes = registry.current_nodes();
        let seen: Vec<_> = nodes.iter().map(|node| (&node.health, node.running)).collect();
        let down = NodeHealth::Down("it refuses the key".to_owned());
        assert_eq!(seen, [(&NodeHealth::Up, 1), (&down, 0), (&NodeHealth::Unknown, 0)]);
        assert_eq!(nodes[0].url, "http://host0/");
        assert_eq!(nodes[0].max_timeout, Some(Duration::from_secs(90)));
        assert!(nodes[0].keeps_homes && !nodes[1].keeps_homes);
        drop(place);
        assert_eq!(registry.current_nodes()[0].running, 0);
    }
}
