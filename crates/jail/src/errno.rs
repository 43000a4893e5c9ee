//! Error numbers of the system, as far as the jail tells them apart. Core only.

/// A system call's error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// Operation not permitted.
    pub const PERM: Self = Self(1);
    /// No such file or directory.
    pub const NOENT: Self = Self(2);
    /// Interrupted.
    pub const INTR: Self = Self(4);
    /// No child processes.
    pub const CHILD: Self = Self(10);
    /// Not now.
    pub const AGAIN: Self = Self(11);
    /// File exists.
    pub const EXIST: Self = Self(17);
    /// Invalid argument; also what a malformed message is answered with.
    pub const INVAL: Self = Self(22);
    /// No such system call.
    pub const NOSYS: Self = Self(38);
    /// No room for another socket.
    pub const NOBUFS: Self = Self(105);
    /// Broken pipe; here: the other side of a socket is gone.
    pub const PIPE: Self = Self(32);
}

/// What a call gave, or why not.
pub type Result<T> = core::result::Result<T, Errno>;
