//! Runs in: the build and tests.
//!
//! The policy in the format of an OCI bundle, for runtimes that install a filter themselves.
//!
//! A rule of ours is a list of clauses, of which the first that holds applies. The OCI format has no
//! order, and one comparison for each argument. So each rule is split into regions that do not
//! overlap: sets of bits that an argument has or has not. It must not know BPF.

use serde_json::{Value, json};

use super::{
    policy::{ArgCondition, ConditionalRule, FilterPolicy, SyscallVerdict},
    table::Arch,
};

/// The number of arguments of a system call.
const ARGUMENTS: usize = 6;

/// Bits of one argument: those that are compared, and their values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ArgBits {
    pub(crate) mask: u64,
    pub(crate) value: u64,
}

/// A set of calls: those whose arguments have these bits.
pub(crate) type ArgRegion = [ArgBits; ARGUMENTS];

/// One comparison: an argument by its number, and its bits.
type BitTest = (usize, ArgBits);

/// The policy as the member `linux.seccomp` of a bundle.
pub(crate) fn bundle_filter(policy: &FilterPolicy, arch: Arch) -> Value {
    let mut rules = Vec::new();
    let exists = |name: &&String| arch.call_number(name).is_some();
    for rule in &policy.allow {
        rules.extend(
            rule.calls
                .iter()
                .filter(exists)
                .map(|call| rule_entry(call, SyscallVerdict::Allow, None)),
        );
    }
    for rule in policy.deny.iter().filter(|rule| rule.errno != policy.default.errno) {
        rules.extend(
            rule.calls.iter().filter(exists).map(|call| rule_entry(call, rule.errno, None)),
        );
    }
    for rule in policy.conditional.iter().filter(|rule| exists(&&rule.call)) {
        let regions = split_rule(rule);
        let regions = regions.iter().filter(|(_, verdict)| *verdict != policy.default.errno);
        rules.extend(
            regions.map(|(region, verdict)| rule_entry(&rule.call, *verdict, Some(region))),
        );
    }
    let (_, errno) = action_of(policy.default.errno);
    let arch = match arch {
        Arch::X86_64 => "SCMP_ARCH_X86_64",
        Arch::Aarch64 => "SCMP_ARCH_AARCH64",
    };
    json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": errno,
        "architectures": [arch],
        "syscalls": rules,
    })
}

/// The same for gVisor, which applies the first entry that fits, allows 4096 instructions, and knows
/// no error but `EPERM`. A call that is to be traced, by no tracer, gets `ENOSYS`.
pub(crate) fn ordered_bundle_filter(policy: &FilterPolicy, arch: Arch) -> Value {
    let existing = |calls: &[String]| -> Vec<String> {
        let known = calls.iter().filter(|name| arch.call_number(name).is_some());
        known.flat_map(|name| gvisor_names(name)).map(str::to_owned).collect()
    };
    let mut rules: Vec<Value> = Vec::new();
    for rule in &policy.allow {
        let names = existing(&rule.calls);
        rules.push(json!({"names": names, "action": gvisor_action(SyscallVerdict::Allow)}));
    }
    for rule in policy.deny.iter().filter(|rule| rule.errno != policy.default.errno) {
        let names = existing(&rule.calls);
        rules.push(json!({"names": names, "action": gvisor_action(rule.errno)}));
    }
    rules.retain(|rule| rule["names"] != json!([]));
    for rule in policy.conditional.iter().filter(|rule| arch.call_number(&rule.call).is_some()) {
        for clause in &rule.clauses {
            let regions = expand_conditions(&clause.when);
            rules.extend(regions.iter().filter_map(|tests| merge_tests(tests)).map(|region| {
                let entry = rule_entry(&rule.call, clause.then, Some(&region));
                json!({"names": entry["names"], "args": entry["args"],
                       "action": gvisor_action(clause.then)})
            }));
        }
        let action = gvisor_action(rule.otherwise.then);
        rules.push(json!({"names": [rule.call], "action": action}));
    }
    json!({"defaultAction": gvisor_action(policy.default.errno), "syscalls": rules})
}

/// The names of a call in gVisor. It leaves out names that it does not know, and some of its versions
/// had another name for a call.
fn gvisor_names(name: &str) -> impl Iterator<Item = &str> {
    const OLD_NAMES: [(&str, &str); 1] = [("pselect6", "pselect")];
    let old = OLD_NAMES.iter().filter(move |(new, _)| *new == name).map(|(_, old)| *old);
    [name].into_iter().chain(old)
}

/// The action of a verdict in gVisor.
const fn gvisor_action(verdict: SyscallVerdict) -> &'static str {
    match verdict {
        // `Ignore` and `Invalid` keep memory small that the host's kernel would allocate uncounted.
        // gVisor has all of that in its own, which is the cell's.
        SyscallVerdict::Allow | SyscallVerdict::Ignore | SyscallVerdict::Invalid => {
            "SCMP_ACT_ALLOW"
        }
        SyscallVerdict::NotImplemented => "SCMP_ACT_TRACE",
        SyscallVerdict::NotPermitted
        | SyscallVerdict::NoSuchProtocol
        | SyscallVerdict::NoSuchFamily => "SCMP_ACT_ERRNO",
        SyscallVerdict::Kill => "SCMP_ACT_KILL_PROCESS",
    }
}

