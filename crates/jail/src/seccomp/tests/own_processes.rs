//! Runs in: tests.
//!
//! The filters of our own processes: the calls that kill the server, a packer or a stack worker,
//! and those they need.

use super::{
    super::{
        bpf::{self, return_value},
        mount_server_filter, packer_filter,
        policy::{FilterPolicy, SyscallVerdict},
        server_filter, stack_filter,
        table::{Arch, RuleTable},
        wider::WiderPolicy,
    },
    machine::{Call, run},
};

const SERVER: &str = include_str!("../../../policy/server.json");
const MOUNT_SERVER: &str = include_str!("../../../policy/mount_server.json");
const PACKER: &str = include_str!("../../../policy/packer.json");
const STACK: &str = include_str!("../../../policy/stack.json");

/// Asserts on every architecture that has the call.
#[track_caller]
fn expect(policy: &str, verdict: SyscallVerdict, name: &str, args: &[u64]) {
    expect_of(&FilterPolicy::parse(policy).unwrap(), verdict, name, args);
}

#[track_caller]
fn expect_of(policy: &FilterPolicy, verdict: SyscallVerdict, name: &str, args: &[u64]) {
    let mut all = [0; 6];
    all[..args.len()].copy_from_slice(args);
    let having = Arch::ALL.into_iter().filter_map(|arch| Some((arch, arch.call_number(name)?)));
    let having: Vec<_> = having.collect();
    assert!(!having.is_empty(), "{name} is no system call");
    for (arch, number) in having {
        let program = bpf::compile_filter(&RuleTable::new(policy, arch).unwrap()).unwrap();
        let value = run(&program, &Call { number, arch: arch.audit_arch(), args: all }).value;
        assert_eq!(value, return_value(verdict), "{name}{args:x?} on {arch:?}");
    }
}

#[test]
fn the_embedded_filters_are_the_compiled_policies() {
    let arch = Arch::from_cargo(std::env::consts::ARCH).unwrap();
    let parse = |text| FilterPolicy::parse(text).unwrap();
    for (policy, embedded) in [
        (parse(SERVER), server_filter()),
        (waiting_mount_server(), mount_server_filter()),
        (parse(PACKER), packer_filter()),
        (parse(STACK), stack_filter()),
    ] {
        let table = RuleTable::new(&policy, arch).unwrap();
        assert_eq!(embedded, bpf::program_bytes(&bpf::compile_filter(&table).unwrap()));
    }
}

fn waiting_mount_server() -> FilterPolicy {
    WiderPolicy::derive_policy(MOUNT_SERVER, FilterPolicy::parse(SERVER).unwrap()).unwrap()
}

#[test]
fn a_mount_server_that_waits_can_confine_itself_and_nothing_more() {
    let policy = waiting_mount_server();
    for call in ["setresuid", "setgroups", "capset", "landlock_restrict_self", "seccomp"] {
        expect_of(&policy, SyscallVerdict::Allow, call, &[]);
    }
    for call in ["setuid", "setns", "mount", "execve", "ptrace", "bpf"] {
        expect_of(&policy, SyscallVerdict::Kill, call, &[]);
    }
    let (death_signal, dumpable, keep_capabilities) = (1, 4, 8);
    expect_of(&policy, SyscallVerdict::Allow, "prctl", &[death_signal, 9]);
    expect_of(&policy, SyscallVerdict::NotPermitted, "prctl", &[death_signal, 0]);
    expect_of(&policy, SyscallVerdict::Allow, "prctl", &[dumpable, 0]);
    expect_of(&policy, SyscallVerdict::NotPermitted, "prctl", &[dumpable, 1]);
    expect_of(&policy, SyscallVerdict::NotPermitted, "prctl", &[keep_capabilities, 1]);
}

