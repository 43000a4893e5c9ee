//! What a run did. A guest's failure is a value here; an error means that we failed.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{ByteSize, HomeWrites, MemoryAccount, MemoryReservation};

/// How a run ended, and all that it said.
#[derive(Clone, Debug)]
pub struct RunOutcome {
    /// Why it is over.
    pub ending: RunEnding,
    /// What it wrote to standard output.
    pub stdout: CapturedStream,
    /// What it wrote to standard error.
    pub stderr: CapturedStream,
    /// What it used.
    pub usage: RunUsage,
    /// What it left in its home.
    pub written: HomeWrites,
    /// Where the time went.
    pub timings: RunTimings,
}

impl RunOutcome {
    /// The exit code as a shell would give it: 128 + signal for a signal, 124 for a timeout.
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

/// Why a run is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunEnding {
    /// The program ended by itself with this code.
    Exited(u8),
    /// The program was ended by this signal.
    Signalled(u8),
    /// The time limit was reached; everything in the sandbox was killed.
    TimedOut,
    /// The memory limit was reached, and the program did not survive it.
    OutOfMemory,
    /// Someone asked for it to be stopped.
    Cancelled,
}

/// The most bytes of the end of a stream that are kept where all of it is too much.
const TAIL: usize = 64 << 10;

/// One output stream: its head, how much did not fit, and the last of that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CapturedStream {
    /// The first bytes, up to the limit.
    pub bytes: Vec<u8>,
    /// How many more there were.
    pub dropped: u64,
    /// The last of those, and a little more than are promised.
    last: Vec<u8>,
    charge: OutputCharge,
}

/// What a stream has of the memory for outputs. Says nothing of what the stream is.
#[derive(Clone, Debug, Default)]
struct OutputCharge {
    reservation: Option<Arc<MemoryReservation>>,
    /// Nothing more is kept: the memory is spent.
    spent: bool,
}

impl PartialEq for OutputCharge {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for OutputCharge {}

/// While a program runs, what it printed is in memory twice: whole, and as the lines of its log.
const COPIES: u64 = 2;

impl CapturedStream {
    /// A stream of which this is all.
    #[must_use]
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self { bytes, ..Self::default() }
    }

    /// A stream whose head is paid for from this account. When the memory is spent, the head is
    /// cut there, as if its limit were reached.
    #[must_use]
    pub fn charged_to(account: Option<&Arc<MemoryAccount>>) -> Self {
        // Nothing can be refused of nothing.
        let reservation = account.and_then(|account| account.reserve(0).ok()).map(Arc::new);
        Self { charge: OutputCharge { reservation, spent: false }, ..Self::default() }
    }

    /// Adds what was read, within a limit for the head. Returns how many bytes the head took.
    pub fn append_within(&mut self, bytes: &[u8], limit: u64) -> usize {
        let room = limit.saturating_sub(self.bytes.len() as u64);
        let fits = usize::try_from(room).unwrap_or(usize::MAX).min(bytes.len());
        let fits = if self.charge.pay_for(fits) { fits } else { 0 };
        self.bytes.extend_from_slice(&bytes[..fits]);
        let more = &bytes[fits..];
        self.dropped += more.len() as u64;
        self.last.extend_from_slice(&more[more.len().saturating_sub(TAIL)..]);
        // Now and then, so that a byte is moved once and not with every piece that comes.
        if self.last.len() > 4 * TAIL {
            self.last.drain(..self.last.len() - TAIL);
        }
        fits
    }

    /// The head, to be shared, the lines of a log included. As long as any part of it is held, it is
    /// paid for, once.
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

    /// The end of what did not fit.
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
    /// Whether so many more bytes may be kept. After the first no, none may.
    fn pay_for(&mut self, bytes: usize) -> bool {
        let Some(reservation) = self.reservation.as_ref().filter(|_| bytes > 0) else {
            return true;
        };
        self.spent = self.spent || reservation.grow(COPIES * bytes as u64).is_err();
        !self.spent
    }
}

/// What a run used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunUsage {
    /// From the start of the program to its end.
    pub wall: Duration,
    /// Processor time of all its processes.
    pub cpu: Duration,
    /// The most memory it held at once; zero where the host cannot tell.
    pub peak_memory: ByteSize,
}

/// Where the time of a run went, for histograms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunTimings {
    /// Waiting for a cell.
    pub cell: Duration,
    /// Bringing code, files and environment into it.
    pub attach: Duration,
    /// The program itself.
    pub run: Duration,
    /// Making what it wrote durable.
    pub seal: Duration,
}

/// A piece of output as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputChunk {
    /// Which stream it came from.
    pub stream: StreamName,
    /// The bytes, cut anywhere.
    pub bytes: Vec<u8>,
    /// How many of them, from the first on, the outcome keeps.
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
    fn much_output_has_a_head_a_count_and_a_tail() {
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
    fn a_stream_is_cut_where_the_memory_for_outputs_is_spent() {
        let budget = crate::MemoryBudget::new(ByteSize(20), ByteSize(20));
        let account = budget.account_for("key");
        let mut captured = CapturedStream::charged_to(Some(&account));
        assert_eq!(captured.append_within(b"12345678", 100), 8);
        assert_eq!(captured.append_within(b"abc", 100), 0);
        // What would fit is not kept either: a head has no holes.
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
