//! A template's loop: asked for a cell, it copies itself into new namespaces. Core only.
//!
//! Runs inside the interpreter that is the template. The copy takes its steps, stays as pid 1 of the
//! new box, and copies itself once more: that one goes back to the interpreter, to be the guest.
//! The template answers with a pidfd and waits for the next request. It never sees a job.

use crate::{
    init::{self, CellFds, MAX_CGROUPS},
    sys::{self, CloneRequest, Cloned, Errno, HotPages, RawFd, Result, ThreadIdPlace},
};

const NEW_USER: u64 = 0x1000_0000;
const NEW_NET: u64 = 0x4000_0000;
/// Among the namespaces of a request: the new network is to have its loopback up.
pub const WITH_LOOPBACK: u64 = 1 << 63;
/// The longest request: the encoded plan of a box.
pub const REQUEST_LEN: usize = 64 << 10;
/// In a request: no such id.
pub const NO_ID: u32 = u32::MAX;
/// A request begins with the ids, as the template's own namespace counts: image owner, guest,
/// guest as it sees itself; then the namespaces to be born into.
pub const REQUEST_HEAD: usize = 20;

/// Answers requests until the socket closes; returns only in a new cell, as its guest, which has
/// the pages mapped that every program needs.
pub fn serve(socket: RawFd, hot: HotPages) {
    // Cells that end are nobody's to wait for here: the spawner watches them by their pidfds.
    let _ = sys::ignore_children(true);
    let Ok(libc) = sys::thread_id_place() else { sys::exit(1) };
    let mut request = [0; REQUEST_LEN];
    let mut network = Network { kind: None };
    loop {
        match sys::receive(socket, &mut request) {
            Err(Errno::INTR) => {}
            Err(_) | Ok((0, _)) => sys::exit(0),
            Ok((len, fds)) => {
                let forked = fork(&request[..len], &fds, libc, &mut network);
                if forked == Ok(None) {
                    // Their numbers are other descriptors by now, in the new cell.
                    hot.map();
                    return;
                }
                fds.into_iter().flatten().for_each(sys::close);
                match forked {
                    Ok(None) => {}
                    Ok(Some((pid, pidfd))) => {
                        answer(socket, pid, &[pidfd]);
                        sys::close(pidfd);
                        network.leave();
                    }
                    Err(errno) => answer(socket, -errno.0, &[]),
                }
            }
        }
    }
}

fn answer(socket: RawFd, value: i32, fds: &[RawFd]) {
    if sys::send(socket, &value.to_le_bytes(), fds).is_err() {
        sys::exit(0);
    }
}

/// The network this process is in: made ahead, for the next cell, which is born into it. Then we
/// leave for another one; no two cells have the same.
struct Network {
    /// What was asked for; nothing before the first cell, and where we could not leave.
    kind: Option<u64>,
}

impl Network {
    /// Be in a network of this kind that no cell has.
    fn enter(&mut self, kind: u64) -> Result<()> {
        if self.kind == Some(kind) {
            return Ok(());
        }
        self.kind = None;
        sys::unshare(NEW_NET)?;
        if kind & WITH_LOOPBACK != 0 {
            sys::loopback_up()?;
        }
        self.kind = Some(kind);
        Ok(())
    }

    /// A cell has this one now. What fails here is tried again when the next one is asked for.
    fn leave(&mut self) {
        if let Some(kind) = self.kind.take() {
            let _ = self.enter(kind);
        }
    }
}

/// Nothing in the new cell, its pid and pidfd in the template.
fn fork(
    request: &[u8],
    fds: &[Option<RawFd>; sys::MAX_FDS],
    libc: ThreadIdPlace,
    network: &mut Network,
) -> Result<Option<(i32, RawFd)>> {
    let (head, program) = request.split_at_checked(REQUEST_HEAD).ok_or(Errno::INVAL)?;
    let id = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let [Some(stdin), Some(stdout), Some(stderr), Some(job), Some(control), doors @ ..] = fds
    else {
        return Err(Errno::INVAL);
    };
    let mut cgroups = [None; MAX_CGROUPS];
    cgroups.iter_mut().zip(doors).for_each(|(to, from)| *to = *from);
    let (go, ready) = sys::pipe()?;
    let stdio = [*stdin, *stdout, *stderr];
    let cell = CellFds { go, stdio, job: *job, control: *control, fork: None, cgroups };
    let namespaces = u64::from(id(12)) | u64::from(id(16)) << 32;
    let network_kind = namespaces & (NEW_NET | WITH_LOOPBACK);
    let namespaces = namespaces & !network_kind;
    if network_kind & NEW_NET != 0
        && let Err(errno) = network.enter(network_kind)
    {
        sys::close(go);
        sys::close(ready);
        return Err(errno);
    }
    match sys::clone(CloneRequest { namespaces, cgroup: None }) {
        Ok(Cloned::Child) => {
            sys::close(ready);
            let _ = sys::ignore_children(false);
            init::enter(program, cell);
            init::become_guest_of_this_cell(libc);
            Ok(None)
        }
        Ok(Cloned::Parent(pid, pidfd)) => {
            sys::close(go);
            let mapped = match namespaces & NEW_USER {
                0 => Ok(()),
                _ => map_ids(pid, id(0), id(4), id(8)),
            };
            let told = mapped.and_then(|()| sys::write(ready, b"!"));
            sys::close(ready);
            // A cell whose ids could not be mapped sees the pipe close, and ends.
            told.map(|_| Some((pid, pidfd))).inspect_err(|_| sys::close(pidfd))
        }
        Err(errno) => {
            sys::close(go);
            sys::close(ready);
            Err(errno)
        }
    }
}

fn map_ids(pid: i32, image_owner: u32, guest: u32, inside: u32) -> Result<()> {
    let mut map = Text::default();
    if image_owner != NO_ID {
        map.text(b"0 ").number(image_owner).text(b" 1\n");
    }
    map.number(inside).text(b" ").number(guest).text(b" 1\n");
    for file in [&b"/uid_map\0"[..], b"/gid_map\0"] {
        const WRITE_ONLY: i32 = 1;
        let mut path = Text::default();
        path.text(b"/proc/").number(pid.unsigned_abs()).text(file);
        let path = core::ffi::CStr::from_bytes_with_nul(path.bytes()).map_err(|_| Errno::INVAL)?;
        let file = sys::open(path, WRITE_ONLY, 0)?;
        let written = sys::write(file, map.bytes());
        sys::close(file);
        written?;
    }
    Ok(())
}

/// A short text put together without allocating; what does not fit is left out.
struct Text {
    bytes: [u8; 128],
    len: usize,
}

impl Default for Text {
    fn default() -> Self {
        Self { bytes: [0; 128], len: 0 }
    }
}

impl Text {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn text(&mut self, text: &[u8]) -> &mut Self {
        let room = &mut self.bytes[self.len..];
        let fits = text.len().min(room.len());
        room[..fits].copy_from_slice(&text[..fits]);
        self.len += fits;
        self
    }

    fn number(&mut self, mut number: u32) -> &mut Self {
        let mut digits = [0; 10];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return self.text(&digits[at..]);
            }
        }
    }
}

#[cfg(all(test, not(cloche_template)))]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_in_decimal_and_never_past_the_end() {
        let mut text = Text::default();
        text.number(0).text(b" ").number(u32::MAX);
        assert_eq!(text.bytes(), b"0 4294967295");
        (0..50).for_each(|_| {
            text.text(b"abcdef");
        });
        assert_eq!(text.bytes().len(), 128);
    }
}
