//! Runs in: lock watcher (a child of the spawner; root with CAP_SYS_PTRACE only).
//!
//! Finds cells that hold too many file locks. The kernel charges a record lock (`fcntl(F_SETLK)`) to
//! no control group and has no limit for their number, so the watcher reads `/proc/locks` four times
//! a second while there are cells, and the spawner kills a cell beyond the limit.
//!
//! It is a process of its own because reading `/proc/locks` waits for an RCU grace period, some
//! 10 ms in which the spawner would answer no request. It must not know what a cell is: it counts by
//! pid namespace. The filter refuses what this count would miss, see `fcntl` and `clone` in
//! `policy/seccomp.json`.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read, Seek},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
        unix::fs::MetadataExt,
    },
    time::{Duration, Instant},
};

use cloche_jail::sys::{self, CloneRequest, CloneSide, Errno, PrctlOption};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{AddressFamily, SocketFlags, SocketType, socketpair},
    process::{WaitId, WaitIdOptions, waitid},
    thread::{CapabilitySet, CapabilitySets},
};

use super::cell_record::CellRecord;
use crate::protocol::{CellId, ProtocolError};

/// How many locks a cell may hold: 1.5 MiB of kernel memory.
const MOST_LOCKS: u64 = 8192;
/// The same for a cell while the host has more locks than are read, or the average if that is less.
const MOST_LOCKS_WHEN_CUT: u64 = 1024;
/// A cell with no more locks than this is never killed for them.
const ALWAYS_ALLOWED: u64 = 64;
/// How often the locks are read.
const INTERVAL: Duration = Duration::from_millis(250);
/// How much of `/proc/locks` is read: some 32,000 lines. The kernel walks the list from its start for
/// each page that is read, so to read all of a long one would take very long.
const MOST_READ: usize = 2 << 20;

/// The spawner's end of its lock watcher.
pub(super) struct LockWatch {
    socket: OwnedFd,
    process: OwnedFd,
    is_active: bool,
}

impl LockWatch {
    /// Starts a watcher, which ends when this value is dropped.
    pub(super) fn start(privileged: bool) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let process = match sys::clone(CloneRequest::default()).map_err(os)? {
            CloneSide::Parent(_, pidfd) => sys::into_owned_fd(pidfd),
            CloneSide::Child => {
                let _ = sys::prctl(PrctlOption::ParentDeathSignal, 9);
                sys::exit(i32::from(watch_alone(&theirs, privileged).is_err()))
            }
        };
        rustix::io::ioctl_fionbio(&ours, true)?;
        Ok(Self { socket: ours, process, is_active: false })
    }

    /// Has the watcher read locks only while there are cells.
    pub(super) fn set_active(&mut self, is_active: bool) -> Result<(), ProtocolError> {
        if self.is_active != is_active {
            sys::sendmsg(self.socket.as_raw_fd(), &[u8::from(is_active)], &[]).map_err(is_gone)?;
            self.is_active = is_active;
        }
        Ok(())
    }

    /// Kills the cells that the watcher has reported. An error means that the watcher is gone.
    pub(super) fn kill_reported(
        &self,
        cells: &mut BTreeMap<CellId, CellRecord>,
    ) -> Result<(), ProtocolError> {
        let mut report = [0; 8];
        match sys::recvmsg(self.socket.as_raw_fd(), &mut report) {
            Ok((8, _)) => {}
            Ok(_) => return Err(is_gone(Errno::PIPE)),
            Err(Errno::AGAIN) => return Ok(()),
            Err(errno) => return Err(is_gone(errno)),
        }
        let reported = u64::from_le_bytes(report);
        let holds_too_many = |held: &CellRecord| {
            held.state.pidfd().is_some_and(|first| has_namespace(first, reported))
        };
        for held in cells.values_mut().filter(|held| holds_too_many(held)) {
            held.exceeded_kernel_memory = true;
            held.kill();
        }
        Ok(())
    }
}

impl AsFd for LockWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for LockWatch {
    /// Nothing of a spawner is left when it has ended, not even a zombie.
    fn drop(&mut self) {
        let _ = sys::pidfd_kill(self.process.as_raw_fd(), 9);
        let _ = waitid(WaitId::PidFd(self.process.as_fd()), WaitIdOptions::EXITED);
    }
}

