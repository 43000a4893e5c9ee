//! The outcome of a run. A guest's failure is a value here; an error means that the platform
//! failed.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{ByteSize, HomeWrites, MemoryAccount, MemoryReservation, NetworkReport};

/// How a run ended, its output, its usage and the files it wrote.
#[derive(Clone, Debug)]
pub struct RunOutcome {
    /// How it ended.
    pub ending: RunEnding,
    /// Its standard output.
    pub stdout: CapturedStream,
    /// Its standard error.
    pub stderr: CapturedStream,
    /// The resources it used.
    pub usage: RunUsage,
    /// The changes to its home.
    pub written: HomeWrites,
    /// What it did over its network, if it had one.
    pub network: Option<NetworkReport>,
    /// The duration of each phase.
    pub timings: RunTimings,
}

impl RunOutcome {
    /// The exit code in the convention of shells: 128 + signal for a signal, 124 for a timeout.
    #[must_use]
    pub fn shell_code(&self) -> u8 {
        match self.ending {
            RunEnding::Exited(code) => code,
            RunEnding::Signalled(signal) => 128_u8.wrapping_add(signal),
            RunEnding::TimedOut => 124,
            RunEnding::OutOfMemory => 137,
            RunEnding::Cancelled => 130,
        }
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunEnding {
    /// The program exited with this code.
    Exited(u8),
    /// The program was killed by this signal.
    Signalled(u8),
    /// The time limit was reached. Every process in the cell was killed.
    TimedOut,
    /// The memory limit was reached and the program was killed.
    OutOfMemory,
    /// A caller cancelled it.
    Cancelled,
}

/// How many bytes of the end of a stream are kept if the stream exceeds its limit.
const TAIL: usize = 64 << 10;

/// One output stream: its first bytes, how many bytes were dropped, and the last bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CapturedStream {
    /// The first bytes, up to the limit.
    pub bytes: Vec<u8>,
    /// How many bytes followed.
    pub dropped: u64,
    /// The last of those, up to four times [`TAIL`].
    last: Vec<u8>,
    charge: OutputCharge,
}

/// The memory that a stream has reserved for its output. Ignored when streams are compared.
#[derive(Clone, Debug, Default)]
struct OutputCharge {
    reservation: Option<Arc<MemoryReservation>>,
    /// The budget is exhausted, so nothing more is kept.
    spent: bool,
}

impl PartialEq for OutputCharge {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for OutputCharge {}

/// While a program runs, its output is in memory twice: as a whole, and as the lines of its log.
const COPIES: u64 = 2;

impl CapturedStream {
    /// A complete stream with these bytes.
    #[must_use]
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self { bytes, ..Self::default() }
    }

    /// A stream of which only the length is known.
    #[must_use]
    pub fn without_bytes(dropped: u64) -> Self {
        Self { dropped, ..Self::default() }
    }

    /// A stream whose first bytes are charged to this account. When the budget is exhausted, the
    /// stream is truncated there, as if its limit were reached.
    #[must_use]
    pub fn charged_to(account: Option<&Arc<MemoryAccount>>) -> Self {
        // A reservation of zero bytes always succeeds.
        let reservation = account.and_then(|account| account.reserve(0).ok()).map(Arc::new);
        Self { charge: OutputCharge { reservation, spent: false }, ..Self::default() }
    }

    /// Appends bytes, up to `limit` bytes in total. Returns how many bytes were kept.
    pub fn append_within(&mut self, bytes: &[u8], limit: u64) -> usize {
        let room = limit.saturating_sub(self.bytes.len() as u64);
        let fits = usize::try_from(room).unwrap_or(usize::MAX).min(bytes.len());
        let fits = if self.charge.pay_for(fits) { fits } else { 0 };
        self.bytes.extend_from_slice(&bytes[..fits]);
        let more = &bytes[fits..];
        self.dropped += more.len() as u64;
        self.last.extend_from_slice(&more[more.len().saturating_sub(TAIL)..]);
        // Trimmed rarely, so that a byte is not moved with every chunk that arrives.
        if self.last.len() > 4 * TAIL {
            self.last.drain(..self.last.len() - TAIL);
        }
        fits
    }

