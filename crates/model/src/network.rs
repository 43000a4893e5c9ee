//! What a program may reach over the network: the policy of a sandbox, its limits, and the report
//! of a run.
//!
//! Plain data and parsing. It resolves no name and opens no connection; `egress` does.

mod host_name;
mod public_address;
mod report;
mod rule;

use serde::{Deserialize, Serialize};

pub use host_name::{HostName, HostPattern};
pub use public_address::is_public_address;
pub use report::{DenialReason, DeniedAttempt, NetworkProtocol, NetworkReport};
pub use rule::{NetworkRule, PortRange, RuleTarget};

use crate::{ByteSize, Invalid};

/// The most rules of an allowlist.
pub const MAX_NETWORK_RULES: usize = 256;

/// What a program can connect to beyond its own loopback.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetworkPolicy {
    /// No network access.
    #[default]
    Blocked,
    /// The public internet. Private, link-local and metadata addresses, every address of the host
    /// and what the operator denies stay out of reach.
    Unrestricted,
    /// Only what a rule names, out of what `Unrestricted` reaches.
    Allowlist {
        /// The rules; a destination is allowed if one of them matches.
        rules: Vec<NetworkRule>,
    },
}

impl NetworkPolicy {
    /// Builds a policy from its name on the wire and the texts of its rules.
    ///
    /// # Errors
    /// Says which name or rule is wrong, or that rules stand beside a policy that has none.
    pub fn from_texts<T: AsRef<str>>(name: &str, rules: &[T]) -> Result<Self, Invalid> {
        let policy = match name {
            "blocked" => Self::Blocked,
            "unrestricted" => Self::Unrestricted,
            "allowlist" => return Self::allowlist(rules),
            _ => {
                return Err(Invalid::new(
                    "network must be one of: blocked, unrestricted, allowlist",
                ));
            }
        };
        match rules {
            [] => Ok(policy),
            _ => Err(Invalid::new(format!(
                "network_allow has rules, but network is {name:?}; set network to \"allowlist\" \
                 or remove the rules"
            ))),
        }
    }

    fn allowlist<T: AsRef<str>>(rules: &[T]) -> Result<Self, Invalid> {
        if rules.len() > MAX_NETWORK_RULES {
            return Err(Invalid::new(format!(
                "network_allow has {} rules; at most {MAX_NETWORK_RULES} are allowed",
                rules.len()
            )));
        }
        let rules = rules.iter().map(|rule| rule.as_ref().parse()).collect::<Result<_, _>>()?;
        Ok(Self::Allowlist { rules })
    }

    /// The name on the wire and on the command line.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Blocked => "blocked",
            Self::Unrestricted => "unrestricted",
            Self::Allowlist { .. } => "allowlist",
        }
    }

    /// The rules of an allowlist; none for the other policies.
    #[must_use]
    pub fn rules(&self) -> &[NetworkRule] {
        match self {
            Self::Allowlist { rules } => rules,
            Self::Blocked | Self::Unrestricted => &[],
        }
    }
}

/// The limits of the network of one cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkLimits {
    /// TCP connections at once.
    pub connections: u16,
    /// TCP connections at once that are not established yet.
    pub half_open: u16,
    /// New connections and UDP flows in each second, on average.
    pub new_per_second: u16,
    /// New connections and UDP flows at once, after a pause.
    pub new_burst: u16,
    /// UDP flows at once.
    pub udp_flows: u16,
    /// DNS queries in each second.
    pub dns_per_second: u16,
    /// Bytes towards the program in each second; unlimited if absent.
    pub bytes_in_per_second: Option<u64>,
    /// Bytes from the program in each second; unlimited if absent.
    pub bytes_out_per_second: Option<u64>,
    /// Bytes of one run, both ways together; unlimited if absent.
    pub bytes_per_run: Option<ByteSize>,
}

impl Default for NetworkLimits {
    fn default() -> Self {
        Self {
            connections: 256,
            half_open: 64,
            new_per_second: 50,
            new_burst: 200,
            udp_flows: 256,
            dns_per_second: 50,
            bytes_in_per_second: None,
            bytes_out_per_second: None,
            bytes_per_run: None,
        }
    }
}

impl NetworkLimits {
    /// The most connections and the most UDP flows that a sandbox may ask for.
    pub const MOST_CONNECTIONS: u16 = 256;

    /// Checks that every limit is one that the stack worker can keep.
    ///
    /// # Errors
    /// Names the limit and its range.
    pub fn check(&self) -> Result<(), Invalid> {
        let counts = [
            ("connections", self.connections, Self::MOST_CONNECTIONS),
            ("half_open", self.half_open, Self::MOST_CONNECTIONS),
            ("udp_flows", self.udp_flows, Self::MOST_CONNECTIONS),
            ("new_per_second", self.new_per_second, 1000),
            ("new_burst", self.new_burst, 1000),
            ("dns_per_second", self.dns_per_second, 1000),
        ];
        for (name, value, most) in counts {
            if value == 0 || value > most {
                return Err(Invalid::new(format!(
                    "network_limits.{name} must be from 1 to {most}; got {value}"
                )));
            }
        }
        let rates = [
            ("bytes_in_per_second", self.bytes_in_per_second),
            ("bytes_out_per_second", self.bytes_out_per_second),
        ];
        for (name, rate) in rates {
            if rate.is_some_and(|rate| rate < 1024) {
                return Err(Invalid::new(format!("network_limits.{name} must be at least 1024")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_read_from_its_name_and_rules() {
        let none: [&str; 0] = [];
        assert_eq!(NetworkPolicy::from_texts("blocked", &none), Ok(NetworkPolicy::Blocked));
        assert_eq!(
            NetworkPolicy::from_texts("unrestricted", &none),
            Ok(NetworkPolicy::Unrestricted)
        );
        let policy = NetworkPolicy::from_texts("allowlist", &["pypi.example"]).unwrap();
        assert_eq!(policy.rules(), &["pypi.example".parse().unwrap()]);
        assert!(NetworkPolicy::from_texts("open", &none).is_err());
        assert!(NetworkPolicy::from_texts("blocked", &["pypi.example"]).is_err());
        assert!(NetworkPolicy::from_texts("allowlist", &["pypi.example"; 257]).is_err());
    }

    #[test]
    fn the_stored_form_of_a_blocked_network_has_not_changed() {
        assert_eq!(serde_json::to_string(&NetworkPolicy::Blocked).unwrap(), "\"blocked\"");
        let policy = NetworkPolicy::from_texts("allowlist", &["a.example:22"]).unwrap();
        let text = serde_json::to_string(&policy).unwrap();
        assert_eq!(text, r#"{"allowlist":{"rules":["a.example:22"]}}"#);
        assert_eq!(serde_json::from_str::<NetworkPolicy>(&text).unwrap(), policy);
    }

    #[test]
    fn limits_outside_their_range_are_refused() {
        assert_eq!(NetworkLimits::default().check(), Ok(()));
        let none = NetworkLimits { connections: 0, ..NetworkLimits::default() };
        assert!(none.check().is_err());
        let many = NetworkLimits { udp_flows: 257, ..NetworkLimits::default() };
        assert!(many.check().is_err());
        let slow = NetworkLimits { bytes_in_per_second: Some(1), ..NetworkLimits::default() };
        assert!(slow.check().is_err());
    }
}
