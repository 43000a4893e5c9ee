//! A point in time, as rows store it. Nothing here reads a clock or knows a calendar.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Microseconds since 1970-01-01T00:00:00Z.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Moment(pub i64);

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

    /// The time since `earlier`; zero if `earlier` is later than `self`.
    #[must_use]
    pub fn duration_since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}
