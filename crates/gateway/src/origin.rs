//! Runs in: server (no capabilities).
//!
//! Checks the web page that a request comes from. A page whose host name resolves to this machine
//! (DNS rebinding) could otherwise use this server as if it were the page's own.

use axum::http::{HeaderMap, StatusCode, header, request::Parts};
use url::{Host, Url};

use crate::error::ApiError;

/// Refuses requests from web pages whose origin is neither loopback nor on the list. Programs that
/// are not browsers send no origin.
pub(crate) fn check_origin(headers: &HeaderMap, allowed: &[String]) -> Result<(), ApiError> {
    for origin in headers.get_all(header::ORIGIN) {
        let known = origin.to_str().is_ok_and(|origin| {
            is_loopback(origin) || allowed.iter().any(|allowed| allowed == origin)
        });
        if !known {
            let message = "requests from this web page are not accepted".to_owned();
            return Err(ApiError::Http(StatusCode::FORBIDDEN, "forbidden", message));
        }
    }
    Ok(())
}

/// Refuses requests whose host is neither `localhost` nor an IP address. A page of another site can
/// reach this server only under a host name of that site. For entry points without a key.
pub(crate) fn check_host(parts: &Parts) -> Result<(), ApiError> {
    let mut hosts = parts.headers.get_all(header::HOST).iter().map(|host| host.to_str().ok());
    let of_uri = || parts.uri.authority().map(|authority| authority.as_str());
    let host = hosts.next().unwrap_or_else(of_uri);
    if hosts.next().is_none() && host.is_some_and(is_address_or_localhost) {
        return Ok(());
    }
    let message =
        "without a service key, requests are accepted for localhost and IP addresses only; \
                   set a service key to be reached by another host name"
            .to_owned();
    Err(ApiError::Http(StatusCode::FORBIDDEN, "forbidden", message))
}

fn is_address_or_localhost(host: &str) -> bool {
    let Ok(url) = Url::parse(&format!("http://{host}/")) else { return false };
    !host.contains(['/', '\\', '?', '#', '@'])
        && match url.host() {
            Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
            Some(Host::Ipv4(_) | Host::Ipv6(_)) => true,
            None => false,
        }
}

fn is_loopback(origin: &str) -> bool {
    let Ok(url) = Url::parse(origin) else { return false };
    let local = match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };
    local
        && matches!(url.scheme(), "http" | "https")
        && url.origin().ascii_serialization() == origin
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn only_loopback_and_listed_origins_are_accepted() {
        let allowed = ["https://console.example".to_owned()];
        let refused = |origin: &'static str| {
            let headers =
                HeaderMap::from_iter([(header::ORIGIN, HeaderValue::from_static(origin))]);
            check_origin(&headers, &allowed).is_err()
        };
        assert!(check_origin(&HeaderMap::new(), &allowed).is_ok());
        for origin in [
            "http://localhost:6274",
            "http://127.0.0.1",
            "http://[::1]:80",
            "https://console.example",
        ] {
            // Browsers never send the default port, so it need not be accepted.
            assert_eq!(refused(origin), origin.ends_with(":80"), "{origin}");
        }
        for origin in [
            "null",
            "",
            "http://evil.example",
            "http://localhost.evil.example",
            "http://localhost@evil.example",
            "http://evil@localhost",
            "https://console.example.evil.example",
            "http://console.example",
            "file://localhost",
        ] {
            assert!(refused(origin), "{origin}");
        }
    }

    #[test]
    fn without_a_key_only_localhost_and_addresses_are_accepted() {
        for host in ["localhost", "localhost:9099", "127.0.0.1:9099", "[::1]:80", "10.0.0.7"] {
            assert!(is_address_or_localhost(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:9099",
            "localhost.evil.example",
            "localhost@evil.example",
            "evil@localhost",
            "127.0.0.1.evil.example",
            "127.0.0.1/..",
            "sandbox-executor:9099",
        ] {
            assert!(!is_address_or_localhost(host), "{host}");
        }
    }
}
