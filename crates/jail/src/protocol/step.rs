//! Runs in: spawner (root), pid 1 of a cell, guest.
//!
//! One step of setting up a cell, as data, and the reader of encoded steps.
//!
//! The plan holds owned steps (`OwnedStep`). The new process reads borrowed ones (`StepRef`) from
//! the encoded program without allocation. Core only; the encoder is in `encode`. It must not know
//! which steps a cell consists of: the plan does.

use core::ffi::CStr;

/// One action of setting up a cell. `T` is a path or name, `B` is bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step<T, B> {
    /// Become this user of the new user namespace.
    Become { uid: u32, gid: u32, clear_groups: bool },
    /// Set the host name.
    Hostname { name: B },
    /// Bring up the loopback interface.
    Loopback,
    /// mount(2).
    Mount { source: T, target: T, kind: T, flags: u64, data: T },
    /// Make a directory, unless it exists.
    Directory { path: T, mode: u32, uid: u32, gid: u32 },
    /// Make this directory the root, and unmount the host's root.
    Pivot { root: T },
    /// Change the working directory.
    Enter { path: T },
    /// Set a resource limit, soft and hard.
    Limit { which: u32, soft: u64, hard: u64 },
    /// Close every descriptor from this number on.
    CloseFrom { first: u32 },
    /// Set `no_new_privs`.
    NoNewPrivs,
    /// Enforce Landlock: the handled accesses, and the rules as encoded by `encode::encode_rules`.
    Landlock { files: u64, scoped: u64, size: u32, rules: B },
    /// Empty the bounding and the ambient capability set.
    DropBounding { last: u32 },
    /// Give up every capability.
    DropCapabilities,
    /// Install the system call filter.
    Seccomp { program: B },
    /// Set the parent death signal to SIGKILL.
    DieWithParent,
    /// Move into new namespaces of these kinds.
    Unshare { kinds: u64 },
    /// Write to an existing file.
    Write { path: T, content: B },
    /// Disable a speculation misfeature.
    NoSpeculation { kind: u32 },
    /// Change the working directory while the cell is built: later relative paths start here.
    BuildIn { path: T },
    /// Have pid 1 watch sockets; the cell may have this many.
    WatchSockets { most: u32 },
    /// Let this process and its descendants signal only each other.
    ContainSignals,
}

/// A step as the process that applies it reads it.
pub(crate) type StepRef<'a> = Step<&'a CStr, &'a [u8]>;

/// Reads numbers and strings from a program, within its bounds.
#[derive(Clone, Copy)]
pub(crate) struct ProgramReader<'a> {
    rest: &'a [u8],
}

impl<'a> ProgramReader<'a> {
    /// Reads from the start of `bytes`.
    #[must_use]
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next `len` bytes; `None` if there are fewer.
    pub(crate) fn take_bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(head)
    }

    /// Reads a 64-bit number.
    pub(crate) fn read_number(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take_bytes(8)?.try_into().ok()?))
    }

    /// Reads a 32-bit number, stored in 64 bits.
    pub(crate) fn read_word(&mut self) -> Option<u32> {
        u32::try_from(self.read_number()?).ok()
    }

    /// Reads bytes after their length.
    pub(crate) fn read_bytes(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.read_number()?).ok()?;
        self.take_bytes(len)
    }

    /// Reads a NUL-terminated string after its length.
    pub(crate) fn read_text(&mut self) -> Option<&'a CStr> {
        CStr::from_bytes_with_nul(self.read_bytes()?).ok()
    }

    /// The bytes that were not read yet.
    #[must_use]
    pub(crate) const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Whether everything was read.
    #[must_use]
    pub(crate) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Reads the next step; `None` if the bytes are not one.
    pub(crate) fn read_step(&mut self) -> Option<StepRef<'a>> {
        Some(match self.read_number()? {
            0 => Step::Become {
                uid: self.read_word()?,
                gid: self.read_word()?,
                clear_groups: self.read_number()? != 0,
            },
            2 => Step::Hostname { name: self.read_bytes()? },
            3 => Step::Loopback,
            4 => Step::Mount {
                source: self.read_text()?,
                target: self.read_text()?,
                kind: self.read_text()?,
                flags: self.read_number()?,
                data: self.read_text()?,
            },
            5 => Step::Directory {
                path: self.read_text()?,
                mode: self.read_word()?,
                uid: self.read_word()?,
                gid: self.read_word()?,
            },
            6 => Step::Pivot { root: self.read_text()? },
            7 => Step::Enter { path: self.read_text()? },
            8 => Step::Limit {
                which: self.read_word()?,
                soft: self.read_number()?,
                hard: self.read_number()?,
            },
            9 => Step::CloseFrom { first: self.read_word()? },
            10 => Step::NoNewPrivs,
            11 => Step::Landlock {
                files: self.read_number()?,
                scoped: self.read_number()?,
                size: self.read_word()?,
                rules: self.read_bytes()?,
            },
            12 => Step::DropBounding { last: self.read_word()? },
            13 => Step::DropCapabilities,
            14 => Step::Seccomp { program: self.read_bytes()? },
            15 => Step::DieWithParent,
            16 => Step::Unshare { kinds: self.read_number()? },
            17 => Step::Write { path: self.read_text()?, content: self.read_bytes()? },
            18 => Step::BuildIn { path: self.read_text()? },
            19 => Step::NoSpeculation { kind: self.read_word()? },
            20 => Step::ContainSignals,
            40 => Step::WatchSockets { most: self.read_word()? },
            _ => return None,
        })
    }
}
