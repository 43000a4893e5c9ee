//! Short system call filters for our own processes: some calls get one verdict, all others another.
//! Core only.

use crate::calls::Call;

const LOAD: u16 = 0x20;
const IS: u16 = 0x15;
const RETURN: u16 = 0x06;
/// The most calls that such a filter names.
const MOST: usize = 20;

/// What happens to a call.
#[derive(Clone, Copy)]
pub(crate) enum Verdict {
    /// The end of the process.
    Kill,
    /// Whoever holds the listener is told, and decides.
    Tell,
    /// It is made.
    Allow,
}

impl Verdict {
    const fn number(self) -> u32 {
        match self {
            Self::Kill => 0x8000_0000,
            Self::Tell => 0x7fc0_0000,
            Self::Allow => 0x7fff_0000,
        }
    }
}

/// A filter as the kernel takes it.
pub(crate) struct SmallFilter {
    bytes: [u8; (MOST + 6) * 8],
    len: usize,
}

impl SmallFilter {
    /// The architecture, then each call, then the verdict. Calls of another architecture get what
    /// others get.
    pub(crate) fn of_calls(calls: &[Call], listed: Verdict, others: Verdict) -> Self {
        let mut filter = Self::for_this_machine(others);
        let calls = &calls[..calls.len().min(MOST)];
        filter.put(LOAD, 0, 0, 0);
        for (at, call) in calls.iter().enumerate() {
            filter.put(IS, (calls.len() - at) as u8, 0, call.number() as u32);
        }
        filter.put(RETURN, 0, 0, others.number());
        filter.put(RETURN, 0, 0, listed.number());
        filter
    }

    /// One call, unless its first argument, a 32-bit number, is this one.
    pub(crate) fn of_call_unless(
        call: Call,
        argument: u32,
        listed: Verdict,
        others: Verdict,
    ) -> Self {
        let mut filter = Self::for_this_machine(others);
        filter.put(LOAD, 0, 0, 0);
        filter.put(IS, 0, 3, call.number() as u32);
        filter.put(LOAD, 0, 0, 16);
        filter.put(IS, 1, 0, argument);
        filter.put(RETURN, 0, 0, listed.number());
        filter.put(RETURN, 0, 0, others.number());
        filter
    }

    fn for_this_machine(others: Verdict) -> Self {
        const ARCH: u32 = if cfg!(target_arch = "x86_64") { 0xc000_003e } else { 0xc000_00b7 };
        let mut filter = Self { bytes: [0; (MOST + 6) * 8], len: 0 };
        filter.put(LOAD, 0, 0, 4);
        filter.put(IS, 1, 0, ARCH);
        filter.put(RETURN, 0, 0, others.number());
        filter
    }

    fn put(&mut self, code: u16, then: u8, or: u8, value: u32) {
        let word = u64::from(code) | u64::from(then) << 16 | u64::from(or) << 24;
        let word = word | u64::from(value) << 32;
        if let Some(place) = self.bytes.get_mut(self.len..self.len + 8) {
            place.copy_from_slice(&word.to_le_bytes());
            self.len += 8;
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
