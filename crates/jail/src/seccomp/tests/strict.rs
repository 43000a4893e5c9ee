//! Runs in: tests.
//!
//! The strict filter: it allows less than the standard one, and never more.

use super::{
    super::{SyscallPolicy, guest_filter, strict::StrictPolicy},
    Arch, Call, FilterPolicy, RuleTable, SyscallVerdict, TEXT, bpf, return_value, run,
};

const STRICT: &str = include_str!("../../../policy/strict.json");

fn compiled(policy: &FilterPolicy, arch: Arch) -> Vec<bpf::BpfInstruction> {
    bpf::compile_filter(&RuleTable::new(policy, arch).unwrap()).unwrap()
}

fn strict() -> FilterPolicy {
    StrictPolicy::derive_policy(STRICT, FilterPolicy::parse(TEXT).unwrap()).unwrap()
}

#[test]
fn the_embedded_strict_filter_is_the_derived_policy() {
    let arch = Arch::from_cargo(std::env::consts::ARCH).unwrap();
    assert_eq!(guest_filter(SyscallPolicy::Strict), bpf::program_bytes(&compiled(&strict(), arch)));
    assert_eq!(guest_filter(SyscallPolicy::Strict).as_ptr().align_offset(8), 0);
}

#[test]
fn the_strict_filter_allows_nothing_that_the_standard_one_refuses() {
    let allow = return_value(SyscallVerdict::Allow);
    for arch in Arch::ALL {
        let standard = compiled(&FilterPolicy::parse(TEXT).unwrap(), arch);
        let strict = compiled(&strict(), arch);
        for number in 0..600 {
            for first in [0, 1, 2, 10, 16, 17, 53, 0x1000_0000, u64::from(u32::MAX)] {
                for second in [0, 1, 2, 3, 12, 0x5412] {
                    let args = [first, second, second, 0, second, 0];
                    let call = Call { number, arch: arch.audit_arch(), args };
                    if run(&strict, &call).value == allow {
                        assert_eq!(run(&standard, &call).value, allow, "{number} {args:x?}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_strict_filter_allows_local_sockets_only() {
    let strict = compiled(&strict(), Arch::X86_64);
    let number = Arch::X86_64.call_number("socket").unwrap();
    for family in 0..64 {
        let wanted = if family == 1 { SyscallVerdict::Allow } else { SyscallVerdict::NoSuchFamily };
        let call = Call { number, arch: Arch::X86_64.audit_arch(), args: [family, 1, 0, 0, 0, 0] };
        assert_eq!(run(&strict, &call).value, return_value(wanted), "{family}");
    }
}

#[test]
fn the_strict_policy_cannot_remove_a_call_that_is_not_allowed() {
    let text = r#"{"about": "x", "replace": [],
        "remove": [{"why": "x", "errno": "EPERM", "calls": ["bpf"]}]}"#;
    let error = StrictPolicy::derive_policy(text, FilterPolicy::parse(TEXT).unwrap()).unwrap_err();
    assert!(error.to_string().contains("`bpf`"), "{error}");
}

const CONTAINED: &str = include_str!("../../../policy/contained.json");

fn contained() -> FilterPolicy {
    StrictPolicy::derive_policy(CONTAINED, strict()).unwrap()
}

#[test]
fn the_embedded_contained_filter_is_the_derived_policy() {
    let arch = Arch::from_cargo(std::env::consts::ARCH).unwrap();
    let embedded = guest_filter(SyscallPolicy::Contained);
    assert_eq!(embedded, bpf::program_bytes(&compiled(&contained(), arch)));
}

#[test]
fn a_contained_cell_makes_no_socket_and_changes_no_limit_of_another_process() {
    let contained = compiled(&contained(), Arch::X86_64);
    let verdict = |name: &str, first: u64| {
        let number = Arch::X86_64.call_number(name).unwrap();
        let call = Call { number, arch: Arch::X86_64.audit_arch(), args: [first, 1, 0, 0, 0, 0] };
        run(&contained, &call).value
    };
    let allow = return_value(SyscallVerdict::Allow);
    for family in 0..64 {
        assert_ne!(verdict("socket", family), allow, "{family}");
    }
    assert_eq!(verdict("socketpair", 1), allow);
    assert_eq!(verdict("prlimit64", 0), allow);
    // The kernel reads the lower half only.
    assert_eq!(verdict("prlimit64", 1 << 32), allow);
    for pid in [1, 2, 4_000_000, u64::from(u32::MAX)] {
        assert_ne!(verdict("prlimit64", pid), allow, "{pid}");
    }
}
