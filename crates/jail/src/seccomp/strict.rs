//! Runs in: the build and tests.
//!
//! The strict policy of `policy/strict.json`: what it removes from the standard policy.
//!
//! It must not know system call numbers or BPF.

use serde::Deserialize;

use super::policy::{ConditionalRule, DenyRule, FilterPolicy, PolicyError};

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StrictPolicy {
    about: String,
    /// Calls that the standard policy allows and this one refuses.
    remove: Vec<DenyRule>,
    /// Calls with other conditions on their arguments.
    replace: Vec<ConditionalRule>,
}

impl StrictPolicy {
    /// The strict policy, derived from `base` and checked like any other.
    pub(crate) fn derive_policy(
        text: &str,
        mut base: FilterPolicy,
    ) -> Result<FilterPolicy, PolicyError> {
        let strict: Self = serde_json::from_str(text)?;
        base.about = strict.about;
        for call in strict.remove.iter().flat_map(|rule| &rule.calls) {
            if !remove_call(&mut base, call) {
                return Err(PolicyError::NotAllowedBefore(call.clone()));
            }
        }
        for rule in &strict.replace {
            if !remove_call(&mut base, &rule.call) {
                return Err(PolicyError::NotAllowedBefore(rule.call.clone()));
            }
        }
        base.deny.extend(strict.remove);
        base.conditional.extend(strict.replace);
        base.check_rules()?;
        Ok(base)
    }
}

/// Removes the rule that allows a call, always or by its arguments. Returns whether there was one.
fn remove_call(policy: &mut FilterPolicy, call: &str) -> bool {
    let mut found = false;
    let mut is_other = |name: &String| {
        found |= name == call;
        name != call
    };
    policy.allow.iter_mut().for_each(|rule| rule.calls.retain(&mut is_other));
    policy.conditional.retain(|rule| is_other(&rule.call));
    policy.allow.retain(|rule| !rule.calls.is_empty());
    found
}
