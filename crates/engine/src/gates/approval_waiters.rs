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
pub(crate) struct ApprovalWaiters {
    table: Mutex<WaiterTable>,
    /// Rung when there may be a new time to look for expired approvals.
    pub(super) expiry: Notify,
    /// Held while settings are read, changed and written, so that no change is lost.
    pub(crate) settings_lock: AsyncMutex<()>,
}

#[derive(Default)]
struct WaiterTable {
    /// The bell of each approval that someone waits for, and how many do.
    notifiers: HashMap<ApprovalId, (Arc<Notify>, usize)>,
    /// How many of each team wait.
    teams: HashMap<TeamId, usize>,
}

/// One call that waits; it counts until it is dropped.
pub(super) struct ApprovalWaiter<'a> {
    waiters: &'a ApprovalWaiters,
    team: TeamId,
    id: ApprovalId,
    notifier: Arc<Notify>,
}

impl ApprovalWaiters {
    /// Takes a place.
    pub(super) fn add_waiter(
        &self,
        team: &TeamId,
        id: &ApprovalId,
        most: usize,
    ) -> Result<ApprovalWaiter<'_>, Refusal> {
        let mut rooms = self.table.lock();
        let waiting = rooms.teams.get(team).copied().unwrap_or_default();
        if waiting >= most {
            let message = format!(
                "{waiting} calls of this team wait for a person already; ask again when one is \
                 answered"
            );
            return Err(Refusal::new(ErrorCode::RateLimited, message));
        }
        rooms.teams.insert(team.clone(), waiting + 1);
        let (bell, count) = rooms.notifiers.entry(id.clone()).or_default();
        *count += 1;
        let bell = Arc::clone(bell);
        Ok(ApprovalWaiter { waiters: self, team: team.clone(), id: id.clone(), notifier: bell })
    }

    /// Wakes whoever waits for this approval.
    pub(crate) fn wake_waiters(&self, id: &ApprovalId) {
        if let Some((bell, _)) = self.table.lock().notifiers.get(id) {
            bell.notify_waiters();
        }
    }

    /// Wakes everyone.
    pub(crate) fn wake_all(&self) {
        self.table.lock().notifiers.values().for_each(|(bell, _)| bell.notify_waiters());
    }

    /// Says that there is a new approval, which will expire.
    pub(crate) fn wake_expiry(&self) {
        self.expiry.notify_one();
    }
}

impl ApprovalWaiter<'_> {
    /// The next time the bell rings.
    pub(super) fn next_change(&self) -> Notified<'_> {
        self.notifier.notified()
    }
}

impl Drop for ApprovalWaiter<'_> {
    fn drop(&mut self) {
        let mut rooms = self.waiters.table.lock();
        if let Some(waiting) = rooms.teams.get_mut(&self.team) {
            *waiting -= 1;
            if *waiting == 0 {
                rooms.teams.remove(&self.team);
            }
        }
        if let Some((_, count)) = rooms.notifiers.get_mut(&self.id) {
            *count -= 1;
            if *count == 0 {
                rooms.notifiers.remove(&self.id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_for_each_team_and_given_back() {
        let desk = ApprovalWaiters::default();
        let (one, two) = (TeamId::from_random([1; 20]), TeamId::from_random([2; 20]));
        let id = ApprovalId::from_random([3; 20]);
        let first = desk.add_waiter(&one, &id, 1).unwrap();
        assert!(desk.add_waiter(&one, &id, 1).is_err());
        let second = desk.add_waiter(&two, &id, 1).unwrap();
        drop(first);
        drop(desk.add_waiter(&one, &id, 1).unwrap());
        drop(second);
        let rooms = desk.table.lock();
        assert!(rooms.teams.is_empty() && rooms.notifiers.is_empty());
    }
}
