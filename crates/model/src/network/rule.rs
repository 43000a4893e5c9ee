//! One line of an allowlist.

use std::{fmt, net::IpAddr, str::FromStr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{HostName, HostPattern};
use crate::Invalid;

/// A destination that a program may reach: `pypi.example`, `*.example.com:443`, `host:8000-8100`,
/// `203.0.113.0/24:5432`, `[2001:db8::]/32:443`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NetworkRule {
    /// The hosts.
    pub target: RuleTarget,
    /// The ports. `None` means 80 and 443 of a host name, and every port of addresses.
    pub ports: Option<PortRange>,
}

/// The hosts of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RuleTarget {
    /// Hosts by name: the addresses that the name has when the program asks for it.
    Host(HostPattern),
    /// Hosts by address.
    Addresses(IpNet),
}

/// A range of ports, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    /// Whether a port is in the range.
    #[must_use]
    pub const fn contains(self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }
}

impl NetworkRule {
    /// Whether the rule covers a port of its hosts.
    #[must_use]
    pub fn covers_port(&self, port: u16) -> bool {
        match (self.ports, &self.target) {
            (Some(ports), _) => ports.contains(port),
            (None, RuleTarget::Host(_)) => port == 80 || port == 443,
            (None, RuleTarget::Addresses(_)) => port != 0,
        }
    }

    /// Whether the rule names this host.
    #[must_use]
    pub fn covers_name(&self, name: &HostName) -> bool {
        matches!(&self.target, RuleTarget::Host(pattern) if pattern.matches(name))
    }

    /// Whether the rule names this address.
    #[must_use]
    pub fn covers_address(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        matches!(&self.target, RuleTarget::Addresses(net) if net.contains(&address))
    }
}

impl FromStr for NetworkRule {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let (host, ports) = split_ports(text).ok_or_else(|| invalid_rule(text))?;
        let ports =
            ports.map(|ports| parse_ports(ports).ok_or_else(|| invalid_ports(text))).transpose()?;
        let target = match parse_addresses(host) {
            Some(net) => RuleTarget::Addresses(net),
            None => {
                let pattern = host
                    .parse()
                    .map_err(|error| Invalid::new(format!("network_allow: {error}; {EXAMPLES}")))?;
                RuleTarget::Host(pattern)
            }
        };
        Ok(Self { target, ports })
    }
}

const EXAMPLES: &str = "write a rule like pypi.example, *.example.com:443, 203.0.113.0/24:5432 or \
                        [2001:db8::]/32:443";

fn invalid_rule(text: &str) -> Invalid {
    let shown: String = text.chars().take(64).collect();
    Invalid::new(format!("network_allow: {shown:?} is not a rule; {EXAMPLES}"))
}

fn invalid_ports(text: &str) -> Invalid {
    let shown: String = text.chars().take(64).collect();
    Invalid::new(format!(
        "network_allow: the port of {shown:?} must be a number from 1 to 65535 or a range like \
         8000-8100"
    ))
}

/// Splits `host:ports`, `[v6]:ports`, `[v6]/len:ports` and the same without ports. An IPv6 address
/// without brackets has no ports.
fn split_ports(text: &str) -> Option<(&str, Option<&str>)> {
    if text.starts_with('[') {
        let after = text.find(']')? + 1;
        return match text[after..].split_once(':') {
            Some((length, ports)) => Some((&text[..after + length.len()], Some(ports))),
            None => Some((text, None)),
        };
    }
    match text.split_once(':') {
        Some((_, rest)) if rest.contains(':') => Some((text, None)),
        Some((host, ports)) => Some((host, Some(ports))),
        None => Some((text, None)),
    }
}

