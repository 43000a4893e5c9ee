//! From names to numbers: the policy for one architecture, as a rule per system call number.
//!
//! Shared by `build.rs` and the tests. Must not know BPF.

use std::{collections::BTreeMap, str::FromStr};

use super::policy::{Clause, Condition, Policy, PolicyError, Verdict};

/// An architecture that Cloche builds for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arch {
    X86_64,
    Aarch64,
}

/// What to do with one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    Always(Verdict),
    Checked { clauses: Vec<Check>, otherwise: Verdict },
}

/// Conditions that must all hold for a verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Check {
    pub(crate) when: Vec<Condition>,
    pub(crate) then: Verdict,
}

/// The policy of one architecture.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) arch: Arch,
    pub(crate) x32: Verdict,
    pub(crate) default: Verdict,
    pub(crate) rules: BTreeMap<u32, Rule>,
}

impl Arch {
    /// Every architecture; a name must exist on one of them.
    pub(crate) const ALL: [Self; 2] = [Self::X86_64, Self::Aarch64];

    /// The architecture that Cargo calls so.
    pub(crate) fn from_cargo(name: &str) -> Option<Self> {
        match name {
            "x86_64" => Some(Self::X86_64),
            "aarch64" => Some(Self::Aarch64),
            _ => None,
        }
    }

    /// The kernel's name for it in `seccomp_data.arch`.
    pub(crate) fn audit(self) -> u32 {
        match self {
            Self::X86_64 => 0xc000_003e,
            Self::Aarch64 => 0xc000_00b7,
        }
    }

    /// The number of a call, if this architecture has it.
    pub(crate) fn number(self, name: &str) -> Option<u32> {
        let id = match self {
            Self::X86_64 => syscalls::x86_64::Sysno::from_str(name).ok()?.id(),
            Self::Aarch64 => syscalls::aarch64::Sysno::from_str(name).ok()?.id(),
        };
        u32::try_from(id).ok()
    }
}

impl Table {
    /// Resolves every name. A call that only another architecture has (`open` on aarch64) is left
    /// out; a name that none has is a mistake.
    pub(crate) fn new(policy: &Policy, arch: Arch) -> Result<Self, PolicyError> {
        let mut table = Self {
            arch,
            x32: policy.x32.errno,
            default: policy.default.errno,
            rules: BTreeMap::new(),
        };
        for call in policy.allow.iter().flat_map(|rule| &rule.calls) {
            table.add(call, Rule::Always(Verdict::Allow))?;
        }
        for rule in &policy.deny {
            for call in &rule.calls {
                table.add(call, Rule::Always(rule.errno))?;
            }
        }
        for rule in &policy.conditional {
            let clauses = rule.clauses.iter().map(Check::from).collect();
            table.add(&rule.call, Rule::Checked { clauses, otherwise: rule.otherwise.then })?;
        }
        Ok(table)
    }

    fn add(&mut self, call: &str, rule: Rule) -> Result<(), PolicyError> {
        if Arch::ALL.iter().all(|arch| arch.number(call).is_none()) {
            return Err(PolicyError::UnknownCall(call.to_owned()));
        }
        let Some(number) = self.arch.number(call) else { return Ok(()) };
        match self.rules.insert(number, rule) {
            Some(_) => Err(PolicyError::Twice(call.to_owned())),
            None => Ok(()),
        }
    }
}

impl From<&Clause> for Check {
    fn from(clause: &Clause) -> Self {
        Self { when: clause.when.clone(), then: clause.then }
    }
}
