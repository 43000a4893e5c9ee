//! Names of hosts, in one spelling. The matcher and the resolver take only this type, so that both
//! mean the same name.

use std::{fmt, net::IpAddr, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::Invalid;

/// The name of a host: A-labels in lower case, without the final dot, at most 253 bytes, and not
/// an address in any spelling.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostName(String);

impl HostName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Reads a name from bytes of a guest: DNS labels, an SNI, a `Host` header. Without Unicode
    /// mapping: on the wire a name is already in A-labels.
    ///
    /// # Errors
    /// If it is not a host name.
    pub fn from_wire(name: &[u8]) -> Result<Self, Invalid> {
        match std::str::from_utf8(name) {
            Ok(text) if text.is_ascii() => text.parse(),
            _ => Err(invalid_name("")),
        }
    }
}

impl FromStr for HostName {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        // A hostile text can be very long. U-labels are at most as long as their A-labels in
        // characters, of up to four bytes each.
        if text.len() > 4 * 254 {
            return Err(invalid_name(text));
        }
        // An ASCII name is only lower-cased: UTS-46 refuses some underscores and hyphens that the
        // DNS has, for example `_dmarc` and `r3---sn`.
        let name = match text.is_ascii() && !text.to_ascii_lowercase().contains("xn--") {
            true => text.to_ascii_lowercase(),
            false => idna::domain_to_ascii_cow(text.as_bytes(), idna::AsciiDenyList::EMPTY)
                .map_err(|_| invalid_name(text))?
                .into_owned(),
        };
        let name = name.strip_suffix('.').unwrap_or(&name);
        if name.len() > 253 || !name.split('.').all(is_label) || looks_like_address(name) {
            return Err(invalid_name(text));
        }
        Ok(Self(name.to_owned()))
    }
}

fn invalid_name(text: &str) -> Invalid {
    let shown: String = text.chars().take(64).collect();
    Invalid::new(format!("{shown:?} is not a host name"))
}

fn is_label(label: &str) -> bool {
    (1..=63).contains(&label.len())
        && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_".contains(&b))
        && !label.starts_with('-')
        && !label.ends_with('-')
}

/// Whether a resolver or a client could read a name as an address: `10.0.0.1`, `2130706433`,
/// `0x7f.1`. No top-level domain is a number.
fn looks_like_address(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    let hexadecimal =
        last.strip_prefix("0x").is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_hexdigit()));
    name.parse::<IpAddr>().is_ok() || last.bytes().all(|b| b.is_ascii_digit()) || hexadecimal
}

impl TryFrom<String> for HostName {
    type Error = Invalid;

    fn try_from(text: String) -> Result<Self, Invalid> {
        text.parse()
    }
}

impl From<HostName> for String {
    fn from(name: HostName) -> Self {
        name.0
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A name, or all names below one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HostPattern {
    /// `pypi.example`: this name only.
    Exact(HostName),
    /// `*.example.com`: every name below it, at any depth, and not the name itself.
    Below(HostName),
}

impl HostPattern {
    /// Whether a name matches, label by label.
    #[must_use]
    pub fn matches(&self, name: &HostName) -> bool {
        match self {
            Self::Exact(exact) => exact == name,
            Self::Below(suffix) => name
                .as_str()
                .strip_suffix(suffix.as_str())
                .is_some_and(|rest| rest.len() > 1 && rest.ends_with('.')),
        }
    }
}

impl FromStr for HostPattern {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let Some(suffix) = text.strip_prefix("*.") else {
            return text.parse().map(Self::Exact);
        };
        let suffix: HostName = suffix.parse()?;
        if !suffix.as_str().contains('.') || is_public_suffix(&suffix) {
            return Err(Invalid::new(format!(
                "\"*.{suffix}\" covers names of unrelated owners; name a domain below {suffix}"
            )));
        }
        Ok(Self::Below(suffix))
    }
}

/// Whether a registry sells names directly below this one, as below `co.uk`. Suffixes of companies
/// (`github.io`) are not among them: to allow every site there can be what is meant.
fn is_public_suffix(name: &HostName) -> bool {
    psl::suffix(name.as_str().as_bytes()).is_some_and(|suffix| {
        suffix.as_bytes() == name.as_str().as_bytes() && suffix.typ() == Some(psl::Type::Icann)
    })
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => write!(f, "{name}"),
            Self::Below(suffix) => write!(f, "*.{suffix}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(text: &str) -> HostName {
        text.parse().unwrap()
    }

    #[test]
    fn spellings_of_a_name_are_one_name() {
        for (text, expected) in [
            ("PyPI.example", "pypi.example"),
            ("pypi.example.", "pypi.example"),
            ("Bücher.example", "xn--bcher-kva.example"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("ｅxample。com", "example.com"),
            ("_dmarc.example.com", "_dmarc.example.com"),
            ("r3---sn-4g5.example", "r3---sn-4g5.example"),
        ] {
            assert_eq!(name(text).as_str(), expected);
        }
    }

    #[test]
    fn what_is_not_a_name_is_refused() {
        let long_label = format!("{}.example", "a".repeat(64));
        let long_name = format!("{}example", "abcdefg.".repeat(32));
        for text in [
            "",
            ".",
            "a..b",
            "a.b..",
            ".a",
            "-a.example",
            "a-.example",
            "a b.example",
            "a\0.example",
            "a%25eth0.example",
            "a/b",
            "a@b",
            "[::1]",
            "::1",
            "127.0.0.1",
            "127.1",
            "2130706433",
            "0x7f.1",
            "0x7f000001",
            "a.0x7f",
            "1.2.3.4.",
            "xn--a.example",
            &long_label,
            &long_name,
        ] {
            assert!(text.parse::<HostName>().is_err(), "{text:?}");
        }
        assert!(HostName::from_wire("bücher.example".as_bytes()).is_err());
        assert!(HostName::from_wire(b"a\xff.example").is_err());
    }

    #[test]
    fn a_wildcard_matches_strict_subdomains_label_by_label() {
        let pattern: HostPattern = "*.Example.com".parse().unwrap();
        assert!(pattern.matches(&name("a.example.com")));
        assert!(pattern.matches(&name("a.b.example.com")));
        for other in ["example.com", "badexample.com", "a.example.com.evil.example", "com"] {
            assert!(!pattern.matches(&name(other)), "{other}");
        }
    }

    #[test]
    fn wildcards_over_unrelated_owners_are_refused() {
        for text in
            ["*.com", "*.co.uk", "*", "*.", "*.*.example.com", "a.*.example.com", "*example"]
        {
            assert!(text.parse::<HostPattern>().is_err(), "{text:?}");
        }
        assert!("*.example.co.uk".parse::<HostPattern>().is_ok());
    }

    proptest! {
        #[test]
        fn random_names_read_again_are_the_same_name(text in "\\PC{0,40}") {
            if let Ok(name) = text.parse::<HostName>() {
                prop_assert_eq!(name.as_str().parse::<HostName>().unwrap(), name.clone());
                prop_assert_eq!(HostName::from_wire(name.as_str().as_bytes()).unwrap(), name);
            }
        }
    }
}
