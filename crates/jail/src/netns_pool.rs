//! The networks that a template's cells are born into. Core only.
//!
//! One cell has a network at a time, and no cell has one in which a socket was ever made by another:
//! see [`crate::watch`]. To make a network and to take it apart is a fifth of all that a short run
//! costs.

use crate::sys::{self, Errno, RawFd, Result};

const NEW_NET: u64 = 0x4000_0000;
/// The most that are kept.
const MOST: usize = 64;

/// A network that can be gone back to.
#[derive(Clone, Copy)]
pub(crate) struct NetnsHandle {
    handle: RawFd,
    with_loopback: bool,
}

impl NetnsHandle {
    /// Makes one, and is in it then.
    fn create(with_loopback: bool) -> Result<Self> {
        sys::unshare(NEW_NET)?;
        if with_loopback {
            sys::loopback_up()?;
        }
        let handle = sys::open(c"/proc/self/ns/net", 0, 0)?;
        Ok(Self { handle, with_loopback })
    }

    /// Nobody will be born into it any more.
    pub(crate) fn close(self) {
        sys::close(self.handle);
    }
}

/// Those that no cell has.
#[derive(Clone, Copy)]
pub(crate) struct NetnsPool {
    idle: [Option<NetnsHandle>; MOST],
    /// The kind that was asked for last: whether its loopback is up.
    wanted: Option<bool>,
}

impl NetnsPool {
    pub(crate) const fn new() -> Self {
        Self { idle: [None; MOST], wanted: None }
    }

    /// Is in a network that no cell has; the next one to be born has it.
    pub(crate) fn enter_unused(&mut self, with_loopback: bool) -> Result<NetnsHandle> {
        self.wanted = Some(with_loopback);
        let fits = |network: &&mut Option<NetnsHandle>| {
            network.is_some_and(|network| network.with_loopback == with_loopback)
        };
        let Some(network) = self.idle.iter_mut().find(fits).and_then(Option::take) else {
            return NetnsHandle::create(with_loopback);
        };
        match sys::setns(network.handle, NEW_NET) {
            Ok(()) => Ok(network),
            Err(errno) => {
                network.close();
                Err(errno)
            }
        }
    }

    /// Keeps one in which no socket was ever made.
    pub(crate) fn keep_unused(&mut self, network: NetnsHandle) {
        match self.idle.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(network),
            None => network.close(),
        }
    }

    /// Makes one like the last, if there is none. What fails here is tried again when it is needed.
    pub(crate) fn make_ahead(&mut self) -> Result<()> {
        let with_loopback = self.wanted.ok_or(Errno::INVAL)?;
        if self.idle.iter().flatten().all(|network| network.with_loopback != with_loopback) {
            self.keep_unused(NetnsHandle::create(with_loopback)?);
        }
        Ok(())
    }
}
