//! Runs in: server (no capabilities), broker (no capabilities).
//!
//! What the operator sets for the networks of all cells: `[network]` in `cloche.toml`.

use std::{
    fs, io,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
};

use ipnet::IpNet;
use rustls::pki_types::{CertificateDer, pem::PemObject};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

/// The longest file of certificate authorities: a few times those of a whole system.
pub const MOST_AUTHORITIES: u64 = 1024 * 1024;

/// The settings of the broker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EgressSettings {
    /// The DNS servers that names are asked of.
    // `cli` fills in those of `/etc/resolv.conf` when the operator names none.
    #[schemars(with = "Vec<String>", extend("x-default" = "those of `/etc/resolv.conf`"))]
    #[serde(deserialize_with = "read_list")]
    pub resolvers: Vec<SocketAddr>,
    /// Networks that no cell reaches, beyond those that are never reached.
    #[schemars(with = "Vec<String>", extend("default" = []))]
    #[serde(deserialize_with = "read_list")]
    pub deny: Vec<IpNet>,
    /// Private networks that a policy may reach. Loopback, link-local and the host's own addresses
    /// stay out of reach.
    #[schemars(with = "Vec<String>", extend("default" = []))]
    #[serde(deserialize_with = "read_list")]
    pub reachable_private: Vec<IpNet>,
    /// TCP and UDP ports that no cell reaches, beyond those that are never reached.
    #[schemars(extend("default" = []))]
    pub deny_ports: Vec<u16>,
    /// Whether cells get IPv6. The broker turns it off if the host has no route.
    #[schemars(extend("default" = true))]
    pub ipv6: bool,
    /// The most sessions at once.
    #[schemars(extend("default" = 1024))]
    pub sessions: usize,
    /// A PEM file with authorities that hosts with a brokered credential may have certificates of,
    /// besides those of this host.
    #[schemars(extend("x-default" = "none"))]
    pub ca_file: Option<PathBuf>,
    /// The content of that file, which `cli` reads.
    #[serde(default)]
    #[schemars(skip)]
    pub authorities: String,
}

impl EgressSettings {
    /// Reads the file of `ca_file`, if one is set.
    ///
    /// # Errors
    /// A sentence that names the file, if it cannot be read, is too long, or has no certificate.
    pub fn read_authorities(&mut self) -> io::Result<()> {
        if let Some(file) = &self.ca_file {
            let named = |error: io::Error| {
                let sentence = format!("cannot use network.ca_file {}: {error}", file.display());
                io::Error::new(error.kind(), sentence)
            };
            self.authorities = read_certificates(file).map_err(named)?;
        }
        Ok(())
    }
}

/// What an operator may write as an address alone.
trait FromText: Sized {
    /// What to write, for the error.
    const EXAMPLES: &str;

    fn from_text(text: &str) -> Option<Self>;
}

impl FromText for SocketAddr {
    const EXAMPLES: &str = "an address such as 192.0.2.53 or 192.0.2.53:53";

    fn from_text(text: &str) -> Option<Self> {
        text.parse().ok().or_else(|| Some(Self::new(text.parse().ok()?, 53)))
    }
}

impl FromText for IpNet {
    const EXAMPLES: &str = "a network such as 198.51.100.0/24, or an address";

    fn from_text(text: &str) -> Option<Self> {
        text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(Self::from))
    }
}

/// A list in the settings of an operator, or in a message between processes.
fn read_list<'de, T, D>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    T: FromText + Deserialize<'de>,
    D: Deserializer<'de>,
{
    if !deserializer.is_human_readable() {
        return Vec::deserialize(deserializer);
    }
    let texts = Vec::<String>::deserialize(deserializer)?;
    let read = |text: &String| {
        T::from_text(text).ok_or_else(|| D::Error::custom(format!("write {}", T::EXAMPLES)))
    };
    texts.iter().map(read).collect()
}

fn read_certificates(file: &Path) -> io::Result<String> {
    let invalid = |sentence: String| io::Error::new(io::ErrorKind::InvalidData, sentence);
    let len = fs::metadata(file)?.len();
    if len > MOST_AUTHORITIES {
        let most = MOST_AUTHORITIES;
        return Err(invalid(format!("it has {len} bytes, and {most} are the most")));
    }
    let text = fs::read_to_string(file)?;
    let mut certificates = 0;
    for certificate in CertificateDer::pem_slice_iter(text.as_bytes()) {
        certificate.map_err(|error| invalid(format!("a certificate is not PEM: {error}")))?;
        certificates += 1;
    }
    match certificates {
        0 => Err(invalid("it has no certificate in PEM".to_owned())),
        _ => Ok(text),
    }
}

impl Default for EgressSettings {
    fn default() -> Self {
        Self {
            resolvers: Vec::new(),
            deny: Vec::new(),
            reachable_private: Vec::new(),
            deny_ports: Vec::new(),
            ipv6: true,
            sessions: 1024,
            ca_file: None,
            authorities: String::new(),
        }
    }
}

/// The name servers of a `resolv.conf`, at most three as in libc. A scoped address (`fe80::1%eth0`)
/// is left out.
#[must_use]
pub fn resolvers_of(resolv_conf: &str) -> Vec<SocketAddr> {
    resolv_conf
        .lines()
        .filter_map(|line| line.trim().strip_prefix("nameserver"))
        .filter_map(|rest| rest.trim().parse::<IpAddr>().ok())
        .take(3)
        .map(|address| SocketAddr::new(address, 53))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_alone_is_a_name_server_or_a_network_of_one() {
        let text = r#"{"resolvers": ["192.0.2.53", "2001:db8::1", "[2001:db8::2]:5353"],
            "deny": ["192.0.2.1", "10.0.0.0/8"], "reachable_private": ["fd00::7"]}"#;
        let settings: EgressSettings = serde_json::from_str(text).unwrap();
        let resolvers = ["192.0.2.53:53", "[2001:db8::1]:53", "[2001:db8::2]:5353"];
        assert_eq!(settings.resolvers, resolvers.map(|address| address.parse().unwrap()));
        let deny = ["192.0.2.1/32", "10.0.0.0/8"].map(|net| net.parse().unwrap());
        assert_eq!(settings.deny, deny);
        assert_eq!(settings.reachable_private, ["fd00::7/128".parse().unwrap()]);
        // The broker gets them as they are.
        let bytes = postcard::to_stdvec(&settings).unwrap();
        assert_eq!(postcard::from_bytes::<EgressSettings>(&bytes).unwrap(), settings);
        for wrong in [r#"{"resolvers": ["dns.example"]}"#, r#"{"deny": ["10.0.0.0/33"]}"#] {
            let error = serde_json::from_str::<EgressSettings>(wrong).unwrap_err().to_string();
            assert!(error.contains("write a"), "{error}");
        }
    }

    #[test]
    fn name_servers_are_read_from_resolv_conf() {
        let text = "# a\nsearch x\nnameserver 127.0.0.53\n nameserver\t2001:db8::1\n\
                    nameserver fe80::1%eth0\nnameserver 1.1.1.1\nnameserver 9.9.9.9\n";
        let found = resolvers_of(text);
        assert_eq!(
            found,
            ["127.0.0.53:53", "[2001:db8::1]:53", "1.1.1.1:53"].map(|a| a.parse().unwrap())
        );
    }
}
