//! Runs in: every process.
//!
//! Error numbers of system calls, those that the jail handles by name. Core only.

/// A system call's error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// Operation not permitted.
    pub const PERM: Self = Self(1);
    /// No such file or directory.
    pub const NOENT: Self = Self(2);
    /// No such process.
    pub const SRCH: Self = Self(3);
    /// Interrupted.
    pub const INTR: Self = Self(4);
    /// No such device or address; here: nobody reads from a FIFO.
    pub const NXIO: Self = Self(6);
    /// No child processes.
    pub const CHILD: Self = Self(10);
    /// Try again later.
    pub const AGAIN: Self = Self(11);
    /// File exists.
    pub const EXIST: Self = Self(17);
    /// Invalid argument; also the answer to a malformed message.
    pub const INVAL: Self = Self(22);
    /// No such system call.
    pub const NOSYS: Self = Self(38);
    /// No buffer space; here: the limit of sockets is reached.
    pub const NOBUFS: Self = Self(105);
    /// Broken pipe; here: the peer of a socket has closed it.
    pub const PIPE: Self = Self(32);
}

/// The result of a system call.
pub type Result<T> = core::result::Result<T, Errno>;
