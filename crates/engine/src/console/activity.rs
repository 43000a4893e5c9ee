//! Runs in: server (no capabilities).
//!
//! What executions did lately: figures of the last day in memory, and events as they happen. A
//! restart begins with empty figures; the ledger has the executions themselves.

mod buckets;

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use cloche_model::{
    Execution, ExecutionStart, ExecutionStatus, KeyId, Language, Moment, SandboxId, TeamId,
    ThreadId, TraceId,
};
use parking_lot::Mutex;
use tokio::sync::{Notify, broadcast};

use crate::clock;
pub use buckets::{ActivityPoint, LatencyPercentiles};
use buckets::{Bucket, BucketRing};

/// Events that a slow reader may be behind before it misses some.
const EVENTS: usize = 256;
/// The seconds of a fine bucket, and how far back fine buckets go.
const FINE: (i64, i64) = (10, 3600);
/// The same of coarse buckets.
const COARSE: (i64, i64) = (60, 24 * 3600);
/// The seconds that rates and transfers are about.
const RATE_WINDOW: i64 = 60;
/// The seconds that shares and percentiles are about.
const SHARE_WINDOW: i64 = 300;
/// The seconds that the list of sandboxes is about.
const TOP_WINDOW: i64 = 3600;
const TOP: usize = 5;
/// The most sandboxes that are counted by themselves.
const MOST_SANDBOXES: usize = 10_000;

/// An execution that started or ended.
#[derive(Clone, Debug)]
pub struct ActivityEvent {
    /// The team.
    pub team: TeamId,
    /// Its id.
    pub trace_id: TraceId,
    /// Its status now.
    pub status: ExecutionStatus,
    /// The language.
    pub language: Option<Language>,
    /// The sandbox.
    pub sandbox: SandboxId,
    /// The key.
    pub key: KeyId,
    /// The thread.
    pub thread: Option<ThreadId>,
    /// When it was accepted.
    pub created_at: Moment,
    /// The time from then to the end, once it has ended.
    pub duration: Option<Duration>,
    /// The exit code, once it has ended.
    pub exit_code: Option<i32>,
}

/// Figures of the last minutes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ActivitySummary {
    /// Executions that ended in the last minute.
    pub runs_per_minute: u64,
    /// The share of successful ones in the last five minutes.
    pub success_rate: Option<f64>,
    /// How long those took.
    pub latency: Option<LatencyPercentiles>,
    /// Bytes that programs received in the last minute.
    pub network_in_bytes: u64,
    /// Bytes that programs sent in the last minute.
    pub network_out_bytes: u64,
    /// The sandboxes with the most executions in the last hour.
    pub top_sandboxes: Vec<(SandboxId, u64)>,
}

/// What executions did lately.
pub struct Activity {
    figures: Mutex<ActivityFigures>,
    events: broadcast::Sender<Arc<ActivityEvent>>,
    /// Wakes what waits for executions that are over.
    ended: Notify,
}

impl Default for Activity {
    fn default() -> Self {
        let events = broadcast::Sender::new(EVENTS);
        Self { figures: Mutex::default(), events, ended: Notify::new() }
    }
}

#[derive(Default)]
struct ActivityFigures {
    all: TeamFigures,
    teams: HashMap<TeamId, TeamFigures>,
    sandboxes: HashMap<SandboxId, SandboxFigures>,
}

struct TeamFigures {
    fine: BucketRing,
    coarse: BucketRing,
}

impl Default for TeamFigures {
    fn default() -> Self {
        Self { fine: BucketRing::new(FINE), coarse: BucketRing::new(COARSE) }
    }
}

impl TeamFigures {
    fn add(&mut self, second: i64, add: &impl Fn(&mut Bucket)) {
        add(self.fine.bucket_at(second));
        add(self.coarse.bucket_at(second));
    }
}

struct SandboxFigures {
    team: TeamId,
    /// Executions by minute.
    minutes: VecDeque<(i64, u64)>,
}

fn second_of(moment: Moment) -> i64 {
    moment.0.div_euclid(1_000_000)
}

