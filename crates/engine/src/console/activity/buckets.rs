//! Runs in: server (no capabilities).
//!
//! Counts of executions by time. Durations are counted in classes of which each is 9 % longer than
//! the one before, so percentiles of any time can be summed up.

use std::{collections::VecDeque, time::Duration};

/// Classes of durations for each doubling.
const CLASSES_PER_DOUBLING: f64 = 8.0;
/// The upper end of the first class, in microseconds.
const FIRST_CLASS_MICROS: f64 = 100.0;

/// Three percentiles of durations, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencyPercentiles {
    /// The median.
    pub p50_ms: f64,
    /// 95 of 100 are at most this long.
    pub p95_ms: f64,
    /// 99 of 100 are at most this long.
    pub p99_ms: f64,
}

/// What happened in one step of time.
#[derive(Clone, Debug, PartialEq)]
pub struct ActivityPoint {
    /// When the step begins, in seconds since 1970.
    pub second: i64,
    /// Executions that ended.
    pub runs: u64,
    /// Those that were not successful.
    pub failed: u64,
    /// How long they took.
    pub latency: Option<LatencyPercentiles>,
    /// Bytes that programs received.
    pub network_in_bytes: u64,
    /// Bytes that programs sent.
    pub network_out_bytes: u64,
}

/// Counts of one step of time.
#[derive(Clone, Debug, Default)]
pub(super) struct Bucket {
    start: i64,
    pub(super) runs: u64,
    pub(super) failed: u64,
    pub(super) network_in: u64,
    pub(super) network_out: u64,
    /// How many durations are in which class, by class.
    durations: Vec<(u8, u64)>,
}

fn class_of(duration: Duration) -> u8 {
    let micros = duration.as_secs_f64() * 1e6;
    let class = ((micros / FIRST_CLASS_MICROS).log2() * CLASSES_PER_DOUBLING).ceil();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is clamped to the range of the type"
    )]
    {
        class.clamp(0.0, f64::from(u8::MAX)) as u8
    }
}

/// The longest duration of a class, in milliseconds.
fn class_millis(class: u8) -> f64 {
    FIRST_CLASS_MICROS * (f64::from(class) / CLASSES_PER_DOUBLING).exp2() / 1000.0
}

impl Bucket {
    pub(super) fn add_execution(&mut self, is_good: bool, duration: Duration, network: (u64, u64)) {
        self.runs += 1;
        self.failed += u64::from(!is_good);
        self.network_in = self.network_in.saturating_add(network.0);
        self.network_out = self.network_out.saturating_add(network.1);
        self.add_durations(class_of(duration), 1);
    }

    fn add_durations(&mut self, class: u8, count: u64) {
        match self.durations.binary_search_by_key(&class, |(class, _)| *class) {
            Ok(place) => self.durations[place].1 += count,
            Err(place) => self.durations.insert(place, (class, count)),
        }
    }

