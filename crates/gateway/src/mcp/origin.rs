//! Whose web page is asking. A page that made its own name point at this machine could otherwise
//! speak to it as if it were its own server.

use axum::http::{HeaderMap, StatusCode, header};
use url::{Host, Url};

use crate::error::ApiError;

/// Refuses pages that are neither on this machine nor on the list. Programs that are not browsers
/// send no origin.
pub(super) fn check(headers: &HeaderMap, allowed: &[String]) -> Result<(), ApiError> {
    for origin in headers.get_all(header::ORIGIN) {
        let known = origin.to_str().is_ok_and(|origin| {
            is_loopback(origin) || allowed.iter().any(|allowed| allowed == origin)
        });
        if !known {
            let message = "requests from this web page are not taken".to_owned();
            return Err(ApiError::Http(StatusCode::FORBIDDEN, "forbidden", message));
        }
    }
    Ok(())
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
    fn only_this_machine_and_the_list_may_ask() {
        let allowed = ["https://console.example".to_owned()];
        let refused = |origin: &'static str| {
            let headers =
                HeaderMap::from_iter([(header::ORIGIN, HeaderValue::from_static(origin))]);
            check(&headers, &allowed).is_err()
        };
        assert!(check(&HeaderMap::new(), &allowed).is_ok());
        for origin in [
            "http://localhost:6274",
            "http://127.0.0.1",
            "http://[::1]:80",
            "https://console.example",
        ] {
            // A browser never writes the default port, so nobody has to take it.
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
}
