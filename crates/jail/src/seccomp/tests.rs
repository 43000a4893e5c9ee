//! Runs in: tests.
//!
//! The filter, tested in three ways: by name for each attack, against a naive reading of the policy
//! for random calls, and for random policies.

mod machine;
mod own_processes;
mod random;
mod strict;

use machine::{Call, Ran, run};

use super::{
    SyscallPolicy,
    bpf::{self, BpfInstruction, return_value},
    guest_denials, guest_filter,
    policy::{FilterPolicy, PolicyError, SyscallVerdict},
    table::{Arch, RuleTable},
};
use crate::sys::CLONE_NEWUSER;

const TEXT: &str = include_str!("../../policy/seccomp.json");

/// The filter of one architecture, called by name.
struct Filter {
    arch: Arch,
    program: Vec<BpfInstruction>,
}

impl Filter {
    fn of(arch: Arch) -> Self {
        let table = RuleTable::new(&FilterPolicy::parse(TEXT).unwrap(), arch).unwrap();
        Self { arch, program: bpf::compile_filter(&table).unwrap() }
    }

    fn ran(&self, name: &str, args: &[u64]) -> Ran {
        let mut all = [0; 6];
        all[..args.len()].copy_from_slice(args);
        let number = self.arch.call_number(name).unwrap();
        run(&self.program, &Call { number, arch: self.arch.audit_arch(), args: all })
    }

    #[track_caller]
    fn expect(&self, verdict: SyscallVerdict, name: &str, args: &[u64]) {
        let value = self.ran(name, args).value;
        assert_eq!(value, return_value(verdict), "{name}{args:x?} on {:?}", self.arch);
    }
}

/// Asserts on every architecture that has the call.
#[track_caller]
fn expect(verdict: SyscallVerdict, name: &str, args: &[u64]) {
    let having = Arch::ALL.into_iter().filter(|arch| arch.call_number(name).is_some());
    let filters: Vec<_> = having.map(Filter::of).collect();
    assert!(!filters.is_empty(), "{name} is no system call");
    for filter in filters {
        filter.expect(verdict, name, args);
    }
}

const ABOVE: u64 = 0xdead_beef_0000_0000;

#[test]
fn the_embedded_filter_is_the_compiled_policy() {
    let arch = Arch::from_cargo(std::env::consts::ARCH).unwrap();
    assert_eq!(
        guest_filter(SyscallPolicy::Standard),
        bpf::program_bytes(&Filter::of(arch).program)
    );
    assert_eq!(guest_filter(SyscallPolicy::Standard).as_ptr().align_offset(8), 0);
}

#[test]
fn i386_calls_kill_the_process() {
    let filter = Filter::of(Arch::X86_64);
    for number in 0..500 {
        let call = Call { number, arch: 0x4000_0003, args: [0; 6] };
        assert_eq!(run(&filter.program, &call).value, return_value(SyscallVerdict::Kill));
    }
}

#[test]
fn x32_calls_are_not_implemented() {
    let filter = Filter::of(Arch::X86_64);
    for number in (0..600).map(|number| number | 0x4000_0000).chain([u32::MAX]) {
        let call = Call { number, arch: filter.arch.audit_arch(), args: [0; 6] };
        assert_eq!(run(&filter.program, &call).value, return_value(SyscallVerdict::NotImplemented));
    }
}

#[test]
fn namespaces_cannot_be_made_or_entered() {
    for bit in [17, 25, 26, 27, 28, 29, 30] {
        expect(SyscallVerdict::NotPermitted, "clone", &[1 << bit]);
        expect(SyscallVerdict::NotPermitted, "clone", &[1 << bit | ABOVE | 17]);
    }
    expect(SyscallVerdict::NotPermitted, "unshare", &[CLONE_NEWUSER]);
    expect(SyscallVerdict::NotPermitted, "setns", &[]);
    expect(SyscallVerdict::NotImplemented, "clone3", &[]);
}

#[test]
fn threads_and_forks_are_ordinary_clones() {
    let thread = 0x003d_0f00;
    let fork = 0x0120_0011;
    expect(SyscallVerdict::Allow, "clone", &[thread]);
    expect(SyscallVerdict::Allow, "clone", &[fork]);
    expect(SyscallVerdict::Allow, "clone", &[17]);
}

#[test]
fn no_lock_is_made_that_cannot_be_counted_for_its_process() {
    let (files, thread, fork_with_files) = (0x400, 0x003d_0f00, 0x411);
    for flags in [files, fork_with_files, fork_with_files | ABOVE, thread & !0x10000] {
        expect(SyscallVerdict::Invalid, "clone", &[flags]);
    }
    for command in [37, 38] {
        expect(SyscallVerdict::Invalid, "fcntl", &[3, command]);
        expect(SyscallVerdict::Invalid, "fcntl", &[3, command | ABOVE]);
    }
    for command in [0, 1, 5, 6, 7, 36, 1024, 1033] {
        expect(SyscallVerdict::Allow, "fcntl", &[3, command]);
    }
}

