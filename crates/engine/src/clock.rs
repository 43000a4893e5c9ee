//! Runs in: server (no capabilities), sidecar (no capabilities).
//!
//! The wall clock, read in one place, and its formats for people and machines.

use cloche_model::Moment;
use jiff::Timestamp;

/// This very moment.
#[must_use]
pub fn now() -> Moment {
    Moment(Timestamp::now().as_microsecond())
}

/// A moment as RFC 3339 in UTC, to the millisecond.
#[must_use]
pub fn format_rfc3339(moment: Moment) -> String {
    match Timestamp::from_microsecond(moment.0) {
        Ok(time) => format!("{time:.3}"),
        // Only a moment some ten thousand years away is not a date.
        Err(_) => String::new(),
    }
}

/// Reads a moment from RFC 3339.
#[must_use]
pub fn parse_rfc3339(text: &str) -> Option<Moment> {
    text.parse::<Timestamp>().ok().map(|time| Moment(time.as_microsecond()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_written_in_utc_and_read_back() {
        let moment = Moment(1_773_662_400_123_000);
        assert_eq!(format_rfc3339(moment), "2026-03-16T12:00:00.123Z");
        assert_eq!(parse_rfc3339("2026-03-16T13:00:00.123+01:00"), Some(moment));
        assert_eq!(parse_rfc3339("yesterday"), None);
    }
}
