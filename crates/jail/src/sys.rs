//! Runs in: every process.
//!
//! Every system call that the jail makes. This folder has the only `unsafe` code of the project.
//!
//! Core only: no libc, no allocation, no panics, no thread-locals. So it can run between `clone`
//! and `exec` in a child of a threaded process, and inside the template interpreter (any CPython,
//! any libc). It knows system calls; it must not know what a cell is. The exception is
//! `template_ffi`, which exports functions of other folders.
//!
//! | file | what |
//! |---|---|
//! | `syscall_table` | one row per call: name and numbers |
//! | `raw` | the instruction, and safe wrappers by kind of argument |
//! | `safe_calls` | calls that need no unsafe code |
//! | `io`, `mount`, `namespaces`, `process` | calls with pointers: descriptors, mounts, processes |
//! | `message`, `confine` | calls with pointers: sockets, capabilities, Landlock, seccomp |
//! | `tun` | the network device of a cell |
//! | `shared_stack`, `context`, `hot_pages` | how a template forks cells |
//! | `template_ffi` | the exported functions of the template library |
#![allow(unsafe_code, reason = "this folder is the address of unsafe code; each block is argued")]

mod confine;
mod context;
mod errno;
mod hot_pages;
mod io;
mod message;
mod mount;
mod namespaces;
mod process;
mod raw;
mod safe_calls;
mod shared_stack;
mod syscall_table;
#[cfg(cloche_template)]
mod template_ffi;
#[cfg(not(cloche_template))]
mod tun;

/// A file descriptor by number. The caller keeps track of its ownership.
pub type RawFd = i32;

#[cfg(not(cloche_template))]
pub use io::into_owned_fd;
#[cfg(cloche_template)]
pub use safe_calls::set_name;
#[cfg(not(cloche_template))]
pub use tun::{TUN_NAME, TunAddresses, VNET_HEADER_LEN, configure_tun, make_tun};
pub use {
    confine::{
        LandlockRuleset, capset_none, install_logged_seccomp, install_seccomp, landlock_allow,
        landlock_create, landlock_restrict, landlock_version,
    },
    context::SavedContext,
    errno::{Errno, Result},
    hot_pages::HotPages,
    io::{pipe, poll_readable, read, write},
    message::{MAX_FDS, recvmsg, sendmsg},
    mount::{idmap_mount, make_mount_read_only, mount, open_by_handle},
    namespaces::{
        CLONE_NEWCGROUP, CLONE_NEWIPC, CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER,
        CLONE_NEWUTS, loopback_up, sethostname, setns, unshare,
    },
    process::{
        ChildChange, CloneRequest, CloneSide, StringList, ThreadIdAddress, clone, exec,
        fork_under_libc, thread_id_address,
    },
    safe_calls::{
        PrctlOption, SIGCHLD, attach_mount, become_user, block_signals, chdir, chmod, chown, close,
        close_on_exec, close_range, dup_above, dup_onto, exit, force_disable_speculation, fork,
        getpid, getppid, ignore_signal, kill, mkdir, mkfifo, mknod, open, open_signalfd, open_tree,
        pidfd_kill, pivot_to_current_dir, prctl, reap_child, set_realtime_priority, setrlimit,
        setsid, speculation_status, symlink, unblock_signals, unlink, wait_any, wait_for_change,
    },
    shared_stack::{SharedStack, SharedStackBlock},
};
pub(crate) use {
    confine::{answer_notification, install_seccomp_listener},
    safe_calls::poll_child_change,
    syscall_table::Call,
};
