//! Which part of a file is wanted: one range of bytes, as RFC 9110 has it.

use std::ops::Range;

use axum::http::{HeaderMap, header};

/// What a request wants of a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RequestedRange {
    /// All of it: no range, one that cannot be read, several, or one for another version.
    All,
    /// A part of it; never empty.
    Part(Range<u64>),
    /// A part that it does not have.
    Unsatisfiable,
}

/// Reads `Range` and `If-Range`.
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
        // More digits than fit are a position far behind the end.
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
    fn one_range_is_a_part() {
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
    fn what_cannot_be_read_is_ignored_and_what_is_not_there_is_said() {
        for range in ["bytes=", "bytes=a-b", "bytes=5-2", "lines=1-2", "bytes=0-1,4-5", "bytes=--1"]
        {
            assert_eq!(of(range), RequestedRange::All, "{range}");
        }
        for range in ["bytes=10-", "bytes=10-20", "bytes=-0", "bytes=99999999999999999999999-"] {
            assert_eq!(of(range), RequestedRange::Unsatisfiable, "{range}");
        }
    }

    #[test]
    fn a_part_of_another_version_is_not_given() {
        let mut headers = HeaderMap::from_iter([(header::RANGE, "bytes=0-1".parse().unwrap())]);
        headers.insert(header::IF_RANGE, "\"old\"".parse().unwrap());
        assert_eq!(parse_range_headers(&headers, 10, "\"t\""), RequestedRange::All);
        headers.insert(header::IF_RANGE, "\"t\"".parse().unwrap());
        assert_eq!(parse_range_headers(&headers, 10, "\"t\""), RequestedRange::Part(0..2));
    }
}
