//! Runs in: server (no capabilities), sidecar (no capabilities).
//!
//! One class of requests that share the host: which run, which wait, which is next.
//!
//! Teams take turns, as many in a row as their weight, and the requests of one team stay in order. A
//! turn goes to the first team whose next request fits, so that a large request does not hold up
//! small ones of other teams; a team that is passed over keeps its place. One short lock guards
//! everything. A place that is given while nothing waits costs that lock and nothing else.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use cloche_model::{CpuPriority, TeamId};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::capacity::{ClassLimits, HostShare};

/// Requests of one class. Cheap to clone.
#[derive(Clone)]
pub(crate) struct FairQueue {
    inner: Arc<QueueInner>,
}

struct QueueInner {
    limits: ClassLimits,
    /// How many places of a team have full CPU priority; its other places yield.
    in_front: u64,
    state: Mutex<QueueState>,
}

#[derive(Default)]
struct QueueState {
    used: HostShare,
    teams: HashMap<TeamId, TeamQueue>,
    /// Teams with waiting requests, the next one first.
    turns: VecDeque<TeamId>,
    waiting: usize,
    next_id: u64,
}

struct TeamQueue {
    used: HostShare,
    weight: u32,
    /// Turns left before the next team has its turn.
    credit: u32,
    waiting: VecDeque<QueuedRequest>,
    /// Places that are taken, the oldest first, and whether they have full CPU priority.
    running: VecDeque<RunningPlace>,
}

struct RunningPlace {
    id: u64,
    in_front: bool,
    priority: Weak<CpuPriority>,
}

struct QueuedRequest {
    id: u64,
    demand: HostShare,
    since: Instant,
    granted: oneshot::Sender<HostPlace>,
}

/// What a request asks for, and on whose behalf.
#[derive(Clone, Copy)]
pub(crate) struct PlaceRequest<'a> {
    pub(crate) team: &'a TeamId,
    /// Turns of the team in each round.
    pub(crate) weight: u32,
    pub(crate) demand: HostShare,
}

/// Why a request is refused without waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueFull {
    /// The queue of its team is full with so many requests.
    Team(usize),
    /// The queue of all teams is full with so many requests.
    Host(usize),
}

/// A request that was accepted.
#[derive(Debug)]
pub(crate) enum QueueTicket {
    /// It has its place now.
    Granted(HostPlace),
    /// It waits for its place.
    Waiting(WaitingTicket),
}

/// A request that waits. Dropping it gives up its turn.
pub(crate) struct WaitingTicket {
    id: u64,
    team: TeamId,
    granted: oneshot::Receiver<HostPlace>,
    queue: FairQueue,
}

/// A share of the host. Dropping it gives it back and grants the next places.
pub(crate) struct HostPlace {
    id: u64,
    team: TeamId,
    demand: HostShare,
    priority: Arc<CpuPriority>,
    /// How long the request waited for it.
    pub(crate) waited: Duration,
    queue: FairQueue,
}

/// How full a class is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueLevel {
    pub(crate) running: usize,
    pub(crate) queued: usize,
}

type Grants = Vec<(oneshot::Sender<HostPlace>, HostPlace)>;

impl FairQueue {
    pub(crate) fn new(limits: ClassLimits, in_front: u64) -> Self {
        let inner = QueueInner { limits, in_front, state: Mutex::default() };
        Self { inner: Arc::new(inner) }
    }

