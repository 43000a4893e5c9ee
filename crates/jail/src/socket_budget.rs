//! Runs in: pid 1 of a cell
//!
//! How many sockets a cell may have, counted by what the kernel says is there. Core only.
//!
//! Counting is a read of two files, so it is done once for many sockets: as many as were free at the
//! last count are let pass. A call that was let pass and is not done yet is not in the next count, so
//! there can be as many more as the cell has threads.

use crate::{
    fmt_buf::FmtBuf,
    pid_one::{parse_decimal, read_file},
    sys::{self, Errno, Result},
};

const AF_NETLINK: u32 = 16;
/// Each holds up to a quarter of a MiB that is charged to no control group. `getifaddrs` needs one for
/// a moment.
const MOST_NETLINK: u32 = 64;
/// Nanoseconds before each count of sockets that seem to be too many.
const COUNT_PAUSES: [u64; 6] = [0, 1_000_000, 3_000_000, 10_000_000, 20_000_000, 30_000_000];

/// What is left to be given before the next count.
#[derive(Debug)]
pub(crate) struct SocketBudget {
    most: u32,
    left: u32,
    netlink_left: u32,
}

impl SocketBudget {
    /// For a cell that has none yet and may have this many.
    pub(crate) const fn with_limit(most: u32) -> Self {
        Self { most, left: most, netlink_left: MOST_NETLINK }
    }

    /// Takes one socket of a family, or one of any for a connection. `NOBUFS` if there are as many as
    /// there may be, or if they cannot be counted.
    pub(crate) fn take_socket(&mut self, family: Option<u32>) -> Result<()> {
        let is_netlink = family == Some(AF_NETLINK);
        if !self.has_left(is_netlink) {
            self.count_again(is_netlink)?;
        }
        let netlink_left = self.netlink_left.checked_sub(u32::from(is_netlink));
        let (Some(left), Some(netlink_left)) = (self.left.checked_sub(1), netlink_left) else {
            return Err(Errno::NOBUFS);
        };
        (self.left, self.netlink_left) = (left, netlink_left);
        Ok(())
    }

    const fn has_left(&self, is_netlink: bool) -> bool {
        self.left > 0 && (!is_netlink || self.netlink_left > 0)
    }

    /// The kernel frees a closed socket only after an RCU grace period, and counts it until then. So a
    /// program that closes many and makes others is counted a few times before it is refused.
    fn count_again(&mut self, is_netlink: bool) -> Result<()> {
        for pause in COUNT_PAUSES {
            let _ = sys::poll_readable([], Some(pause));
            let there = SocketCounts::read_from_proc().ok_or(Errno::NOBUFS)?;
            self.left = self.most.saturating_sub(there.not_unix);
            self.netlink_left = MOST_NETLINK.saturating_sub(there.netlink);
            if self.has_left(is_netlink) {
                break;
            }
        }
        Ok(())
    }
}

/// The sockets of this network, also those that were not accepted yet.
struct SocketCounts {
    not_unix: u32,
    netlink: u32,
}

impl SocketCounts {
    fn read_from_proc() -> Option<Self> {
        let (mut all, mut kinds) = ([0; 64], [0; 8 << 10]);
        let all = read_file(FmtBuf::default().push_bytes(b"/proc/net/sockstat\0"), &mut all)?;
        let kinds = read_file(FmtBuf::default().push_bytes(b"/proc/net/protocols\0"), &mut kinds)?;
        Self::parse(all, kinds)
    }

    /// `all` begins with a line that counts all sockets; `kinds` has a line for each kind: its name,
    /// the size of one, and how many there are.
    fn parse(all: &[u8], kinds: &[u8]) -> Option<Self> {
        let all = all.strip_prefix(b"sockets: used ")?;
        let all = parse_decimal(all.split(|byte| *byte == b'\n').next()?)?;
        let of_kind = |name: &[u8]| {
            let mut lines = kinds.split(|byte| *byte == b'\n');
            lines.find_map(|line| {
                let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
                if words.next()? != name {
                    return None;
                }
                parse_decimal(words.nth(1)?)
            })
        };
        // Kernels before 5.16 have one kind of AF_UNIX.
        let unix = of_kind(b"UNIX")?.saturating_add(of_kind(b"UNIX-STREAM").unwrap_or(0));
        Some(Self { not_unix: all.saturating_sub(unix), netlink: of_kind(b"NETLINK")? })
    }
}

#[cfg(all(test, not(cloche_template)))]
mod tests {
    use super::*;

    const KINDS: &[u8] = b"\
protocol  size sockets  memory press maxhdr  slab module     cl co di ac io in de sh ss gs
UNIX-STREAM 1088     11      -1   NI       0   yes  kernel      y  n  n  n  n  n  n  n  n  n
UNIX      1088      4      -1   NI       0   yes  kernel      y  n  n  n  n  n  n  n  n  n
TCP       2368      3       7   no     256   yes  kernel      y  y  y  y  y  y  y  y  y  y
NETLINK   1112     27      -1   NI       0   no   kernel      n  n  n  n  n  n  n  n  n  n
";

    #[test]
    fn sockets_are_counted_by_kind() {
        let counts = SocketCounts::parse(b"sockets: used 105\nTCP: inuse 5 or", KINDS).unwrap();
        assert_eq!((counts.not_unix, counts.netlink), (90, 27));
        assert!(SocketCounts::parse(b"", KINDS).is_none());
        assert!(SocketCounts::parse(b"sockets: used 105\n", b"").is_none());
    }

    #[test]
    fn netlink_sockets_have_a_limit_of_their_own() {
        let mut budget = SocketBudget { most: 9, left: 9, netlink_left: 1 };
        assert_eq!(budget.take_socket(Some(AF_NETLINK)), Ok(()));
        assert_eq!((budget.left, budget.netlink_left), (8, 0));
        assert_eq!(budget.take_socket(Some(2)), Ok(()));
        assert_eq!(budget.take_socket(None), Ok(()));
        assert_eq!((budget.left, budget.netlink_left), (6, 0));
    }
}
