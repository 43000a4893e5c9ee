//! A template's loop: asked for a cell, it copies itself into new namespaces. Core only.
//!
//! Runs inside the interpreter that is the template. Pid 1 of the new box shares the template's
//! memory, on a stack of its own: it builds the box and waits, and copying that memory for it would
//! cost as much as for the guest. It may not be looked into, so nor may the template, whose memory the
//! guest's is a copy of. That copy goes back to the interpreter, in the box. The template answers with
//! a pidfd and waits for the next request. It never sees a job.

use crate::{
    apply,
    fmt_buf::FmtBuf,
    init::{self, CellFds, MAX_CGROUPS},
    netns_pool::{NetnsHandle, NetnsPool},
    pid_one::{self, PidOneSetup},
    socket_watch,
    sys::{
        self, Errno, HotPages, PrctlOption, RawFd, Result, SavedContext, SharedStack,
        SharedStackBlock, ThreadIdAddress,
    },
};

const NEW_USER: u64 = 0x1000_0000;
const NEW_NET: u64 = 0x4000_0000;
/// Among the namespaces of a request: the new network is to have its loopback up.
pub const WITH_LOOPBACK: u64 = 1 << 63;
/// The longest request: the encoded plan of a box.
pub const REQUEST_LEN: usize = SharedStack::BYTES;
/// In a request: no such id.
pub const NO_ID: u32 = u32::MAX;
/// A request begins with the ids, as the template's own namespace counts: image owner, guest,
/// guest as it sees itself; then the namespaces to be born into.
pub const REQUEST_HEAD: usize = 20;
/// Nanoseconds without a request after which a network is made for the next one.
const QUIET: u64 = 2_000_000;

/// Answers requests until the socket closes; returns only in a new cell, as its guest, which has the
/// pages mapped that every program needs.
pub fn serve_forks(socket: RawFd, hot: HotPages) {
    let mut given = (socket, hot, None);
    SavedContext::save_and_call(&mut given, answer_requests);
    // In a guest: what it would see there is about its siblings.
    if given.2.map(SharedStackBlock::unmap) != Some(Ok(())) {
        sys::exit(1);
    }
}

fn answer_requests(given: &mut (RawFd, HotPages, Option<SharedStackBlock>), guest: SavedContext) {
    // Cells that end are nobody's to wait for here: the spawner watches them by their pidfds.
    let _ = sys::ignore_signal(sys::SIGCHLD, true);
    // Or a guest could look into its pid 1, and from there at everyone.
    let hidden = sys::prctl(PrctlOption::Dumpable, 0);
    let (Ok(()), Ok(libc)) = (hidden, sys::thread_id_address()) else { sys::exit(1) };
    let mut request = [0; REQUEST_LEN];
    let table = CellTable { networks: NetnsPool::new(), stacks: [None; SharedStackBlock::STACKS] };
    let Ok((block, table)) = SharedStackBlock::new(table) else { sys::exit(1) };
    let (socket, hot, _) = *given;
    given.2 = Some(block);
    let mut template = ForkServer { libc, guest, hot, block, table };
    loop {
        match sys::recvmsg(socket, &mut request) {
            Err(Errno::INTR) => {}
            Err(_) | Ok((0, _)) => sys::exit(0),
            Ok((len, fds)) => {
                let forked = template.fork_cell(&request[..len], &fds);
                fds.into_iter().flatten().for_each(sys::close);
                match forked {
                    Ok((pid, pidfd)) => {
                        send_answer(socket, pid, &[pidfd]);
                        sys::close(pidfd);
                        // Not at once: the new cell has more use for the time.
                        if sys::poll_readable([socket], Some(QUIET)) != Ok([true]) {
                            let _ = template.table.networks.make_ahead();
                        }
                    }
                    Err(errno) => send_answer(socket, -errno.0, &[]),
                }
            }
        }
    }
}

/// Which rooms the first processes of cells are in, and the networks that no cell has. Rooms that are
/// free are used again.
#[derive(Clone, Copy)]
struct CellTable {
    stacks: [Option<StackSlot>; SharedStackBlock::STACKS],
    networks: NetnsPool,
}

/// A room and what belongs to whoever is in it.
#[derive(Clone, Copy)]
struct StackSlot {
    stack: SharedStack,
    /// Something was in it since it was wiped.
    used: bool,
    network: Option<NetnsHandle>,
}

impl CellTable {
    /// Wipes all that have become free, and so before the next cell's guest gets its copy of this
    /// memory: what is left there is about others. Gives back the networks that are as they were.
    fn reclaim_stacks(&mut self) -> Result<()> {
        for lodging in self.stacks.iter_mut().map_while(Option::as_mut) {
            if lodging.used && lodging.stack.is_free() {
                match lodging.network.take() {
                    Some(network) if lodging.stack.is_marked_clean() => {
                        self.networks.keep_unused(network);
                    }
                    Some(network) => network.close(),
                    None => {}
                }
                lodging.stack.wipe()?;
                lodging.used = false;
            }
        }
        Ok(())
    }

    /// A room for a new cell with this network.
    fn take_stack(
        &mut self,
        block: SharedStackBlock,
        network: Option<NetnsHandle>,
    ) -> Result<SharedStack> {
        let mut places = self.stacks.iter_mut().enumerate();
        let is_free = |place: &Option<StackSlot>| place.is_none_or(|lodging| !lodging.used);
        let (number, place) = places.find(|(_, place)| is_free(place)).ok_or(Errno::AGAIN)?;
        let room = block.stack_at(number).ok_or(Errno::AGAIN)?;
        *place = Some(StackSlot { stack: room, used: true, network });
        Ok(room)
    }
}

