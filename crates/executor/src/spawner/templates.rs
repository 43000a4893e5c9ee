//! The spawner's side of a template: asks for forks, and knows which are still due.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsRawFd, OwnedFd, RawFd},
};

use cloche_jail::sys::{self, Errno};

use super::protocol::CellId;

/// A template that can be asked.
pub(super) struct Template {
    pub(super) socket: OwnedFd,
    /// Asked for and not yet answered, in order.
    due: VecDeque<CellId>,
}

/// Ids of a new cell as its template counts them: image owner, guest, guest as it sees itself.
pub(super) type TemplateIds = [u32; 3];

impl Template {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self { socket, due: VecDeque::new() }
    }

    /// Asks for a cell with these descriptors: its own five, then the doors of its cgroup.
    pub(super) fn ask(
        &mut self,
        cell: CellId,
        ids: TemplateIds,
        program: &[u8],
        fds: &[RawFd],
    ) -> io::Result<()> {
        let mut request: Vec<u8> = ids.into_iter().flat_map(u32::to_le_bytes).collect();
        request.extend_from_slice(program);
        sys::send(self.socket.as_raw_fd(), &request, fds).map_err(os)?;
        self.due.push_back(cell);
        Ok(())
    }

    /// Reads one answer. An error is the end of the template, with the cells it still owed.
    pub(super) fn take_answer(&mut self) -> Result<(CellId, io::Result<OwnedFd>), Vec<CellId>> {
        let mut answer = [0; 4];
        let received = sys::receive(self.socket.as_raw_fd(), &mut answer);
        let (Ok((4, fds)), Some(cell)) = (received, self.due.pop_front()) else {
            return Err(self.due.drain(..).collect());
        };
        let mut fds = fds.into_iter().flatten().map(sys::owned);
        match fds.next() {
            Some(pidfd) => Ok((cell, Ok(pidfd))),
            None => Ok((cell, Err(os(Errno(-i32::from_le_bytes(answer)))))),
        }
    }
}

fn os(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.0)
}
