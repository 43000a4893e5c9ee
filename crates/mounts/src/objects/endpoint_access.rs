//! Runs in: server (no capabilities), mount server (no capabilities). The addresses that the endpoint of a connection may have.
//!
//! Every address of a name is checked, and the connection is made to a checked one, so a name that
//! changes its answer gains nothing.

use std::{
    future::Future,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    pin::Pin,
    sync::{Arc, OnceLock},
    time::Duration,
};

use rustls::RootCertStore;

use crate::StorageError;

/// The addresses of a name, later.
pub type LookupFuture = Pin<Box<dyn Future<Output = Result<Vec<IpAddr>, StorageError>> + Send>>;

/// What a client has to know of the network: which addresses it may connect to, and which
/// certificates it trusts.
///
/// The server asks the system and checks. The mount server has no resolver and no files: it asks the
/// server.
pub trait EndpointAccess: Send + Sync + 'static {
    /// The allowed addresses of a host name. `private` says whether the operator allows private
    /// addresses for this connection.
    fn lookup(&self, host: &str, private: bool) -> LookupFuture;

    /// The certificate authorities that are trusted.
    fn roots(&self) -> Arc<RootCertStore>;
}

/// The certificates that this host trusts, as DER, read once.
#[must_use]
pub fn trusted_roots() -> &'static [Vec<u8>] {
    static ROOTS: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    ROOTS.get_or_init(|| {
        let found = rustls_native_certs::load_native_certs().certs;
        found.into_iter().map(|certificate| certificate.to_vec()).collect()
    })
}

/// Authorities from their certificates; what cannot be parsed is left out.
pub(crate) fn parse_roots(certificates: &[Vec<u8>]) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates.iter().map(|der| der.as_slice().into()));
    roots
}

/// How long a name may take to resolve.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Asks the resolver of this host, and refuses addresses that are not public.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemAccess;

impl EndpointAccess for SystemAccess {
    fn roots(&self) -> Arc<RootCertStore> {
        static ROOTS: OnceLock<Arc<RootCertStore>> = OnceLock::new();
        Arc::clone(ROOTS.get_or_init(|| Arc::new(parse_roots(trusted_roots()))))
    }

    fn lookup(&self, host: &str, private: bool) -> LookupFuture {
        let host = host.to_owned();
        Box::pin(async move {
            let found = tokio::time::timeout(LOOKUP_TIMEOUT, tokio::net::lookup_host((&*host, 0)));
            let found = found.await.map_err(|_| StorageError::TimedOut(LOOKUP_TIMEOUT))?;
            let unknown = |error| StorageError::Unreachable(format!("{host}: {error}"));
            let addresses: Vec<IpAddr> = found.map_err(unknown)?.map(|found| found.ip()).collect();
            match addresses.iter().find(|address| !is_allowed(**address, private)) {
                Some(address) => Err(StorageError::Invalid(format!(
                    "the endpoint {host} has the address {address}, which storage may not be at; \
                     the operator can allow private endpoints"
                ))),
                None => Ok(addresses),
            }
        })
    }
}

/// Whether a client may connect to this address. The metadata services of clouds are at link-local
/// addresses, which are never allowed.
pub(crate) fn is_allowed(address: IpAddr, private: bool) -> bool {
    match address {
        IpAddr::V4(ip) => !is_never_storage(ip) && (private || is_public_v4(ip)),
        IpAddr::V6(ip) => match mapped_v4(ip) {
            Some(ip) => is_allowed(IpAddr::V4(ip), private),
            None => {
                let first = ip.segments()[0];
                let is_local = first & 0xffc0 == 0xfe80 || first & 0xff00 == 0xff00;
                // The metadata service of one cloud is at a unique local address.
                let is_metadata = ip == Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);
                let is_private = ip.is_loopback() || first & 0xfe00 == 0xfc00;
                !is_local && !is_metadata && !ip.is_unspecified() && (private || !is_private)
            }
        },
    }
}

fn is_never_storage(ip: Ipv4Addr) -> bool {
    ip.is_link_local() || ip.is_multicast() || ip.is_broadcast() || ip.octets()[0] == 0
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, ..] = ip.octets();
    let is_shared = a == 100 && (64..128).contains(&b);
    let is_benchmark = a == 198 && (18..20).contains(&b);
    !(ip.is_private()
        || ip.is_loopback()
        || ip.is_documentation()
        || is_shared
        || is_benchmark
        || a >= 240
        || ip.octets()[..3] == [192, 0, 0])
}

/// The IPv4 address in an IPv6 address: mapped, compatible, NAT64 or 6to4.
fn mapped_v4(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    let words = ip.segments();
    let [.., a, b, c, d] = ip.octets();
    let low = Ipv4Addr::new(a, b, c, d);
    match words {
        [0, 0, 0, 0, 0, 0xffff, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => Some(low),
        [0, 0, 0, 0, 0, 0, high, _] if high != 0 => Some(low),
        [0x2002, high, rest, ..] => {
            let ([a, b], [c, d]) = (high.to_be_bytes(), rest.to_be_bytes());
            Some(Ipv4Addr::new(a, b, c, d))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_public_addresses_are_allowed_by_default() {
        for text in [
            "127.0.0.1",
            "10.0.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.100.100.200",
            "0.0.0.0",
            "::1",
            "fe80::1",
            "fd00:ec2::254",
            "fc00::1",
            "::ffff:127.0.0.1",
            "64:ff9b::a00:1",
            "2002:7f00:1::",
            "255.255.255.255",
        ] {
            assert!(!is_allowed(text.parse().unwrap(), false), "{text}");
        }
        for text in ["8.8.8.8", "2600::1", "::ffff:8.8.8.8"] {
            assert!(is_allowed(text.parse().unwrap(), false), "{text}");
        }
    }

    #[test]
    fn the_metadata_service_is_never_allowed() {
        for text in ["169.254.169.254", "fd00:ec2::254", "::ffff:169.254.169.254", "fe80::1"] {
            assert!(!is_allowed(text.parse().unwrap(), true), "{text}");
        }
        for text in ["127.0.0.1", "10.0.0.1", "::1", "fc00::1"] {
            assert!(is_allowed(text.parse().unwrap(), true), "{text}");
        }
    }
}