#[test]
fn exec_fork_mount_and_setuid_kill_our_own_processes() {
    for call in [
        "execve",
        "execveat",
        "ptrace",
        "process_vm_writev",
        "pidfd_getfd",
        "mount",
        "umount2",
        "pivot_root",
        "chroot",
        "setns",
        "unshare",
        "open_tree",
        "move_mount",
        "fsopen",
        "setuid",
        "setgid",
        "setresuid",
        "setresgid",
        "setgroups",
        "bpf",
        "perf_event_open",
        "userfaultfd",
        "io_uring_setup",
        "kexec_load",
        "kexec_file_load",
        "init_module",
        "finit_module",
        "keyctl",
        "reboot",
        "swapon",
        "clock_settime",
        "fork",
        "vfork",
    ] {
        expect(SERVER, SyscallVerdict::Kill, call, &[]);
        expect(PACKER, SyscallVerdict::Kill, call, &[]);
        expect(STACK, SyscallVerdict::Kill, call, &[]);
    }
    expect(SERVER, SyscallVerdict::Kill, "capset", &[]);
    expect(SERVER, SyscallVerdict::Kill, "open_by_handle_at", &[]);
}

#[test]
fn the_server_makes_threads_and_no_processes() {
    let (thread, fork, vfork, user) = (0x003d_0f00, 0x0120_0011, 0x4111, 0x1001_0000);
    expect(SERVER, SyscallVerdict::Allow, "clone", &[thread]);
    expect(SERVER, SyscallVerdict::Kill, "clone", &[fork]);
    expect(SERVER, SyscallVerdict::Kill, "clone", &[vfork]);
    expect(SERVER, SyscallVerdict::Kill, "clone", &[user]);
    expect(PACKER, SyscallVerdict::Kill, "clone", &[thread]);
}

#[test]
fn a_packer_resizes_a_tmpfs_and_makes_none() {
    expect(PACKER, SyscallVerdict::Allow, "fsconfig", &[0, 1]);
    expect(PACKER, SyscallVerdict::Allow, "fsconfig", &[0, 7]);
    for command in [0, 2, 3, 4, 5, 6, 8] {
        expect(PACKER, SyscallVerdict::Kill, "fsconfig", &[0, command]);
    }
}

#[test]
fn the_server_has_tcp_udp_and_local_sockets() {
    for (family, kind, protocol) in [(1, 1, 0), (2, 1, 6), (10, 2, 17), (2, 0x80801, 0), (16, 3, 0)]
    {
        expect(SERVER, SyscallVerdict::Allow, "socket", &[family, kind, protocol]);
    }
    for (family, kind, protocol) in [(2, 3, 1), (17, 3, 0), (40, 1, 0), (38, 5, 0), (16, 3, 9)] {
        expect(SERVER, SyscallVerdict::NoSuchFamily, "socket", &[family, kind, protocol]);
    }
    expect(PACKER, SyscallVerdict::Kill, "socket", &[2, 1, 0]);
    expect(PACKER, SyscallVerdict::Kill, "connect", &[]);
}

#[test]
fn a_stack_worker_uses_sockets_that_it_was_given_and_opens_nothing() {
    for call in ["recvmsg", "sendmsg", "read", "write", "shutdown", "epoll_pwait", "ppoll"] {
        expect(STACK, SyscallVerdict::Allow, call, &[]);
    }
    for call in ["socket", "socketpair", "connect", "bind", "listen", "accept4", "openat2", "clone"]
    {
        expect(STACK, SyscallVerdict::Kill, call, &[2, 1, 0]);
    }
    expect(STACK, SyscallVerdict::NotPermitted, "openat", &[]);
}

#[test]
fn the_server_cannot_make_written_memory_executable() {
    expect(SERVER, SyscallVerdict::Allow, "mprotect", &[0, 0, 3]);
    expect(SERVER, SyscallVerdict::NotPermitted, "mprotect", &[0, 0, 5]);
}

#[test]
fn the_server_makes_whiteouts_and_no_devices() {
    expect(SERVER, SyscallVerdict::Allow, "mknodat", &[0, 0, 0o020_000, 0]);
    expect(SERVER, SyscallVerdict::NotPermitted, "mknodat", &[0, 0, 0o020_666, 0x103]);
    expect(SERVER, SyscallVerdict::NotPermitted, "mknodat", &[0, 0, 0o060_600, 0]);
    expect(SERVER, SyscallVerdict::Allow, "mknodat", &[0, 0, 0o010_600, 0]);
}
