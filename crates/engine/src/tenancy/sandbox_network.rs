//! Runs in: server (no capabilities).
//!
//! The network of a sandbox: its policy, its rules and its limits, checked when it is saved.

use cloche_model::{
    ErrorCode, Invalid, NetworkLimits, NetworkPolicy, SandboxProfile, SandboxShape,
};

use super::Tenancy;
use crate::Refusal;

/// What to change of the network of a sandbox; `None` leaves it.
#[derive(Clone, Debug, Default)]
pub struct NetworkChange {
    /// The policy, by name.
    pub policy: Option<String>,
    /// The rules of an allowlist, as texts. They replace those that it has.
    pub allow: Option<Vec<String>>,
    /// All limits; those that are not named have their defaults.
    pub limits: Option<NetworkLimits>,
}

impl NetworkChange {
    /// Whether it says what can be reached.
    pub(super) const fn names_policy(&self) -> bool {
        self.policy.is_some() || self.allow.is_some()
    }

    /// Applies it to the shape of a sandbox. Rules stay as long as the policy is an allowlist.
    pub(super) fn apply(self, shape: &mut SandboxShape) -> Result<(), Invalid> {
        if self.names_policy() {
            let name = self.policy.as_deref().unwrap_or(shape.network.name());
            let kept = || match name == shape.network.name() {
                true => shape.network.rules().iter().map(ToString::to_string).collect(),
                false => Vec::new(),
            };
            let rules = self.allow.unwrap_or_else(kept);
            let policy = NetworkPolicy::from_texts(name, &rules)?;
            if matches!(policy, NetworkPolicy::Allowlist { .. }) && rules.is_empty() {
                return Err(Invalid::new(
                    "network_allow must have at least one rule if network is \"allowlist\"; to \
                     allow nothing, set network to \"blocked\"",
                ));
            }
            shape.network = policy;
        }
        if let Some(limits) = self.limits {
            limits.check()?;
            shape.network_limits = limits;
        }
        Ok(())
    }
}

/// The profile `strict` has no sockets that a network could be used with.
pub(super) fn check_profile_network(shape: &SandboxShape) -> Result<(), Invalid> {
    if shape.profile == SandboxProfile::Strict && shape.network != NetworkPolicy::Blocked {
        return Err(Invalid::new(
            "network: the profile \"strict\" has no network sockets; use the profile \"standard\" \
             or set network to \"blocked\"",
        ));
    }
    Ok(())
}

impl Tenancy {
    /// Refuses a network that nothing here can give.
    pub(super) fn check_network(&self, shape: &SandboxShape) -> Result<(), Refusal> {
        if shape.network == NetworkPolicy::Blocked {
            return Ok(());
        }
        self.dispatcher.check_network().map_err(|why| Refusal::new(ErrorCode::Validation, why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(policy: Option<&str>, allow: Option<&[&str]>) -> NetworkChange {
        let allow = allow.map(|rules| rules.iter().map(|rule| (*rule).to_owned()).collect());
        NetworkChange { policy: policy.map(str::to_owned), allow, limits: None }
    }

    #[test]
    fn rules_stay_until_the_policy_has_none() {
        let mut shape = SandboxShape::default();
        change(Some("allowlist"), Some(&["PyPI.example"])).apply(&mut shape).unwrap();
        change(Some("allowlist"), None).apply(&mut shape).unwrap();
        assert_eq!(shape.network.rules().len(), 1);
        change(None, Some(&["a.example", "b.example:22"])).apply(&mut shape).unwrap();
        assert_eq!(shape.network.rules().len(), 2);
        change(Some("unrestricted"), None).apply(&mut shape).unwrap();
        assert_eq!(shape.network, NetworkPolicy::Unrestricted);
        let refused = change(Some("allowlist"), None).apply(&mut shape).unwrap_err();
        assert!(refused.to_string().contains("at least one rule"), "{refused}");
    }

    #[test]
    fn rules_without_an_allowlist_and_odd_policies_are_refused() {
        let mut shape = SandboxShape::default();
        for (policy, allow) in [
            (None, Some(&["pypi.example"][..])),
            (Some("unrestricted"), Some(&["pypi.example"][..])),
            (Some("allowlist"), Some(&["*.com"][..])),
            (Some("open"), None),
        ] {
            assert!(change(policy, allow).apply(&mut shape).is_err(), "{policy:?} {allow:?}");
        }
        assert_eq!(shape.network, NetworkPolicy::Blocked);
    }

    #[test]
    fn the_strict_profile_has_no_network() {
        let mut shape = SandboxShape { profile: SandboxProfile::Strict, ..SandboxShape::default() };
        assert!(check_profile_network(&shape).is_ok());
        shape.network = NetworkPolicy::Unrestricted;
        assert!(check_profile_network(&shape).is_err());
    }
}
