//! Runs in: server (no capabilities).
//!
//! The limit on requests for new responses: so many of one team in any minute, by its plan. The
//! requests of the last minute are kept in memory, so a restart forgets them.

use std::{
    collections::{HashMap, VecDeque},
    num::NonZeroU32,
    time::{Duration, Instant},
};

use cloche_engine::Refusal;
use cloche_model::{ErrorCode, TeamId, TeamPlan};
use parking_lot::Mutex;

/// The time in which requests are counted.
const WINDOW: Duration = Duration::from_secs(60);

/// How many requests for new responses a team may make in a minute, by its plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestsPerMinute {
    /// On the free plan; `None` means no limit.
    pub free: Option<NonZeroU32>,
    /// On the pro plan; `None` means no limit.
    pub pro: Option<NonZeroU32>,
    /// On the enterprise plan; `None` means no limit.
    pub enterprise: Option<NonZeroU32>,
}

impl RequestsPerMinute {
    /// The largest limit. The time of each request of the last minute is kept.
    pub const MAX: u32 = 10_000;

    fn for_plan(self, plan: TeamPlan) -> Option<NonZeroU32> {
        match plan {
            TeamPlan::Free => self.free,
            TeamPlan::Pro => self.pro,
            TeamPlan::Enterprise => self.enterprise,
        }
    }
}

impl Default for RequestsPerMinute {
    fn default() -> Self {
        Self { free: NonZeroU32::new(20), pro: NonZeroU32::new(120), enterprise: None }
    }
}

/// Counts the requests of each team.
pub(crate) struct RequestLimiter {
    limits: RequestsPerMinute,
    /// When each team made its requests of the last minute, oldest first.
    recent: Mutex<HashMap<TeamId, VecDeque<Instant>>>,
}

impl RequestLimiter {
    pub(crate) fn new(limits: RequestsPerMinute) -> Self {
        Self { limits, recent: Mutex::default() }
    }

    /// Counts a request, or refuses it if the team has made too many in the last minute. A refused
    /// request does not count.
    pub(crate) fn admit_request(
        &self,
        (team, plan): (&TeamId, TeamPlan),
        now: Instant,
    ) -> Result<(), Refusal> {
        let Some(limit) = self.limits.for_plan(plan) else { return Ok(()) };
        let mut recent = self.recent.lock();
        if !recent.contains_key(team) {
            // Teams that have made no request for a minute are forgotten when another one comes.
            recent.retain(|_, times| times.back().is_some_and(|last| now < *last + WINDOW));
        }
        let times = recent.entry(team.clone()).or_default();
        while times.front().is_some_and(|first| *first + WINDOW <= now) {
            times.pop_front();
        }
        let excess = (times.len() + 1).saturating_sub(limit.get() as usize);
        let Some(freeing) = excess.checked_sub(1).and_then(|at| times.get(at)) else {
            times.push_back(now);
            return Ok(());
        };
        Err(limit_refusal(limit, plan, (*freeing + WINDOW).saturating_duration_since(now)))
    }
}

fn limit_refusal(limit: NonZeroU32, plan: TeamPlan, wait: Duration) -> Refusal {
    // Rounded up: one second too early would be refused again.
    let wait = Duration::from_secs(wait.as_millis().div_ceil(1000).try_into().unwrap_or(60));
    let message = format!(
        "request limit reached: {limit} requests a minute for new responses on the {} plan; \
         try again in {}s",
        plan.display_name(),
        wait.as_secs()
    );
    Refusal { retry_after: Some(wait), ..Refusal::new(ErrorCode::RateLimited, message) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn team(n: u8) -> TeamId {
        TeamId::from_random([n; 20])
    }

    fn limits(free: u32, pro: u32) -> RequestsPerMinute {
        let [free, pro] = [free, pro].map(NonZeroU32::new);
        RequestsPerMinute { free, pro, enterprise: None }
    }

    #[test]
    fn a_team_may_make_so_many_requests_in_any_minute() {
        let limiter = RequestLimiter::new(limits(2, 1));
        let (one, start) = (team(1), Instant::now());
        let ask = |team: &TeamId, plan: TeamPlan, milliseconds: u64| {
            limiter.admit_request((team, plan), start + Duration::from_millis(milliseconds))
        };
        ask(&one, TeamPlan::Free, 0).unwrap();
        ask(&one, TeamPlan::Free, 30_000).unwrap();
        let refusal = ask(&one, TeamPlan::Free, 30_500).unwrap_err();
        assert_eq!(refusal.retry_after, Some(Duration::from_secs(30)));
        let message = "request limit reached: 2 requests a minute for new responses on the Free \
                       plan; try again in 30s";
        assert_eq!((refusal.code, &refusal.message[..]), (ErrorCode::RateLimited, message));
        // Another team has a limit of its own, by its plan.
        ask(&team(2), TeamPlan::Pro, 30_500).unwrap();
        ask(&team(2), TeamPlan::Pro, 30_500).unwrap_err();
        // A refused request does not count, and the window moves.
        ask(&one, TeamPlan::Free, 59_999).unwrap_err();
        ask(&one, TeamPlan::Free, 60_000).unwrap();
        ask(&one, TeamPlan::Free, 60_001).unwrap_err();
        (0..1000).for_each(|_| ask(&team(3), TeamPlan::Enterprise, 0).unwrap());
    }

    #[test]
    fn a_team_that_moved_to_a_smaller_plan_waits_until_it_is_within_the_limit() {
        let limiter = RequestLimiter::new(limits(1, 3));
        let start = Instant::now();
        for seconds in [0, 10, 20] {
            let now = start + Duration::from_secs(seconds);
            limiter.admit_request((&team(1), TeamPlan::Pro), now).unwrap();
        }
        let now = start + Duration::from_secs(20);
        let refusal = limiter.admit_request((&team(1), TeamPlan::Free), now).unwrap_err();
        assert_eq!(refusal.retry_after, Some(Duration::from_secs(60)));
    }

    #[test]
    fn teams_without_requests_are_forgotten() {
        let limiter = RequestLimiter::new(RequestsPerMinute::default());
        let start = Instant::now();
        for n in 0..5 {
            limiter.admit_request((&team(n), TeamPlan::Free), start).unwrap();
        }
        limiter.admit_request((&team(9), TeamPlan::Free), start + WINDOW).unwrap();
        assert_eq!(limiter.recent.lock().len(), 1);
    }
}
