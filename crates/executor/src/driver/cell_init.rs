//! Runs in: driver (root), and its child that is pid 1 of the cell.
//!
//! Starts pid 1 of a cell whose guest an OCI runtime starts, in the user and pid namespaces that
//! the guest is going to have. A bundle cannot express the limits of a user namespace, so pid 1
//! sets them. runsc needs no such process: the processes of its guests are in its own kernel.

use std::{
    fs,
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsRawFd, OwnedFd},
};

use cloche_jail::{
    proc_masks::NAMESPACE_LIMITS,
    stay_as_pid_one,
    sys::{self, CloneRequest, CloneSide},
};

use super::DriverSetup;
use crate::protocol::GUEST_ID;

/// Pid 1 of a cell. It ends when this is dropped, and with it everything in its pid namespace.
pub(super) struct CellInit {
    /// Its pid, as the driver and its runtime see it.
    pub(super) pid: i32,
    _stay: File,
}

impl CellInit {
    /// Starts it, and waits until it has no rights any more.
    pub(super) fn start(setup: &DriverSetup) -> io::Result<Self> {
        let (stay, mut stays) = open_pipe()?;
        let (mut is_ready, ready) = open_pipe()?;
        let namespaces = sys::CLONE_NEWUSER | sys::CLONE_NEWPID;
        let request = CloneRequest { namespaces, cgroup: None };
        match sys::clone(request).map_err(to_io_error)? {
            CloneSide::Child => become_init(stay, &ready),
            CloneSide::Parent(pid, pidfd) => {
                sys::close(pidfd);
                drop((stay, ready));
                let map = id_map(setup);
                for file in ["uid_map", "gid_map"] {
                    fs::write(format!("/proc/{pid}/{file}"), &map)?;
                }
                stays.write_all(b"!")?;
                is_ready.read_exact(&mut [0])?;
                Ok(Self { pid, _stay: stays })
            }
        }
    }
}

/// The ids of the cell and those of the host.
fn id_map(setup: &DriverSetup) -> String {
    format!("0 {} 1\n{GUEST_ID} {} 1\n", setup.image_owner, setup.guest)
}

/// The life of pid 1. It continues once its ids are mapped.
fn become_init(mut stay: File, ready: &File) -> ! {
    let mapped = stay.read_exact(&mut [0]).and_then(|()| write_limits());
    if mapped.is_err() {
        sys::exit(1);
    }
    stay_as_pid_one(GUEST_ID, ready.as_raw_fd(), stay.as_raw_fd())
}

/// The files show the limits of the namespace that the process is in.
fn write_limits() -> io::Result<()> {
    for (name, value) in NAMESPACE_LIMITS {
        fs::write(format!("/proc/sys/user/{name}"), value.to_string())?;
    }
    Ok(())
}

fn open_pipe() -> io::Result<(File, File)> {
    let (read, write) = sys::pipe().map_err(to_io_error)?;
    let own = |fd| -> OwnedFd { sys::into_owned_fd(fd) };
    Ok((own(read).into(), own(write).into()))
}

fn to_io_error(errno: sys::Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.0)
}
