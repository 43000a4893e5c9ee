//! Runs in: server (no capabilities).
//!
//! Memory as something that is shared out: a budget for all, a share of it for each holder (an API
//! key), and reservations that give back what they took when they are dropped. Counts only: what a
//! reservation stands for is kept elsewhere, and nothing here waits.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;

use crate::ByteSize;

/// A number of bytes that all holders share.
pub struct MemoryBudget {
    total: u64,
    /// The most that one holder may have of it.
    share: u64,
    used: AtomicU64,
    peak: AtomicU64,
    refused: AtomicU64,
    accounts: Mutex<HashMap<String, Weak<MemoryAccount>>>,
    released: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// What one holder has of a budget.
pub struct MemoryAccount {
    budget: Arc<MemoryBudget>,
    holder: String,
    used: AtomicU64,
}

/// Bytes that are taken from a budget until this is dropped.
pub struct MemoryReservation {
    account: Arc<MemoryAccount>,
    bytes: AtomicU64,
}

/// Whose limit a reservation would have exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryShortage {
    /// The holder has its share already.
    Holder,
    /// The budget is spent by all holders together.
    Total,
}

impl MemoryBudget {
    /// So many bytes for all, of which one holder may have `share`.
    #[must_use]
    pub fn new(total: ByteSize, share: ByteSize) -> Arc<Self> {
        Arc::new(Self {
            total: total.bytes(),
            share: share.bytes().min(total.bytes()),
            used: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            accounts: Mutex::default(),
            released: OnceLock::new(),
        })
    }

    /// Calls this whenever bytes are given back; the first one to be set stays.
    pub fn call_on_release(&self, call: impl Fn() + Send + Sync + 'static) {
        let _ = self.released.set(Box::new(call));
    }

    /// The account of this holder.
    pub fn account_for(self: &Arc<Self>, holder: &str) -> Arc<MemoryAccount> {
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(account) = accounts.get(holder).and_then(Weak::upgrade) {
            return account;
        }
        let account = Arc::new(MemoryAccount {
            budget: Arc::clone(self),
            holder: holder.to_owned(),
            used: AtomicU64::new(0),
        });
        accounts.insert(holder.to_owned(), Arc::downgrade(&account));
        account
    }

    /// The bytes there are for all.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.total
    }

    /// The most that one holder may have.
    #[must_use]
    pub fn holder_share(&self) -> u64 {
        self.share
    }

    /// The bytes that are taken now.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// The most that was taken at any time.
    #[must_use]
    pub fn peak_bytes(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// How often bytes were refused.
    #[must_use]
    pub fn refusal_count(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

impl MemoryAccount {
    /// Takes bytes.
    ///
    /// # Errors
    /// When the holder or all together would have too many.
    pub fn reserve(self: &Arc<Self>, bytes: u64) -> Result<MemoryReservation, MemoryShortage> {
        self.take_bytes(bytes)?;
        Ok(MemoryReservation { account: Arc::clone(self), bytes: AtomicU64::new(bytes) })
    }

    /// The budget that this is an account of.
    #[must_use]
    pub fn budget(&self) -> &Arc<MemoryBudget> {
        &self.budget
    }

    fn take_bytes(&self, bytes: u64) -> Result<(), MemoryShortage> {
        let taken = add_within(&self.used, bytes, self.budget.share)
            .ok_or(MemoryShortage::Holder)
            .and_then(|_| {
                add_within(&self.budget.used, bytes, self.budget.total).ok_or_else(|| {
                    self.used.fetch_sub(bytes, Ordering::Relaxed);
                    MemoryShortage::Total
                })
            });
        match taken {
            Ok(now) => {
                self.budget.peak.fetch_max(now, Ordering::Relaxed);
                Ok(())
            }
            Err(shortage) => {
                self.budget.refused.fetch_add(1, Ordering::Relaxed);
                Err(shortage)
            }
        }
    }

    fn give_back(&self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        self.budget.used.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(call) = self.budget.released.get() {
            call();
        }
    }
}

impl Drop for MemoryAccount {
    fn drop(&mut self) {
        let mut accounts = self.budget.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        // Another account of the same holder may have been made since the last handle was dropped.
        if accounts.get(&self.holder).is_some_and(|account| account.strong_count() == 0) {
            accounts.remove(&self.holder);
        }
    }
}

impl MemoryReservation {
    /// Takes more.
    ///
    /// # Errors
    /// When the holder or all together would have too many; the reservation stays as it is.
    pub fn grow(&self, more: u64) -> Result<(), MemoryShortage> {
        self.account.take_bytes(more)?;
        self.bytes.fetch_add(more, Ordering::Relaxed);
        Ok(())
    }

    /// Gives back all but so many.
    pub fn shrink_to(&self, bytes: u64) {
        let before = self.bytes.fetch_min(bytes, Ordering::Relaxed);
        self.account.give_back(before.saturating_sub(bytes));
    }

    /// The bytes that are taken.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The same bytes; as long as any part of them is held, so is the reservation.
    #[must_use]
    pub fn hold_with(reservation: Arc<Self>, bytes: impl Into<Bytes>) -> Bytes {
        Bytes::from_owner(ReservedBytes { bytes: bytes.into(), _reservation: reservation })
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        self.account.give_back(self.bytes());
    }
}

impl fmt::Debug for MemoryReservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryReservation").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

impl fmt::Debug for MemoryAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryAccount").field("used", &self.used).finish_non_exhaustive()
    }
}

struct ReservedBytes {
    bytes: Bytes,
    _reservation: Arc<MemoryReservation>,
}

impl AsRef<[u8]> for ReservedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Adds, unless that would be more than `most`; gives back the sum.
fn add_within(counter: &AtomicU64, more: u64, most: u64) -> Option<u64> {
    let sum = |now: u64| now.checked_add(more).filter(|sum| *sum <= most);
    let before = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum).ok()?;
    Some(before + more)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_has_no_more_than_its_share_and_all_no_more_than_the_total() {
        let budget = MemoryBudget::new(ByteSize(100), ByteSize(60));
        let (one, two) = (budget.account_for("one"), budget.account_for("two"));
        let first = one.reserve(60).unwrap();
        assert_eq!(one.reserve(1).unwrap_err(), MemoryShortage::Holder);
        assert_eq!(two.reserve(41).unwrap_err(), MemoryShortage::Total);
        let second = two.reserve(30).unwrap();
        second.grow(10).unwrap();
        assert_eq!(second.grow(1), Err(MemoryShortage::Total));
        first.shrink_to(20);
        second.grow(1).unwrap();
        assert_eq!(
            (budget.used_bytes(), budget.peak_bytes(), budget.refusal_count()),
            (61, 100, 3)
        );
        drop((first, second));
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn bytes_hold_their_reservation_as_long_as_a_slice_of_them_lives() {
        let budget = MemoryBudget::new(ByteSize(100), ByteSize(100));
        let reservation = Arc::new(budget.account_for("one").reserve(10).unwrap());
        let bytes = MemoryReservation::hold_with(reservation, vec![7; 10]);
        let slice = bytes.slice(3..4);
        drop(bytes);
        assert_eq!(budget.used_bytes(), 10);
        drop(slice);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn accounts_without_reservations_are_forgotten() {
        let budget = MemoryBudget::new(ByteSize(100), ByteSize(100));
        let account = budget.account_for("one");
        assert!(Arc::ptr_eq(&account, &budget.account_for("one")));
        drop(account.reserve(5).unwrap());
        drop(account);
        assert!(budget.accounts.lock().unwrap().is_empty());
    }
}
