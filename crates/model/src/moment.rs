//! A point in time, as rows store it. Nothing here reads a clock or knows a calendar.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Microseconds since 1970-01-01T00:00:00Z.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Moment(pub i64);

/// The microseconds of a day in UTC, which has no leap seconds here.
const DAY_MICROS: i64 = 86_400_000_000;

impl Moment {
    /// The moment `duration` later.
    #[must_use]
    pub fn saturating_add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)))
    }

    /// The moment `duration` earlier.
    #[must_use]
    pub fn saturating_sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)))
    }

    /// The day in UTC, counted from 1970-01-01.
    #[must_use]
    pub const fn utc_day(self) -> i64 {
        self.0.div_euclid(DAY_MICROS)
    }

    /// The first moment of a day in UTC, counted from 1970-01-01.
    #[must_use]
    pub const fn from_utc_day(day: i64) -> Self {
        Self(day.saturating_mul(DAY_MICROS))
    }

    /// The time since `earlier`; zero if `earlier` is later than `self`.
    #[must_use]
    pub fn duration_since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}
