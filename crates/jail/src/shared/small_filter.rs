//! Runs in: server (no capabilities), pid 1 of a cell; a child that sets up a cell.
//!
//! Short seccomp filters that are assembled at run time: listed calls get one verdict, all others
//! another one. Core only.

use crate::sys::Call;

const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const IS: u16 = 0x15;
const RETURN: u16 = 0x06;
/// The most calls that a filter can list.
const MOST: usize = 20;

/// What the kernel does with a call.
#[derive(Clone, Copy)]
pub(crate) enum FilterVerdict {
    /// Kills the process.
    Kill,
    /// Suspends the call, and notifies the process with the notification fd, which decides.
    Notify,
    /// Returns `ENOSYS`.
    NotImplemented,
    /// Makes the call.
    Allow,
}

impl FilterVerdict {
    const fn return_value(self) -> u32 {
        match self {
            Self::Kill => 0x8000_0000,
            Self::Notify => 0x7fc0_0000,
            Self::NotImplemented => 0x0005_0000 | 38,
            Self::Allow => 0x7fff_0000,
        }
    }
}

/// A filter as bytes for the kernel.
pub(crate) struct SmallFilter {
    bytes: [u8; (MOST + 6) * 8],
    len: usize,
}

impl SmallFilter {
    /// The listed calls get one verdict, all others and calls of another architecture the other
    /// one.
    pub(crate) fn of_calls(calls: &[Call], listed: FilterVerdict, others: FilterVerdict) -> Self {
        let mut filter = Self::for_this_machine(others);
        let calls = &calls[..calls.len().min(MOST)];
        filter.push_instruction(LOAD, 0, 0, 0);
        for (at, call) in calls.iter().enumerate() {
            filter.push_instruction(IS, (calls.len() - at) as u8, 0, call.number() as u32);
        }
        filter.push_instruction(RETURN, 0, 0, others.return_value());
        filter.push_instruction(RETURN, 0, 0, listed.return_value());
        filter
    }

    /// The verdict `listed` is for one call always, and for another one unless its first argument,
    /// a 32-bit number, is the one given.
    pub(crate) fn of_calls_unless(
        always: Call,
        (call, argument): (Call, u32),
        listed: FilterVerdict,
        others: FilterVerdict,
    ) -> Self {
        let mut filter = Self::for_this_machine(others);
        filter.push_instruction(LOAD, 0, 0, 0);
        filter.push_instruction(IS, 3, 0, always.number() as u32);
        filter.push_instruction(IS, 0, 3, call.number() as u32);
        filter.push_instruction(LOAD, 0, 0, 16);
        filter.push_instruction(IS, 1, 0, argument);
        filter.push_instruction(RETURN, 0, 0, listed.return_value());
        filter.push_instruction(RETURN, 0, 0, others.return_value());
        filter
    }

    /// Refuses ways to memory that can be in use while no process has it mapped: objects of their
    /// own, and anonymous memory that is mapped as shared, which `munmap` of a part does not free.
    pub(crate) fn of_unmapped_memory() -> Self {
        // `MAP_SHARED` and `MAP_ANONYMOUS`; the flags are the fourth argument.
        const SHARED_ANONYMOUS: u32 = 0x21;
        const FLAGS: u32 = 16 + 3 * 8;
        let (refused, others) = (FilterVerdict::NotImplemented, FilterVerdict::Allow);
        let mut filter = Self::for_this_machine(others);
        filter.push_instruction(LOAD, 0, 0, 0);
        filter.push_instruction(IS, 6, 0, Call::MemfdCreate.number() as u32);
        filter.push_instruction(IS, 5, 0, Call::Shmget.number() as u32);
        filter.push_instruction(IS, 0, 3, Call::Mmap.number() as u32);
        filter.push_instruction(LOAD, 0, 0, FLAGS);
        filter.push_instruction(AND, 0, 0, SHARED_ANONYMOUS);
        filter.push_instruction(IS, 1, 0, SHARED_ANONYMOUS);
        filter.push_instruction(RETURN, 0, 0, others.return_value());
        filter.push_instruction(RETURN, 0, 0, refused.return_value());
        filter
    }

