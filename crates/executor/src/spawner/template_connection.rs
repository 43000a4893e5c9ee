//! The spawner's side of a template: asks for forks, and knows which are still due.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsRawFd, OwnedFd, RawFd},
};

use cloche_jail::sys::{self, Errno};

use super::io_error;
use crate::protocol::CellId;

/// A template that can be asked.
pub(super) struct TemplateConnection {
    pub(super) socket: OwnedFd,
    /// Asked for and not yet answered, in order.
    pending: VecDeque<CellId>,
}

/// Ids of a new cell as its template counts them: image owner, guest, guest as it sees itself.
pub(super) type TemplateIds = [u32; 3];

impl TemplateConnection {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self { socket, pending: VecDeque::new() }
    }

    /// Asks for a cell with these descriptors: its own five, then the doors of its cgroup.
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

    /// Reads one answer. An error is the end of the template, with the cells it still owed.
    pub(super) fn read_answer(&mut self) -> Result<(CellId, io::Result<OwnedFd>), Vec<CellId>> {
        let mut answer = [0; 4];
        let received = sys::recvmsg(self.socket.as_raw_fd(), &mut answer);
        let (Ok((4, fds)), Some(cell)) = (received, self.pending.pop_front()) else {
            return Err(self.pending.drain(..).collect());
        };
        let mut fds = fds.into_iter().flatten().map(sys::into_owned_fd);
        match fds.next() {
            Some(pidfd) => Ok((cell, Ok(pidfd))),
            None => Ok((cell, Err(io_error(Errno(-i32::from_le_bytes(answer)))))),
        }
    }
}
