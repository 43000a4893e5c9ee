//! Runs in: server (no capabilities).
//!
//! Parts of a team's budget that are promised to bytes on their way, so that several writes at once
//! cannot each take what is left.

use std::{collections::HashMap, io, io::Read, sync::Arc};

use cloche_model::{ErrorCode, Team, TeamId};
use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::{StorageBudgets, over_budget_refusal};
use crate::Refusal;

/// How much of an import is reserved at once.
const PIECE: u64 = 1 << 20;

#[derive(Default)]
struct ReservedTotals {
    bytes: u64,
    exports: u32,
}

/// What is promised, by team.
#[derive(Clone, Default)]
pub(super) struct StorageReservations(Arc<Mutex<HashMap<TeamId, ReservedTotals>>>);

impl StorageReservations {
    pub(super) fn bytes_of(&self, team: &TeamId) -> u64 {
        self.0.lock().get(team).map_or(0, |promised| promised.bytes)
    }

    /// Promises so many more bytes, unless that is more than there are.
    fn try_promise(&self, team: &TeamId, bytes: u64, left: Option<u64>) -> bool {
        let mut teams = self.0.lock();
        let promised = teams.entry(team.clone()).or_default();
        let sum = promised.bytes.saturating_add(bytes);
        if left.is_some_and(|left| sum > left) {
            return false;
        }
        promised.bytes = sum;
        true
    }

    fn give_back(&self, team: &TeamId, change: impl FnOnce(&mut ReservedTotals)) {
        let mut teams = self.0.lock();
        let Some(promised) = teams.get_mut(team) else { return };
        change(promised);
        if promised.bytes == 0 && promised.exports == 0 {
            teams.remove(team);
        }
    }
}

/// A part of a team's budget that is held for one write; given back when it is dropped.
pub(crate) struct StorageReservation {
    storage: Arc<StorageBudgets>,
    team: Team,
    bytes: u64,
}

impl StorageReservation {
    /// Reserves so many more bytes. Prunes what the policy does not keep before it refuses.
    pub(crate) async fn grow(&mut self, bytes: u64) -> Result<(), Refusal> {
        let storage = &self.storage;
        storage.host.check_now()?;
        let Some(budget) = storage.budget_of(&self.team) else {
            storage.reservations.try_promise(&self.team.id, bytes, None);
            self.bytes = self.bytes.saturating_add(bytes);
            return Ok(());
        };
        for pruned in [false, true] {
            if pruned {
                let wanted = bytes.saturating_add(storage.reservations.bytes_of(&self.team.id));
                storage.make_room(&self.team, wanted).await?;
            }
            let used = storage.store.storage_usage(&self.team.id).await?.total();
            let left = budget.saturating_sub(used);
            if storage.reservations.try_promise(&self.team.id, bytes, Some(left)) {
                self.bytes = self.bytes.saturating_add(bytes);
                return Ok(());
            }
        }
        Err(over_budget_refusal(&self.team, budget))
    }

    /// The most that the team may store after the write. What this and other writes reserved counts
    /// towards the same budget.
    pub(crate) fn append_budget(&self) -> Option<u64> {
        self.storage.budget_of(&self.team)
    }

    /// A reader that reserves each piece before it is read.
    pub(crate) fn metered_reader<R: Read>(self, from: R) -> MeteredReader<R> {
        MeteredReader { from, reservation: self, read: 0, refusal: None }
    }
}

impl Drop for StorageReservation {
    fn drop(&mut self) {
        let bytes = self.bytes;
        self.storage.reservations.give_back(&self.team.id, |promised| {
            promised.bytes = promised.bytes.saturating_sub(bytes);
        });
    }
}

/// A reader that holds a part of a budget before it takes bytes. For threads that may block.
pub(crate) struct MeteredReader<R> {
    from: R,
    reservation: StorageReservation,
    read: u64,
    refusal: Option<Refusal>,
}

impl<R> MeteredReader<R> {
    /// The reservation, or why it could not grow.
    pub(crate) fn finish(self) -> Result<StorageReservation, Refusal> {
        match self.refusal {
            Some(refusal) => Err(refusal),
            None => Ok(self.reservation),
        }
    }
}

impl<R: Read> Read for MeteredReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(PIECE).unwrap_or(usize::MAX).min(buffer.len());
        while self.read.saturating_add(most as u64) > self.reservation.bytes {
            if let Err(refusal) = Handle::current().block_on(self.reservation.grow(PIECE)) {
                self.refusal = Some(refusal);
                return Err(io::ErrorKind::QuotaExceeded.into());
            }
        }
        let count = self.from.read(&mut buffer[..most])?;
        self.read += count as u64;
        Ok(count)
    }
}

/// The right to run one of a team's exports; given back when it is dropped.
pub(crate) struct ExportSlot {
    reservations: StorageReservations,
    team: TeamId,
}

impl Drop for ExportSlot {
    fn drop(&mut self) {
        self.reservations.give_back(&self.team, |promised| {
            promised.exports = promised.exports.saturating_sub(1);
        });
    }
}

impl StorageBudgets {
    /// Holds a part of the team's budget for a write of at most so many bytes.
    pub(crate) async fn reserve(
        self: &Arc<Self>,
        team: &Team,
        bytes: u64,
    ) -> Result<StorageReservation, Refusal> {
        let mut reservation =
            StorageReservation { storage: Arc::clone(self), team: team.clone(), bytes: 0 };
        reservation.grow(bytes).await?;
        Ok(reservation)
    }

    /// Takes one of the exports that a team may run at once.
    pub(crate) fn begin_export(&self, team: &Team) -> Result<ExportSlot, Refusal> {
        let most = self.config.exports;
        let reservations = self.reservations.clone();
        let mut teams = reservations.0.lock();
        let promised = teams.entry(team.id.clone()).or_default();
        if promised.exports >= most {
            let message = format!("{most} exports of this team are under way; read them first");
            return Err(Refusal::new(ErrorCode::RateLimited, message));
        }
        promised.exports += 1;
        drop(teams);
        Ok(ExportSlot { reservations, team: team.id.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_promised_once() {
        let (reservations, team) = (StorageReservations::default(), "team_a".parse().unwrap());
        assert!(reservations.try_promise(&team, 30, Some(50)));
        assert!(!reservations.try_promise(&team, 30, Some(50)));
        assert!(reservations.try_promise(&team, 20, Some(50)));
        assert!(reservations.try_promise(&"team_b".parse().unwrap(), 50, Some(50)));
        reservations.give_back(&team, |promised| promised.bytes -= 30);
        assert_eq!(reservations.bytes_of(&team), 20);
        reservations.give_back(&team, |promised| promised.bytes -= 20);
        assert!(!reservations.0.lock().contains_key(&team));
    }
}