/// The region in which all comparisons hold; `None` if two exclude each other.
fn merge_tests(tests: &[BitTest]) -> Option<ArgRegion> {
    let mut region = ArgRegion::default();
    for (arg, test) in tests {
        let known = &mut region[*arg];
        if (known.value ^ test.value) & known.mask & test.mask != 0 {
            return None;
        }
        *known = ArgBits { mask: known.mask | test.mask, value: known.value | test.value };
    }
    Some(region)
}

/// Splits a rule into regions that do not overlap and together are all calls.
pub(crate) fn split_rule(rule: &ConditionalRule) -> Vec<(ArgRegion, SyscallVerdict)> {
    let mut split = Vec::new();
    let mut rest = vec![ArgRegion::default()];
    for clause in &rule.clauses {
        for tests in expand_conditions(&clause.when) {
            let mut left = Vec::new();
            for region in rest {
                let (inside, outside) = divide_region(region, &tests);
                split.extend(inside.map(|inside| (inside, clause.then)));
                left.extend(outside);
            }
            rest = left;
        }
    }
    split.extend(rest.into_iter().map(|region| (region, rule.otherwise.then)));
    split
}

/// All combinations of comparisons under which every condition holds.
fn expand_conditions(conditions: &[ArgCondition]) -> Vec<Vec<BitTest>> {
    let mut all: Vec<Vec<BitTest>> = vec![Vec::new()];
    for condition in conditions {
        let tests = condition_tests(condition);
        let longer = |before: &Vec<BitTest>| {
            let before = before.clone();
            tests.iter().map(move |test| before.iter().copied().chain([*test]).collect())
        };
        all = all.iter().flat_map(longer).collect();
    }
    all
}

/// The comparisons of which one must hold.
fn condition_tests(condition: &ArgCondition) -> Vec<BitTest> {
    let (arg, mask) = (usize::from(condition.arg), condition.effective_mask().0);
    let equal = condition.one_of.values().map(|value| ArgBits { mask, value: value.0 });
    let bits = condition.any_bit.values().fold(0, |bits, value| bits | value.0);
    let bits = (0..u64::BITS).map(|bit| 1 << bit).filter(|bit| bits & bit != 0);
    equal.chain(bits.map(|bit| ArgBits { mask: bit, value: bit })).map(|test| (arg, test)).collect()
}

/// The part of a region for which all comparisons hold, and the parts for which one does not.
fn divide_region(region: ArgRegion, tests: &[BitTest]) -> (Option<ArgRegion>, Vec<ArgRegion>) {
    let (mut inside, mut outside) = (region, Vec::new());
    for (arg, test) in tests {
        let known = inside[*arg];
        if (known.value ^ test.value) & known.mask & test.mask != 0 {
            outside.push(inside);
            return (None, outside);
        }
        for bit in (0..u64::BITS).rev().map(|bit| 1 << bit) {
            if test.mask & !known.mask & bit == 0 {
                continue;
            }
            let mut other = inside;
            inside[*arg].mask |= bit;
            inside[*arg].value |= test.value & bit;
            other[*arg].mask |= bit;
            other[*arg].value |= !test.value & bit;
            outside.push(other);
        }
    }
    (Some(inside), outside)
}

fn rule_entry(call: &str, verdict: SyscallVerdict, region: Option<&ArgRegion>) -> Value {
    let (action, errno) = action_of(verdict);
    let mut entry = json!({"names": [call], "action": action});
    if let Some(errno) = errno {
        entry["errnoRet"] = errno.into();
    }
    let arguments = region.into_iter().flatten().enumerate().filter(|(_, bits)| bits.mask != 0);
    let arguments: Vec<Value> = arguments
        .map(|(index, bits)| {
            json!({
                "index": index,
                "value": bits.mask,
                "valueTwo": bits.value,
                "op": "SCMP_CMP_MASKED_EQ",
            })
        })
        .collect();
    if !arguments.is_empty() {
        entry["args"] = arguments.into();
    }
    entry
}

