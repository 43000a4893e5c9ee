//! Runs in: tests.
//!
//! Random calls and random policies: the compiled filter must agree with a naive reading of the
//! parsed policy, by name, rule by rule.

use proptest::{collection, prelude::*, sample};

use super::{
    Arch, Call, FilterPolicy, RuleTable, SyscallVerdict, TEXT, bpf, machine::run, return_value,
};
use crate::seccomp::policy::{ArgCondition, ArgWidth, RuleClause};

/// The verdict of the policy for a call, read from top to bottom.
fn naive(policy: &FilterPolicy, arch: Arch, call: &Call) -> SyscallVerdict {
    if call.arch != arch.audit_arch() {
        return SyscallVerdict::Kill;
    }
    if arch == Arch::X86_64 && call.number & 0x4000_0000 != 0 {
        return policy.x32.errno;
    }
    let is = |name: &str| arch.call_number(name) == Some(call.number);
    if policy.allow.iter().flat_map(|rule| &rule.calls).any(|name| is(name)) {
        return SyscallVerdict::Allow;
    }
    if let Some(rule) = policy.deny.iter().find(|rule| rule.calls.iter().any(|name| is(name))) {
        return rule.errno;
    }
    let Some(rule) = policy.conditional.iter().find(|rule| is(&rule.call)) else {
        return policy.default.errno;
    };
    let all_hold = |clause: &&RuleClause| clause.when.iter().all(|when| holds(when, call));
    rule.clauses.iter().find(all_hold).map_or(rule.otherwise.then, |clause| clause.then)
}

fn holds(when: &ArgCondition, call: &Call) -> bool {
    let full = call.args[usize::from(when.arg)];
    let read = if when.bits == ArgWidth::Low32 { full % (1 << 32) } else { full };
    if when.any_bit.is_empty() {
        let masked = when.mask.map_or(read, |mask| read & mask.0);
        when.one_of.values().any(|value| value.0 == masked)
    } else {
        when.any_bit.values().any(|bits| read & bits.0 != 0)
    }
}

/// Values near those that rules compare with, sometimes with random bits in the upper half.
fn argument(policy: &FilterPolicy) -> impl Strategy<Value = u64> + use<> {
    let conditions = policy.conditional.iter().flat_map(|rule| &rule.clauses).flat_map(|c| &c.when);
    let values = conditions.flat_map(|when| when.one_of.values().chain(when.any_bit.values()));
    let interesting: Vec<u64> = values.map(|value| value.0).chain([0, u64::MAX]).collect();
    let near = (sample::select(interesting), -1_i64..=1, prop_oneof![Just(0), any::<u32>()])
        .prop_map(|(value, by, high)| value.wrapping_add_signed(by) ^ u64::from(high) << 32);
    prop_oneof![3 => near, 1 => any::<u64>()]
}

fn number(policy: &FilterPolicy, arch: Arch) -> impl Strategy<Value = u32> + use<> {
    let checked: Vec<u32> =
        policy.conditional.iter().filter_map(|rule| arch.call_number(&rule.call)).collect();
    let x32 = (0_u32..600).prop_map(|number| number | 0x4000_0000);
    prop_oneof![4 => 0_u32..600, 4 => sample::select(checked), 1 => x32, 1 => any::<u32>()]
}

fn any_call(policy: &FilterPolicy, arch: Arch) -> impl Strategy<Value = Call> + use<> {
    let audit = prop_oneof![
        8 => Just(arch.audit_arch()),
        1 => sample::select(vec![0x4000_0003, 0x4000_0028, 0xc000_003e, 0xc000_00b7]),
        1 => any::<u32>(),
    ];
    (number(policy, arch), audit, prop::array::uniform6(argument(policy)))
        .prop_map(|(number, arch, args)| Call { number, arch, args })
}

fn any_arch() -> impl Strategy<Value = Arch> {
    sample::select(Arch::ALL.to_vec())
}

