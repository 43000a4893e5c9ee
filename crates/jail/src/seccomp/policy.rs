//! Runs in: the build and tests.
//!
//! The system call policy as in `policy/seccomp.json`: its format, and what makes it valid.
//!
//! It knows names and reasons. It must not know system call numbers or BPF.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Deserializer, de};

/// Why a policy cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PolicyError {
    #[error("the syscall policy has the wrong format: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the syscall policy lists `{0}` twice, so it is unclear which rule holds")]
    Twice(String),
    #[error("the syscall policy gives no reason for {0}")]
    NoReason(String),
    #[error("the syscall policy refuses {0} with \"allow\"; a refusal needs an errno")]
    AllowedRefusal(String),
    #[error("the syscall policy's rule for `{call}` {problem}")]
    BadClause { call: String, problem: String },
    #[error(
        "the syscall policy names `{0}`, which is not a system call of a supported architecture"
    )]
    UnknownCall(String),
    #[error("the strict syscall policy removes `{0}`, which the standard policy does not allow")]
    NotAllowedBefore(String),
    #[error("the syscall filter is {0} instructions long; the kernel accepts at most 4096")]
    TooLong(usize),
}

/// What the kernel does with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
pub(crate) enum SyscallVerdict {
    #[serde(rename = "allow")]
    Allow,
    /// Returns success without making the call.
    #[serde(rename = "ignore")]
    Ignore,
    #[serde(rename = "EPERM")]
    NotPermitted,
    #[serde(rename = "EINVAL")]
    Invalid,
    #[serde(rename = "ENOSYS")]
    NotImplemented,
    #[serde(rename = "EPROTONOSUPPORT")]
    NoSuchProtocol,
    #[serde(rename = "EAFNOSUPPORT")]
    NoSuchFamily,
    /// Kills the process; for our own processes, and for a foreign architecture.
    #[serde(rename = "kill")]
    Kill,
}

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FilterPolicy {
    pub(crate) about: String,
    pub(crate) foreign_arch: FixedReason,
    pub(crate) x32: RefusalRule,
    pub(crate) default: RefusalRule,
    pub(crate) allow: Vec<AllowRule>,
    pub(crate) deny: Vec<DenyRule>,
    pub(crate) conditional: Vec<ConditionalRule>,
}

/// The reason for a rule that is fixed in code.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FixedReason {
    pub(crate) why: String,
}

/// An errno and the reason for it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RefusalRule {
    pub(crate) errno: SyscallVerdict,
    pub(crate) why: String,
}

/// Calls that are allowed for one reason.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AllowRule {
    pub(crate) calls: Vec<String>,
    pub(crate) why: String,
}

/// Calls that are refused for one reason.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DenyRule {
    pub(crate) calls: Vec<String>,
    pub(crate) errno: SyscallVerdict,
    pub(crate) why: String,
}

/// A call whose arguments decide. The first clause that holds applies.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConditionalRule {
    pub(crate) call: String,
    pub(crate) clauses: Vec<RuleClause>,
    pub(crate) otherwise: OtherwiseClause,
}

/// Conditions that must all hold, and the verdict.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RuleClause {
    pub(crate) when: Vec<ArgCondition>,
    pub(crate) then: SyscallVerdict,
    pub(crate) why: String,
}

/// The verdict if no clause holds.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OtherwiseClause {
    pub(crate) then: SyscallVerdict,
    pub(crate) why: String,
}

/// A condition on one argument. Values have their C names, for the reader.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ArgCondition {
    pub(crate) arg: u8,
    /// How many bits of the register the kernel reads.
    pub(crate) bits: ArgWidth,
    /// Applied to the argument before `in`.
    #[serde(default)]
    pub(crate) mask: Option<PolicyNumber>,
    /// Holds if the argument is one of these.
    #[serde(default, rename = "in")]
    pub(crate) one_of: BTreeMap<String, PolicyNumber>,
    /// Holds if any of these bits is set.
    #[serde(default)]
    pub(crate) any_bit: BTreeMap<String, PolicyNumber>,
}

/// How many bits of an argument register count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArgWidth {
    Low32,
    Full64,
}

/// A number, written as a JSON integer or as `"0x…"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PolicyNumber(pub(crate) u64);

impl<'de> Deserialize<'de> for ArgWidth {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        match u8::deserialize(source)? {
            32 => Ok(Self::Low32),
            64 => Ok(Self::Full64),
            other => Err(de::Error::custom(format!("`bits` is 32 or 64, not {other}"))),
        }
    }
}

impl<'de> Deserialize<'de> for PolicyNumber {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum WrittenNumber {
            Number(u64),
            Text(String),
        }
        match WrittenNumber::deserialize(source)? {
            WrittenNumber::Number(value) => Ok(Self(value)),
            WrittenNumber::Text(text) => text
                .strip_prefix("0x")
                .and_then(|digits| u64::from_str_radix(digits, 16).ok())
                .map(Self)
                .ok_or_else(|| de::Error::custom(format!("{text:?} is no number like \"0x1f\""))),
        }
    }
}