/// The action of a verdict, and the error that it returns.
fn action_of(verdict: SyscallVerdict) -> (&'static str, Option<u32>) {
    const ERRNO: &str = "SCMP_ACT_ERRNO";
    match verdict {
        SyscallVerdict::Allow => ("SCMP_ACT_ALLOW", None),
        SyscallVerdict::Ignore => (ERRNO, Some(0)),
        SyscallVerdict::NotPermitted => (ERRNO, Some(1)),
        SyscallVerdict::Invalid => (ERRNO, Some(22)),
        SyscallVerdict::NotImplemented => (ERRNO, Some(38)),
        SyscallVerdict::NoSuchProtocol => (ERRNO, Some(93)),
        SyscallVerdict::NoSuchFamily => (ERRNO, Some(97)),
        SyscallVerdict::Kill => ("SCMP_ACT_KILL_PROCESS", None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUEST: &str = include_str!("../../policy/seccomp.json");

    fn matches(region: &ArgRegion, args: &[u64; ARGUMENTS]) -> bool {
        region.iter().zip(args).all(|(bits, arg)| arg & bits.mask == bits.value)
    }

    /// The rule as the policy means it: the first clause that holds.
    fn verdict_in_order(rule: &ConditionalRule, args: &[u64; ARGUMENTS]) -> SyscallVerdict {
        let holds = |condition: &ArgCondition| {
            let arg = args[usize::from(condition.arg)];
            let masked = arg & condition.effective_mask().0;
            condition.one_of.values().any(|value| masked == value.0)
                || condition.any_bit.values().any(|bits| arg & bits.0 != 0)
        };
        let clause = rule.clauses.iter().find(|clause| clause.when.iter().all(holds));
        clause.map_or(rule.otherwise.then, |clause| clause.then)
    }

    /// Every value that the rule names, its neighbours, and others, with and without high bits.
    fn interesting_values(rule: &ConditionalRule) -> Vec<u64> {
        let conditions = rule.clauses.iter().flat_map(|clause| &clause.when);
        let named = conditions.flat_map(|one| one.one_of.values().chain(one.any_bit.values()));
        let mut values: Vec<u64> = vec![0, 1, 2, 7, 0xf, 0x1234, u64::from(u32::MAX), u64::MAX];
        for value in named.map(|value| value.0) {
            values.extend([value, value ^ 1, value | 0x800, value | 1 << 32, value | 1 << 17]);
        }
        values.sort_unstable();
        values.dedup();
        values
    }

    #[test]
    fn the_regions_of_a_rule_are_disjoint_and_mean_what_its_clauses_mean() {
        let policy = FilterPolicy::parse(GUEST).unwrap();
        assert!(policy.conditional.len() > 8);
        for rule in &policy.conditional {
            let regions = split_rule(rule);
            let used: Vec<usize> = (0..ARGUMENTS)
                .filter(|at| regions.iter().any(|(region, _)| region[*at].mask != 0))
                .collect();
            let values = interesting_values(rule);
            // All pairs of the first two arguments that the rule looks at, and some thirds.
            for (step, first) in values.iter().enumerate() {
                for second in &values {
                    let mut args = [values[step * 7 % values.len()]; ARGUMENTS];
                    for (at, value) in used.iter().zip([first, second]) {
                        args[*at] = *value;
                    }
                    let found: Vec<SyscallVerdict> = regions
                        .iter()
                        .filter(|(region, _)| matches(region, &args))
                        .map(|(_, verdict)| *verdict)
                        .collect();
                    assert_eq!(found, [verdict_in_order(rule, &args)], "{} {args:?}", rule.call);
                }
            }
        }
    }

    #[test]
    fn in_order_the_first_entry_that_fits_means_what_the_clauses_mean() {
        let policy = FilterPolicy::parse(GUEST).unwrap();
        let filter = ordered_bundle_filter(&policy, Arch::X86_64);
        assert_eq!(filter["defaultAction"], "SCMP_ACT_TRACE");
        let entries = filter["syscalls"].as_array().unwrap();
        let fits = |entry: &Value, call: &str, args: &[u64; ARGUMENTS]| {
            let tests = entry["args"].as_array().cloned().unwrap_or_default();
            entry["names"].as_array().unwrap().iter().any(|name| name == call)
                && tests.iter().all(|test| {
                    let arg = args[test["index"].as_u64().unwrap() as usize];
                    arg & test["value"].as_u64().unwrap() == test["valueTwo"].as_u64().unwrap()
                })
        };
        for rule in &policy.conditional {
            let values = interesting_values(rule);
            for (first, second) in values.iter().flat_map(|a| values.iter().map(move |b| (a, b))) {
                let args = [*first, *second, *first, *second, *second, *first];
                let found = entries.iter().find(|entry| fits(entry, &rule.call, &args)).unwrap();
                let wanted = gvisor_action(verdict_in_order(rule, &args));
                assert_eq!(found["action"], wanted, "{} {args:?}", rule.call);
            }
        }
    }

    #[test]
    fn a_filter_refuses_what_the_policy_does_not_name_and_knows_only_calls_that_exist() {
        let policy = FilterPolicy::parse(GUEST).unwrap();
        for arch in Arch::ALL {
            let filter = bundle_filter(&policy, arch);
            assert_eq!(filter["defaultAction"], "SCMP_ACT_ERRNO");
            assert_eq!(filter["defaultErrnoRet"], 38);
            let rules = filter["syscalls"].as_array().unwrap();
            for rule in rules {
                assert!(arch.call_number(rule["names"][0].as_str().unwrap()).is_some(), "{rule}");
            }
            let of = |name: &str| rules.iter().filter(|rule| rule["names"][0] == name).count();
            assert_eq!((of("read"), of("bpf")), (1, 1));
        }
    }
}
