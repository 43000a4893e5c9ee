//! Runs in: network broker (no capabilities).
//!
//! The heads of requests and replies: checked, stripped of what belongs to one connection, and with
//! the credential in its place. Pure functions.

use hyper::{
    HeaderMap, Method, Uri, Version,
    header::{
        self, ACCEPT_ENCODING, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, HOST, HeaderName,
        HeaderValue, IF_RANGE, RANGE, TRANSFER_ENCODING, UPGRADE,
    },
    http::{request, response, uri},
};

use crate::{
    redaction::SecretForms,
    refusal::RequestRefusal,
    rules::{Addition, BoundHost},
};

/// Headers that belong to one connection.
static OF_ONE_CONNECTION: [HeaderName; 8] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Checks the head of a request of the cell, and makes it the one that is sent. Returns whether a
/// credential was added.
pub(crate) fn prepare_request(
    head: &mut request::Parts,
    host: &BoundHost,
) -> Result<bool, RequestRefusal> {
    check_head(head, host)?;
    let path = head.uri.path().to_owned();
    let query = head.uri.query().map(str::to_owned);
    let additions =
        host.choose_additions(&head.method, (&path, query.as_deref()), &head.headers)?;
    // The only value that HTTP/2 allows, which gRPC demands.
    let is_http2 = head.version == Version::HTTP_2;
    let takes_trailers =
        is_http2 && head.headers.get(header::TE).is_some_and(|te| te == "trailers");
    strip_headers(&mut head.headers);
    if takes_trailers {
        head.headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    let mut query = query;
    for addition in &additions {
        match addition {
            // Replaces every copy that the cell sent.
            Addition::Header(name, value) => drop(head.headers.insert(name, value.clone())),
            Addition::Query(name, value) => query = Some(set_parameter(query, name, value)),
        }
    }
    let target = match query {
        Some(query) => format!("{path}?{query}"),
        None => path,
    };
    let authority = authority_of(host);
    let mut parts = uri::Parts::default();
    parts.path_and_query = Some(target.parse().map_err(|_| RequestRefusal::Target)?);
    head.headers.remove(HOST);
    if is_http2 {
        parts.scheme = Some(uri::Scheme::HTTPS);
        parts.authority = Some(authority.parse().map_err(|_| RequestRefusal::Target)?);
    } else {
        let value = HeaderValue::from_str(&authority).map_err(|_| RequestRefusal::Target)?;
        head.headers.insert(HOST, value);
        head.version = Version::HTTP_11;
    }
    head.uri = Uri::from_parts(parts).map_err(|_| RequestRefusal::Target)?;
    head.extensions.clear();
    Ok(!additions.is_empty())
}

fn authority_of(host: &BoundHost) -> String {
    match host.port {
        443 => host.name.clone(),
        port => format!("{}:{port}", host.name),
    }
}

fn check_head(head: &request::Parts, host: &BoundHost) -> Result<(), RequestRefusal> {
    if matches!(head.method, Method::TRACE | Method::CONNECT) {
        return Err(RequestRefusal::Method);
    }
    let is_http2 = head.version == Version::HTTP_2;
    let mut hosts = head.headers.get_all(HOST).iter();
    let (first, second) = (hosts.next(), hosts.next());
    let named = first.map(HeaderValue::to_str).transpose().map_err(|_| RequestRefusal::Framing)?;
    if second.is_some() {
        return Err(RequestRefusal::Framing);
    }
    match (is_http2, head.uri.authority(), named) {
        (true, Some(authority), named) => {
            let same = named.is_none_or(|named| is_authority(named, host));
            if !same || !is_authority(authority.as_str(), host) {
                return Err(RequestRefusal::OtherHost);
            }
            if head.uri.scheme() != Some(&uri::Scheme::HTTPS) {
                return Err(RequestRefusal::Target);
            }
        }
        // The absolute form names a host of its own; no client of a server sends it.
        (false, Some(_), _) => return Err(RequestRefusal::Target),
        (_, None, Some(named)) if is_authority(named, host) => {}
        (_, None, Some(_)) => return Err(RequestRefusal::OtherHost),
        (_, None, None) => return Err(RequestRefusal::Framing),
    }
    if !head.uri.path().starts_with('/') {
        return Err(RequestRefusal::Target);
    }
    check_framing(&head.headers)
}

/// Whether a request names this host: its name, and its port unless that is the usual one.
fn is_authority(text: &str, host: &BoundHost) -> bool {
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) => (name, port.parse::<u16>().ok()),
        None => (text, Some(443)),
    };
    name.eq_ignore_ascii_case(&host.name) && port == Some(host.port)
}