    /// A place at once, or a ticket to wait with. A demand beyond the capacity of the host is cut to it.
    pub(crate) fn enter(&self, request: PlaceRequest<'_>) -> Result<QueueTicket, QueueFull> {
        let PlaceRequest { team, weight, demand } = request;
        let limits = &self.inner.limits;
        let demand = demand.at_most(limits.capacity);
        let mut state = self.inner.state.lock();
        let id = state.next_id;
        state.next_id += 1;
        let own = state.teams.entry(team.clone()).or_insert_with(|| TeamQueue::new(weight));
        own.weight = weight;
        let first = own.waiting.is_empty();
        if first && state.may_have(team, demand, limits) {
            return Ok(QueueTicket::Granted(self.grant_place(&mut state, id, team, demand)));
        }
        let own_waiting = state.teams.get(team).map_or(0, |own| own.waiting.len());
        let full = if own_waiting >= limits.queued_per_team {
            Some(QueueFull::Team(limits.queued_per_team))
        } else {
            (state.waiting >= limits.queued).then_some(QueueFull::Host(limits.queued))
        };
        if let Some(full) = full {
            state.forget_if_empty(team);
            return Err(full);
        }
        let (granted, receiver) = oneshot::channel();
        state.push_waiting(team, QueuedRequest { id, demand, since: Instant::now(), granted });
        let queue = self.clone();
        Ok(QueueTicket::Waiting(WaitingTicket { id, team: team.clone(), granted: receiver, queue }))
    }

    /// The longest that a request should wait.
    pub(crate) fn longest_wait(&self) -> Duration {
        self.inner.limits.longest_wait
    }

    pub(crate) fn level(&self) -> QueueLevel {
        let state = self.inner.state.lock();
        let running = state.teams.values().map(|team| team.running.len()).sum();
        QueueLevel { running, queued: state.waiting }
    }

    /// Records a place as taken.
    fn grant_place(
        &self,
        state: &mut QueueState,
        id: u64,
        team: &TeamId,
        demand: HostShare,
    ) -> HostPlace {
        state.used = state.used.saturating_add(demand);
        let mut in_front = true;
        let priority = Arc::new(CpuPriority::default());
        if let Some(own) = state.teams.get_mut(team) {
            own.used = own.used.saturating_add(demand);
            let ahead = own.running.iter().filter(|place| place.in_front).count() as u64;
            in_front = ahead < self.inner.in_front;
            own.running.push_back(RunningPlace {
                id,
                in_front,
                priority: Arc::downgrade(&priority),
            });
        }
        if !in_front {
            priority.yield_to_others(true);
        }
        let (team, queue) = (team.clone(), self.clone());
        HostPlace { id, team, demand, priority, waited: Duration::ZERO, queue }
    }

    /// Grants places in turn, as long as there are any.
    fn grant_waiting(&self, state: &mut QueueState) -> Grants {
        let mut grants = Vec::new();
        while let Some((team, waiter)) = state.pop_next_turn(&self.inner.limits) {
            let mut place = self.grant_place(state, waiter.id, &team, waiter.demand);
            place.waited = waiter.since.elapsed();
            grants.push((waiter.granted, place));
        }
        grants
    }

    /// Sends the granted places. A place whose request has gone is dropped, which grants it to the next.
    fn notify_granted(grants: Grants) {
        for (granted, place) in grants {
            drop(granted.send(place));
        }
    }

    fn release_place(&self, place: &HostPlace) {
        let mut state = self.inner.state.lock();
        state.used = state.used.saturating_sub(place.demand);
        let promoted = state.teams.get_mut(&place.team).and_then(|own| {
            own.used = own.used.saturating_sub(place.demand);
            own.remove_running(place.id)
        });
        let grants = self.grant_waiting(&mut state);
        state.forget_if_empty(&place.team);
        drop(state);
        if let Some(priority) = promoted.and_then(|priority| priority.upgrade()) {
            priority.yield_to_others(false);
        }
        Self::notify_granted(grants);
    }
}

impl QueueState {
    /// Whether this fits, and leaves enough for other teams. A team without a place may have one.
    fn may_have(&self, team: &TeamId, demand: HostShare, limits: &ClassLimits) -> bool {
        let used = self.used.saturating_add(demand);
        if !used.fits_in(limits.capacity) {
            return false;
        }
        let Some(own) = self.teams.get(team).filter(|own| !own.running.is_empty()) else {
            return true;
        };
        own.used
            .saturating_add(demand)
            .is_within(limits.capacity.saturating_sub(used), limits.team_share_milli)
    }