/// Never `Closed`, which is how the executor ends: without its watcher the spawner starts again.
const fn is_gone(errno: Errno) -> ProtocolError {
    ProtocolError::System(errno.0)
}

/// Whether a pid namespace is that of the first process of a cell, or of a child of it: the guest
/// of a driver is in a namespace of its own.
fn has_namespace(first: BorrowedFd<'_>, namespace: u64) -> bool {
    let Some(pid) = pid_of(first) else { return false };
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    let children = children.split_ascii_whitespace().filter_map(|child| child.parse().ok());
    [pid].into_iter().chain(children).any(|pid| pid_namespace(pid) == Some(namespace))
}

/// The pid of a process.
fn pid_of(pidfd: BorrowedFd<'_>) -> Option<i32> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    pid.trim().parse().ok()
}

fn pid_namespace(pid: i32) -> Option<u64> {
    fs::metadata(format!("/proc/{pid}/ns/pid")).ok().map(|namespace| namespace.ino())
}

/// Keeps nothing but the socket and one capability, and watches.
fn watch_alone(socket: &OwnedFd, privileged: bool) -> io::Result<()> {
    const ONLY: RawFd = 3;
    if socket.as_raw_fd() != ONLY {
        sys::dup_onto(socket.as_raw_fd(), ONLY).map_err(os)?;
    }
    sys::close_range(ONLY as u32 + 1, u32::MAX).map_err(os)?;
    if privileged {
        // To see the namespaces of processes that are not dumpable or another user's.
        let keep = CapabilitySet::SYS_PTRACE;
        let none = CapabilitySet::empty();
        let sets = CapabilitySets { effective: keep, permitted: keep, inheritable: none };
        rustix::thread::set_capabilities(None, sets)?;
    }
    sys::prctl(PrctlOption::NoNewPrivs, 1).map_err(os)?;
    watch(&sys::into_owned_fd(ONLY))
}

/// Reports pid namespaces with too many locks, until the spawner is gone.
fn watch(socket: &OwnedFd) -> io::Result<()> {
    let mut list = File::open("/proc/locks")?;
    let own = pid_namespace(std::process::id().cast_signed());
    let mut due: Option<Instant> = None;
    loop {
        let wait = due.map(|due| due.saturating_duration_since(Instant::now()));
        if is_readable(socket, wait)? {
            let mut word = [0];
            if rustix::io::read(socket, &mut word)? == 0 {
                return Ok(());
            }
            due = (word == [1]).then(|| due.unwrap_or_else(|| Instant::now() + INTERVAL));
            continue;
        }
        let sample = Sample::read(&mut list)?;
        // As long as all locks of the host are few, it does not matter whose they are.
        if sample.lines > MOST_LOCKS || sample.is_cut {
            let holders = sample.by_namespace(own);
            for namespace in over_limit(&holders, &sample) {
                rustix::io::write(socket, &namespace.to_le_bytes())?;
            }
        }
        due = Some(Instant::now() + INTERVAL);
    }
}

