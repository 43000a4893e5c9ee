//! Runs in: template.
//!
//! The network namespaces of a template's cells. Core only.
//!
//! A netns belongs to one cell at a time. It is reused only if pid 1 confirmed at exit that no
//! socket but `AF_UNIX` was ever created in it (see `pid_one::socket_watch`); otherwise it is
//! discarded. Making and destroying a netns is a fifth of the cost of a short run.

use crate::{
    protocol::fd_numbers::FIRST_NETNS_FD,
    sys::{self, CLONE_NEWNET, Errno, RawFd, Result},
};

/// The most netns that are kept.
const MOST: usize = 64;

/// A netns that can be entered again.
#[derive(Clone, Copy)]
pub(crate) struct NetnsHandle {
    handle: RawFd,
    with_loopback: bool,
    /// A network is attached to it, so it is discarded whatever its cell did.
    used_once: bool,
}

impl NetnsHandle {
    /// Makes a netns and enters it.
    fn create(with_loopback: bool) -> Result<Self> {
        sys::unshare(CLONE_NEWNET)?;
        if with_loopback {
            sys::loopback_up()?;
        }
        let opened = sys::open(c"/proc/self/ns/net", 0, 0)?;
        let moved = sys::dup_above(opened, FIRST_NETNS_FD as RawFd);
        sys::close(opened);
        let handle = moved?;
        Ok(Self { handle, with_loopback, used_once: false })
    }

    /// The same netns, which no further cell may use.
    pub(crate) const fn used_once(self) -> Self {
        Self { used_once: true, ..self }
    }

    /// Whether another cell may use it if this one left it as it was made.
    pub(crate) const fn is_reusable(self) -> bool {
        !self.used_once
    }

    /// Closes the handle; no further cell starts in this netns.
    pub(crate) fn close(self) {
        sys::close(self.handle);
    }
}

/// The netns that no cell uses.
#[derive(Clone, Copy)]
pub(crate) struct NetnsPool {
    idle: [Option<NetnsHandle>; MOST],
    /// Whether the last request wanted the loopback interface up.
    wanted: Option<bool>,
}

impl NetnsPool {
    pub(crate) const fn new() -> Self {
        Self { idle: [None; MOST], wanted: None }
    }

    /// Enters a netns that no cell uses. The next process that the template starts is in it.
    pub(crate) fn enter_unused(&mut self, with_loopback: bool) -> Result<NetnsHandle> {
        self.wanted = Some(with_loopback);
        let fits = |network: &&mut Option<NetnsHandle>| {
            network.is_some_and(|network| network.with_loopback == with_loopback)
        };
        let Some(network) = self.idle.iter_mut().find(fits).and_then(Option::take) else {
            return NetnsHandle::create(with_loopback);
        };
        match sys::setns(network.handle, CLONE_NEWNET) {
            Ok(()) => Ok(network),
            Err(errno) => {
                network.close();
                Err(errno)
            }
        }
    }

    /// Keeps a netns in which no socket was ever created.
    pub(crate) fn keep_unused(&mut self, network: NetnsHandle) {
        match self.idle.iter_mut().find(|slot| slot.is_none()) {
            Some(slot) => *slot = Some(network),
            None => network.close(),
        }
    }

    /// Makes a netns like the last one, unless one is idle. A failure has no effect: the next
    /// request tries again.
    pub(crate) fn make_ahead(&mut self) -> Result<()> {
        let with_loopback = self.wanted.ok_or(Errno::INVAL)?;
        if self.idle.iter().flatten().all(|network| network.with_loopback != with_loopback) {
            self.keep_unused(NetnsHandle::create(with_loopback)?);
        }
        Ok(())
    }
}
