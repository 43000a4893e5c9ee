//! Runs in: pid 1 of a cell.
//!
//! How many sockets a cell may still create, from the kernel's own counts. Core only.
//!
//! A count reads two files, so pid 1 counts once for many sockets: it allows as many calls as were
//! free at the last count. A call that was allowed and is not done yet is missing in the next
//! count, so a cell can have as many sockets above the limit as it has threads.

use crate::{
    shared::{
        fmt_buf::FmtBuf,
        proc_file::{parse_decimal, read_file},
    },
    sys::{self, Errno, Result},
};

const AF_NETLINK: u32 = 16;
/// Each holds up to a quarter of a MiB that is charged to no cgroup. `getifaddrs` needs one for a
/// moment.
const MOST_NETLINK: u32 = 64;
/// Nanoseconds before each count, while the counts say that the limit is reached.
const COUNT_PAUSES: [u64; 6] = [0, 1_000_000, 3_000_000, 10_000_000, 20_000_000, 30_000_000];

/// What can be allowed before the next count.
#[derive(Debug)]
pub(super) struct SocketBudget {
    most: u32,
    left: u32,
    netlink_left: u32,
}

impl SocketBudget {
    /// The budget of a cell that has no socket yet and may have `most`.
    pub(super) const fn with_limit(most: u32) -> Self {
        Self { most, left: most, netlink_left: MOST_NETLINK }
    }

    /// Takes one socket of a family, or of any family for a connection. `NOBUFS` if the limit is
    /// reached or the sockets cannot be counted.
    pub(super) fn take_socket(&mut self, family: Option<u32>) -> Result<()> {
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

    /// Counts again. The kernel frees a closed socket only after an RCU grace period, and counts it
    /// until then. So the sockets of a program that closes many and opens others are counted a few
    /// times before a call is refused.
    fn count_again(&mut self, is_netlink: bool) -> Result<()> {
        for pause in COUNT_PAUSES {
            let _ = sys::poll_readable([], Some(pause));
            let counts = SocketCounts::read_from_proc().ok_or(Errno::NOBUFS)?;
            self.left = self.most.saturating_sub(counts.not_unix);
            self.netlink_left = MOST_NETLINK.saturating_sub(counts.netlink);
            if self.has_left(is_netlink) {
                break;
            }
        }
        Ok(())
    }
}

/// Whether the netns of this process has more sockets than a cell may have, or its sockets cannot be
/// counted.
#[cfg(not(cloche_template))]
#[must_use]
pub fn has_too_many_sockets(most: u32) -> bool {
    let counts = SocketCounts::read_from_proc();
    counts.is_none_or(|counts| counts.not_unix > most || counts.netlink > MOST_NETLINK)
}

/// The sockets of this netns, including connections that were not accepted yet.
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

    /// `all` begins with a line that counts all sockets; `kinds` has a line for each protocol: its
    /// name, the size of a socket, the number of sockets.
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
        // Kernels before 5.16 have one protocol for AF_UNIX.
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