#[test]
fn the_mount_family_is_refused() {
    for call in [
        "mount",
        "umount2",
        "pivot_root",
        "chroot",
        "move_mount",
        "open_tree",
        "open_tree_attr",
        "fsopen",
        "fsconfig",
        "fsmount",
        "fspick",
        "mount_setattr",
    ] {
        expect(SyscallVerdict::NotPermitted, call, &[]);
    }
}

#[test]
fn calls_of_the_attack_list_are_refused() {
    for call in [
        "bpf",
        "perf_event_open",
        "userfaultfd",
        "keyctl",
        "add_key",
        "request_key",
        "kexec_load",
        "kexec_file_load",
        "init_module",
        "finit_module",
        "delete_module",
        "open_by_handle_at",
        "name_to_handle_at",
        "ptrace",
        "process_vm_readv",
        "process_vm_writev",
        "kcmp",
        "process_madvise",
        "pidfd_getfd",
        "quotactl",
        "acct",
        "swapon",
        "swapoff",
        "reboot",
        "settimeofday",
        "clock_settime",
        "clock_adjtime",
        "adjtimex",
        "sethostname",
        "setdomainname",
        "iopl",
        "ioperm",
        "vhangup",
        "syslog",
        "fanotify_init",
        "memfd_secret",
        "move_pages",
        "migrate_pages",
    ] {
        expect(SyscallVerdict::NotPermitted, call, &[]);
    }
    for call in ["io_uring_setup", "io_uring_enter", "io_uring_register", "lookup_dcookie"] {
        expect(SyscallVerdict::NotImplemented, call, &[]);
    }
}

#[test]
fn a_guest_cannot_load_bpf_programs_by_seccomp_or_sockets() {
    expect(SyscallVerdict::NotImplemented, "seccomp", &[1]);
    expect(SyscallVerdict::Invalid, "prctl", &[22, 2]);
    expect(SyscallVerdict::NotPermitted, "setsockopt", &[3, 1, 26]);
    // SO_RCVBUF, SO_RCVLOWAT; SO_SNDBUF.
    expect(SyscallVerdict::Ignore, "setsockopt", &[3, 1, 8 | ABOVE]);
    expect(SyscallVerdict::Ignore, "setsockopt", &[3, 1, 18]);
    expect(SyscallVerdict::Allow, "setsockopt", &[3, 1, 7]);
    expect(SyscallVerdict::NotPermitted, "setsockopt", &[3, 1 | ABOVE, 50 | ABOVE]);
    expect(SyscallVerdict::Allow, "setsockopt", &[3, 6, 26]);
    expect(SyscallVerdict::Allow, "setsockopt", &[3, 1, 2]);
}

#[test]
fn sockets_are_unix_tcp_udp_and_route_netlink() {
    let (stream, datagram, cloexec_nonblock) = (1, 2, 0o2_004_000);
    for family in [2, 10] {
        expect(SyscallVerdict::Allow, "socket", &[family, stream | cloexec_nonblock, 0]);
        expect(SyscallVerdict::Allow, "socket", &[family, stream, 6]);
        expect(SyscallVerdict::Allow, "socket", &[family, datagram, 17]);
        expect(SyscallVerdict::Allow, "socket", &[family, datagram, 136]);
    }
    expect(SyscallVerdict::Allow, "socket", &[1, 5, 0]);
    expect(SyscallVerdict::Allow, "socket", &[16, 3 | cloexec_nonblock, 0]);
    expect(SyscallVerdict::Allow, "socketpair", &[1, stream, 0]);
}

#[test]
fn other_socket_families_are_refused_as_unsupported() {
    let allowed = [1, 2, 10, 16];
    for family in (0..64).filter(|family| !allowed.contains(family)) {
        for kind in [1, 2, 3, 5, 10] {
            expect(SyscallVerdict::NoSuchFamily, "socket", &[family, kind, 0]);
            expect(SyscallVerdict::NoSuchFamily, "socket", &[family | ABOVE, kind, 0]);
        }
    }
    for family in (0..64).filter(|family| *family != 1) {
        expect(SyscallVerdict::NoSuchFamily, "socketpair", &[family, 1, 0]);
    }
}

#[test]
fn raw_sockets_and_odd_protocols_are_refused() {
    for family in [2, 10, 2 | ABOVE] {
        for kind in [3, 10, 3 | 0o2_000_000, 3 | ABOVE] {
            expect(SyscallVerdict::NotPermitted, "socket", &[family, kind, 1]);
        }
        for (kind, protocol) in [(1, 132), (5, 132), (6, 33), (1, 262), (2, 1)] {
            expect(SyscallVerdict::NoSuchProtocol, "socket", &[family, kind, protocol]);
        }
    }
}

