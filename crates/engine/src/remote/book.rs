//! Which sidecars there are, how each is, and how much we have given it to do.

use std::sync::Arc;

use parking_lot::Mutex;
use url::Url;

/// Every sidecar.
#[derive(Clone)]
pub(super) struct Book {
    urls: Arc<[Url]>,
    state: Arc<Mutex<State>>,
}

struct State {
    entries: Vec<Entry>,
    /// Where the search begins, so that equals take turns.
    turn: usize,
}

struct Entry {
    in_flight: u64,
    health: Health,
}

enum Health {
    /// Nobody has asked yet.
    Unknown,
    Up,
    /// Left out, for this reason.
    Down(String),
}

/// One run's place with a sidecar; dropping it gives the place back.
pub(super) struct Place {
    book: Book,
    pub(super) index: usize,
    pub(super) url: Url,
}

impl Book {
    pub(super) fn new(urls: Vec<Url>) -> Self {
        let entry = |_| Entry { in_flight: 0, health: Health::Unknown };
        let entries = urls.iter().map(entry).collect();
        Self { urls: urls.into(), state: Arc::new(Mutex::new(State { entries, turn: 0 })) }
    }

    pub(super) fn urls(&self) -> &[Url] {
        &self.urls
    }

    /// The least busy of those that are well and were not tried.
    pub(super) fn take(&self, tried: &[usize]) -> Option<Place> {
        let mut state = self.state.lock();
        let count = state.entries.len();
        let turn = state.turn;
        let in_turn = (0..count).map(|step| (turn + step) % count);
        let usable = in_turn.filter(|index| !tried.contains(index)).filter_map(|index| {
            let entry = &state.entries[index];
            let unknown = match entry.health {
                Health::Up => false,
                Health::Unknown => true,
                Health::Down(_) => return None,
            };
            Some((unknown, entry.in_flight, index))
        });
        let (_, _, index) = usable.min_by_key(|(unknown, busy, _)| (*unknown, *busy))?;
        state.entries[index].in_flight += 1;
        state.turn = (index + 1) % count;
        Some(Place { book: self.clone(), index, url: self.urls[index].clone() })
    }

    /// What a health check found.
    pub(super) fn note(&self, index: usize, found: Result<(), String>) {
        let mut state = self.state.lock();
        let entry = &mut state.entries[index];
        let url = &self.urls[index];
        match (&entry.health, &found) {
            (Health::Down(_), Ok(())) => tracing::info!(%url, "an executor is back"),
            (Health::Up | Health::Unknown, Err(why)) => {
                tracing::warn!(%url, why, "an executor is left out");
            }
            _ => {}
        }
        entry.health = found.map_or_else(Health::Down, |()| Health::Up);
    }

    /// Whether one is known to be well.
    pub(super) fn ready(&self) -> Result<(), String> {
        let state = self.state.lock();
        if state.entries.iter().any(|entry| matches!(entry.health, Health::Up)) {
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
            Health::Down(why) => format!("{}: {why}", self.urls[index]),
            Health::Up | Health::Unknown => format!("{}: not asked yet", self.urls[index]),
        });
        said.collect()
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.state.lock().entries.iter().map(|entry| entry.in_flight).sum()
    }
}

impl Place {
    /// Leaves this sidecar out until a health check is good again.
    pub(super) fn fail(&self, why: &str) {
        self.book.note(self.index, Err(why.to_owned()));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.book.state.lock().entries[self.index].in_flight -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn book(count: usize) -> Book {
        let url = |n| format!("http://host{n}/").parse().unwrap();
        let book = Book::new((0..count).map(url).collect());
        (0..count).for_each(|index| book.note(index, Ok(())));
        book
    }

    #[test]
    fn the_least_busy_is_asked_first_and_equals_take_turns() {
        let book = book(3);
        let first: Vec<_> = (0..3).map(|_| book.take(&[]).unwrap()).collect();
        let mut indices: Vec<_> = first.iter().map(|place| place.index).collect();
        indices.sort_unstable();
        assert_eq!(indices, [0, 1, 2]);
        let freed = first.into_iter().nth(1).unwrap();
        assert_eq!(book.in_flight(), 1);
        let next = book.take(&[]).unwrap();
        assert_ne!(next.index, freed.index);
    }

    #[test]
    fn one_that_failed_is_left_out_until_it_is_well() {
        let book = book(2);
        book.take(&[1]).unwrap().fail("gone");
        assert_eq!(book.take(&[]).unwrap().index, 1);
        assert!(book.take(&[1]).is_none());
        assert!(book.ready().is_ok());
        book.note(1, Err("gone, too".to_owned()));
        assert!(book.take(&[]).is_none());
        assert!(book.ready().unwrap_err().contains("gone, too"));
        book.note(0, Ok(()));
        assert_eq!(book.take(&[]).unwrap().index, 0);
    }

    #[test]
    fn one_that_nobody_has_asked_yet_comes_last() {
        let urls = ["http://a/", "http://b/"].map(|url| url.parse().unwrap());
        let book = Book::new(urls.to_vec());
        book.note(1, Ok(()));
        let held: Vec<_> = (0..3).map(|_| book.take(&[]).unwrap().index).collect();
        assert_eq!(held, [1, 1, 1]);
        assert_eq!(book.take(&[1]).unwrap().index, 0);
    }
}
