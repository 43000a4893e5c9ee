//! A template's loop: asked for a cell, it copies itself into new namespaces. Core only.
//!
//! Runs inside the interpreter that is the template. Pid 1 of the new box shares the template's
//! memory, on a stack of its own: it builds the box and waits, and copying that memory for it would
//! cost as much as for the guest. It may not be looked into, so nor may the template, whose memory the
//! guest's is a copy of. That copy goes back to the interpreter, in the box. The template answers with
//! a pidfd and waits for the next request. It never sees a job.

use crate::{
    apply,
    init::{self, CellFds, MAX_CGROUPS},
    networks::{Network, Networks},
    pid_one::{self, Own},
    sys::{self, Errno, HotPages, Place, Prctl, RawFd, Result, Room, RoomBlock, ThreadIdPlace},
    text::Text,
    watch,
};

const NEW_USER: u64 = 0x1000_0000;
const NEW_NET: u64 = 0x4000_0000;
/// Among the namespaces of a request: the new network is to have its loopback up.
pub const WITH_LOOPBACK: u64 = 1 << 63;
/// The longest request: the encoded plan of a box.
pub const REQUEST_LEN: usize = Room::BYTES;
/// In a request: no such id.
pub const NO_ID: u32 = u32::MAX;
/// A request begins with the ids, as the template's own namespace counts: image owner, guest,
/// guest as it sees itself; then the namespaces to be born into.
pub const REQUEST_HEAD: usize = 20;
/// Nanoseconds without a request after which a network is made for the next one.
const QUIET: u64 = 2_000_000;

/// Answers requests until the socket closes; returns only in a new cell, as its guest, which has the
/// pages mapped that every program needs.
pub fn serve(socket: RawFd, hot: HotPages) {
    let mut given = (socket, hot, None);
    Place::call(&mut given, answer_requests);
    // In a guest: what it would see there is about its siblings.
    if given.2.map(RoomBlock::unmap) != Some(Ok(())) {
        sys::exit(1);
    }
}

fn answer_requests(given: &mut (RawFd, HotPages, Option<RoomBlock>), guest: Place) {
    // Cells that end are nobody's to wait for here: the spawner watches them by their pidfds.
    let _ = sys::ignore_signal(sys::SIGCHLD, true);
    // Or a guest could look into its pid 1, and from there at everyone.
    let hidden = sys::prctl(Prctl::Dumpable, 0);
    let (Ok(()), Ok(libc)) = (hidden, sys::thread_id_place()) else { sys::exit(1) };
    let mut request = [0; REQUEST_LEN];
    let table = CellTable { networks: Networks::new(), rooms: [None; RoomBlock::ROOMS] };
    let Ok((block, table)) = RoomBlock::new(table) else { sys::exit(1) };
    let (socket, hot, _) = *given;
    given.2 = Some(block);
    let mut template = Template { libc, guest, hot, block, table };
    loop {
        match sys::receive(socket, &mut request) {
            Err(Errno::INTR) => {}
            Err(_) | Ok((0, _)) => sys::exit(0),
            Ok((len, fds)) => {
                let forked = template.fork(&request[..len], &fds);
                fds.into_iter().flatten().for_each(sys::close);
                match forked {
                    Ok((pid, pidfd)) => {
                        answer(socket, pid, &[pidfd]);
                        sys::close(pidfd);
                        // Not at once: the new cell has more use for the time.
                        if sys::readable([socket], Some(QUIET)) != Ok([true]) {
                            let _ = template.table.networks.make_ahead();
                        }
                    }
                    Err(errno) => answer(socket, -errno.0, &[]),
                }
            }
        }
    }
}

/// Which rooms the first processes of cells are in, and the networks that no cell has. Rooms that are
/// free are used again.
#[derive(Clone, Copy)]
struct CellTable {
    rooms: [Option<Lodging>; RoomBlock::ROOMS],
    networks: Networks,
}

/// A room and what belongs to whoever is in it.
#[derive(Clone, Copy)]
struct Lodging {
    room: Room,
    /// Something was in it since it was wiped.
    used: bool,
    network: Option<Network>,
}

