//! Runs in: server (no capabilities), sidecar (no capabilities).
//!
//! The wall clock, read in one place, and its formats for people and machines.

use cloche_model::Moment;
use jiff::{Timestamp, civil::Date, tz::TimeZone};

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

/// A day in UTC as `2026-03-16`.
#[must_use]
pub fn format_utc_day(day: i64) -> String {
    utc_date(day).map(|date| date.to_string()).unwrap_or_default()
}

/// Reads the first day of a range: a date, or the day of a moment.
#[must_use]
pub fn parse_first_day(text: &str) -> Option<i64> {
    parse_date(text).or_else(|| parse_rfc3339(text).map(Moment::utc_day))
}

/// Reads the last day of a range: a date, or the last day with a part before a moment.
#[must_use]
pub fn parse_last_day(text: &str) -> Option<i64> {
    let day_before = |moment: Moment| Moment(moment.0.saturating_sub(1)).utc_day();
    parse_date(text).or_else(|| parse_rfc3339(text).map(day_before))
}

/// The first day of the month of a day in UTC, and of the month after it.
pub(crate) fn month_around(day: i64) -> Option<(i64, i64)> {
    let date = utc_date(day)?;
    let next = date.last_of_month().tomorrow().ok()?;
    Some((day_of_date(date.first_of_month())?, day_of_date(next)?))
}

fn utc_date(day: i64) -> Option<Date> {
    let start = Timestamp::from_microsecond(Moment::from_utc_day(day).0).ok()?;
    Some(start.to_zoned(TimeZone::UTC).date())
}

fn parse_date(text: &str) -> Option<i64> {
    // The parser also reads dates with a time, which would be cut off.
    let is_plain = text.len() == "2026-03-16".len() && text.as_bytes()[4] == b'-';
    day_of_date(text.parse().ok().filter(|_| is_plain)?)
}

fn day_of_date(date: Date) -> Option<i64> {
    let start = date.to_zoned(TimeZone::UTC).ok()?.timestamp();
    Some(Moment(start.as_microsecond()).utc_day())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_days_is_read_from_dates_and_moments() {
        let day = parse_first_day("2026-03-16").unwrap();
        assert_eq!(format_utc_day(day), "2026-03-16");
        assert_eq!(parse_last_day("2026-03-16"), Some(day));
        assert_eq!(parse_first_day("2026-03-16T23:30:00Z"), Some(day));
        assert_eq!(parse_first_day("2026-03-16T00:30:00+01:00"), Some(day - 1));
        // Midnight ends the day before it.
        assert_eq!(parse_last_day("2026-03-16T00:00:00Z"), Some(day - 1));
        assert_eq!(parse_last_day("2026-03-16T00:00:01Z"), Some(day));
        for text in ["", "yesterday", "2026-02-30", "20260316", "2026-3-16", "2026-03-16T12:00"] {
            assert_eq!((parse_first_day(text), parse_last_day(text)), (None, None), "{text}");
        }
    }

    #[test]
    fn a_month_ends_where_the_next_begins() {
        let day = |text| parse_first_day(text).unwrap();
        let (first, next) = month_around(day("2028-02-29")).unwrap();
        assert_eq!((first, next), (day("2028-02-01"), day("2028-03-01")));
        assert_eq!(month_around(day("2026-12-31")).unwrap().1, day("2027-01-01"));
    }

    #[test]
    fn a_moment_is_written_in_utc_and_read_back() {
        let moment = Moment(1_773_662_400_123_000);
        assert_eq!(format_rfc3339(moment), "2026-03-16T12:00:00.123Z");
        assert_eq!(parse_rfc3339("2026-03-16T13:00:00.123+01:00"), Some(moment));
        assert_eq!(parse_rfc3339("yesterday"), None);
    }
}
