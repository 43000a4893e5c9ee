//! Runs in: template.
//!
//! The loop of a template: for each request it forks a cell into new namespaces. Core only.
//!
//! The template is an initialised interpreter. Pid 1 of a new cell shares the template's memory, on
//! a stack of its own: it builds the cell and waits, and a copy of that memory for it would cost as
//! much as the guest's copy. No process may inspect pid 1, and therefore none may inspect the
//! template. The guest's process is a copy of the template that returns to the interpreter, in the
//! cell. The template answers with a pidfd and waits for the next request. It never sees a job.

use super::netns_pool::{NetnsHandle, NetnsPool};
use crate::{
    pid_one::forked_cell::{NewCell, run_new_cell},
    protocol::fork_request::{NETNS_USED_ONCE, NO_ID, REQUEST_HEAD, REQUEST_LEN, WITH_LOOPBACK},
    setup::enter::{CellFds, MAX_CGROUPS},
    shared::fmt_buf::FmtBuf,
    sys::{
        self, CLONE_NEWNET, CLONE_NEWUSER, Errno, HotPages, PrctlOption, RawFd, Result,
        SavedContext, SharedStack, SharedStackBlock, ThreadIdAddress,
    },
};

/// Nanoseconds without a request after which the template makes a netns for the next one.
const QUIET: u64 = 2_000_000;

/// Answers requests until the socket closes. Returns only in the guest's process of a new cell,
/// with the hot pages mapped.
pub fn serve_forks(socket: RawFd, hot: HotPages) {
    let mut state = (socket, hot, None);
    SavedContext::save_and_call(&mut state, answer_requests);
    // In a guest: the block would show it data about other cells.
    if state.2.map(SharedStackBlock::unmap) != Some(Ok(())) {
        sys::exit(1);
    }
}

fn answer_requests(state: &mut (RawFd, HotPages, Option<SharedStackBlock>), guest: SavedContext) {
    // The template does not reap cells: the kernel does, and the spawner watches their pidfds.
    let _ = sys::ignore_signal(sys::SIGCHLD, true);
    // Otherwise a guest could inspect its pid 1, and through it the memory of the template.
    let hidden = sys::prctl(PrctlOption::Dumpable, 0);
    let (Ok(()), Ok(libc)) = (hidden, sys::thread_id_address()) else { sys::exit(1) };
    let mut request = [0; REQUEST_LEN];
    let table = CellTable { networks: NetnsPool::new(), stacks: [None; SharedStackBlock::STACKS] };
    let Ok((block, table)) = SharedStackBlock::new(table) else { sys::exit(1) };
    let (socket, hot, _) = *state;
    state.2 = Some(block);
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
                        // Not at once: the new cell needs the processor more.
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

/// The stacks that pid 1 of each cell runs on, and the netns that no cell uses. Free stacks are
/// reused.
#[derive(Clone, Copy)]
struct CellTable {
    stacks: [Option<StackSlot>; SharedStackBlock::STACKS],
    networks: NetnsPool,
}

/// A stack, and what belongs to the process on it.
#[derive(Clone, Copy)]
struct StackSlot {
    stack: SharedStack,
    /// A process used it since the last wipe.
    used: bool,
    network: Option<NetnsHandle>,
}

impl CellTable {
    /// Wipes every stack that has become free, before the next guest gets its copy of this memory:
    /// the remains are data about another cell. Keeps the netns that are as they were made.
    fn reclaim_stacks(&mut self) -> Result<()> {
        for slot in self.stacks.iter_mut().map_while(Option::as_mut) {
            if slot.used && slot.stack.is_free() {
                match slot.network.take() {
                    Some(network) if network.is_reusable() && slot.stack.is_marked_clean() => {
                        self.networks.keep_unused(network);
                    }
                    Some(network) => network.close(),
                    None => {}
                }
                slot.stack.wipe()?;
                slot.used = false;
            }
        }
        Ok(())
    }

    /// Takes a stack for a new cell with this netns.
    fn take_stack(
        &mut self,
        block: SharedStackBlock,
        network: Option<NetnsHandle>,
    ) -> Result<SharedStack> {
        let mut slots = self.stacks.iter_mut().enumerate();
        let is_free = |slot: &Option<StackSlot>| slot.is_none_or(|slot| !slot.used);
        let (number, slot) = slots.find(|(_, slot)| is_free(slot)).ok_or(Errno::AGAIN)?;
        let stack = block.stack_at(number).ok_or(Errno::AGAIN)?;
        *slot = Some(StackSlot { stack, used: true, network });
        Ok(stack)
    }
}

fn send_answer(socket: RawFd, value: i32, fds: &[RawFd]) {
    if sys::sendmsg(socket, &value.to_le_bytes(), fds).is_err() {
        sys::exit(0);
    }
}

struct ForkServer {
    libc: ThreadIdAddress,
    /// Where guests resume.
    guest: SavedContext,
    /// The pages that every guest uses.
    hot: HotPages,
    block: SharedStackBlock,
    table: &'static mut CellTable,
}

impl ForkServer {
    /// Forks a cell; returns its pid and pidfd.
    fn fork_cell(
        &mut self,
        request: &[u8],
        fds: &[Option<RawFd>; sys::MAX_FDS],
    ) -> Result<(i32, RawFd)> {
        let (head, program) = request.split_at_checked(REQUEST_HEAD).ok_or(Errno::INVAL)?;
        let id =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let [Some(stdin), Some(stdout), Some(stderr), Some(job), Some(control), tasks @ ..] = fds
        else {
            return Err(Errno::INVAL);
        };
        let mut cgroups = [None; MAX_CGROUPS];
        cgroups.iter_mut().zip(tasks).for_each(|(to, from)| *to = *from);
        let namespaces = u64::from(id(12)) | u64::from(id(16)) << 32;
        self.table.reclaim_stacks()?;
        let network = match namespaces & CLONE_NEWNET {
            0 => None,
            _ => Some(self.table.networks.enter_unused(namespaces & WITH_LOOPBACK != 0)?),
        };
        let is_used_once = namespaces & NETNS_USED_ONCE != 0;
        let network =
            network.map(|network| if is_used_once { network.used_once() } else { network });
        let stack = self.table.take_stack(self.block, network);
        if let (Err(_), Some(network)) = (&stack, network) {
            network.close();
        }
        let stack = stack?;
        let stdio = [*stdin, *stdout, *stderr];
        let (go, ready) = sys::pipe()?;
        let fds = CellFds { go, stdio, job: *job, control: *control, fork: None, cgroups };
        let Self { libc, guest, hot, .. } = *self;
        let cell = NewCell { fds, ready, stack, user: id(8), libc, guest, hot };
        let namespaces = namespaces & !(CLONE_NEWNET | WITH_LOOPBACK | NETNS_USED_ONCE);
        let started = stack.start_process(namespaces, cell, program, run_new_cell);
        sys::close(go);
        let mapped = started.and_then(|(pid, pidfd)| {
            let mapped = match namespaces & CLONE_NEWUSER {
                0 => Ok(()),
                _ => map_ids(pid, id(0), id(4), id(8)),
            };
            // If the ids could not be mapped, the cell sees the pipe close, and exits.
            let released = mapped.and_then(|()| sys::write(ready, b"!"));
            released.map(|_| (pid, pidfd)).inspect_err(|_| sys::close(pidfd))
        });
        sys::close(ready);
        mapped
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