impl CellTable {
    /// Wipes all that have become free, and so before the next cell's guest gets its copy of this
    /// memory: what is left there is about others. Gives back the networks that are as they were.
    fn tidy(&mut self) -> Result<()> {
        for lodging in self.rooms.iter_mut().map_while(Option::as_mut) {
            if lodging.used && lodging.room.is_free() {
                match lodging.network.take() {
                    Some(network) if lodging.room.was_left_clean() => {
                        self.networks.keep(network);
                    }
                    Some(network) => network.forget(),
                    None => {}
                }
                lodging.room.wipe()?;
                lodging.used = false;
            }
        }
        Ok(())
    }

    /// A room for a new cell with this network.
    fn take(&mut self, block: RoomBlock, network: Option<Network>) -> Result<Room> {
        let mut places = self.rooms.iter_mut().enumerate();
        let is_free = |place: &Option<Lodging>| place.is_none_or(|lodging| !lodging.used);
        let (number, place) = places.find(|(_, place)| is_free(place)).ok_or(Errno::AGAIN)?;
        let room = block.room(number).ok_or(Errno::AGAIN)?;
        *place = Some(Lodging { room, used: true, network });
        Ok(room)
    }
}

fn answer(socket: RawFd, value: i32, fds: &[RawFd]) {
    if sys::send(socket, &value.to_le_bytes(), fds).is_err() {
        sys::exit(0);
    }
}

/// What a new cell is told.
#[derive(Clone, Copy)]
struct NewCell {
    fds: CellFds,
    /// The other end of `go`, which it must not have.
    ready: RawFd,
    room: Room,
    /// The guest's user and group, as it sees them.
    user: u32,
    libc: ThreadIdPlace,
    guest: Place,
    hot: HotPages,
}

struct Template {
    libc: ThreadIdPlace,
    /// Where guests go on.
    guest: Place,
    /// What guests will need of our memory.
    hot: HotPages,
    block: RoomBlock,
    table: &'static mut CellTable,
}

impl Template {
    /// The pid and pidfd of a new cell.
    fn fork(
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
        self.table.tidy()?;
        let network = match namespaces & NEW_NET {
            0 => None,
            _ => Some(self.table.networks.enter(namespaces & WITH_LOOPBACK != 0)?),
        };
        let room = self.table.take(self.block, network);
        if let (Err(_), Some(network)) = (&room, network) {
            network.forget();
        }
        let room = room?;
        let stdio = [*stdin, *stdout, *stderr];
        let (go, ready) = sys::pipe()?;
        let fds = CellFds { go, stdio, job: *job, control: *control, fork: None, cgroups };
        let Self { libc, guest, hot, .. } = *self;
        let cell = NewCell { fds, ready, room, user: id(8), libc, guest, hot };
        let namespaces = namespaces & !(NEW_NET | WITH_LOOPBACK);
        let started = room.start(namespaces, cell, program, begin);
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
fn begin(cell: NewCell, program: &[u8]) -> ! {
    sys::close(cell.ready);
    let _ = sys::ignore_signal(sys::SIGCHLD, false);
    let Ok((guest, go)) = sys::pipe() else { sys::exit(1) };
    // Before there is a guest, so that it is watched from its first moment.
    let limit = apply::socket_limit(program);
    let Ok(sockets) = limit.map(|most| watch::install().map(|fd| (fd, most))).transpose() else {
        init::report(cell.fds.control, init::failed(c"sockets", Errno::NOSYS));
        sys::exit(1)
    };
    match sys::fork_under_libc(cell.libc) {
        Ok(None) => {
            sockets.into_iter().for_each(|(listener, _)| sys::close(listener));
            sys::close(go);
            let fds = CellFds { go: guest, ..cell.fds };
            init::become_guest(program, fds, || cell.hot.map());
            cell.guest.go()
        }
        parent => {
            let own = Own { room: cell.room, user: cell.user, sockets };
            pid_one::stay_behind(program, cell.fds, own, (parent, go))
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
        path.text(b"/proc/").pid(pid).text(file);
        let path = core::ffi::CStr::from_bytes_with_nul(path.bytes()).map_err(|_| Errno::INVAL)?;
        let file = sys::open(path, WRITE_ONLY, 0)?;
        let written = sys::write(file, map.bytes());
        sys::close(file);
        written?;
    }
    Ok(())
}