#[test]
fn netlink_is_for_routes_only() {
    for protocol in 1..32 {
        expect(SyscallVerdict::NoSuchProtocol, "socket", &[16, 3, protocol]);
        expect(SyscallVerdict::NoSuchProtocol, "socket", &[16, 3, protocol | ABOVE]);
    }
}

#[test]
fn terminal_injection_is_refused_with_any_high_bits() {
    for request in [0x5412, 0x541c, 0x5423] {
        for high in [0, 1 << 32, ABOVE, u64::MAX << 32] {
            expect(SyscallVerdict::NotPermitted, "ioctl", &[0, request | high]);
        }
    }
    for request in [0x5401, 0x5413, 0x541b, 0x5421, 0x8004_5430] {
        expect(SyscallVerdict::Allow, "ioctl", &[0, request]);
    }
}

#[test]
fn device_nodes_and_whiteouts_cannot_be_made() {
    for kind in [0x2000, 0x6000, 0x4000, 0xa000, 0xf000] {
        for mode in [kind, kind | 0o666, kind | ABOVE] {
            expect(SyscallVerdict::NotPermitted, "mknod", &[0, mode]);
            expect(SyscallVerdict::NotPermitted, "mknodat", &[0, 0, mode]);
        }
    }
    for kind in [0, 0x8000, 0x1000, 0xc000] {
        expect(SyscallVerdict::Allow, "mknod", &[0, kind | 0o644]);
        expect(SyscallVerdict::Allow, "mknodat", &[0, 0, kind | 0o644]);
    }
    expect(SyscallVerdict::Invalid, "renameat2", &[0, 0, 0, 0, 4]);
    expect(SyscallVerdict::Allow, "renameat2", &[0, 0, 0, 0, 1]);
}

#[test]
fn prctl_may_set_the_name_but_not_the_memory_map() {
    for option in [1, 4, 15, 38, 0x5356_4d41] {
        expect(SyscallVerdict::Allow, "prctl", &[option]);
    }
    for option in [35, 28, 53, 59, 62, 67] {
        expect(SyscallVerdict::NotPermitted, "prctl", &[option]);
        expect(SyscallVerdict::NotPermitted, "prctl", &[option | ABOVE]);
    }
    expect(SyscallVerdict::Invalid, "prctl", &[4000]);
}

#[test]
fn only_harmless_personalities_are_allowed() {
    for persona in [0, 0xffff_ffff, u64::MAX, 0x0004_0000] {
        expect(SyscallVerdict::Allow, "personality", &[persona]);
    }
    for persona in [8, 0x0040_0000, 0x0002_0008, 0x0044_0000] {
        expect(SyscallVerdict::NotPermitted, "personality", &[persona]);
    }
}

#[test]
fn merging_equal_pages_is_refused() {
    expect(SyscallVerdict::Invalid, "madvise", &[0, 0, 12]);
    expect(SyscallVerdict::Allow, "madvise", &[0, 0, 4]);
}

#[test]
fn pid_one_of_a_cell_may_make_its_calls() {
    for call in [
        "wait4",
        "waitid",
        "read",
        "write",
        "sendmsg",
        "recvmsg",
        "exit_group",
        "kill",
        "execve",
        "dup2",
        "dup3",
        "fcntl",
        "setsid",
        "rt_sigprocmask",
        "landlock_restrict_self",
        "capset",
        "close_range",
        "pidfd_open",
        "pidfd_send_signal",
        "process_mrelease",
    ] {
        expect(SyscallVerdict::Allow, call, &[]);
    }
}

#[test]
fn unknown_numbers_are_not_implemented() {
    for arch in Arch::ALL {
        let filter = Filter::of(arch);
        for number in [470, 600, 5000, 0x3fff_ffff] {
            let call = Call { number, arch: arch.audit_arch(), args: [0; 6] };
            let value = run(&filter.program, &call).value;
            assert_eq!(value, return_value(SyscallVerdict::NotImplemented), "{number} on {arch:?}");
        }
    }
}

#[test]
fn the_policy_decides_every_known_call() {
    let policy = FilterPolicy::parse(TEXT).unwrap();
    let decided: Vec<&str> = policy.call_names().collect();
    let x86 = syscalls::x86_64::Sysno::iter().map(|call| call.name());
    let arm = syscalls::aarch64::Sysno::iter().map(|call| call.name());
    let forgotten: Vec<_> = x86.chain(arm).filter(|name| !decided.contains(name)).collect();
    assert!(forgotten.is_empty(), "no rule for {forgotten:?}");
}

