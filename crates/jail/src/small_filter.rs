//! Short system call filters for our own processes: some calls get one verdict, all others another.
//! Core only.

use crate::syscall_table::Call;

const LOAD: u16 = 0x20;
const IS: u16 = 0x15;
const RETURN: u16 = 0x06;
/// The most calls that such a filter names.
const MOST: usize = 20;

/// What happens to a call.
#[derive(Clone, Copy)]
pub(crate) enum FilterVerdict {
    /// The end of the process.
    Kill,
    /// Whoever holds the listener is told, and decides.
    Tell,
    /// It looks like one that this kernel does not have.
    NotImplemented,
    /// It is made.
    Allow,
}

impl FilterVerdict {
    const fn return_value(self) -> u32 {
        match self {
            Self::Kill => 0x8000_0000,
            Self::Tell => 0x7fc0_0000,
            Self::NotImplemented => 0x0005_0000 | 38,
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

    /// One call always; another unless its first argument, a 32-bit number, is the one given.
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
        if let Some(place) = self.bytes.get_mut(self.len..self.len + 8) {
            place.copy_from_slice(&word.to_le_bytes());
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

    /// What the kernel would make of a call: struct seccomp_data is the number, the architecture,
    /// where it was called, and the arguments.
    fn verdict(filter: &SmallFilter, number: u32, architecture: u32, argument: u64) -> u32 {
        let word = |at: u32| match at {
            0 => number,
            4 => architecture,
            16 => argument as u32,
            _ => unreachable!("nothing else is looked at"),
        };
        let (mut at, mut loaded) = (0, 0);
        loop {
            let step = &filter.as_bytes()[at * 8..at * 8 + 8];
            let value = u32::from_le_bytes([step[4], step[5], step[6], step[7]]);
            at += 1;
            match u16::from_le_bytes([step[0], step[1]]) {
                LOAD => loaded = word(value),
                IS => at += usize::from(if loaded == value { step[2] } else { step[3] }),
                RETURN => return value,
                other => unreachable!("{other:#x}"),
            }
        }
    }

    #[test]
    fn a_list_of_calls_is_all_that_is_allowed() {
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
    fn connects_are_told_of_and_sockets_unless_they_are_of_one_kind() {
        let (socket, tell, allow) = (Call::Socket, FilterVerdict::Tell, FilterVerdict::Allow);
        let connect = Call::Connect;
        let filter = SmallFilter::of_calls_unless(connect, (socket, 1), tell, allow);
        for number in 0..512 {
            for family in [0, 1, 2, 10, 16, 1 << 32 | 1, 1 << 32 | 2, u64::MAX] {
                // The kernel looks at the lower half only.
                let told = number == connect.number() as u32
                    || number == socket.number() as u32 && family as u32 != 1;
                let wanted = if told { tell } else { allow };
                assert_eq!(verdict(&filter, number, HERE, family), wanted.return_value());
                assert_eq!(verdict(&filter, number, !HERE, family), allow.return_value());
            }
        }
    }
}