fn parse_ports(text: &str) -> Option<PortRange> {
    let number = |text: &str| {
        let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        text.parse::<u16>().ok().filter(|port| plain && *port != 0)
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = PortRange { first: number(first)?, last: number(last)? };
    (range.first <= range.last).then_some(range)
}

/// Reads `10.0.0.0/8`, `10.1.2.3`, `2001:db8::/32`, `[2001:db8::]/32`. Host bits are cleared.
fn parse_addresses(text: &str) -> Option<IpNet> {
    let plain;
    let text = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, length) = rest.split_once(']')?;
            if !address.contains(':') {
                return None;
            }
            plain = format!("{address}{length}");
            plain.as_str()
        }
        None => text,
    };
    match text.parse::<IpNet>() {
        Ok(net) => Some(net.trunc()),
        Err(_) => text.parse::<IpAddr>().ok().map(IpNet::from),
    }
}

impl TryFrom<String> for NetworkRule {
    type Error = Invalid;

    fn try_from(text: String) -> Result<Self, Invalid> {
        text.parse()
    }
}

impl From<NetworkRule> for String {
    fn from(rule: NetworkRule) -> Self {
        rule.to_string()
    }
}

impl fmt::Display for NetworkRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            RuleTarget::Host(pattern) => write!(f, "{pattern}")?,
            RuleTarget::Addresses(IpNet::V4(net)) => write!(f, "{net}")?,
            RuleTarget::Addresses(IpNet::V6(net)) => {
                write!(f, "[{}]/{}", net.network(), net.prefix_len())?;
            }
        }
        match self.ports {
            Some(ports) if ports.first == ports.last => write!(f, ":{}", ports.first),
            Some(ports) => write!(f, ":{}-{}", ports.first, ports.last),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rule(text: &str) -> NetworkRule {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn rules_are_read_and_written_in_one_form() {
        for (text, shown) in [
            ("PyPI.example", "pypi.example"),
            ("*.example.com:443", "*.example.com:443"),
            ("host:8000-8100", "host:8000-8100"),
            ("a.example:22-22", "a.example:22"),
            ("203.0.113.9/24:5432", "203.0.113.0/24:5432"),
            ("203.0.113.9", "203.0.113.9/32"),
            ("203.0.113.9:53", "203.0.113.9/32:53"),
            ("2001:db8::1", "[2001:db8::1]/128"),
            ("2001:db8::/32", "[2001:db8::]/32"),
            ("[2001:db8::]/32:443", "[2001:db8::]/32:443"),
            ("[2001:db8::1]:443", "[2001:db8::1]/128:443"),
            ("bücher.example", "xn--bcher-kva.example"),
        ] {
            assert_eq!(rule(text).to_string(), shown);
        }
    }

    #[test]
    fn rules_that_mean_nothing_are_refused_with_a_sentence() {
        for text in [
            "",
            ":443",
            "a.example:",
            "a.example:0",
            "a.example:65536",
            "a.example:9-8",
            "a.example:+80",
            "a.example:http",
            "*",
            "*.com",
            "1.2.3.4/33",
            "1.2.3/24",
            "[::1",
            "[1.2.3.4]:80",
            "https://a.example",
            "a.example/path",
            "a b",
            "[::1]x:80",
            "300.1.1.1",
        ] {
            let error = text.parse::<NetworkRule>().expect_err(text).to_string();
            assert!(error.starts_with("network_allow: "), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_rule_covers_its_ports_and_hosts_only() {
        assert!(rule("a.example").covers_port(80) && rule("a.example").covers_port(443));
        assert!(!rule("a.example").covers_port(22));
        assert!(rule("a.example:22").covers_port(22) && !rule("a.example:22").covers_port(443));
        assert!(rule("1.2.3.0/24").covers_port(9) && !rule("1.2.3.0/24").covers_port(0));
        assert!(rule("1.2.3.0/24").covers_address("::ffff:1.2.3.4".parse().unwrap()));
        assert!(!rule("1.2.3.0/24").covers_address("1.2.4.4".parse().unwrap()));
        assert!(!rule("a.example").covers_address("1.2.3.4".parse().unwrap()));
    }

    proptest! {
        #[test]
        fn random_rules_read_again_are_the_same_rule(text in "[a-z0-9.*:/\\[\\]-]{0,30}") {
            if let Ok(rule) = text.parse::<NetworkRule>() {
                prop_assert_eq!(rule.to_string().parse::<NetworkRule>().unwrap(), rule);
            }
        }
    }
}