    /// Takes the first bytes for sharing, also with the lines of a log. They are charged once, as
    /// long as any slice of them lives.
    #[must_use]
    pub fn take_head(&mut self) -> Bytes {
        let bytes = std::mem::take(&mut self.bytes);
        match self.charge.reservation.take() {
            Some(reservation) => {
                reservation.shrink_to(bytes.len() as u64);
                MemoryReservation::hold_with(reservation, bytes)
            }
            None => bytes.into(),
        }
    }

    /// The last of the dropped bytes.
    #[must_use]
    pub fn tail(&self) -> &[u8] {
        &self.last[self.last.len().saturating_sub(TAIL)..]
    }

    /// The bytes as text, with replacement characters where they are not UTF-8.
    #[must_use]
    pub fn to_text_lossy(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

impl OutputCharge {
    /// Whether this many more bytes may be kept. After the first refusal every call returns false.
    fn pay_for(&mut self, bytes: usize) -> bool {
        let Some(reservation) = self.reservation.as_ref().filter(|_| bytes > 0) else {
            return true;
        };
        self.spent = self.spent || reservation.grow(COPIES * bytes as u64).is_err();
        !self.spent
    }
}

/// The resources that a run used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunUsage {
    /// Time from the start of the program to its end.
    pub wall: Duration,
    /// Processor time of all its processes.
    pub cpu: Duration,
    /// The peak memory; zero if the host cannot measure it.
    pub peak_memory: ByteSize,
}

/// The duration of each phase of a run, for histograms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunTimings {
    /// Waiting for a cell.
    pub cell: Duration,
    /// Bringing code, files and environment into the cell.
    pub attach: Duration,
    /// Running the program.
    pub run: Duration,
    /// Making its changes durable.
    pub seal: Duration,
}

/// A chunk of output as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputChunk {
    /// The stream it came from.
    pub stream: StreamName,
    /// The bytes, split at arbitrary positions.
    pub bytes: Vec<u8>,
    /// How many of them, counted from the first, the outcome keeps.
    pub kept: usize,
}

/// The two output streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StreamName {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_output_keeps_its_first_bytes_a_count_and_its_last_bytes() {
        let all: Vec<u8> = (0..1_000_003_u32).map(|n| (n % 251) as u8).collect();
        for (limit, piece) in [(10_u64, 1000), (100_000, 7777), (0, 300_000), (2_000_000, 65_536)] {
            let mut captured = CapturedStream::default();
            for piece in all.chunks(piece) {
                captured.append_within(piece, limit);
            }
            let head = usize::try_from(limit).unwrap().min(all.len());
            assert_eq!(captured.bytes, all[..head]);
            assert_eq!(captured.dropped, (all.len() - head) as u64);
            let tail = TAIL.min(all.len() - head);
            assert_eq!(captured.tail(), &all[all.len() - tail..], "{limit} {piece}");
            assert!(captured.last.len() <= 4 * TAIL);
        }
    }

    #[test]
    fn a_stream_is_truncated_when_the_output_budget_is_exhausted() {
        let budget = crate::MemoryBudget::new(ByteSize(20), ByteSize(20));
        let account = budget.account_for("key");
        let mut captured = CapturedStream::charged_to(Some(&account));
        assert_eq!(captured.append_within(b"12345678", 100), 8);
        assert_eq!(captured.append_within(b"abc", 100), 0);
        // A shorter chunk that would fit is dropped as well: the kept bytes have no holes.
        assert_eq!(captured.append_within(b"x", 100), 0);
        assert_eq!((captured.dropped, captured.tail()), (4, &b"abcx"[..]));
        assert_eq!(budget.used_bytes(), 16);
        let head = captured.take_head();
        drop(captured);
        assert_eq!((&head[..], budget.used_bytes()), (&b"12345678"[..], 8));
        drop(head);
        assert_eq!(budget.used_bytes(), 0);
    }
}
