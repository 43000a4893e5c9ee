//! Runs in: spawner (root). The connection to a template: asks for forks, and knows which answers
//! are still due.

use std::{
    collections::VecDeque,
    fs, io,
    os::fd::{AsRawFd, OwnedFd, RawFd},
};

use cloche_jail::sys::{self, Errno};

use super::io_error;
use crate::protocol::CellId;

/// The connection to one template.
pub(super) struct TemplateConnection {
    pub(super) socket: OwnedFd,
    /// Forks that were requested and not answered yet, in order.
    pending: VecDeque<CellId>,
}

/// The ids of a new cell in the template's user namespace: image owner, guest, and the guest's id
/// as the guest sees it.
pub(super) type TemplateIds = [u32; 3];

/// The answer of a template.
#[derive(Debug)]
pub(super) enum ForkAnswer {
    /// The cell was forked; this is the pidfd of its pid 1.
    Forked(CellId, OwnedFd),
    /// The cell could not be forked.
    Failed(CellId, io::Error),
    /// The template has ended. These forks will not be answered.
    TemplateEnded(Vec<CellId>),
}

impl TemplateConnection {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self { socket, pending: VecDeque::new() }
    }

    /// Requests a cell with these file descriptors: its own five, then those to enter its cgroup.
    pub(super) fn request_fork(
        &mut self,
        cell: CellId,
        ids: TemplateIds,
        program: &[u8],
        fds: &[RawFd],
    ) -> io::Result<()> {
        let mut request: Vec<u8> = ids.into_iter().flat_map(u32::to_le_bytes).collect();
        request.extend_from_slice(program);
        sys::sendmsg(self.socket.as_raw_fd(), &request, fds).map_err(io_error)?;
        self.pending.push_back(cell);
        Ok(())
    }

    /// Reads one answer.
    pub(super) fn read_answer(&mut self) -> ForkAnswer {
        let mut answer = [0; 4];
        let received = sys::recvmsg(self.socket.as_raw_fd(), &mut answer);
        let Ok((4, fds)) = received else {
            return ForkAnswer::TemplateEnded(self.pending.drain(..).collect());
        };
        let mut fds = fds.into_iter().flatten().map(sys::into_owned_fd);
        match (self.pending.pop_front(), fds.next()) {
            (Some(cell), Some(pidfd)) => ForkAnswer::Forked(cell, pidfd),
            (Some(cell), None) => {
                ForkAnswer::Failed(cell, io_error(Errno(-i32::from_le_bytes(answer))))
            }
            // An answer that was not asked for: such a template is not used again.
            (None, _) => ForkAnswer::TemplateEnded(Vec::new()),
        }
    }
}

/// Whether a process stays dumpable on this host after it has changed its user. Pid 1 of a forked
/// cell shares the memory of its template and changes its user, so that memory could be inspected.
pub(super) fn is_suid_dumpable() -> bool {
    let setting = fs::read_to_string("/proc/sys/fs/suid_dumpable");
    setting.is_ok_and(|setting| setting.trim() == "1")
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    #[test]
    fn every_fork_that_an_ended_template_owes_is_named() {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .unwrap();
        let mut template = TemplateConnection::new(ours);
        for cell in [CellId(7), CellId(8)] {
            template.request_fork(cell, [0, 0, 1000], b"steps", &[]).unwrap();
        }
        drop(theirs);
        let ForkAnswer::TemplateEnded(lost) = template.read_answer() else {
            panic!("the template is gone");
        };
        assert_eq!(lost, [CellId(7), CellId(8)]);
    }
}
