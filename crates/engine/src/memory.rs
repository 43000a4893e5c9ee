//! Runs in: server (no capabilities).
//!
//! The memory budgets that callers share: bodies of requests, output of runs, and records that are
//! read again. Each API key has at most a share of each.

use std::{sync::Arc, time::Duration};

use cloche_model::{
    ByteSize, ErrorCode, Execution, MemoryAccount, MemoryBudget, MemoryReservation, MemoryShortage,
};
use tokio::sync::Notify;

use crate::Refusal;

/// How long a request may wait for memory before it is refused.
pub const MEMORY_WAIT: Duration = Duration::from_secs(2);

/// The part of a budget that one key may have.
const SHARES: u64 = 4;

/// The size of each budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryConfig {
    /// For bodies of requests that are being read.
    pub bodies: ByteSize,
    /// For what executions print, until they are over and their last reader has left.
    pub outputs: ByteSize,
    /// For records of executions that are read again or sent to a webhook.
    pub replies: ByteSize,
}

impl MemoryConfig {
    /// An eighth of a machine's memory for each, within bounds.
    #[must_use]
    pub fn of_host(memory: ByteSize) -> Self {
        let each = |least, most| (memory.bytes() / 8).clamp(least, most);
        Self {
            bodies: ByteSize(each(128 << 20, 1 << 30)),
            outputs: ByteSize(each(256 << 20, 2 << 30)),
            replies: ByteSize(each(256 << 20, 1 << 30)),
        }
    }
}

impl Default for MemoryConfig {
    fn default() -> Self {
        Self::of_host(host_memory().unwrap_or(ByteSize::gib(2)))
    }
}

/// `MemTotal` of `/proc/meminfo`.
fn host_memory() -> Option<ByteSize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(ByteSize::kib(kib))
}

/// A budget whose holders can wait. Cheap to clone.
#[derive(Clone)]
pub struct MemoryPool {
    budget: Arc<MemoryBudget>,
    released: Arc<Notify>,
}

impl MemoryPool {
    /// So many bytes; one holder may have a quarter of them, and `least` in any case.
    #[must_use]
    pub fn new(total: ByteSize, least: ByteSize) -> Self {
        let share = (total.bytes() / SHARES).max(least.bytes());
        let budget = MemoryBudget::new(total, ByteSize(share));
        let released = Arc::new(Notify::new());
        let wake = Arc::clone(&released);
        budget.call_on_release(move || wake.notify_waiters());
        Self { budget, released }
    }

    /// What this holder has of it.
    #[must_use]
    pub fn account_for(&self, holder: &str) -> Arc<MemoryAccount> {
        self.budget.account_for(holder)
    }

    /// Takes bytes, and waits for them if it must. More than a share is counted as a share: it has
    /// to be alone.
    ///
    /// # Errors
    /// When they were not to be had in time.
    pub async fn reserve(
        &self,
        holder: &str,
        bytes: u64,
        patience: Duration,
    ) -> Result<MemoryReservation, MemoryShortage> {
        let account = self.account_for(holder);
        let bytes = bytes.min(self.budget.holder_share());
        let deadline = tokio::time::Instant::now() + patience;
        loop {
            let released = self.released.notified();
            let shortage = match account.reserve(bytes) {
                Ok(reservation) => return Ok(reservation),
                Err(shortage) => shortage,
            };
            if tokio::time::timeout_at(deadline, released).await.is_err() {
                return Err(shortage);
            }
        }
    }

    /// The numbers of it.
    #[must_use]
    pub fn budget(&self) -> &Arc<MemoryBudget> {
        &self.budget
    }
}

/// The three budgets of a server.
pub struct MemoryBudgets {
    /// For bodies of requests.
    pub bodies: MemoryPool,
    /// For what executions print.
    pub outputs: MemoryPool,
    /// For records that are read again.
    pub replies: MemoryPool,
}

impl MemoryBudgets {
    /// Budgets of these sizes; `output` is the most that is kept of one output stream.
    pub(crate) fn new(config: &MemoryConfig, output: ByteSize) -> Self {
        // Both streams of one execution, twice: as they are and as lines, or as they are read.
        let one = ByteSize(output.bytes().saturating_mul(4));
        Self {
            // One body of the usual limit, as it came and as it was understood.
            bodies: MemoryPool::new(
                config.bodies,
                ByteSize::mib(64).min(halve_size(config.bodies)),
            ),
            outputs: MemoryPool::new(config.outputs, one),
            replies: MemoryPool::new(config.replies, one),
        }
    }

    /// Each budget by its name.
    pub(crate) fn named_pools(&self) -> [(&'static str, &MemoryPool); 3] {
        [("bodies", &self.bodies), ("outputs", &self.outputs), ("replies", &self.replies)]
    }

    /// Memory for a record of this size, while it is read.
    pub(crate) async fn reserve_reply(
        &self,
        holder: &str,
        bytes: u64,
        patience: Duration,
    ) -> Result<MemoryReservation, Refusal> {
        // The database has a copy of its own until the row is read.
        let reserved = self.replies.reserve(holder, 2 * bytes, patience).await;
        reserved.map_err(|shortage| refuse_memory(shortage, "read this record"))
    }
}

fn halve_size(size: ByteSize) -> ByteSize {
    ByteSize(size.bytes() / 2)
}

/// The refusal of a request that there is no memory for now.
#[must_use]
pub fn refuse_memory(shortage: MemoryShortage, what: &str) -> Refusal {
    match shortage {
        MemoryShortage::Holder => Refusal::new(
            ErrorCode::RateLimited,
            format!(
                "this key uses all the memory it may have, so the server cannot {what}; \
                try again when other requests of the key are over"
            ),
        ),
        MemoryShortage::Total => Refusal::new(
            ErrorCode::Unavailable,
            format!("the server has no memory to {what} at present; try again in a moment"),
        ),
    }
}

/// The record, with its output paid for as long as any part of it is held.
pub(crate) fn hold_output(mut execution: Execution, reservation: MemoryReservation) -> Execution {
    let Some(end) = &mut execution.end else { return execution };
    reservation.shrink_to((end.stdout.len() + end.stderr.len()) as u64);
    let reservation = Arc::new(reservation);
    for output in [&mut end.stdout, &mut end.stderr] {
        let bytes = std::mem::take(output);
        *output = MemoryReservation::hold_with(Arc::clone(&reservation), bytes);
    }
    execution
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_follow_the_memory_of_the_host_within_bounds() {
        let of = |gib| MemoryConfig::of_host(ByteSize::gib(gib)).outputs;
        assert_eq!(of(1), ByteSize::mib(256));
        assert_eq!(of(8), ByteSize::gib(1));
        assert_eq!(of(512), ByteSize::gib(2));
        assert!(host_memory().unwrap() > ByteSize::mib(64));
    }

    #[tokio::test]
    async fn a_holder_waits_until_memory_is_released() {
        let pool = MemoryPool::new(ByteSize(100), ByteSize(100));
        let taken = pool.reserve("one", 80, Duration::ZERO).await.unwrap();
        let refused = pool.reserve("two", 30, Duration::ZERO).await;
        assert_eq!(refused.unwrap_err(), MemoryShortage::Total);
        let waiting = tokio::spawn({
            let pool = pool.clone();
            async move { pool.reserve("two", 30, Duration::from_mins(10)).await.is_ok() }
        });
        tokio::task::yield_now().await;
        drop(taken);
        assert!(waiting.await.unwrap());
    }
}
