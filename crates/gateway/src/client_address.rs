//! Runs in: server (no capabilities).
//!
//! The address of a client: of the connection, or as a reverse proxy on this host reports it.

use std::net::IpAddr;

use axum::http::{Extensions, HeaderMap};

/// The address of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerAddress(pub(crate) IpAddr);

/// The address of the client. Behind a proxy on this host it is the last one that the proxy added
/// to `X-Forwarded-For`; from elsewhere the header can say anything and is ignored.
pub(crate) fn client_address(headers: &HeaderMap, extensions: &Extensions) -> Option<IpAddr> {
    let PeerAddress(peer) = extensions.get::<PeerAddress>()?;
    let peer = peer.to_canonical();
    if !peer.is_loopback() {
        return Some(peer);
    }
    let forwarded = headers.get_all("x-forwarded-for").iter().next_back();
    let last = forwarded.and_then(|value| value.to_str().ok()?.rsplit(',').next());
    Some(last.and_then(|text| text.trim().parse().ok()).unwrap_or(peer))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn a_forwarded_address_counts_only_from_a_proxy_on_this_host() {
        let client = |peer: &str, forwarded: Option<&'static str>| {
            let mut extensions = Extensions::new();
            extensions.insert(PeerAddress(peer.parse().unwrap()));
            let mut headers = HeaderMap::new();
            if let Some(forwarded) = forwarded {
                headers.insert("x-forwarded-for", HeaderValue::from_static(forwarded));
            }
            client_address(&headers, &extensions).unwrap().to_string()
        };
        assert_eq!(client("127.0.0.1", None), "127.0.0.1");
        assert_eq!(client("127.0.0.1", Some("198.51.100.1, 192.0.2.7")), "192.0.2.7");
        assert_eq!(client("::ffff:192.0.2.1", Some("198.51.100.1")), "192.0.2.1");
        assert_eq!(client("::1", Some("nonsense")), "::1");
    }
}