fn check_framing(headers: &HeaderMap) -> Result<(), RequestRefusal> {
    let lengths = headers.get_all(CONTENT_LENGTH).iter().count();
    let encodings: Vec<_> = headers.get_all(TRANSFER_ENCODING).iter().collect();
    if lengths > 1 || encodings.len() > 1 || (lengths == 1 && encodings.len() == 1) {
        return Err(RequestRefusal::Framing);
    }
    if encodings.iter().any(|value| !value.as_bytes().eq_ignore_ascii_case(b"chunked")) {
        return Err(RequestRefusal::Framing);
    }
    if headers.contains_key(UPGRADE) {
        return Err(RequestRefusal::Upgrade);
    }
    for value in headers.get_all(CONNECTION) {
        let Ok(tokens) = value.to_str() else { return Err(RequestRefusal::ConnectionTokens) };
        let harmless = |token: &str| {
            let token = token.trim();
            ["", "close", "keep-alive", "te"].iter().any(|one| token.eq_ignore_ascii_case(one))
        };
        if !tokens.split(',').all(harmless) {
            return Err(RequestRefusal::ConnectionTokens);
        }
    }
    Ok(())
}

/// Removes what belongs to the connection, and what would hide the credential in a reply: another
/// encoding, or a part of the content.
fn strip_headers(headers: &mut HeaderMap) {
    for name in &OF_ONE_CONNECTION {
        headers.remove(name);
    }
    for name in [header::EXPECT, RANGE, IF_RANGE] {
        headers.remove(name);
    }
    headers.remove("proxy-connection");
    headers.remove("http2-settings");
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
}

/// A query with one parameter of this name, whose value is escaped already.
fn set_parameter(query: Option<String>, name: &str, value: &str) -> String {
    let query = query.unwrap_or_default();
    let is_other = |pair: &&str| {
        let found = pair.split(['=', ';']).next().unwrap_or_default();
        let decoded = percent_encoding::percent_decode_str(found).decode_utf8_lossy();
        decoded != name && !pair.is_empty()
    };
    let added = format!("{name}={value}");
    let kept: Vec<&str> = query.split('&').filter(is_other).chain([added.as_str()]).collect();
    kept.join("&")
}

/// Checks the head of a reply, and removes the connection and the secrets from it. Returns whether
/// the server will close the connection after it.
pub(crate) fn prepare_response(
    head: &mut response::Parts,
    forms: &SecretForms,
) -> Result<bool, RequestRefusal> {
    if head.status == hyper::StatusCode::SWITCHING_PROTOCOLS {
        return Err(RequestRefusal::UpgradedReply);
    }
    let is_identity = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
    let is_chunked = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"chunked");
    if !head.headers.get_all(CONTENT_ENCODING).iter().all(is_identity)
        || !head.headers.get_all(TRANSFER_ENCODING).iter().all(is_chunked)
    {
        return Err(RequestRefusal::EncodedReply);
    }
    let closes = head.version < Version::HTTP_11
        || head.headers.get_all(CONNECTION).iter().any(|value| {
            let tokens = value.to_str().unwrap_or("close");
            tokens.split(',').any(|token| token.trim().eq_ignore_ascii_case("close"))
        });
    for name in &OF_ONE_CONNECTION {
        head.headers.remove(name);
    }
    // It would lead the client to another protocol or host.
    head.headers.remove(header::ALT_SVC);
    redact_headers(&mut head.headers, forms);
    // Also the reason phrase, which is text of the server.
    head.extensions.clear();
    Ok(closes)
}

/// Stars out secrets in the values of headers or trailers. Those with one in their name are removed.
pub(crate) fn redact_headers(headers: &mut HeaderMap, forms: &SecretForms) {
    let has_secret = |name: &&HeaderName| forms.redact(name.as_str().as_bytes()).is_some();
    let names: Vec<HeaderName> = headers.keys().filter(has_secret).cloned().collect();
    for name in &names {
        headers.remove(name);
    }
    for value in headers.values_mut() {
        if let Some(redacted) = forms.redact(value.as_bytes()) {
            *value = HeaderValue::from_bytes(&redacted)
                .unwrap_or_else(|_| HeaderValue::from_static("*"));
        }
    }
}
