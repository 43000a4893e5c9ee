//! Runs in: network broker (no capabilities).
//!
//! Paths of requests, compared with the prefixes of a credential. A path that a server could read
//! in another way than we do matches nothing.

use percent_encoding::percent_decode_str;

/// A path in the one spelling that prefixes are compared with. `None` if it has several: dot
/// segments, empty segments, escaped separators or escapes of escapes.
pub(crate) fn canonical_path(path: &str) -> Option<String> {
    let decoded = percent_decode_str(path).decode_utf8().ok()?;
    let escaped_separators =
        decoded.matches(['/', '\\']).count() != path.matches('/').count() || path.contains('\\');
    let odd = |c: char| c.is_control() || matches!(c, '%' | '\\' | ';');
    if escaped_separators || decoded.contains(odd) || !decoded.starts_with('/') {
        return None;
    }
    let segments = decoded.split('/').skip(1);
    let last = decoded.matches('/').count() - 1;
    for (at, segment) in segments.enumerate() {
        if matches!(segment, "." | "..") || (segment.is_empty() && at != last) {
            return None;
        }
    }
    Some(decoded.into_owned())
}

/// Whether a canonical path is at or below a prefix, segment by segment.
pub(crate) fn is_below(path: &str, prefix: &str) -> bool {
    let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(path: &str, prefix: &str) -> bool {
        canonical_path(path).is_some_and(|path| is_below(&path, prefix))
    }

    #[test]
    fn a_prefix_is_compared_by_segments() {
        for path in ["/v1", "/v1/", "/v1/chat", "/%76%31/chat", "/v1/a%20b", "/v1/%C3%A4"] {
            assert!(matches(path, "/v1"), "{path}");
            assert!(matches(path, "/"), "{path}");
        }
        for path in ["/", "/v10", "/v1.1", "/V1", "/a/v1"] {
            assert!(!matches(path, "/v1"), "{path}");
        }
    }

    #[test]
    fn a_path_with_two_readings_matches_nothing() {
        for path in [
            "/v1/../admin",
            "/v1/%2e%2e/admin",
            "/v1/.%2E/admin",
            "/v1/./x",
            "/v1//admin",
            "//v1",
            "/v1/..%2fadmin",
            "/v1%2fx",
            "/v1\\..\\admin",
            "/v1/%5c..%5cadmin",
            "/v1/%252e%252e/x",
            "/v1/..;/admin",
            "/v1/;x=1/",
            "/v1/%00",
            "/v1/%ff",
            "*",
            "",
            "v1",
            "/v1/a%0ab",
        ] {
            assert_eq!(canonical_path(path), None, "{path}");
        }
    }
}
