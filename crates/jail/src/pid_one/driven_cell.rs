//! Runs in: pid 1 of a cell that an OCI runtime builds.
//!
//! The runtime starts the program in the user and pid namespaces of this process, so that the
//! program is an ordinary process, as in every other cell. The kernel reaps for it. Core only.

use crate::{
    shared::small_filter::{FilterVerdict, SmallFilter},
    sys::{self, Call, Errno, PrctlOption, RawFd, Result},
};

/// Where it keeps its two descriptors.
const STAY_FD: RawFd = 0;
const READY_FD: RawFd = 1;
const FIRST_OTHER_FD: u32 = 2;
/// The system calls that it makes after it has given up its rights. Any other call kills it.
const CALLS: [Call; 3] = [Call::Read, Call::Write, Call::ExitGroup];

/// Gives up every right, writes a byte to `ready`, and stays until the other end of `stay` is
/// closed. `user` is the guest as it sees itself.
pub fn stay_as_pid_one(user: u32, ready: RawFd, stay: RawFd) -> ! {
    if give_up_rights(user, ready, stay).is_err() || sys::write(READY_FD, b"!").is_err() {
        sys::exit(1);
    }
    while sys::read(STAY_FD, &mut [0]) == Err(Errno::INTR) {}
    sys::exit(0)
}

fn give_up_rights(user: u32, ready: RawFd, stay: RawFd) -> Result<()> {
    sys::dup_onto(stay, STAY_FD)?;
    sys::dup_onto(ready, READY_FD)?;
    sys::close_range(FIRST_OTHER_FD, u32::MAX)?;
    // The signal handlers are the spawner's.
    sys::block_signals()?;
    sys::ignore_signal(sys::SIGCHLD, true)?;
    // The first error is the first number that is not a capability of this kernel.
    let mut capabilities = 0..64;
    while capabilities
        .next()
        .is_some_and(|last| sys::prctl(PrctlOption::DropBounding, last).is_ok())
    {}
    sys::become_user(user, user, true)?;
    sys::capset_none()?;
    sys::prctl(PrctlOption::Dumpable, 0)?;
    sys::prctl(PrctlOption::NoNewPrivs, 1)?;
    let filter = SmallFilter::of_calls(&CALLS, FilterVerdict::Allow, FilterVerdict::Kill);
    sys::install_seccomp(filter.as_bytes())
}
