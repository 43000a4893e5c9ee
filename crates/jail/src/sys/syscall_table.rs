//! Runs in: every process.
//!
//! The system calls that the jail makes: one row per call with its name, its number on x86_64 and
//! its number on aarch64. A test compares every row with the `syscalls` crate. Core only.

/// The number for the architecture that this crate is built for.
const fn pick(x86_64: isize, aarch64: isize) -> isize {
    if cfg!(target_arch = "x86_64") { x86_64 } else { aarch64 }
}

/// Declares [`Call`], whose discriminants are the numbers, and the rows for the test.
macro_rules! syscall_table {
    ($($(#[$attribute:meta])* $call:ident: $name:literal, $x86_64:literal, $aarch64:literal;)*) => {
        /// A system call. Its discriminant is its number on this architecture.
        #[derive(Clone, Copy)]
        pub(crate) enum Call {
            $($(#[$attribute])* $call = pick($x86_64, $aarch64),)*
        }

        #[cfg(all(test, not(cloche_template)))]
        const ROWS: &[(&str, usize, usize)] = &[$(($name, $x86_64, $aarch64),)*];
    };
}

syscall_table! {
    // call, name,                   x86_64, aarch64
    Read:                  "read",                       0,   63;
    Write:                 "write",                      1,   64;
    Close:                 "close",                      3,   57;
    Openat:                "openat",                   257,   56;
    Mkdirat:               "mkdirat",                  258,   34;
    Symlinkat:             "symlinkat",                266,   36;
    Fchownat:              "fchownat",                 260,   54;
    Mount:                 "mount",                    165,   40;
    Umount2:               "umount2",                  166,   39;
    PivotRoot:             "pivot_root",               155,   41;
    Chdir:                 "chdir",                     80,   49;
    Sethostname:           "sethostname",              170,  161;
    Setresuid:             "setresuid",                117,  147;
    Setresgid:             "setresgid",                119,  149;
    Setgroups:             "setgroups",                116,  159;
    Prctl:                 "prctl",                    157,  167;
    Capset:                "capset",                   126,   91;
    Prlimit64:             "prlimit64",                302,  261;
    LandlockCreateRuleset: "landlock_create_ruleset",  444,  444;
    LandlockAddRule:       "landlock_add_rule",        445,  445;
    LandlockRestrictSelf:  "landlock_restrict_self",   446,  446;
    Seccomp:               "seccomp",                  317,  277;
    Clone3:                "clone3",                   435,  435;
    Waitid:                "waitid",                   247,   95;
    Kill:                  "kill",                      62,  129;
    ExitGroup:             "exit_group",               231,   94;
    CloseRange:            "close_range",              436,  436;
    Dup3:                  "dup3",                     292,   24;
    Sendmsg:               "sendmsg",                   46,  211;
    Recvmsg:               "recvmsg",                   47,  212;
    Socket:                "socket",                    41,  198;
    Ioctl:                 "ioctl",                     16,   29;
    Setns:                 "setns",                    308,  268;
    Unshare:               "unshare",                  272,   97;
    Execve:                "execve",                    59,  221;
    PidfdSendSignal:       "pidfd_send_signal",        424,  424;
    Getpid:                "getpid",                    39,  172;
    Getppid:               "getppid",                  110,  173;
    Gettid:                "gettid",                   186,  178;
    Setsid:                "setsid",                   112,  157;
    Pipe2:                 "pipe2",                    293,   59;
    Fchmodat:              "fchmodat",                 268,   53;
    Fcntl:                 "fcntl",                     72,   25;
    OpenTree:              "open_tree",                428,  428;
    MoveMount:             "move_mount",               429,  429;
    MountSetattr:          "mount_setattr",            442,  442;
    Mknodat:               "mknodat",                  259,   33;
    Unlinkat:              "unlinkat",                 263,   35;
    Clone:                 "clone",                     56,  220;
    RtSigaction:           "rt_sigaction",              13,  134;
    SchedSetscheduler:     "sched_setscheduler",       144,  119;
    Madvise:               "madvise",                   28,  233;
    Mmap:                  "mmap",                       9,  222;
    OpenByHandleAt:        "open_by_handle_at",        304,  265;
    Ppoll:                 "ppoll",                    271,   73;
    RtSigprocmask:         "rt_sigprocmask",            14,  135;
    Signalfd4:             "signalfd4",                289,   74;
    ProcessMadvise:        "process_madvise",          440,  440;
    #[cfg_attr(not(cloche_template), expect(dead_code, reason = "for the template library"))]
    Rseq:                  "rseq",                     334,  293;
    /// Only guests make it. The filter of the socket watch names it.
    Connect:               "connect",                   42,  203;
    Munmap:                "munmap",                    11,  215;
    /// Only guests make it. The filter of unmapped memory names it.
    MemfdCreate:           "memfd_create",             319,  279;
    /// Only guests make it. The filter of unmapped memory names it.
    Shmget:                "shmget",                    29,  194;
}

impl Call {
    /// Its number on this architecture.
    #[inline]
    pub(crate) const fn number(self) -> usize {
        self as usize
    }
}

/// Declares a subset of the calls, for functions that may make only these.
macro_rules! call_subset {
    ($(#[$doc:meta])* $subset:ident { $($(#[$attribute:meta])* $call:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(crate) enum $subset {
            $($(#[$attribute])* $call,)*
        }

        impl From<$subset> for Call {
            #[inline]
            fn from(call: $subset) -> Self {
                match call {
                    $($subset::$call => Self::$call,)*
                }
            }
        }
    };
}

call_subset! {
    /// Calls that take plain numbers only, or null pointers where the kernel allows them.
    PlainCall {
        Clone, Close, CloseRange, Dup3, ExitGroup, Fcntl, Getpid, Getppid,
        #[cfg_attr(not(cloche_template), expect(dead_code, reason = "for the template library"))]
        Gettid,
        Kill,
        LandlockCreateRuleset, LandlockRestrictSelf, Mmap, PidfdSendSignal, Prctl, Setgroups, Setns,
        Setresgid, Setresuid, Setsid, Socket, Unshare,
    }
}

call_subset! {
    /// Calls that take one path and otherwise plain numbers.
    PathCall {
        Chdir, Fchmodat, Fchownat, Mkdirat, Mknodat, OpenTree, Openat,
        #[cfg_attr(not(cloche_template), expect(dead_code, reason = "for the template library"))]
        Prctl,
        Umount2, Unlinkat,
    }
}

call_subset! {
    /// Calls that take two paths and otherwise plain numbers.
    PathPairCall { MoveMount, PivotRoot, Symlinkat, }
}

call_subset! {
    /// Calls that read a few words from memory and otherwise take plain numbers.
    WordsCall { Prlimit64, RtSigaction, RtSigprocmask, SchedSetscheduler, Signalfd4, }
}

impl WordsCall {
    /// Which argument points at the words, and the most words that the kernel reads there.
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

#[cfg(all(test, not(cloche_template)))]
mod tests {
    use std::{collections::BTreeSet, str::FromStr};

    use super::*;

    #[test]
    fn every_row_has_the_numbers_of_the_syscalls_crate_on_both_architectures() {
        for &(name, x86_64, aarch64) in ROWS {
            let expected_x86_64 = syscalls::x86_64::Sysno::from_str(name).map(|call| call.id());
            let expected_aarch64 = syscalls::aarch64::Sysno::from_str(name).map(|call| call.id());
            assert_eq!(expected_x86_64.ok(), i32::try_from(x86_64).ok(), "{name} on x86_64");
            assert_eq!(expected_aarch64.ok(), i32::try_from(aarch64).ok(), "{name} on aarch64");
        }
    }

    #[test]
    fn no_call_has_two_rows() {
        let names: BTreeSet<&str> = ROWS.iter().map(|(name, ..)| *name).collect();
        assert_eq!(names.len(), ROWS.len());
    }

    #[test]
    fn the_discriminant_of_a_call_is_its_number_here() {
        let here = |name: &str| {
            let row = ROWS.iter().find(|(row, ..)| *row == name).unwrap();
            if cfg!(target_arch = "x86_64") { row.1 } else { row.2 }
        };
        assert_eq!(Call::Read.number(), here("read"));
        assert_eq!(Call::Munmap.number(), here("munmap"));
        assert_eq!(Call::from(PlainCall::Unshare).number(), here("unshare"));
    }
}
