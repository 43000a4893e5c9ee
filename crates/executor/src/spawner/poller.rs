//! Runs in: spawner (root). The epoll set that wakes the event loop: a request of the server, an
//! answer of a template, the end of a cell. Its cost does not grow with the number of cells.

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

use crate::protocol::CellId;

/// The most events of one wait; the next wait returns the others.
const MAX_EVENTS: usize = 64;

/// What a file descriptor in the set belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WakeSource {
    /// The server: readable when there is a request.
    Server,
    /// A template: readable when it has answered.
    Template(CellId),
    /// A cell: readable when its pid 1 has ended.
    Cell(CellId),
    /// The stack worker of a cell: readable when it has ended.
    Network(CellId),
    /// The mount server of a cell: readable when it has ended.
    MountServer(CellId),
    /// The lock watcher's: a cell holds too many locks.
    LockWatch,
}

impl WakeSource {
    const KINDS: u64 = 5;

    fn encode(self) -> u64 {
        match self {
            Self::Server => 0,
            Self::Template(CellId(id)) => id * Self::KINDS + 1,
            Self::Cell(CellId(id)) => id * Self::KINDS + 2,
            Self::Network(CellId(id)) => id * Self::KINDS + 3,
            Self::MountServer(CellId(id)) => id * Self::KINDS + 4,
            Self::LockWatch => Self::KINDS,
        }
    }

    fn decode(number: u64) -> Self {
        let id = CellId(number / Self::KINDS);
        match number % Self::KINDS {
            1 => Self::Template(id),
            2 => Self::Cell(id),
            3 => Self::Network(id),
            4 => Self::MountServer(id),
            _ if id.0 == 0 => Self::Server,
            _ => Self::LockWatch,
        }
    }
}

/// The epoll set.
pub(super) struct EpollSet {
    epoll: OwnedFd,
    events: Vec<Event>,
}

impl EpollSet {
    pub(super) fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, events: Vec::with_capacity(MAX_EVENTS) })
    }

    /// Adds a file descriptor.
    pub(super) fn add(&self, source: WakeSource, fd: impl AsFd) -> io::Result<()> {
        let data = EventData::new_u64(source.encode());
        Ok(epoll::add(&self.epoll, fd, data, EventFlags::IN)?)
    }

    /// Removes a file descriptor. Closing it is not enough: a process that was just started may
    /// have a copy of it for a moment.
    pub(super) fn remove(&self, fd: BorrowedFd<'_>) {
        // It may never have been added.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Waits for events, at most this long.
    pub(super) fn wait(&mut self, most: Option<&Timespec>) -> io::Result<WakeEvents> {
        self.events.clear();
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), most) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let mut woken = WakeEvents::default();
        for event in &self.events {
            match WakeSource::decode(event.data.u64()) {
                WakeSource::Server => woken.request = true,
                WakeSource::Template(id) => woken.answered.push(id),
                WakeSource::Cell(id) => woken.ended.push(id),
                WakeSource::Network(id) => woken.ended_workers.push(id),
                WakeSource::MountServer(id) => woken.ended_mount_servers.push(id),
                WakeSource::LockWatch => woken.lock_report = true,
            }
        }
        Ok(woken)
    }
}

/// What woke the event loop.
#[derive(Default)]
pub(super) struct WakeEvents {
    /// There is a request of the server.
    pub(super) request: bool,
    /// Cells that have ended.
    pub(super) ended: Vec<CellId>,
    /// Cells whose stack worker has ended.
    pub(super) ended_workers: Vec<CellId>,
    /// Cells whose mount server has ended.
    pub(super) ended_mount_servers: Vec<CellId>,
    /// Templates that have answered.
    pub(super) answered: Vec<CellId>,
    pub(super) lock_report: bool,
}

impl WakeEvents {
    pub(super) fn is_empty(&self) -> bool {
        let is_silent = !self.request && !self.lock_report;
        let over = [&self.ended, &self.ended_workers, &self.ended_mount_servers];
        is_silent && over.iter().all(|ended| ended.is_empty()) && self.answered.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_source_survives_its_encoding() {
        for id in [0, 1, 2, 3, 1 << 60] {
            for source in [
                WakeSource::Template(CellId(id)),
                WakeSource::Cell(CellId(id)),
                WakeSource::Network(CellId(id)),
                WakeSource::MountServer(CellId(id)),
            ] {
                assert_eq!(WakeSource::decode(source.encode()), source);
            }
        }
        for source in [WakeSource::Server, WakeSource::LockWatch] {
            assert_eq!(WakeSource::decode(source.encode()), source);
        }
    }

    #[test]
    fn only_readable_descriptors_that_are_in_the_set_wake_the_loop() {
        let mut set = EpollSet::new().unwrap();
        let (quiet, _kept) = io::pipe().unwrap();
        let (loud, writer) = io::pipe().unwrap();
        let (quiet, loud) = (OwnedFd::from(quiet), OwnedFd::from(loud));
        set.add(WakeSource::Cell(CellId(7)), &quiet).unwrap();
        set.add(WakeSource::Cell(CellId(8)), &loud).unwrap();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        assert!(set.wait(Some(&now)).unwrap().is_empty());
        drop(writer);
        assert_eq!(set.wait(Some(&now)).unwrap().ended, [CellId(8)]);
        set.remove(loud.as_fd());
        assert!(set.wait(Some(&now)).unwrap().is_empty());
    }
}
