//! Runs in: server (no capabilities), sidecar (no capabilities).
//!
//! What a client asks for with `Accept` and `Prefer`: names in any case, parameters, weights,
//! several header lines. What cannot be read is as if it were absent.

use axum::http::{HeaderMap, HeaderName, header};

const PREFER: HeaderName = HeaderName::from_static("prefer");
const JSON: &str = "application/json";
const NDJSON: &str = "application/x-ndjson";

/// Whether the client prefers that the server answers before the work is done (RFC 7240).
pub(crate) fn prefers_async(headers: &HeaderMap) -> bool {
    let lists = header_lines(headers, &PREFER);
    lists.flat_map(|list| split_outside_quotes(list, ',')).any(|preference| {
        let preference = split_outside_quotes(preference, ';').next().unwrap_or_default();
        let (name, value) = preference.split_once('=').unwrap_or((preference, ""));
        // An empty value is the same as none, and this preference has no other.
        name.trim().eq_ignore_ascii_case("respond-async") && unquote(value.trim()).is_empty()
    })
}

/// Whether the client prefers a stream of lines to one JSON object (RFC 9110, 12.5.1). A stream has
/// to be named; a wildcard only stands for the object. Among equals, the first that is named
/// counts.
pub(crate) fn prefers_ndjson(headers: &HeaderMap) -> bool {
    let ranges: Vec<_> = header_lines(headers, &header::ACCEPT)
        .flat_map(|list| split_outside_quotes(list, ','))
        .filter_map(parse_media_range)
        .collect();
    let named = |name: &str| ranges.iter().position(|(range, _)| range.eq_ignore_ascii_case(name));
    let Some(stream) = named(NDJSON).filter(|at| ranges[*at].1 > 0) else { return false };
    let weight = ranges[stream].1;
    match named(JSON) {
        Some(object) => {
            weight > ranges[object].1 || (weight == ranges[object].1 && stream < object)
        }
        None => {
            let wildcard = named("application/*").or_else(|| named("*/*"));
            wildcard.is_none_or(|at| weight >= ranges[at].1)
        }
    }
}

fn header_lines<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = &'a str> + use<'a> {
    headers.get_all(name).iter().filter_map(|value| value.to_str().ok())
}

/// A media range and its weight in thousandths. Other parameters do not matter here.
fn parse_media_range(text: &str) -> Option<(&str, u32)> {
    let mut parts = split_outside_quotes(text, ';');
    let name = parts.next()?.trim();
    for parameter in parts {
        let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        if key.trim().eq_ignore_ascii_case("q") {
            return Some((name, parse_weight(value.trim())?));
        }
    }
    Some((name, 1000))
}

/// `0`, `1`, or one of them with up to three decimals, in thousandths.
fn parse_weight(text: &str) -> Option<u32> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let is_number =
        matches!(whole, "0" | "1") && decimals.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number || decimals.len() > 3 {
        return None;
    }
    let weight: u32 = format!("{whole}{decimals:0<3}").parse().ok()?;
    (weight <= 1000).then_some(weight)
}

fn unquote(text: &str) -> &str {
    text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text)
}

/// The parts between separators that are not inside a quoted string.
fn split_outside_quotes(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    text.split(move |c: char| {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' if is_quoted => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            _ => return c == separator && !is_quoted,
        }
        false
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: HeaderName, lines: &[&str]) -> HeaderMap {
        lines.iter().map(|line| (name.clone(), line.parse().unwrap())).collect()
    }

    #[test]
    fn a_preference_is_found_in_any_case_with_parameters_and_in_any_line() {
        for lines in [
            &["respond-async"][..],
            &["Respond-Async"],
            &["respond-async, wait=10"],
            &["wait=10, RESPOND-ASYNC"],
            &["respond-async;a=b"],
            &["respond-async=\"\""],
            &["handling=lenient", "respond-async"],
            &["foo=\"a, b\"; bar, respond-async"],
        ] {
            assert!(prefers_async(&headers(PREFER, lines)), "{lines:?}");
        }
        for lines in [
            &[][..],
            &["wait=10"],
            &["respond-asynchronously"],
            &["respond-async=no"],
            &["foo=\"a, respond-async\""],
            &["foo; respond-async"],
            &["foo=\"a\\\", respond-async\""],
        ] {
            assert!(!prefers_async(&headers(PREFER, lines)), "{lines:?}");
        }
    }

    #[test]
    fn a_stream_is_preferred_by_name_and_weight() {
        for lines in [
            &["application/x-ndjson"][..],
            &["Application/X-NDJSON"],
            &["application/x-ndjson; charset=utf-8"],
            &["application/x-ndjson;q=0.001"],
            &["text/html, application/x-ndjson;q=0.1"],
            &["application/x-ndjson, application/json"],
            &["application/x-ndjson, */*"],
            &["*/*, application/x-ndjson"],
            &["application/json;q=0.5, application/x-ndjson;q=0.6"],
            &["application/json;Q=0.9, application/x-ndjson"],
            &["text/plain", "application/x-ndjson"],
            &["application/json;q=0, application/x-ndjson;q=0.1, */*"],
        ] {
            assert!(prefers_ndjson(&headers(header::ACCEPT, lines)), "{lines:?}");
        }
        for lines in [
            &[][..],
            &["*/*"],
            &["application/*"],
            &["application/json"],
            &["text/html"],
            &["application/x-ndjson;q=0"],
            &["application/x-ndjson; q=0.000"],
            &["application/json, application/x-ndjson;q=0.5"],
            &["application/json, application/x-ndjson"],
            &["application/x-ndjson;q=0.5, */*;q=0.8"],
            &["application/x-ndjson;q=0.5, application/*"],
            &["application/x-ndjson;q=2"],
            &["application/x-ndjson;q=0.0001"],
            &["application/x-ndjsonl"],
            &["text/plain;note=\"a, application/x-ndjson\""],
        ] {
            assert!(!prefers_ndjson(&headers(header::ACCEPT, lines)), "{lines:?}");
        }
    }
}
