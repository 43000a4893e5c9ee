//! Runs in: server (no capabilities).
//!
//! A memory budget: a total for all holders, a share for each holder (an API key), and reservations
//! that return their bytes on drop. This module only counts. The reserved data lives elsewhere, and
//! nothing here waits.

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

/// A number of bytes shared by all holders.
pub struct MemoryBudget {
    total: u64,
    /// The most bytes that one holder may reserve.
    share: u64,
    used: AtomicU64,
    peak: AtomicU64,
    refused: AtomicU64,
    accounts: Mutex<HashMap<String, Weak<MemoryAccount>>>,
    released: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// The bytes that one holder has reserved from a budget.
pub struct MemoryAccount {
    budget: Arc<MemoryBudget>,
    holder: String,
    used: AtomicU64,
}

/// Bytes reserved from a budget until this value is dropped.
pub struct MemoryReservation {
    account: Arc<MemoryAccount>,
    bytes: AtomicU64,
}

/// The limit that a reservation would have exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryShortage {
    /// The holder has used up its share.
    Holder,
    /// All holders together have used up the budget.
    Total,
}

impl MemoryBudget {
    /// Creates a budget of `total` bytes. One holder may reserve at most `share` of them.
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

    /// Sets the function to call whenever bytes are released. Only the first call has an effect.
    pub fn call_on_release(&self, call: impl Fn() + Send + Sync + 'static) {
        let _ = self.released.set(Box::new(call));
    }

    /// Returns the account of this holder.
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

    /// The size of the budget in bytes.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.total
    }

    /// The most bytes that one holder may reserve.
    #[must_use]
    pub fn holder_share(&self) -> u64 {
        self.share
    }

    /// The bytes reserved now.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// The most bytes that were reserved at any time.
    #[must_use]
    pub fn peak_bytes(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// How many reservations were refused.
    #[must_use]
    pub fn refusal_count(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

impl MemoryAccount {
    /// Reserves bytes.
    ///
    /// # Errors
    /// When the holder's share or the total would be exceeded.
    pub fn reserve(self: &Arc<Self>, bytes: u64) -> Result<MemoryReservation, MemoryShortage> {
        self.take_bytes(bytes)?;
        Ok(MemoryReservation { account: Arc::clone(self), bytes: AtomicU64::new(bytes) })
    }

    /// The budget of this account.
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
        // Another account of the same holder may have been created since the last handle was
        // dropped.
        if accounts.get(&self.holder).is_some_and(|account| account.strong_count() == 0) {
            accounts.remove(&self.holder);
        }
    }
}

impl MemoryReservation {
    /// Reserves more bytes.
    ///
    /// # Errors
    /// When the holder's share or the total would be exceeded; the reservation is unchanged.
    pub fn grow(&self, more: u64) -> Result<(), MemoryShortage> {
        self.account.take_bytes(more)?;
        self.bytes.fetch_add(more, Ordering::Relaxed);
        Ok(())
    }

    /// Releases all but `bytes` bytes.
    pub fn shrink_to(&self, bytes: u64) {
        let before = self.bytes.fetch_min(bytes, Ordering::Relaxed);
        self.account.give_back(before.saturating_sub(bytes));
    }

    /// The bytes reserved.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the same bytes. The reservation lives as long as any slice of them.
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

/// Adds `more` unless the sum would exceed `most`; returns the sum.
fn add_within(counter: &AtomicU64, more: u64, most: u64) -> Option<u64> {
    let sum = |now: u64| now.checked_add(more).filter(|sum| *sum <= most);
    let before = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum).ok()?;
    Some(before + more)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_and_total_limit_reservations() {
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
    fn a_slice_keeps_the_reservation_alive() {
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
    fn accounts_without_reservations_are_removed() {
        let budget = MemoryBudget::new(ByteSize(100), ByteSize(100));
        let account = budget.account_for("one");
        assert!(Arc::ptr_eq(&account, &budget.account_for("one")));
        drop(account.reserve(5).unwrap());
        drop(account);
        assert!(budget.accounts.lock().unwrap().is_empty());
    }
}
