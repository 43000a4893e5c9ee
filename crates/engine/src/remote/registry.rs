//! Runs in: server (no capabilities).
//!
//! The sidecars: the health of each, and how many of our runs it has.

use std::sync::Arc;

use parking_lot::Mutex;
use url::Url;

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
}

enum SidecarHealth {
    /// No health check has answered yet.
    Unknown,
    Up,
    /// Left out, for this reason.
    Down(String),
}

/// One run's place with a sidecar; dropping it gives the place back.
pub(super) struct SidecarSlot {
    registry: SidecarRegistry,
    pub(super) index: usize,
    pub(super) url: Url,
}

impl SidecarRegistry {
    pub(super) fn new(urls: Vec<Url>) -> Self {
        let entry = |_| SidecarEntry { in_flight: 0, health: SidecarHealth::Unknown };
        let entries = urls.iter().map(entry).collect();
        Self { urls: urls.into(), state: Arc::new(Mutex::new(RegistryState { entries, turn: 0 })) }
    }

    pub(super) fn urls(&self) -> &[Url] {
        &self.urls
    }

    /// The least busy of those that are well and were not tried.
    pub(super) fn take(&self, tried: &[usize]) -> Option<SidecarSlot> {
        let mut state = self.state.lock();
        let count = state.entries.len();
        let turn = state.turn;
        let in_turn = (0..count).map(|step| (turn + step) % count);
        let usable = in_turn.filter(|index| !tried.contains(index)).filter_map(|index| {
            let entry = &state.entries[index];
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
        Some(SidecarSlot { registry: self.clone(), index, url: self.urls[index].clone() })
    }

    /// What a health check found.
    pub(super) fn note_health(&self, index: usize, found: Result<(), String>) {
        let mut state = self.state.lock();
        let entry = &mut state.entries[index];
        let url = &self.urls[index];
        match (&entry.health, &found) {
            (SidecarHealth::Down(_), Ok(())) => tracing::info!(%url, "an executor is back"),
            (SidecarHealth::Up | SidecarHealth::Unknown, Err(why)) => {
                tracing::warn!(%url, why, "an executor is left out");
            }
            _ => {}
        }
        entry.health = found.map_or_else(SidecarHealth::Down, |()| SidecarHealth::Up);
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

    pub(super) fn in_flight(&self) -> u64 {
        self.state.lock().entries.iter().map(|entry| entry.in_flight).sum()
    }
}

impl SidecarSlot {
    /// Leaves this sidecar out until a health check is good again.
    pub(super) fn mark_down(&self, why: &str) {
        self.registry.note_health(self.index, Err(why.to_owned()));
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

    fn registry(count: usize) -> SidecarRegistry {
        let url = |n| format!("http://host{n}/").parse().unwrap();
        let registry = SidecarRegistry::new((0..count).map(url).collect());
        (0..count).for_each(|index| registry.note_health(index, Ok(())));
        registry
    }

    #[test]
    fn the_least_busy_is_asked_first_and_equals_take_turns() {
        let registry = registry(3);
        let first: Vec<_> = (0..3).map(|_| registry.take(&[]).unwrap()).collect();
        let mut indices: Vec<_> = first.iter().map(|place| place.index).collect();
        indices.sort_unstable();
        assert_eq!(indices, [0, 1, 2]);
        let freed = first.into_iter().nth(1).unwrap();
        assert_eq!(registry.in_flight(), 1);
        let next = registry.take(&[]).unwrap();
        assert_ne!(next.index, freed.index);
    }

    #[test]
    fn one_that_failed_is_left_out_until_it_is_well() {
        let registry = registry(2);
        registry.take(&[1]).unwrap().mark_down("gone");
        assert_eq!(registry.take(&[]).unwrap().index, 1);
        assert!(registry.take(&[1]).is_none());
        assert!(registry.check_ready().is_ok());
        registry.note_health(1, Err("gone, too".to_owned()));
        assert!(registry.take(&[]).is_none());
        assert!(registry.check_ready().unwrap_err().contains("gone, too"));
        registry.note_health(0, Ok(()));
        assert_eq!(registry.take(&[]).unwrap().index, 0);
    }

    #[test]
    fn a_sidecar_without_a_health_check_comes_last() {
        let urls = ["http://a/", "http://b/"].map(|url| url.parse().unwrap());
        let registry = SidecarRegistry::new(urls.to_vec());
        registry.note_health(1, Ok(()));
        let held: Vec<_> = (0..3).map(|_| registry.take(&[]).unwrap().index).collect();
        assert_eq!(held, [1, 1, 1]);
        assert_eq!(registry.take(&[1]).unwrap().index, 0);
    }
}
