//! The system calls that the jail makes, by name, and their numbers on each architecture.

#[cfg(target_arch = "x86_64")]
const NUMBERS: [usize; 58] = [
    0, 1, 3, 257, 258, 266, 260, 165, 166, 155, 80, 170, 117, 119, 116, 157, 126, 302, 444, 445,
    446, 317, 435, 247, 62, 231, 436, 292, 46, 47, 41, 16, 308, 272, 59, 424, 39, 112, 293, 268,
    72, 428, 429, 442, 259, 56, 13, 144, 28, 9, 304, 271, 14, 289, 440, 334, 42, 11,
];
#[cfg(target_arch = "aarch64")]
const NUMBERS: [usize; 58] = [
    63, 64, 57, 56, 34, 36, 54, 40, 39, 41, 49, 161, 147, 149, 159, 167, 91, 261, 444, 445, 446,
    277, 435, 95, 129, 94, 436, 24, 211, 212, 198, 29, 268, 97, 221, 424, 172, 157, 59, 53, 25,
    428, 429, 442, 33, 220, 134, 119, 233, 222, 265, 73, 135, 74, 440, 293, 203, 215,
];

/// A call, as a place in the table of numbers.
#[derive(Clone, Copy)]
pub(crate) enum Call {
    Read,
    Write,
    Close,
    Openat,
    Mkdirat,
    Symlinkat,
    Fchownat,
    Mount,
    Umount2,
    PivotRoot,
    Chdir,
    Sethostname,
    Setresuid,
    Setresgid,
    Setgroups,
    Prctl,
    Capset,
    Prlimit64,
    LandlockCreateRuleset,
    LandlockAddRule,
    LandlockRestrictSelf,
    Seccomp,
    Clone3,
    Waitid,
    Kill,
    ExitGroup,
    CloseRange,
    Dup3,
    Sendmsg,
    Recvmsg,
    Socket,
    Ioctl,
    Setns,
    Unshare,
    Execve,
    PidfdSendSignal,
    Getpid,
    Setsid,
    Pipe2,
    Fchmodat,
    Fcntl,
    OpenTree,
    MoveMount,
    MountSetattr,
    Mknodat,
    Clone,
    RtSigaction,
    SchedSetscheduler,
    Madvise,
    Mmap,
    OpenByHandleAt,
    Ppoll,
    RtSigprocmask,
    Signalfd4,
    ProcessMadvise,
    #[cfg_attr(not(cloche_template), expect(dead_code, reason = "for the template's library"))]
    Rseq,
    /// Made by guests only; told of by a filter.
    Connect,
    Munmap,
}

impl Call {
    /// Its number here.
    pub(crate) const fn number(self) -> usize {
        NUMBERS[self as usize]
    }
}

/// Calls that take plain numbers only, or null pointers where the kernel allows them.
#[derive(Clone, Copy)]
pub(crate) enum PlainCall {
    Clone,
    Close,
    CloseRange,
    Dup3,
    ExitGroup,
    Fcntl,
    Getpid,
    Kill,
    LandlockCreateRuleset,
    LandlockRestrictSelf,
    Mmap,
    PidfdSendSignal,
    Prctl,
    Setgroups,
    Setns,
    Setresgid,
    Setresuid,
    Setsid,
    Socket,
    Unshare,
}

impl From<PlainCall> for Call {
    fn from(call: PlainCall) -> Self {
        match call {
            PlainCall::Clone => Self::Clone,
            PlainCall::Close => Self::Close,
            PlainCall::CloseRange => Self::CloseRange,
            PlainCall::Dup3 => Self::Dup3,
            PlainCall::ExitGroup => Self::ExitGroup,
            PlainCall::Fcntl => Self::Fcntl,
            PlainCall::Getpid => Self::Getpid,
            PlainCall::Kill => Self::Kill,
            PlainCall::LandlockCreateRuleset => Self::LandlockCreateRuleset,
            PlainCall::LandlockRestrictSelf => Self::LandlockRestrictSelf,
            PlainCall::Mmap => Self::Mmap,
            PlainCall::PidfdSendSignal => Self::PidfdSendSignal,
            PlainCall::Prctl => Self::Prctl,
            PlainCall::Setgroups => Self::Setgroups,
            PlainCall::Setns => Self::Setns,
            PlainCall::Setresgid => Self::Setresgid,
            PlainCall::Setresuid => Self::Setresuid,
            PlainCall::Setsid => Self::Setsid,
            PlainCall::Socket => Self::Socket,
            PlainCall::Unshare => Self::Unshare,
        }
    }
}

/// Calls that take one path, and otherwise plain numbers.
#[derive(Clone, Copy)]
pub(crate) enum PathCall {
    Chdir,
    Fchmodat,
    Fchownat,
    Mkdirat,
    Mknodat,
    OpenTree,
    Openat,
    #[cfg_attr(not(cloche_template), expect(dead_code, reason = "for the template's library"))]
    Prctl,
    Umount2,
}

impl From<PathCall> for Call {
    fn from(call: PathCall) -> Self {
        match call {
            PathCall::Chdir => Self::Chdir,
            PathCall::Fchmodat => Self::Fchmodat,
            PathCall::Fchownat => Self::Fchownat,
            PathCall::Mkdirat => Self::Mkdirat,
            PathCall::Mknodat => Self::Mknodat,
            PathCall::OpenTree => Self::OpenTree,
            PathCall::Openat => Self::Openat,
            PathCall::Prctl => Self::Prctl,
            PathCall::Umount2 => Self::Umount2,
        }
    }
}

/// Calls that take two paths, and otherwise plain numbers.
#[derive(Clone, Copy)]
pub(crate) enum PathPairCall {
    MoveMount,
    PivotRoot,
    Symlinkat,
}

impl From<PathPairCall> for Call {
    fn from(call: PathPairCall) -> Self {
        match call {
            PathPairCall::MoveMount => Self::MoveMount,
            PathPairCall::PivotRoot => Self::PivotRoot,
            PathPairCall::Symlinkat => Self::Symlinkat,
        }
    }
}

/// Calls that read a few words of ours, and otherwise take plain numbers.
#[derive(Clone, Copy)]
pub(crate) enum WordsCall {
    Prlimit64,
    RtSigaction,
    RtSigprocmask,
    SchedSetscheduler,
    Signalfd4,
}

impl WordsCall {
    /// Which argument points at them, and the most words that the kernel reads there.
    pub(crate) const fn words_argument(self) -> (usize, usize) {
        match self {
            // struct rlimit64: soft and hard.
            Self::Prlimit64 => (2, 2),
            // The kernel's struct sigaction: handler, flags, restorer, mask.
            Self::RtSigaction => (1, 4),
            // A mask of 64 signals.
            Self::RtSigprocmask | Self::Signalfd4 => (1, 1),
            // struct sched_param: one int.
            Self::SchedSetscheduler => (2, 1),
        }
    }
}

impl From<WordsCall> for Call {
    fn from(call: WordsCall) -> Self {
        match call {
            WordsCall::Prlimit64 => Self::Prlimit64,
            WordsCall::RtSigaction => Self::RtSigaction,
            WordsCall::RtSigprocmask => Self::RtSigprocmask,
            WordsCall::SchedSetscheduler => Self::SchedSetscheduler,
            WordsCall::Signalfd4 => Self::Signalfd4,
        }
    }
}
