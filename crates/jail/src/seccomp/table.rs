//! Runs in: the build and tests.
//!
//! Resolves names to numbers: the policy of one architecture, as one rule per system call number.
//!
//! It must not know BPF.

use std::{collections::BTreeMap, str::FromStr};

use super::policy::{ArgCondition, FilterPolicy, PolicyError, RuleClause, SyscallVerdict};

/// An architecture that Cloche builds for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arch {
    X86_64,
    Aarch64,
}

/// The rule of one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CallRule {
    Always(SyscallVerdict),
    Checked { clauses: Vec<ResolvedClause>, otherwise: SyscallVerdict },
}

/// Conditions that must all hold for a verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResolvedClause {
    pub(crate) when: Vec<ArgCondition>,
    pub(crate) then: SyscallVerdict,
}

/// The policy of one architecture.
#[derive(Debug)]
pub(crate) struct RuleTable {
    pub(crate) arch: Arch,
    pub(crate) x32: SyscallVerdict,
    pub(crate) default: SyscallVerdict,
    pub(crate) rules: BTreeMap<u32, CallRule>,
}

impl Arch {
    /// Every architecture. A name in a policy must exist on one of them.
    pub(crate) const ALL: [Self; 2] = [Self::X86_64, Self::Aarch64];

    /// The architecture by its name in Cargo.
    pub(crate) fn from_cargo(name: &str) -> Option<Self> {
        match name {
            "x86_64" => Some(Self::X86_64),
            "aarch64" => Some(Self::Aarch64),
            _ => None,
        }
    }

    /// Its value in `seccomp_data.arch`.
    pub(crate) fn audit_arch(self) -> u32 {
        match self {
            Self::X86_64 => 0xc000_003e,
            Self::Aarch64 => 0xc000_00b7,
        }
    }

    /// The number of a call, if this architecture has it.
    pub(crate) fn call_number(self, name: &str) -> Option<u32> {
        let id = match self {
            Self::X86_64 => syscalls::x86_64::Sysno::from_str(name).ok()?.id(),
            Self::Aarch64 => syscalls::aarch64::Sysno::from_str(name).ok()?.id(),
        };
        u32::try_from(id).ok()
    }
}

impl RuleTable {
    /// Resolves every name. A call that this architecture does not have (`open` on aarch64) is
    /// skipped; a name that no architecture has is an error.
    pub(crate) fn new(policy: &FilterPolicy, arch: Arch) -> Result<Self, PolicyError> {
        let mut table = Self {
            arch,
            x32: policy.x32.errno,
            default: policy.default.errno,
            rules: BTreeMap::new(),
        };
        for call in policy.allow.iter().flat_map(|rule| &rule.calls) {
            table.add_rule(call, CallRule::Always(SyscallVerdict::Allow))?;
        }
        for rule in &policy.deny {
            for call in &rule.calls {
                table.add_rule(call, CallRule::Always(rule.errno))?;
            }
        }
        for rule in &policy.conditional {
            let clauses = rule.clauses.iter().map(ResolvedClause::from).collect();
            table.add_rule(
                &rule.call,
                CallRule::Checked { clauses, otherwise: rule.otherwise.then },
            )?;
        }
        Ok(table)
    }

    fn add_rule(&mut self, call: &str, rule: CallRule) -> Result<(), PolicyError> {
        if Arch::ALL.iter().all(|arch| arch.call_number(call).is_none()) {
            return Err(PolicyError::UnknownCall(call.to_owned()));
        }
        let Some(number) = self.arch.call_number(call) else { return Ok(()) };
        match self.rules.insert(number, rule) {
            Some(_) => Err(PolicyError::Twice(call.to_owned())),
            None => Ok(()),
        }
    }
}

impl From<&RuleClause> for ResolvedClause {
    fn from(clause: &RuleClause) -> Self {
        Self { when: clause.when.clone(), then: clause.then }
    }
}
