//! Where calls wait for a person: a bell for each approval, and a bound for each team.
//!
//! One server owns a data directory, so whoever answers rings the bell in the same process.

use std::{collections::HashMap, sync::Arc};

use cloche_model::{ApprovalId, ErrorCode, TeamId};
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, Notify, futures::Notified};

use crate::Refusal;

/// All calls that wait.
#[derive(Default)]
pub(crate) struct Desk {
    rooms: Mutex<Rooms>,
    /// Rung when there may be a new time to look for expired approvals.
    pub(super) expiry: Notify,
    /// Held while settings are read, changed and written, so that no change is lost.
    pub(crate) settings: AsyncMutex<()>,
}

#[derive(Default)]
struct Rooms {
    /// The bell of each approval that someone waits for, and how many do.
    bells: HashMap<ApprovalId, (Arc<Notify>, usize)>,
    /// How many of each team wait.
    teams: HashMap<TeamId, usize>,
}

/// One call that waits; it counts until it is dropped.
pub(super) struct Place<'a> {
    desk: &'a Desk,
    team: TeamId,
    id: ApprovalId,
    bell: Arc<Notify>,
}

impl Desk {
    /// Takes a place.
    pub(super) fn wait(
        &self,
        team: &TeamId,
        id: &ApprovalId,
        most: usize,
    ) -> Result<Place<'_>, Refusal> {
        let mut rooms = self.rooms.lock();
        let waiting = rooms.teams.get(team).copied().unwrap_or_default();
        if waiting >= most {
            let message = format!(
                "{waiting} calls of this team wait for a person already; ask again when one is \
                 answered"
            );
            return Err(Refusal::new(ErrorCode::RateLimited, message));
        }
        rooms.teams.insert(team.clone(), waiting + 1);
        let (bell, count) = rooms.bells.entry(id.clone()).or_default();
        *count += 1;
        let bell = Arc::clone(bell);
        Ok(Place { desk: self, team: team.clone(), id: id.clone(), bell })
    }

    /// Wakes whoever waits for this approval.
    pub(crate) fn tell(&self, id: &ApprovalId) {
        if let Some((bell, _)) = self.rooms.lock().bells.get(id) {
            bell.notify_waiters();
        }
    }

    /// Wakes everyone.
    pub(crate) fn tell_all(&self) {
        self.rooms.lock().bells.values().for_each(|(bell, _)| bell.notify_waiters());
    }

    /// Says that there is a new approval, which will expire.
    pub(crate) fn nudge(&self) {
        self.expiry.notify_one();
    }
}

impl Place<'_> {
    /// The next time the bell rings.
    pub(super) fn changed(&self) -> Notified<'_> {
        self.bell.notified()
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut rooms = self.desk.rooms.lock();
        if let Some(waiting) = rooms.teams.get_mut(&self.team) {
            *waiting -= 1;
            if *waiting == 0 {
                rooms.teams.remove(&self.team);
            }
        }
        if let Some((_, count)) = rooms.bells.get_mut(&self.id) {
            *count -= 1;
            if *count == 0 {
                rooms.bells.remove(&self.id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_for_each_team_and_given_back() {
        let desk = Desk::default();
        let (one, two) = (TeamId::from_random([1; 20]), TeamId::from_random([2; 20]));
        let id = ApprovalId::from_random([3; 20]);
        let first = desk.wait(&one, &id, 1).unwrap();
        assert!(desk.wait(&one, &id, 1).is_err());
        let second = desk.wait(&two, &id, 1).unwrap();
        drop(first);
        drop(desk.wait(&one, &id, 1).unwrap());
        drop(second);
        let rooms = desk.rooms.lock();
        assert!(rooms.teams.is_empty() && rooms.bells.is_empty());
    }
}
