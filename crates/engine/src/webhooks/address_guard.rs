//! Runs in: server (no capabilities).
//!
//! The addresses that a webhook may go to, and that a page may be read from. Every address of a
//! name is checked, and the connection is made to one of the checked addresses, so a name that
//! changes its answer gains nothing.

use std::{
    io::ErrorKind,
    net::{IpAddr, SocketAddr, UdpSocket},
    time::Duration,
};

use cloche_model::{Invalid, is_public_address, request::check_webhook_url};
use ipnet::IpNet;
use url::{Host, Url};

/// How long a name may take to resolve.
const RESOLVE: Duration = Duration::from_secs(3);

/// Knows which addresses are allowed.
pub(crate) struct AddressGuard {
    allow: Vec<IpNet>,
}

/// Why a URL leads nowhere.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BlockedUrl {
    #[error("the name could not be resolved: {0}")]
    Unresolved(String),
    #[error("{0} is not a public address")]
    Address(IpAddr),
    #[error("{0} is an address of this server")]
    OwnAddress(IpAddr),
}

/// Reads a URL that webhooks may be sent to, as far as its form says.
pub(super) fn parse_webhook_url(field: &str, url: &str) -> Result<Url, Invalid> {
    check_webhook_url(field, url)?;
    let parsed = Url::parse(url).map_err(|_| Invalid::new(format!("{field} is not a URL")))?;
    if parsed.scheme() != "https" {
        return Err(Invalid::new(format!("{field} must use HTTPS")));
    }
    if parsed.host().is_none() {
        return Err(Invalid::new(format!("{field} must include a hostname")));
    }
    if !parsed.username().is_empty() || parsed.password().is_some() {
        return Err(Invalid::new(format!("{field} must not contain a user name or password")));
    }
    Ok(parsed)
}

impl AddressGuard {
    pub(crate) fn new(allow: Vec<IpNet>) -> Self {
        Self { allow }
    }

    /// The addresses of a URL's host, all of them allowed.
    pub(crate) async fn resolve_allowed(&self, url: &Url) -> Result<Vec<SocketAddr>, BlockedUrl> {
        let port = url.port_or_known_default().unwrap_or(443);
        let addresses: Vec<SocketAddr> = match url.host() {
            Some(Host::Ipv4(ip)) => vec![(ip, port).into()],
            Some(Host::Ipv6(ip)) => vec![(ip, port).into()],
            Some(Host::Domain(name)) => resolve_host(name, port).await?,
            None => Vec::new(),
        };
        if addresses.is_empty() {
            return Err(BlockedUrl::Unresolved("it has no address".to_owned()));
        }
        addresses.iter().try_for_each(|address| self.check(address.ip()))?;
        Ok(addresses)
    }

    /// Checks one address. The host's own ones are refused although they may be public: services
    /// that a firewall keeps from the internet answer there.
    fn check(&self, ip: IpAddr) -> Result<(), BlockedUrl> {
        let ip = ip.to_canonical();
        if self.allow.iter().any(|net| net.contains(&ip)) {
            return Ok(());
        }
        match is_public_address(ip) {
            false => Err(BlockedUrl::Address(ip)),
            true if is_own_address(ip) => Err(BlockedUrl::OwnAddress(ip)),
            true => Ok(()),
        }
    }
}

/// Whether the host itself has this address, as in the network broker: the kernel binds a socket
/// only to such addresses.
fn is_own_address(ip: IpAddr) -> bool {
    const NO_SUCH_FAMILY: i32 = rustix::io::Errno::AFNOSUPPORT.raw_os_error();
    match UdpSocket::bind((ip, 0)) {
        Ok(_) => true,
        // A host without IPv6 has no address of it, and reaches none.
        Err(error) if error.raw_os_error() == Some(NO_SUCH_FAMILY) => false,
        Err(error) => error.kind() != ErrorKind::AddrNotAvailable,
    }
}

async fn resolve_host(name: &str, port: u16) -> Result<Vec<SocketAddr>, BlockedUrl> {
    let lookup = tokio::time::timeout(RESOLVE, tokio::net::lookup_host((name, port)));
    match lookup.await {
        Ok(Ok(addresses)) => Ok(addresses.collect()),
        Ok(Err(error)) => Err(BlockedUrl::Unresolved(error.to_string())),
        Err(_) => Err(BlockedUrl::Unresolved("it took too long".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard() -> AddressGuard {
        AddressGuard::new(vec!["10.9.0.0/16".parse().unwrap()])
    }

    #[test]
    fn addresses_that_are_not_public_are_refused() {
        for ip in [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "10.0.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "192.0.2.1",
            "240.0.0.1",
            "::",
            "::1",
            "fe80::1",
            "fc00::1",
            "fd00:ec2::254",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001::1",
            "2001:db8::1",
            "100::1",
        ] {
            assert!(guard().check(ip.parse().unwrap()).is_err(), "{ip}");
        }
    }

    #[test]
    fn public_addresses_and_named_networks_are_allowed() {
        for ip in ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "10.9.1.2", "::ffff:10.9.1.2"] {
            assert!(guard().check(ip.parse().unwrap()).is_ok(), "{ip}");
        }
    }

    #[tokio::test]
    async fn odd_spellings_of_an_address_are_the_address() {
        for url in [
            "https://127.1/",
            "https://0x7f000001/",
            "https://2130706433/",
            "https://0177.0.0.1/",
            "https://[::1]/",
            "https://[::ffff:127.0.0.1]/",
            "https://localhost/",
            "https://169.254.169.254/latest/meta-data",
            "https://127.0.0.1:8443/x",
        ] {
            let url = parse_webhook_url("webhook_url", url).unwrap();
            assert!(
                matches!(guard().resolve_allowed(&url).await, Err(BlockedUrl::Address(_))),
                "{url}"
            );
        }
    }

    #[test]
    fn a_url_that_is_not_plain_https_is_refused() {
        for url in [
            "http://a.example",
            "ftp://a.example",
            "https://",
            "https://user@a.example",
            "https://u:p@a.example",
            "https:// a",
            "file:///etc/passwd",
            "",
        ] {
            assert!(parse_webhook_url("webhook_url", url).is_err(), "{url}");
        }
    }
}