impl FilterPolicy {
    /// Reads and checks a policy.
    pub(crate) fn parse(text: &str) -> Result<Self, PolicyError> {
        let policy: Self = serde_json::from_str(text)?;
        policy.check_rules()?;
        Ok(policy)
    }

    /// Checks that every rule is valid and has a reason.
    pub(crate) fn check_rules(&self) -> Result<(), PolicyError> {
        self.check_reasons()?;
        self.check_names()?;
        self.conditional.iter().try_for_each(ConditionalRule::check_clauses)
    }

    fn check_reasons(&self) -> Result<(), PolicyError> {
        let group = |calls: &[String]| calls.first().cloned().unwrap_or_else(|| "nothing".into());
        let mut reasons = vec![
            (&self.about, "the policy itself".to_owned()),
            (&self.foreign_arch.why, "`foreign_arch`".to_owned()),
            (&self.x32.why, "`x32`".to_owned()),
            (&self.default.why, "`default`".to_owned()),
        ];
        reasons
            .extend(self.allow.iter().map(|rule| (&rule.why, format!("`{}`", group(&rule.calls)))));
        reasons
            .extend(self.deny.iter().map(|rule| (&rule.why, format!("`{}`", group(&rule.calls)))));
        for rule in &self.conditional {
            let whys = rule.clauses.iter().map(|clause| &clause.why).chain([&rule.otherwise.why]);
            reasons.extend(whys.map(|why| (why, format!("`{}`", rule.call))));
        }
        match reasons.into_iter().find(|(why, _)| why.trim().is_empty()) {
            Some((_, what)) => Err(PolicyError::NoReason(what)),
            None => Ok(()),
        }
    }

    fn check_names(&self) -> Result<(), PolicyError> {
        let refusals = [(&self.x32.errno, "x32"), (&self.default.errno, "default")];
        let groups = self.deny.iter().map(|rule| (&rule.errno, rule.why.as_str()));
        for (errno, what) in refusals.into_iter().chain(groups) {
            if *errno == SyscallVerdict::Allow {
                return Err(PolicyError::AllowedRefusal(format!("`{what}`")));
            }
        }
        let mut seen = BTreeSet::new();
        match self.call_names().find(|name| !seen.insert(*name)) {
            Some(name) => Err(PolicyError::Twice(name.to_owned())),
            None => Ok(()),
        }
    }

    /// Every call that the policy decides, in the order of the file.
    pub(crate) fn call_names(&self) -> impl Iterator<Item = &str> {
        let allowed = self.allow.iter().flat_map(|rule| &rule.calls);
        let denied = self.deny.iter().flat_map(|rule| &rule.calls);
        let conditional = self.conditional.iter().map(|rule| &rule.call);
        allowed.chain(denied).chain(conditional).map(String::as_str)
    }
}

impl ConditionalRule {
    fn check_clauses(&self) -> Result<(), PolicyError> {
        let bad = |problem: String| PolicyError::BadClause { call: self.call.clone(), problem };
        if self.clauses.is_empty() {
            return Err(bad("has no clauses; list it under allow or deny".into()));
        }
        for clause in &self.clauses {
            if clause.when.is_empty() {
                return Err(bad(
                    "has a clause without conditions, which hides those after it".into()
                ));
            }
            for condition in &clause.when {
                condition.check_values().map_err(bad)?;
            }
        }
        Ok(())
    }
}

impl ArgCondition {
    fn check_values(&self) -> Result<(), String> {
        if self.arg > 5 {
            return Err(format!("looks at argument {}; there are six, from 0", self.arg));
        }
        if self.one_of.is_empty() == self.any_bit.is_empty() {
            return Err("needs exactly one of `in` and `any_bit` in each condition".into());
        }
        if self.mask.is_some() && !self.any_bit.is_empty() {
            return Err("has a `mask` and `any_bit`, which is a mask already".into());
        }
        let mask = self.effective_mask().0;
        match self.one_of.iter().chain(&self.any_bit).find(|(_, value)| value.0 & !mask != 0) {
            Some((name, _)) => Err(format!("compares with {name}, which its bits can never equal")),
            None => match self.any_bit.iter().find(|(_, value)| value.0 == 0) {
                Some((name, _)) => Err(format!("tests the bits of {name}, which has none")),
                None => Ok(()),
            },
        }
    }

    /// The bits that count.
    pub(crate) fn effective_mask(&self) -> PolicyNumber {
        let width = match self.bits {
            ArgWidth::Low32 => u64::from(u32::MAX),
            ArgWidth::Full64 => u64::MAX,
        };
        PolicyNumber(self.mask.map_or(width, |mask| mask.0 & width))
    }
}

impl SyscallVerdict {
    /// The name in the policy.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Ignore => "ignore",
            Self::NotPermitted => "EPERM",
            Self::Invalid => "EINVAL",
            Self::NotImplemented => "ENOSYS",
            Self::NoSuchProtocol => "EPROTONOSUPPORT",
            Self::NoSuchFamily => "EAFNOSUPPORT",
            Self::Kill => "kill",
        }
    }
}