fn is_readable(socket: &OwnedFd, within: Option<Duration>) -> io::Result<bool> {
    let within = within.map(|within| Timespec {
        tv_sec: within.as_secs().cast_signed(),
        tv_nsec: within.subsec_nanos().into(),
    });
    match poll(&mut [PollFd::new(socket, PollFlags::IN)], within.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// What `/proc/locks` said.
#[derive(Debug, Default)]
struct Sample {
    /// How many locks each process holds or waits for.
    by_pid: BTreeMap<i32, u64>,
    lines: u64,
    /// Whether there were more than were read.
    is_cut: bool,
}

impl Sample {
    fn read(list: &mut File) -> io::Result<Self> {
        list.rewind()?;
        let mut text = Vec::new();
        list.take(MOST_READ as u64).read_to_end(&mut text)?;
        Ok(Self::parse(&text))
    }

    /// Reads lines like `1: POSIX  ADVISORY  WRITE 4762 fe:00:6293773 0 EOF`; with `->` behind the
    /// number one waits.
    fn parse(text: &[u8]) -> Self {
        let mut sample = Self { is_cut: text.len() >= MOST_READ, ..Self::default() };
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            sample.lines += 1;
            let words = std::str::from_utf8(line).unwrap_or_default().split_ascii_whitespace();
            let pid = words.filter(|word| *word != "->").nth(4).and_then(|pid| pid.parse().ok());
            if let Some(pid) = pid {
                *sample.by_pid.entry(pid).or_default() += 1;
            }
        }
        sample
    }

    /// The same by pid namespace, without those of this one: the host's own processes.
    fn by_namespace(&self, own: Option<u64>) -> BTreeMap<u64, u64> {
        let mut holders = BTreeMap::new();
        for (pid, locks) in &self.by_pid {
            let namespace = pid_namespace(*pid);
            if let Some(namespace) = namespace.filter(|_| namespace != own) {
                *holders.entry(namespace).or_default() += locks;
            }
        }
        holders
    }
}

/// The holders that have too many. A list that is cut may show no lock of a cell that has very many,
/// as the kernel lists them by processor. So long as cells fill it, those with most make way.
fn over_limit(holders: &BTreeMap<u64, u64>, sample: &Sample) -> Vec<u64> {
    let all: u64 = holders.values().sum();
    let is_full_of_cells = sample.is_cut && all > sample.lines / 2;
    let most = match all.checked_div(holders.len() as u64) {
        Some(average) if is_full_of_cells => {
            average.saturating_sub(1).clamp(ALWAYS_ALLOWED, MOST_LOCKS_WHEN_CUT)
        }
        _ => MOST_LOCKS,
    };
    let over = holders.iter().filter(|(_, locks)| **locks > most);
    over.map(|(namespace, _)| *namespace).collect()
}

fn os(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(lines: u64, is_cut: bool) -> Sample {
        Sample { lines, is_cut, ..Sample::default() }
    }

    #[test]
    fn locks_are_counted_for_the_process_that_holds_or_awaits_them() {
        let text = b"1: POSIX  ADVISORY  WRITE 4762 fe:00:6293773 0 EOF\n\
            1: -> POSIX  ADVISORY  WRITE 17 fe:00:6293773 0 EOF\n\
            2: FLOCK  ADVISORY  READ  4762 00:1b:12 0 EOF\n\
            3: OFDLCK ADVISORY  WRITE -1 00:1b:12 0 0\n\
            4: LEASE  ACTIVE    READ  9 00:1b:12 0 EOF\n";
        let sample = Sample::parse(text);
        assert_eq!(sample.by_pid, BTreeMap::from([(-1, 1), (9, 1), (17, 1), (4762, 2)]));
        assert_eq!((sample.lines, sample.is_cut), (5, false));
    }

    #[test]
    fn a_cell_is_over_the_limit_only_beyond_it() {
        let holders = BTreeMap::from([(1, MOST_LOCKS), (2, MOST_LOCKS + 1), (3, 5)]);
        assert_eq!(over_limit(&holders, &sample(16_400, false)), [2]);
    }

    #[test]
    fn cells_that_fill_the_list_together_make_way_for_what_it_does_not_show() {
        let holders: BTreeMap<u64, u64> = (0..64).map(|cell| (cell, 500 + cell % 2)).collect();
        let over = over_limit(&holders, &sample(32_000, true));
        assert!(over.contains(&1), "{over:?}");
        let few = BTreeMap::from([(1, 5000), (2, 27_000), (3, 10)]);
        assert_eq!(over_limit(&few, &sample(32_010, true)), [1, 2]);
    }

    #[test]
    fn a_list_that_others_fill_leaves_cells_their_limit() {
        let holders = BTreeMap::from([(1, 2000)]);
        assert_eq!(over_limit(&holders, &sample(32_000, true)), [0; 0]);
    }

    #[test]
    fn own_locks_are_the_host_s() {
        let holders = Sample { by_pid: BTreeMap::from([(1, 9)]), ..Sample::default() };
        assert!(holders.by_namespace(pid_namespace(1)).is_empty());
    }
}