impl Activity {
    /// Events from now on.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<ActivityEvent>> {
        self.events.subscribe()
    }

    /// Waits until an execution has ended since the last wait.
    pub(crate) async fn wait_for_end(&self) {
        self.ended.notified().await;
    }

    pub(crate) fn note_start(&self, start: &ExecutionStart) {
        if self.events.receiver_count() > 0 {
            self.publish(start, ExecutionStatus::Running, None, None);
        }
    }

    /// Counts an execution that is over.
    pub(crate) fn note_end(&self, execution: &Execution) {
        let start = &execution.start;
        let Some(end) = &execution.end else { return };
        let duration = end.completed_at.duration_since(start.created_at);
        let is_good = execution.status == ExecutionStatus::Success;
        let network = end.network.as_ref();
        let network = network.map_or((0, 0), |report| (report.bytes_in, report.bytes_out));
        let second = second_of(end.completed_at);
        let add = |bucket: &mut Bucket| bucket.add_execution(is_good, duration, network);
        {
            let mut figures = self.figures.lock();
            figures.all.add(second, &add);
            figures.teams.entry(start.team.clone()).or_default().add(second, &add);
            figures.count_sandbox(&start.sandbox, &start.team, second);
        }
        self.ended.notify_one();
        if self.events.receiver_count() > 0 {
            self.publish(start, execution.status, Some(duration), Some(end.exit_code));
        }
    }

    /// Announces an execution that was refused.
    pub(crate) fn note_refusal(&self, start: &ExecutionStart) {
        self.ended.notify_one();
        if self.events.receiver_count() > 0 {
            self.publish(start, ExecutionStatus::Blocked, Some(Duration::ZERO), Some(-1));
        }
    }

    fn publish(
        &self,
        start: &ExecutionStart,
        status: ExecutionStatus,
        duration: Option<Duration>,
        exit_code: Option<i32>,
    ) {
        let event = ActivityEvent {
            team: start.team.clone(),
            trace_id: start.trace_id.clone(),
            status,
            language: start.language,
            sandbox: start.sandbox.clone(),
            key: start.key.clone(),
            thread: start.thread.clone(),
            created_at: start.created_at,
            duration,
            exit_code,
        };
        // Without a reader it is dropped.
        let _ = self.events.send(Arc::new(event));
    }

    /// The figures of the last minutes, of one team or of all.
    #[must_use]
    pub fn summarize(&self, team: Option<&TeamId>) -> ActivitySummary {
        let now = second_of(clock::now());
        let figures = self.figures.lock();
        let top_sandboxes = figures.top_sandboxes(team, now);
        let Some(of_team) = figures.find(team) else { return ActivitySummary::default() };
        let minute = of_team.fine.sum_since(now - RATE_WINDOW);
        let share = of_team.fine.sum_since(now - SHARE_WINDOW);
        ActivitySummary {
            runs_per_minute: minute.runs,
            success_rate: share.success_rate(),
            latency: share.percentiles(),
            network_in_bytes: minute.network_in,
            network_out_bytes: minute.network_out,
            top_sandboxes,
        }
    }

    /// The figures of some time, oldest first, and the seconds of each. Times without an execution
    /// are left out.
    #[must_use]
    pub fn history(&self, team: Option<&TeamId>, range: Duration) -> (i64, Vec<ActivityPoint>) {
        let seconds = i64::try_from(range.as_secs()).unwrap_or(i64::MAX);
        let since = second_of(clock::now()).saturating_sub(seconds);
        let is_fine = seconds <= FINE.1;
        let step = if is_fine { FINE.0 } else { COARSE.0 };
        let figures = self.figures.lock();
        let Some(of_team) = figures.find(team) else { return (step, Vec::new()) };
        let ring = if is_fine { &of_team.fine } else { &of_team.coarse };
        (step, ring.points_since(since))
    }
}

impl ActivityFigures {
    fn find(&self, team: Option<&TeamId>) -> Option<&TeamFigures> {
        match team {
            Some(team) => self.teams.get(team),
            None => Some(&self.all),
        }
    }

    fn count_sandbox(&mut self, sandbox: &SandboxId, team: &TeamId, second: i64) {
        let minute = second.div_euclid(60);
        if self.sandboxes.len() >= MOST_SANDBOXES && !self.sandboxes.contains_key(sandbox) {
            let oldest = minute - TOP_WINDOW / 60;
            self.sandboxes
                .retain(|_, counted| counted.minutes.back().is_some_and(|last| last.0 > oldest));
            if self.sandboxes.len() >= MOST_SANDBOXES {
                return;
            }
        }
        let counted = self
            .sandboxes
            .entry(sandbox.clone())
            .or_insert_with(|| SandboxFigures { team: team.clone(), minutes: VecDeque::new() });
        match counted.minutes.back_mut() {
            Some((last, count)) if *last >= minute => *count += 1,
            _ => counted.minutes.push_back((minute, 1)),
        }
        while counted.minutes.front().is_some_and(|(first, _)| *first <= minute - TOP_WINDOW / 60) {
            counted.minutes.pop_front();
        }
    }

    fn top_sandboxes(&self, team: Option<&TeamId>, now: i64) -> Vec<(SandboxId, u64)> {
        let since = (now - TOP_WINDOW).div_euclid(60);
        let of_team = self
            .sandboxes
            .iter()
            .filter(|(_, counted)| team.is_none_or(|team| *team == counted.team));
        let sums = of_team.map(|(id, counted)| {
            let minutes = counted.minutes.iter().filter(|(minute, _)| *minute > since);
            (id, minutes.map(|(_, count)| count).sum::<u64>())
        });
        let mut sums: Vec<_> = sums.filter(|(_, count)| *count > 0).collect();
        sums.sort_by(|one, two| two.1.cmp(&one.1).then_with(|| one.0.cmp(two.0)));
        sums.into_iter().take(TOP).map(|(id, count)| (id.clone(), count)).collect()
    }
}