/// A random valid condition as JSON.
fn any_condition() -> impl Strategy<Value = String> {
    let word = prop_oneof![0_u64..20, any::<u64>(), any::<u32>().prop_map(u64::from)];
    let values = collection::vec(word.clone(), 1..12);
    let mask = prop_oneof![Just(u64::MAX), word];
    (0_u8..6, any::<bool>(), any::<bool>(), mask, values).prop_map(
        |(arg, wide, bits, mask, values)| {
            let mask = if wide { mask } else { mask % (1 << 32) };
            let fit = |value: u64| match (bits, wide) {
                (true, true) => value | 1,
                (true, false) => (value % (1 << 32)) | 1,
                (false, _) => value & mask,
            };
            let list: Vec<String> = values
                .iter()
                .enumerate()
                .map(|(at, &value)| format!("\"v{at}\": \"{:#x}\"", fit(value)))
                .collect();
            let width = if wide { 64 } else { 32 };
            let list = list.join(",");
            if bits {
                format!("{{\"arg\":{arg},\"bits\":{width},\"any_bit\":{{{list}}}}}")
            } else {
                format!(
                    "{{\"arg\":{arg},\"bits\":{width},\"mask\":\"{mask:#x}\",\"in\":{{{list}}}}}"
                )
            }
        },
    )
}

fn any_rule(call: &'static str) -> impl Strategy<Value = String> {
    let verdict = sample::select(vec!["allow", "EPERM", "EINVAL", "ENOSYS", "EAFNOSUPPORT"]);
    let clause =
        (collection::vec(any_condition(), 1..4), verdict.clone()).prop_map(|(when, then)| {
            format!("{{\"when\":[{}],\"then\":\"{then}\",\"why\":\"w\"}}", when.join(","))
        });
    (collection::vec(clause, 1..9), verdict).prop_map(move |(clauses, rest)| {
        let clauses = clauses.join(",");
        let rest = format!("{{\"then\":\"{rest}\",\"why\":\"w\"}}");
        format!("{{\"call\":\"{call}\",\"clauses\":[{clauses}],\"otherwise\":{rest}}}")
    })
}

/// Policies whose argument checks are long enough to need far jumps.
fn any_policy() -> impl Strategy<Value = FilterPolicy> {
    let rules = (any_rule("ioctl"), any_rule("prctl"), any_rule("socket"), any_rule("read"));
    rules.prop_map(|(a, b, c, d)| {
        let text = format!(
            r#"{{"about":"a","foreign_arch":{{"why":"w"}},"x32":{{"errno":"ENOSYS","why":"w"}},
            "default":{{"errno":"ENOSYS","why":"w"}},
            "allow":[{{"calls":["write","close","open","openat","futex"],"why":"w"}}],
            "deny":[{{"calls":["mount","bpf"],"errno":"EPERM","why":"w"}}],
            "conditional":[{a},{b},{c},{d}]}}"#
        );
        FilterPolicy::parse(&text).expect("generated policies are valid")
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_filter_agrees_with_the_policy_on_random_calls(
        (arch, calls) in any_arch().prop_flat_map(|arch| {
            let policy = FilterPolicy::parse(TEXT).unwrap();
            (Just(arch), collection::vec(any_call(&policy, arch), 40))
        })
    ) {
        let policy = FilterPolicy::parse(TEXT).unwrap();
        let program = bpf::compile_filter(&RuleTable::new(&policy, arch).unwrap()).unwrap();
        for call in calls {
            let expected = return_value(naive(&policy, arch, &call));
            prop_assert_eq!(run(&program, &call).value, expected, "{:x?}", call);
        }
    }

    #[test]
    fn the_filter_agrees_with_random_policies(
        (arch, policy, calls) in (any_arch(), any_policy()).prop_flat_map(|(arch, policy)| {
            let calls = collection::vec(any_call(&policy, arch), 40);
            (Just(arch), Just(std::sync::Arc::new(policy)), calls)
        })
    ) {
        let program = bpf::compile_filter(&RuleTable::new(&policy, arch).unwrap()).unwrap();
        for call in calls {
            let expected = return_value(naive(&policy, arch, &call));
            prop_assert_eq!(run(&program, &call).value, expected, "{:x?}", call);
        }
    }

    #[test]
    fn the_parser_does_not_panic_on_any_text(text in "\\PC{0,200}") {
        let _ = FilterPolicy::parse(&text);
    }

    #[test]
    fn a_damaged_policy_never_panics(
        at in 0..TEXT.len(), cut in 0_usize..40, insert in "[\\[\\]{}\":,0-9a-zA-Z]{0,6}"
    ) {
        let end = (at + cut).min(TEXT.len());
        let (Some(head), Some(tail)) = (TEXT.get(..at), TEXT.get(end..)) else { return Ok(()) };
        if let Ok(policy) = FilterPolicy::parse(&format!("{head}{insert}{tail}")) {
            for arch in Arch::ALL {
                let _ = RuleTable::new(&policy, arch).and_then(|table| bpf::compile_filter(&table));
            }
        }
    }
}
