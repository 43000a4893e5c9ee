//! Runs in: server (no capabilities).
//!
//! Calls that wait for a person: a notification for each approval, and a bound for each team.
//!
//! One server owns a data directory, so an answer arrives in the process that waits for it.

use std::{collections::HashMap, sync::Arc};

use cloche_model::{ApprovalId, ErrorCode, TeamId};
use parking_lot::Mutex;
use tokio::sync::{Notify, futures::Notified};

use crate::Refusal;

/// All calls that wait.
#[derive(Default)]
pub(super) struct ApprovalWaiters {
    table: Mutex<WaiterTable>,
    /// Notified when there may be a new time to look for expired approvals.
    pub(super) expiry: Notify,
}

#[derive(Default)]
struct WaiterTable {
    /// The notification of each approval that calls wait for, and how many do.
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
        let mut table = self.table.lock();
        let waiting = table.teams.get(team).copied().unwrap_or_default();
        if waiting >= most {
            let message = format!(
                "{waiting} calls of this team wait for a person already; ask again when one is \
                 answered"
            );
            return Err(Refusal::new(ErrorCode::RateLimited, message));
        }
        table.teams.insert(team.clone(), waiting + 1);
        let (notifier, count) = table.notifiers.entry(id.clone()).or_default();
        *count += 1;
        let notifier = Arc::clone(notifier);
        Ok(ApprovalWaiter { waiters: self, team: team.clone(), id: id.clone(), notifier })
    }

    /// Wakes the calls that wait for this approval.
    pub(super) fn wake_waiters(&self, id: &ApprovalId) {
        if let Some((notifier, _)) = self.table.lock().notifiers.get(id) {
            notifier.notify_waiters();
        }
    }

    /// Wakes every call.
    pub(super) fn wake_all(&self) {
        self.table.lock().notifiers.values().for_each(|(notifier, _)| notifier.notify_waiters());
    }

    /// Says that there is a new approval, which will expire.
    pub(super) fn wake_expiry(&self) {
        self.expiry.notify_one();
    }
}

impl ApprovalWaiter<'_> {
    /// The next notification.
    pub(super) fn next_change(&self) -> Notified<'_> {
        self.notifier.notified()
    }
}

impl Drop for ApprovalWaiter<'_> {
    fn drop(&mut self) {
        let mut table = self.waiters.table.lock();
        if let Some(waiting) = table.teams.get_mut(&self.team) {
            *waiting -= 1;
            if *waiting == 0 {
                table.teams.remove(&self.team);
            }
        }
        if let Some((_, count)) = table.notifiers.get_mut(&self.id) {
            *count -= 1;
            if *count == 0 {
                table.notifiers.remove(&self.id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_for_each_team_and_given_back() {
        let waiters = ApprovalWaiters::default();
        let (one, two) = (TeamId::from_random([1; 20]), TeamId::from_random([2; 20]));
        let id = ApprovalId::from_random([3; 20]);
        let first = waiters.add_waiter(&one, &id, 1).unwrap();
        assert!(waiters.add_waiter(&one, &id, 1).is_err());
        let second = waiters.add_waiter(&two, &id, 1).unwrap();
        drop(first);
        drop(waiters.add_waiter(&one, &id, 1).unwrap());
        drop(second);
        let table = waiters.table.lock();
        assert!(table.teams.is_empty() && table.notifiers.is_empty());
    }
}