    fn add_bucket(&mut self, other: &Self) {
        self.runs += other.runs;
        self.failed += other.failed;
        self.network_in = self.network_in.saturating_add(other.network_in);
        self.network_out = self.network_out.saturating_add(other.network_out);
        for (class, count) in &other.durations {
            self.add_durations(*class, *count);
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a share, shown to people")]
    pub(super) fn success_rate(&self) -> Option<f64> {
        (self.runs > 0).then(|| (self.runs - self.failed) as f64 / self.runs as f64)
    }

    pub(super) fn percentiles(&self) -> Option<LatencyPercentiles> {
        let at = |percent: u64| {
            let wanted = (self.runs * percent).div_ceil(100).max(1);
            let mut seen = 0;
            let class = self.durations.iter().find(|(_, count)| {
                seen += count;
                seen >= wanted
            });
            class.map(|(class, _)| class_millis(*class))
        };
        Some(LatencyPercentiles { p50_ms: at(50)?, p95_ms: at(95)?, p99_ms: at(99)? })
    }
}

/// Buckets of equal length, oldest first, without empty ones.
pub(super) struct BucketRing {
    buckets: VecDeque<Bucket>,
    /// The seconds of a bucket.
    step: i64,
    /// The seconds after which a bucket is dropped.
    keep: i64,
}

impl BucketRing {
    pub(super) fn new((step, keep): (i64, i64)) -> Self {
        Self { buckets: VecDeque::new(), step, keep }
    }

    /// The bucket of a second. Where clocks go back, it is the newest.
    pub(super) fn bucket_at(&mut self, second: i64) -> &mut Bucket {
        let start = second - second.rem_euclid(self.step);
        let is_new = self.buckets.back().is_none_or(|last| last.start < start);
        if is_new {
            let oldest = start - self.keep;
            while self.buckets.front().is_some_and(|first| first.start < oldest) {
                self.buckets.pop_front();
            }
            self.buckets.push_back(Bucket { start, ..Bucket::default() });
        }
        let last = self.buckets.len() - 1;
        &mut self.buckets[last]
    }

    /// The sum of the buckets that end after a second.
    pub(super) fn sum_since(&self, second: i64) -> Bucket {
        let mut sum = Bucket::default();
        let newest = self.buckets.iter().rev();
        newest
            .take_while(|bucket| bucket.start + self.step > second)
            .for_each(|bucket| sum.add_bucket(bucket));
        sum
    }

    /// The buckets that end after a second, oldest first.
    pub(super) fn points_since(&self, second: i64) -> Vec<ActivityPoint> {
        let first = self.buckets.partition_point(|bucket| bucket.start + self.step <= second);
        let point = |bucket: &Bucket| ActivityPoint {
            second: bucket.start,
            runs: bucket.runs,
            failed: bucket.failed,
            latency: bucket.percentiles(),
            network_in_bytes: bucket.network_in,
            network_out_bytes: bucket.network_out,
        };
        self.buckets.range(first..).map(point).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(ring: &mut BucketRing, second: i64, millis: u64, is_good: bool) {
        let duration = Duration::from_millis(millis);
        ring.bucket_at(second).add_execution(is_good, duration, (10, 1));
    }

    #[test]
    fn percentiles_are_at_most_a_tenth_too_long_and_never_too_short() {
        let mut ring = BucketRing::new((10, 60));
        (1..=100).for_each(|millis| add(&mut ring, 5, millis, true));
        let found = ring.sum_since(0).percentiles().unwrap();
        for (found, exact) in [(found.p50_ms, 50.0), (found.p95_ms, 95.0), (found.p99_ms, 99.0)] {
            assert!((exact..exact * 1.1).contains(&found), "{found} for {exact}");
        }
        assert_eq!(class_of(Duration::ZERO), 0);
        assert_eq!(class_of(Duration::MAX), u8::MAX);
    }

    #[test]
    fn old_steps_are_dropped_and_empty_ones_are_not_kept() {
        let mut ring = BucketRing::new((10, 60));
        for second in [0, 9, 10, 65] {
            add(&mut ring, second, 1, second != 9);
        }
        let seconds = |ring: &BucketRing, since| -> Vec<i64> {
            ring.points_since(since).iter().map(|point| point.second).collect()
        };
        assert_eq!(seconds(&ring, 0), [0, 10, 60]);
        assert_eq!(ring.sum_since(0).success_rate(), Some(0.75));
        assert_eq!(ring.sum_since(20).runs, 1);
        add(&mut ring, 75, 1, true);
        assert_eq!(seconds(&ring, 0), [10, 60, 70]);
        // A clock that goes back does not make the order wrong.
        add(&mut ring, 20, 1, true);
        assert_eq!(seconds(&ring, 0), [10, 60, 70]);
        assert_eq!(BucketRing::new((10, 60)).sum_since(0).percentiles(), None);
    }
}
