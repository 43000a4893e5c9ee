//! Runs in: the build and tests.
//!
//! A policy that allows some calls more than another one, for a process that confines itself in two
//! steps: `policy/mount_server.json`.
//!
//! It must not know system call numbers or BPF.

use serde::Deserialize;

use super::policy::{AllowRule, ConditionalRule, FilterPolicy, PolicyError};

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WiderPolicy {
    about: String,
    /// Calls that the other policy refuses.
    allow: Vec<AllowRule>,
    /// Calls with other conditions on their arguments.
    replace: Vec<ConditionalRule>,
}

impl WiderPolicy {
    /// The wider policy, derived from `base` and checked like any other.
    pub(crate) fn derive_policy(
        text: &str,
        mut base: FilterPolicy,
    ) -> Result<FilterPolicy, PolicyError> {
        let wider: Self = serde_json::from_str(text)?;
        base.about = wider.about;
        let is_added = |name: &String| wider.allow.iter().any(|rule| rule.calls.contains(name));
        base.deny.iter_mut().for_each(|rule| rule.calls.retain(|name| !is_added(name)));
        base.deny.retain(|rule| !rule.calls.is_empty());
        let is_replaced = |name: &String| wider.replace.iter().any(|rule| rule.call == *name);
        base.conditional.retain(|rule| !is_replaced(&rule.call));
        base.allow.extend(wider.allow);
        base.conditional.extend(wider.replace);
        // A call that is allowed already is listed twice now, which is an error.
        base.check_rules()?;
        Ok(base)
    }
}
