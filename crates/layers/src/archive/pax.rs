//! Pax records: `LENGTH KEY=VALUE\n`, where the length includes itself.

use crate::{LayerError, entry::Mtime};

/// A key and its value.
pub(super) type PaxRecord<'a> = (&'a [u8], &'a [u8]);

/// Appends a record.
pub(super) fn push_record(records: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = 1 + key.len() + 1 + value.len() + 1;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    records.extend_from_slice(length.to_string().as_bytes());
    records.push(b' ');
    records.extend_from_slice(key);
    records.push(b'=');
    records.extend_from_slice(value);
    records.push(b'\n');
}

/// Removes the first record. Returns `None` at the end.
pub(super) fn take_record<'a>(records: &mut &'a [u8]) -> Result<Option<PaxRecord<'a>>, LayerError> {
    if records.is_empty() {
        return Ok(None);
    }
    let bad = || LayerError::Refused("a malformed pax record".to_owned());
    let space = records.iter().take(21).position(|&b| b == b' ').ok_or_else(bad)?;
    let length =
        usize::try_from(parse_number(&records[..space]).ok_or_else(bad)?).map_err(|_| bad())?;
    if length <= space + 1 || length > records.len() || records[length - 1] != b'\n' {
        return Err(bad());
    }
    let body = &records[space + 1..length - 1];
    let equals = body.iter().position(|&b| b == b'=').ok_or_else(bad)?;
    *records = &records[length..];
    Ok(Some((&body[..equals], &body[equals + 1..])))
}

/// Parses a decimal number without sign or spaces.
pub(super) fn parse_number(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 20 || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Formats a time as decimal seconds.
pub(super) fn format_time(time: Mtime) -> String {
    let (sign, seconds, nanos) = if time.seconds < 0 && time.nanos > 0 {
        ("-", (time.seconds + 1).unsigned_abs(), 1_000_000_000 - time.nanos)
    } else {
        (if time.seconds < 0 { "-" } else { "" }, time.seconds.unsigned_abs(), time.nanos)
    };
    if nanos == 0 {
        return format!("{sign}{seconds}");
    }
    let text = format!("{sign}{seconds}.{nanos:09}");
    text.trim_end_matches('0').to_owned()
}

/// Parses decimal seconds. Digits after the ninth are dropped.
pub(super) fn parse_time(text: &[u8]) -> Option<Mtime> {
    let (negative, text) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let mut parts = text.splitn(2, |&b| b == b'.');
    let seconds = i64::try_from(parse_number(parts.next()?)?).ok()?;
    let mut nanos = 0;
    if let Some(fraction) = parts.next() {
        if !fraction.iter().all(u8::is_ascii_digit) {
            return None;
        }
        for digit in 0..9 {
            nanos = nanos * 10 + u32::from(fraction.get(digit).map_or(0, |byte| byte - b'0'));
        }
    }
    Some(match (negative, nanos) {
        (false, _) => Mtime { seconds, nanos },
        (true, 0) => Mtime { seconds: -seconds, nanos },
        (true, _) => Mtime { seconds: -seconds - 1, nanos: 1_000_000_000 - nanos },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_and_after_1970_round_trip() {
        for seconds in [-2, -1, 0, 1, 1 << 33, i64::MAX / 4] {
            for nanos in [0, 1, 500_000_000, 999_999_999] {
                let time = Mtime { seconds, nanos };
                assert_eq!(parse_time(format_time(time).as_bytes()), Some(time));
            }
        }
        for wrong in ["", "-", "1.x", "x", "+1", "99999999999999999999"] {
            assert_eq!(parse_time(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn a_record_value_may_contain_any_byte() {
        for length in [0, 1, 5, 90, 92, 93, 95, 985, 990, 995, 9990] {
            let value = vec![b'\n'; length];
            let mut records = Vec::new();
            push_record(&mut records, b"key", &value);
            push_record(&mut records, b"other", b"=\0=");
            let mut rest = &records[..];
            assert_eq!(take_record(&mut rest).unwrap(), Some((&b"key"[..], &value[..])));
            assert_eq!(take_record(&mut rest).unwrap(), Some((&b"other"[..], &b"=\0="[..])));
            assert_eq!(take_record(&mut rest).unwrap(), None);
        }
        for wrong in ["5", "5 ", "3 a\n", "99 a=b\n", " a=b\n", "0 a=b\n"] {
            assert!(take_record(&mut wrong.as_bytes()).is_err(), "{wrong:?}");
        }
    }
}
