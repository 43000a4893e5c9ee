//! What wakes the spawner: a request, an answer of a template, the end of a cell. However many wait,
//! waking up takes as long as for one.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    buffer::spare_capacity,
    event::{
        Timespec,
        epoll::{self, CreateFlags, Event, EventData, EventFlags},
    },
};

use super::protocol::CellId;

/// The most that are heard of at once; the others are heard of next.
const AT_ONCE: usize = 64;

/// Whose bell it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WakeSource {
    /// The executor's: there is a request.
    Executor,
    /// A template's: it has answered.
    Template(CellId),
    /// A cell's: it has ended.
    Cell(CellId),
    /// The lock watcher's: a cell holds too many locks.
    LockWatch,
}

impl WakeSource {
    const KINDS: u64 = 3;

    fn encode(self) -> u64 {
        match self {
            Self::Executor => 0,
            Self::Template(CellId(id)) => id * Self::KINDS + 1,
            Self::Cell(CellId(id)) => id * Self::KINDS + 2,
            Self::LockWatch => Self::KINDS,
        }
    }

    fn decode(number: u64) -> Self {
        let id = CellId(number / Self::KINDS);
        match number % Self::KINDS {
            1 => Self::Template(id),
            2 => Self::Cell(id),
            _ if id.0 == 0 => Self::Executor,
            _ => Self::LockWatch,
        }
    }
}

/// All of them.
pub(super) struct EpollSet {
    epoll: OwnedFd,
    heard: Vec<Event>,
}

impl EpollSet {
    pub(super) fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, heard: Vec::with_capacity(AT_ONCE) })
    }

    /// Listens to one more.
    pub(super) fn add(&self, bell: WakeSource, fd: impl AsFd) -> io::Result<()> {
        let data = EventData::new_u64(bell.encode());
        Ok(epoll::add(&self.epoll, fd, data, EventFlags::IN)?)
    }

    /// Listens to one no more. Closing it is not enough: a process that was just started may have a
    /// copy for a moment.
    pub(super) fn remove(&self, fd: BorrowedFd<'_>) {
        // It may be one that was never added.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Sleeps until some ring, at most this long.
    pub(super) fn wait(&mut self, most: Option<&Timespec>) -> io::Result<WakeEvents> {
        self.heard.clear();
        match epoll::wait(&self.epoll, spare_capacity(&mut self.heard), most) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let mut woken = WakeEvents::default();
        for event in &self.heard {
            match WakeSource::decode(event.data.u64()) {
                WakeSource::Executor => woken.request = true,
                WakeSource::Template(id) => woken.answered.push(id),
                WakeSource::Cell(id) => woken.ended.push(id),
                WakeSource::LockWatch => woken.lock_report = true,
            }
        }
        Ok(woken)
    }
}

/// What there is to do.
#[derive(Default)]
pub(super) struct WakeEvents {
    pub(super) request: bool,
    pub(super) ended: Vec<CellId>,
    pub(super) answered: Vec<CellId>,
    pub(super) lock_report: bool,
}

impl WakeEvents {
    pub(super) fn is_empty(&self) -> bool {
        let is_silent = !self.request && !self.lock_report;
        is_silent && self.ended.is_empty() && self.answered.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bell_is_known_by_its_number() {
        for id in [0, 1, 2, 3, 1 << 60] {
            for bell in [WakeSource::Template(CellId(id)), WakeSource::Cell(CellId(id))] {
                assert_eq!(WakeSource::decode(bell.encode()), bell);
            }
        }
        for bell in [WakeSource::Executor, WakeSource::LockWatch] {
            assert_eq!(WakeSource::decode(bell.encode()), bell);
        }
    }

    #[test]
    fn only_who_rings_is_heard_and_only_while_listened_to() {
        let mut bells = EpollSet::new().unwrap();
        let (quiet, _kept) = io::pipe().unwrap();
        let (loud, writer) = io::pipe().unwrap();
        let (quiet, loud) = (OwnedFd::from(quiet), OwnedFd::from(loud));
        bells.add(WakeSource::Cell(CellId(7)), &quiet).unwrap();
        bells.add(WakeSource::Cell(CellId(8)), &loud).unwrap();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        assert!(bells.wait(Some(&now)).unwrap().is_empty());
        drop(writer);
        assert_eq!(bells.wait(Some(&now)).unwrap().ended, [CellId(8)]);
        bells.remove(loud.as_fd());
        assert!(bells.wait(Some(&now)).unwrap().is_empty());
    }
}
