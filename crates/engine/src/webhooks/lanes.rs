//! Runs in: server (no capabilities). How many deliveries are under way: overall, for each team, and
//! for each host that a team sends to.
//!
//! A team that has none under way may have any free place; one that has some may have as many as are
//! left free for others. So a few teams whose receivers hang never have all places.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use cloche_model::{TeamId, TraceId};
use cloche_store::DueDelivery;
use parking_lot::Mutex;
use tokio::sync::Notify;
use url::Url;

use crate::WebhookConfig;

/// The most that may be under way; each is at least one.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneLimits {
    pub(super) overall: usize,
    pub(super) per_team: usize,
    pub(super) per_host: usize,
}

impl From<&WebhookConfig> for LaneLimits {
    fn from(config: &WebhookConfig) -> Self {
        Self {
            overall: config.at_once.max(1),
            per_team: config.at_once_per_team.max(1),
            per_host: config.at_once_per_host.max(1),
        }
    }
}

/// Deliveries under way.
pub(super) struct DeliveryLanes {
    limits: LaneLimits,
    state: Mutex<LaneState>,
    ended: Notify,
}

#[derive(Default)]
struct LaneState {
    under_way: HashSet<TraceId>,
    teams: HashMap<TeamId, usize>,
    /// By team and host, with its port.
    hosts: HashMap<(TeamId, String), usize>,
}

/// One delivery under way; dropping it makes room for the next.
pub(super) struct DeliveryLane {
    trace_id: TraceId,
    team: TeamId,
    host: String,
    lanes: Arc<DeliveryLanes>,
}

impl DeliveryLanes {
    pub(super) fn new(limits: LaneLimits) -> Self {
        Self { limits, state: Mutex::default(), ended: Notify::new() }
    }

    /// Room for a delivery; none if it is under way already, or others of its team are.
    pub(super) fn enter(self: &Arc<Self>, delivery: &DueDelivery) -> Option<DeliveryLane> {
        let host = host_of(&delivery.url);
        let (team, trace_id) = (delivery.team.clone(), delivery.trace_id.clone());
        let mut state = self.state.lock();
        let free = self.limits.overall.saturating_sub(state.under_way.len());
        let of_team = state.teams.get(&team).copied().unwrap_or(0);
        let for_team = self.limits.per_team.min(free.saturating_sub(1)).max(1);
        let key = (team.clone(), host.clone());
        let of_host = state.hosts.get(&key).copied().unwrap_or(0);
        let has_room = free > 0 && of_team < for_team && of_host < self.limits.per_host;
        if !has_room || !state.under_way.insert(trace_id.clone()) {
            return None;
        }
        *state.teams.entry(team.clone()).or_default() += 1;
        *state.hosts.entry(key).or_default() += 1;
        Some(DeliveryLane { trace_id, team, host, lanes: Arc::clone(self) })
    }

    /// Waits until none is under way.
    pub(super) async fn wait_idle(&self) {
        loop {
            let ended = self.ended.notified();
            if self.state.lock().under_way.is_empty() {
                return;
            }
            ended.await;
        }
    }
}

impl Drop for DeliveryLane {
    fn drop(&mut self) {
        let mut state = self.lanes.state.lock();
        state.under_way.remove(&self.trace_id);
        let key = (self.team.clone(), std::mem::take(&mut self.host));
        decrement_count(&mut state.teams, &self.team);
        decrement_count(&mut state.hosts, &key);
        drop(state);
        self.lanes.ended.notify_waiters();
    }
}

fn decrement_count<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

/// The host and port of a URL. What is no URL fails when it is sent.
fn host_of(url: &str) -> String {
    let parsed = Url::parse(url).ok();
    let host = parsed.as_ref().and_then(|url| Some((url.host_str()?, url.port_or_known_default())));
    host.map_or_else(String::new, |(host, port)| format!("{host}:{}", port.unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use cloche_model::{KeyId, Moment};

    use super::*;

    fn delivery(team: &str, number: u8, host: &str) -> DueDelivery {
        DueDelivery {
            trace_id: TraceId::from_random([number; 20]),
            team: team.parse().unwrap(),
            key: "key_1".parse::<KeyId>().unwrap(),
            url: format!("https://{host}/hook"),
            attempts: 0,
            queued_at: Moment(0),
        }
    }

    fn lanes(overall: usize, per_team: usize, per_host: usize) -> Arc<DeliveryLanes> {
        Arc::new(DeliveryLanes::new(LaneLimits { overall, per_team, per_host }))
    }

    #[test]
    fn a_team_whose_deliveries_hang_leaves_room_for_other_teams() {
        let lanes = lanes(16, 12, 12);
        let hanging: Vec<_> = (0..100)
            .filter_map(|number| lanes.enter(&delivery("team_a", number, "tarpit")))
            .collect();
        assert!(hanging.len() < 12, "{}", hanging.len());
        for (at, team) in ["team_b", "team_c", "team_d", "team_e"].into_iter().enumerate() {
            let other = lanes.enter(&delivery(team, 200 + u8::try_from(at).unwrap(), "receiver"));
            std::mem::forget(other.expect("a team with nothing under way has a place"));
        }
        drop(hanging);
        assert!(lanes.enter(&delivery("team_a", 1, "tarpit")).is_some());
    }

    #[test]
    fn a_host_that_hangs_leaves_room_for_the_other_hosts_of_its_team() {
        let lanes = lanes(64, 16, 4);
        let hanging: Vec<_> = (0..10)
            .filter_map(|number| lanes.enter(&delivery("team_a", number, "tarpit")))
            .collect();
        assert_eq!(hanging.len(), 4);
        assert!(lanes.enter(&delivery("team_a", 50, "receiver")).is_some());
    }

    #[test]
    fn a_delivery_under_way_is_not_started_again() {
        let lanes = lanes(64, 16, 4);
        let first = lanes.enter(&delivery("team_a", 1, "receiver"));
        assert!(first.is_some());
        assert!(lanes.enter(&delivery("team_a", 1, "receiver")).is_none());
        drop(first);
        assert!(lanes.enter(&delivery("team_a", 1, "receiver")).is_some());
    }

    #[tokio::test]
    async fn settling_waits_for_the_last_delivery() {
        let lanes = lanes(64, 16, 4);
        let lane = lanes.enter(&delivery("team_a", 1, "receiver"));
        let waiting = Arc::clone(&lanes);
        let settled = tokio::spawn(async move { waiting.wait_idle().await });
        tokio::task::yield_now().await;
        assert!(!settled.is_finished());
        drop(lane);
        settled.await.unwrap();
    }
}
