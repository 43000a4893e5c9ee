//! Parses a byte range request, as RFC 9110 defines it.

use std::ops::Range;

use axum::http::{HeaderMap, header};

/// The range that a request asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RequestedRange {
    /// The whole file: no range, an invalid range, several ranges, or a range for another version.
    All,
    /// A part of the file; never empty.
    Part(Range<u64>),
    /// A part beyond the end of the file.
    Unsatisfiable,
}

/// Parses `Range` and `If-Range`.
pub(crate) fn parse_range_headers(headers: &HeaderMap, size: u64, tag: &str) -> RequestedRange {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    if text(header::IF_RANGE).is_some_and(|known| known != tag) {
        return RequestedRange::All;
    }
    let range = text(header::RANGE).and_then(|range| range.strip_prefix("bytes="));
    range.and_then(|range| parse_byte_range(range.trim(), size)).unwrap_or(RequestedRange::All)
}

fn parse_byte_range(range: &str, size: u64) -> Option<RequestedRange> {
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        // A number that overflows is a position far behind the end.
        digits.then(|| text.parse().unwrap_or(u64::MAX))
    };
    let (from, to) = range.split_once('-')?;
    let range = match (from, to) {
        ("", last) => size.saturating_sub(number(last)?)..size,
        (first, "") => number(first)?..size,
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            if last < first {
                return None;
            }
            first..last.saturating_add(1).min(size)
        }
    };
    Some(if range.start < range.end {
        RequestedRange::Part(range)
    } else {
        RequestedRange::Unsatisfiable
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(range: &str) -> RequestedRange {
        let headers = HeaderMap::from_iter([(header::RANGE, range.parse().unwrap())]);
        parse_range_headers(&headers, 10, "\"t\"")
    }

    #[test]
    fn a_single_range_gives_a_part() {
        for (range, part) in [
            ("bytes=0-0", 0..1),
            ("bytes=2-5", 2..6),
            ("bytes=5-", 5..10),
            ("bytes=-3", 7..10),
            ("bytes=-30", 0..10),
            ("bytes=8-99999999999999999999999", 8..10),
        ] {
            assert_eq!(of(range), RequestedRange::Part(part), "{range}");
        }
    }

    #[test]
    fn an_invalid_range_is_ignored_and_one_beyond_the_end_is_unsatisfiable() {
        for range in ["bytes=", "bytes=a-b", "bytes=5-2", "lines=1-2", "bytes=0-1,4-5", "bytes=--1"]
        {
            assert_eq!(of(range), RequestedRange::All, "{range}");
        }
        for range in ["bytes=10-", "bytes=10-20", "bytes=-0", "bytes=99999999999999999999999-"] {
            assert_eq!(of(range), RequestedRange::Unsatisfiable, "{range}");
        }
    }

    #[test]
    fn a_range_for_another_version_gives_the_whole_file() {
        let mut headers = HeaderMap::from_iter([(header::RANGE, "bytes=0-1".parse().unwrap())]);
        headers.insert(header::IF_RANGE, "\"old\"".parse().unwrap());
        assert_eq!(parse_range_headers(&headers, 10, "\"t\""), RequestedRange::All);
        headers.insert(header::IF_RANGE, "\"t\"".parse().unwrap());
        assert_eq!(parse_range_headers(&headers, 10, "\"t\""), RequestedRange::Part(0..2));
    }
}