    fn for_this_machine(others: FilterVerdict) -> Self {
        const ARCH: u32 = if cfg!(target_arch = "x86_64") { 0xc000_003e } else { 0xc000_00b7 };
        let mut filter = Self { bytes: [0; (MOST + 6) * 8], len: 0 };
        filter.push_instruction(LOAD, 0, 0, 4);
        filter.push_instruction(IS, 1, 0, ARCH);
        filter.push_instruction(RETURN, 0, 0, others.return_value());
        filter
    }

    fn push_instruction(&mut self, code: u16, then: u8, or: u8, value: u32) {
        let word = u64::from(code) | u64::from(then) << 16 | u64::from(or) << 24;
        let word = word | u64::from(value) << 32;
        if let Some(instruction) = self.bytes.get_mut(self.len..self.len + 8) {
            instruction.copy_from_slice(&word.to_le_bytes());
            self.len += 8;
        }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: u32 = if cfg!(target_arch = "x86_64") { 0xc000_003e } else { 0xc000_00b7 };

    /// Runs the filter as the kernel does: struct seccomp_data is the number, the architecture, the
    /// instruction pointer and the arguments.
    fn verdict(filter: &SmallFilter, number: u32, architecture: u32, argument: u64) -> u32 {
        let word = |at: u32| match at {
            0 => number,
            4 => architecture,
            16 | 40 => argument as u32,
            _ => unreachable!("the filter loads no other offset"),
        };
        let (mut at, mut loaded) = (0, 0);
        loop {
            let step = &filter.as_bytes()[at * 8..at * 8 + 8];
            let value = u32::from_le_bytes([step[4], step[5], step[6], step[7]]);
            at += 1;
            match u16::from_le_bytes([step[0], step[1]]) {
                LOAD => loaded = word(value),
                AND => loaded &= value,
                IS => at += usize::from(if loaded == value { step[2] } else { step[3] }),
                RETURN => return value,
                other => unreachable!("{other:#x}"),
            }
        }
    }

    #[test]
    fn only_the_listed_calls_are_allowed() {
        let calls = [Call::Read, Call::Waitid, Call::ExitGroup];
        let filter = SmallFilter::of_calls(&calls, FilterVerdict::Allow, FilterVerdict::Kill);
        for number in 0..512 {
            let listed = calls.iter().any(|call| call.number() as u32 == number);
            let wanted = if listed { FilterVerdict::Allow } else { FilterVerdict::Kill };
            assert_eq!(verdict(&filter, number, HERE, 0), wanted.return_value(), "{number}");
            assert_eq!(verdict(&filter, number, !HERE, 0), FilterVerdict::Kill.return_value());
        }
    }

    #[test]
    fn connect_is_notified_and_socket_unless_of_one_family() {
        let (socket, notify, allow) = (Call::Socket, FilterVerdict::Notify, FilterVerdict::Allow);
        let connect = Call::Connect;
        let filter = SmallFilter::of_calls_unless(connect, (socket, 1), notify, allow);
        for number in 0..512 {
            for family in [0, 1, 2, 10, 16, 1 << 32 | 1, 1 << 32 | 2, u64::MAX] {
                // The kernel reads the lower half only.
                let notified = number == connect.number() as u32
                    || number == socket.number() as u32 && family as u32 != 1;
                let wanted = if notified { notify } else { allow };
                assert_eq!(verdict(&filter, number, HERE, family), wanted.return_value());
                assert_eq!(verdict(&filter, number, !HERE, family), allow.return_value());
            }
        }
    }

    #[test]
    fn shared_anonymous_memory_is_refused_and_other_mappings_are_not() {
        let filter = SmallFilter::of_unmapped_memory();
        let (allow, refused) = (FilterVerdict::Allow, FilterVerdict::NotImplemented);
        for number in 0..512 {
            // Shared, private, of a file or anonymous, with flags that do not matter.
            for flags in [0x01, 0x02, 0x22, 0x21, 0x23, 0x8021, 0x4_0021, 0x4022, 1 << 32 | 0x22] {
                let is_object = [Call::MemfdCreate, Call::Shmget]
                    .iter()
                    .any(|call| call.number() as u32 == number);
                let is_shared = number == Call::Mmap.number() as u32 && flags & 0x21 == 0x21;
                let wanted = if is_object || is_shared { refused } else { allow };
                let given = verdict(&filter, number, HERE, flags);
                assert_eq!(given, wanted.return_value(), "{number} {flags:#x}");
            }
        }
    }
}