#[test]
fn a_plain_call_costs_few_comparisons() {
    let policy = FilterPolicy::parse(TEXT).unwrap();
    for arch in Arch::ALL {
        let filter = Filter::of(arch);
        let plain = policy.allow.iter().flat_map(|rule| &rule.calls);
        let here = plain.filter(|name| arch.call_number(name).is_some());
        let deepest = here.map(|name| filter.ran(name, &[]).comparisons).max().unwrap();
        println!("{arch:?}: {} instructions, depth {deepest}", filter.program.len());
        assert!(deepest <= 14, "{deepest} comparisons on {arch:?}");
        assert!(filter.program.len() <= 512, "{} instructions", filter.program.len());
    }
}

#[test]
fn every_denied_call_is_listed_with_its_reason() {
    let policy = FilterPolicy::parse(TEXT).unwrap();
    for rule in &policy.deny {
        for call in &rule.calls {
            let denial = guest_denials().iter().find(|denial| denial.call == call).unwrap();
            assert_eq!((denial.errno, denial.why), (rule.errno.name(), rule.why.as_str()));
        }
    }
    let raw =
        guest_denials().iter().find(|denial| denial.when.is_some_and(|w| w.contains("SOCK_RAW")));
    assert_eq!(raw.unwrap().call, "socket");
    assert!(guest_denials().iter().all(|denial| denial.errno != "allow"));
}

#[track_caller]
fn refusal(from: &str, to: &str) -> String {
    assert!(TEXT.contains(from), "{from} is not in the policy");
    let policy = FilterPolicy::parse(&TEXT.replacen(from, to, 1));
    policy.and_then(|policy| RuleTable::new(&policy, Arch::X86_64)).unwrap_err().to_string()
}

#[test]
fn an_invalid_policy_is_refused_with_its_error() {
    let cases = [
        ("\"userfaultfd\"", "\"userfaultdf\"", "names `userfaultdf`"),
        ("\"userfaultfd\"", "\"read\"", "lists `read` twice"),
        ("runs guest-made programs inside the kernel\"", " \"", "gives no reason for `bpf`"),
        ("\"errno\": \"EPERM\"", "\"errno\": \"EPREM\"", "unknown variant `EPREM`"),
        ("\"errno\": \"EPERM\"", "\"errno\": \"allow\"", "a refusal needs an errno"),
        ("\"bits\": 64", "\"bits\": 16", "`bits` is 32 or 64"),
        ("\"arg\": 0", "\"arg\": 6", "looks at argument 6"),
        ("\"any_bit\"", "\"any_bits\"", "unknown field `any_bits`"),
        ("\"mask\": \"0xf\"", "\"mask\": \"0x1\"", "can never equal"),
        ("\"AF_UNIX\": 1", "\"AF_UNIX\": \"0x100000000\"", "can never equal"),
        ("\"0x5412\"", "\"5412\"", "is no number like"),
    ];
    for (from, to, sentence) in cases {
        let message = refusal(from, to);
        assert!(message.contains(sentence), "{message:?} does not contain {sentence:?}");
    }
}

#[test]
fn a_filter_longer_than_the_kernel_accepts_is_refused() {
    let many: Vec<String> = (0..5000).map(|value| format!("\"V{value}\": {value}")).collect();
    let text = TEXT.replacen("\"AF_UNIX\": 1", &many.join(","), 1);
    let table = RuleTable::new(&FilterPolicy::parse(&text).unwrap(), Arch::X86_64).unwrap();
    assert!(matches!(bpf::compile_filter(&table), Err(PolicyError::TooLong(_))));
}

#[test]
fn targets_beyond_eight_bits_are_reached() {
    let many: Vec<String> = (3000..3700).map(|value| format!("\"V{value}\": {value}")).collect();
    let text = TEXT.replacen("\"TIOCSETD\": \"0x5423\"", &many.join(","), 1);
    let table = RuleTable::new(&FilterPolicy::parse(&text).unwrap(), Arch::X86_64).unwrap();
    let filter = Filter { arch: Arch::X86_64, program: bpf::compile_filter(&table).unwrap() };
    assert!(filter.program.iter().any(|step| step.code == bpf::JUMP), "no far jump was needed");
    for request in [3000, 3001, 3255, 3256, 3500, 3699, 0x5412] {
        filter.expect(SyscallVerdict::NotPermitted, "ioctl", &[0, request]);
    }
    for request in [0, 2999, 3700, 0x5413] {
        filter.expect(SyscallVerdict::Allow, "ioctl", &[0, request]);
    }
    filter.expect(SyscallVerdict::Allow, "read", &[]);
    filter.expect(SyscallVerdict::NotPermitted, "mount", &[]);
}
