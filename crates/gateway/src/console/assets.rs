//! Runs in: server (no capabilities).
//!
//! The pages of the console: files that were built into this binary, compressed ahead. Files whose
//! name has a hash never change; every other path is the page itself, which finds its way.

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, HeaderValue, StatusCode, Uri, header},
    response::{IntoResponse, Redirect, Response},
};

use crate::error::ApiError;

/// Nothing is loaded from elsewhere, nothing runs that is not a file of ours, and no other page may
/// show this one.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self' data: blob:; font-src 'self'; connect-src 'self'; manifest-src 'self'; \
    base-uri 'none'; form-action 'self'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'";

/// What is shown by a binary without the console.
const MISSING: &str = "<!doctype html><html lang=en><meta charset=utf-8><title>Cloche</title>\
    <h1>This binary was built without the console</h1>\
    <p>In the sources, <code>make console</code> builds it (with npm, which it installs if it may), \
    and <code>cargo build --release --bin cloche</code> builds the server with it; \
    <code>make run</code> does both. \
    The API works without it, see <a href=\"/docs\">its description</a>.</p></html>";

/// A file of the console.
struct ConsoleFile {
    name: &'static str,
    plain: &'static [u8],
    brotli: Option<&'static [u8]>,
    gzip: Option<&'static [u8]>,
}

const FILES: &[ConsoleFile] = include!(concat!(env!("OUT_DIR"), "/console_files.rs"));
const INDEX: &str = "index.html";
/// The folder of files whose name has a hash.
const HASHED: &str = "assets/";

/// `/console` is the same page as `/console/`, below which its files are.
pub(crate) async fn redirect_to_console() -> Redirect {
    Redirect::permanent("/console/")
}

/// Serves a file, or the page for every other path.
pub(crate) async fn serve_page(uri: Uri, headers: HeaderMap) -> Result<Response, ApiError> {
    let name = uri.path().strip_prefix("/console/").unwrap_or_default();
    // A wrong path of the API must not look like a page, nor a file of another version.
    if name.starts_with("api/") {
        return Err(ApiError::not_found());
    }
    let named = find_file(name);
    if named.is_none() && name.starts_with(HASHED) {
        return Err(ApiError::not_found());
    }
    let Some(file) = named.or_else(|| find_file(INDEX)) else {
        let kind = [(header::CONTENT_TYPE, "text/html; charset=utf-8")];
        return Ok(with_policy((StatusCode::NOT_FOUND, kind, MISSING).into_response()));
    };
    Ok(with_policy(send_file(file, &headers)))
}

fn find_file(name: &str) -> Option<&'static ConsoleFile> {
    FILES.binary_search_by(|file| file.name.cmp(name)).ok().map(|place| &FILES[place])
}

fn send_file(file: &ConsoleFile, headers: &HeaderMap) -> Response {
    let (encoding, bytes) = choose_encoding(file, headers);
    let caching = match file.name.starts_with(HASHED) {
        true => "public, max-age=31536000, immutable",
        false => "no-cache",
    };
    let mut response = Response::new(Body::from(Bytes::from_static(bytes)));
    let out = response.headers_mut();
    out.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type(file.name)));
    out.insert(header::CACHE_CONTROL, HeaderValue::from_static(caching));
    out.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    if let Some(encoding) = encoding {
        out.insert(header::CONTENT_ENCODING, HeaderValue::from_static(encoding));
    }
    response
}

/// The smallest form that the client takes.
fn choose_encoding(
    file: &ConsoleFile,
    headers: &HeaderMap,
) -> (Option<&'static str>, &'static [u8]) {
    if let Some(brotli) = file.brotli.filter(|_| accepts_encoding(headers, "br")) {
        return (Some("br"), brotli);
    }
    match file.gzip.filter(|_| accepts_encoding(headers, "gzip")) {
        Some(gzip) => (Some("gzip"), gzip),
        None => (None, file.plain),
    }
}

fn accepts_encoding(headers: &HeaderMap, wanted: &str) -> bool {
    let lines = headers.get_all(header::ACCEPT_ENCODING).iter();
    lines.filter_map(|line| line.to_str().ok()).flat_map(|line| line.split(',')).any(|item| {
        let mut parts = item.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let is_refused = parts.any(|part| {
            let weight = part.strip_prefix("q=").and_then(|weight| weight.parse::<f32>().ok());
            weight == Some(0.0)
        });
        name.eq_ignore_ascii_case(wanted) && !is_refused
    })
}

fn media_type(name: &str) -> &'static str {
    match name.rsplit_once('.').map(|(_, ending)| ending) {
        Some("html") => "text/html; charset=utf-8",
        Some("js" | "mjs") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("ico") => "image/x-icon",
        Some("woff2") => "font/woff2",
        Some("json" | "map") => "application/json",
        Some("webmanifest") => "application/manifest+json",
        Some("txt") => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

fn with_policy(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (
            header::HeaderName::from_static("permissions-policy"),
            "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
        ),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: ConsoleFile = ConsoleFile {
        name: "assets/a.js",
        plain: b"plain",
        brotli: Some(b"brotli"),
        gzip: Some(b"gzip"),
    };

    fn encodings(value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(header::ACCEPT_ENCODING, HeaderValue::from_static(value))])
    }

    #[test]
    fn the_smallest_form_that_the_client_takes_is_sent() {
        let chosen = |value| choose_encoding(&FILE, &encodings(value)).1;
        assert_eq!(chosen("gzip, deflate, br, zstd"), b"brotli");
        assert_eq!(chosen("gzip;q=0.5"), b"gzip");
        assert_eq!(chosen("br;q=0, gzip"), b"gzip");
        assert_eq!(chosen("identity"), b"plain");
        assert_eq!(choose_encoding(&FILE, &HeaderMap::new()).1, b"plain");
    }

    #[test]
    fn only_files_with_a_hash_in_their_name_never_change() {
        let cached = |file: &ConsoleFile| {
            let response = send_file(file, &encodings("br"));
            response.headers()[header::CACHE_CONTROL].to_str().unwrap().to_owned()
        };
        assert_eq!(cached(&FILE), "public, max-age=31536000, immutable");
        assert_eq!(cached(&ConsoleFile { name: INDEX, ..FILE }), "no-cache");
        assert_eq!(media_type("assets/a.js"), "text/javascript; charset=utf-8");
    }
}