fn send_answer(socket: RawFd, value: i32, fds: &[RawFd]) {
    if sys::sendmsg(socket, &value.to_le_bytes(), fds).is_err() {
        sys::exit(0);
    }
}

/// What a new cell is told.
#[derive(Clone, Copy)]
struct NewCell {
    fds: CellFds,
    /// The other end of `go`, which it must not have.
    ready: RawFd,
    stack: SharedStack,
    /// The guest's user and group, as it sees them.
    user: u32,
    libc: ThreadIdAddress,
    guest: SavedContext,
    hot: HotPages,
}

struct ForkServer {
    libc: ThreadIdAddress,
    /// Where guests go on.
    guest: SavedContext,
    /// What guests will need of our memory.
    hot: HotPages,
    block: SharedStackBlock,
    table: &'static mut CellTable,
}

impl ForkServer {
    /// The pid and pidfd of a new cell.
    fn fork_cell(
        &mut self,
        request: &[u8],
        fds: &[Option<RawFd>; sys::MAX_FDS],
    ) -> Result<(i32, RawFd)> {
        let (head, program) = request.split_at_checked(REQUEST_HEAD).ok_or(Errno::INVAL)?;
        let id =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let [Some(stdin), Some(stdout), Some(stderr), Some(job), Some(control), doors @ ..] = fds
        else {
            return Err(Errno::INVAL);
        };
        let mut cgroups = [None; MAX_CGROUPS];
        cgroups.iter_mut().zip(doors).for_each(|(to, from)| *to = *from);
        let namespaces = u64::from(id(12)) | u64::from(id(16)) << 32;
        self.table.reclaim_stacks()?;
        let network = match namespaces & NEW_NET {
            0 => None,
            _ => Some(self.table.networks.enter_unused(namespaces & WITH_LOOPBACK != 0)?),
        };
        let room = self.table.take_stack(self.block, network);
        if let (Err(_), Some(network)) = (&room, network) {
            network.close();
        }
        let room = room?;
        let stdio = [*stdin, *stdout, *stderr];
        let (go, ready) = sys::pipe()?;
        let fds = CellFds { go, stdio, job: *job, control: *control, fork: None, cgroups };
        let Self { libc, guest, hot, .. } = *self;
        let cell = NewCell { fds, ready, stack: room, user: id(8), libc, guest, hot };
        let namespaces = namespaces & !(NEW_NET | WITH_LOOPBACK);
        let started = room.start_process(namespaces, cell, program, run_new_cell);
        sys::close(go);
        let mapped = started.and_then(|(pid, pidfd)| {
            let mapped = match namespaces & NEW_USER {
                0 => Ok(()),
                _ => map_ids(pid, id(0), id(4), id(8)),
            };
            // If ids could not be mapped it sees the pipe close, and ends.
            let told = mapped.and_then(|()| sys::write(ready, b"!"));
            told.map(|_| (pid, pidfd)).inspect_err(|_| sys::close(pidfd))
        });
        sys::close(ready);
        mapped
    }
}

/// Pid 1 of a new cell, which builds the box, and its guest, which has its memory made ready
/// meanwhile, and goes on when pid 1 has no rights any more.
fn run_new_cell(cell: NewCell, program: &[u8]) -> ! {
    sys::close(cell.ready);
    let _ = sys::ignore_signal(sys::SIGCHLD, false);
    let Ok((guest, go)) = sys::pipe() else { sys::exit(1) };
    // Before there is a guest, so that it is watched from its first moment.
    let limit = apply::find_socket_limit(program);
    let Ok(sockets) =
        limit.map(|most| socket_watch::install_listener().map(|fd| (fd, most))).transpose()
    else {
        init::send_report(cell.fds.control, init::failure_report(c"sockets", Errno::NOSYS));
        sys::exit(1)
    };
    match sys::fork_under_libc(cell.libc) {
        Ok(None) => {
            sockets.into_iter().for_each(|(listener, _)| sys::close(listener));
            sys::close(go);
            let fds = CellFds { go: guest, ..cell.fds };
            init::become_guest(program, fds, || cell.hot.map());
            cell.guest.resume()
        }
        parent => {
            let own = PidOneSetup { stack: cell.stack, user: cell.user, sockets };
            pid_one::run_beside_guest(program, cell.fds, own, (parent, go))
        }
    }
}

fn map_ids(pid: i32, image_owner: u32, guest: u32, inside: u32) -> Result<()> {
    let mut map = FmtBuf::default();
    if image_owner != NO_ID {
        map.push_bytes(b"0 ").push_number(image_owner).push_bytes(b" 1\n");
    }
    map.push_number(inside).push_bytes(b" ").push_number(guest).push_bytes(b" 1\n");
    for file in [&b"/uid_map\0"[..], b"/gid_map\0"] {
        const WRITE_ONLY: i32 = 1;
        let mut path = FmtBuf::default();
        path.push_bytes(b"/proc/").push_pid(pid).push_bytes(file);
        let path =
            core::ffi::CStr::from_bytes_with_nul(path.as_bytes()).map_err(|_| Errno::INVAL)?;
        let file = sys::open(path, WRITE_ONLY, 0)?;
        let written = sys::write(file, map.as_bytes());
        sys::close(file);
        written?;
    }
    Ok(())
}