    fn push_waiting(&mut self, team: &TeamId, waiter: QueuedRequest) {
        let Some(own) = self.teams.get_mut(team) else { return };
        if own.waiting.is_empty() {
            own.credit = own.weight;
            self.turns.push_back(team.clone());
        }
        own.waiting.push_back(waiter);
        self.waiting += 1;
    }

    /// Takes the request whose turn it is out of the queue, if there is one that can have a place.
    fn pop_next_turn(&mut self, limits: &ClassLimits) -> Option<(TeamId, QueuedRequest)> {
        let at = self.turns.iter().position(|team| {
            let next = self.teams.get(team).and_then(|own| own.waiting.front());
            next.is_some_and(|next| self.may_have(team, next.demand, limits))
        })?;
        let team = self.turns.get(at)?.clone();
        let own = self.teams.get_mut(&team)?;
        let waiter = own.waiting.pop_front()?;
        self.waiting -= 1;
        own.credit = own.credit.saturating_sub(1);
        if own.waiting.is_empty() {
            self.turns.remove(at);
        } else if own.credit == 0 {
            own.credit = own.weight;
            self.turns.remove(at);
            self.turns.push_back(team.clone());
        }
        Some((team, waiter))
    }

    /// Removes a request that gave up from the queue.
    fn remove_waiting(&mut self, team: &TeamId, id: u64) {
        let Some(own) = self.teams.get_mut(team) else { return };
        let before = own.waiting.len();
        own.waiting.retain(|waiter| waiter.id != id);
        self.waiting -= before - own.waiting.len();
        if own.waiting.is_empty() {
            self.turns.retain(|other| other != team);
        }
        self.forget_if_empty(team);
    }

    fn forget_if_empty(&mut self, team: &TeamId) {
        if self.teams.get(team).is_some_and(TeamQueue::is_empty) {
            self.teams.remove(team);
        }
    }
}

impl TeamQueue {
    fn new(weight: u32) -> Self {
        let (waiting, running) = (VecDeque::new(), VecDeque::new());
        Self { used: HostShare::NONE, weight, credit: weight, waiting, running }
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Removes a place; if it had full CPU priority, the oldest place that yields gets it.
    fn remove_running(&mut self, id: u64) -> Option<Weak<CpuPriority>> {
        let at = self.running.iter().position(|place| place.id == id)?;
        let ended = self.running.remove(at)?;
        let next = self.running.iter_mut().find(|place| !place.in_front);
        let next = next.filter(|_| ended.in_front)?;
        next.in_front = true;
        Some(next.priority.clone())
    }
}

impl WaitingTicket {
    /// Waits for the place. It ends as long as places are given back.
    pub(crate) async fn wait_granted(&mut self) -> Option<HostPlace> {
        (&mut self.granted).await.ok()
    }
}

impl Drop for WaitingTicket {
    fn drop(&mut self) {
        let mut state = self.queue.inner.state.lock();
        state.remove_waiting(&self.team, self.id);
        // Requests behind this one may fit now.
        let grants = self.queue.grant_waiting(&mut state);
        drop(state);
        FairQueue::notify_granted(grants);
    }
}

impl fmt::Debug for WaitingTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitingTicket").field("id", &self.id).finish_non_exhaustive()
    }
}

impl fmt::Debug for HostPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut place = f.debug_struct("HostPlace");
        place.field("id", &self.id).field("demand", &self.demand).finish_non_exhaustive()
    }
}

impl HostPlace {
    /// How its cell competes for processors.
    pub(crate) fn cpu_priority(&self) -> Arc<CpuPriority> {
        Arc::clone(&self.priority)
    }
}

impl Drop for HostPlace {
    fn drop(&mut self) {
        // A clone of the handle, because the state is changed through it.
        self.queue.clone().release_place(self);
    }
}

#[cfg(test)]
mod tests;
