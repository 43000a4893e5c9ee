//! Runs in: server (no capabilities).
//!
//! `/console/api/overview` and `/console/api/events`: figures of the last day, and what happens
//! now. Members see their team; figures of the host are for operators.

use std::{collections::HashMap, convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Json,
    body::{Body, Bytes},
    extract::{RawQuery, State},
    http::header,
    response::{IntoResponse, Response},
};
use cloche_engine::{ActivityEvent, ApprovalFilter, Refusal, SignedIn, now};
use cloche_model::{ApprovalState, Invalid, MemberRole, TeamId};
use futures::stream;
use tokio::{
    sync::broadcast::{Receiver, error::RecvError},
    time::{Instant, sleep_until},
};

use crate::{
    api_types::{
        ApprovalsEvent, ErrorResponses, ExecutionActivity, OverviewHistory, OverviewNow, SessionEnd,
    },
    auth::SessionAuth,
    error::ApiError,
    http::threads::query_parameter,
    router::AppState,
};

/// How often the figures are sent.
const EVERY: Duration = Duration::from_secs(2);
/// The most approvals that are counted.
const MOST_PENDING: u32 = 200;
/// The most events that are sent at once.
const BATCH: usize = 64;

/// Whose figures someone sees: a member those of their team, an operator those of one team or all.
struct OverviewScope {
    team: Option<TeamId>,
    sees_host: bool,
}

impl OverviewScope {
    async fn find(state: &AppState, who: &SignedIn, query: Option<&str>) -> Result<Self, ApiError> {
        let sees_host = who.role() == MemberRole::Operator;
        let asked = query_parameter(query, "team").filter(|team| !team.is_empty());
        let team = match (&who.team, asked) {
            (Some(own), Some(asked)) if own.id.as_str() != asked && own.name != asked => {
                return Err(Refusal::not_found("team").into());
            }
            (Some(own), _) => Some(own.id.clone()),
            (None, Some(asked)) => Some(state.engine.tenancy().find_team(&asked).await?.id),
            (None, None) => None,
        };
        Ok(Self { team, sees_host })
    }
}

/// Get the figures of the last hours.
#[utoipa::path(
    get,
    path = "/console/api/overview",
    operation_id = "get_overview",
    tag = "console",
    params(
        ("range" = Option<String>, Query, pattern = "^(15m|1h|6h|24h)$",
            description = "How far back; `1h` if absent"),
        ("team" = Option<String>, Query,
            description = "For operators: only this team, by id or name; all if absent")
    ),
    responses((status = 200, description = "The figures", body = OverviewHistory), ErrorResponses),
    security(("session" = []))
)]
pub(crate) async fn get_overview(
    State(state): State<AppState>,
    SessionAuth(who): SessionAuth,
    RawQuery(query): RawQuery,
) -> Result<Json<OverviewHistory>, ApiError> {
    let scope = OverviewScope::find(&state, &who, query.as_deref()).await?;
    let range = match query_parameter(query.as_deref(), "range").as_deref() {
        Some("15m") => Duration::from_mins(15),
        None | Some("1h") => Duration::from_hours(1),
        Some("6h") => Duration::from_hours(6),
        Some("24h") => Duration::from_hours(24),
        Some(_) => return Err(Invalid::new("range must be 15m, 1h, 6h or 24h").into()),
    };
    let activity = state.engine.console().activity();
    let (step, points) = activity.history(scope.team.as_ref(), range);
    Ok(Json(OverviewHistory::new(range, step, points)))
}

/// Follow figures, executions and approvals as they change.
///
/// Server-sent events with JSON: `overview` every two seconds, `execution` when one starts or ends,
/// `approvals` when the number of pending ones changes, `end` when the session has ended.
#[utoipa::path(
    get,
    path = "/console/api/events",
    operation_id = "follow_console",
    tag = "console",
    params(("team" = Option<String>, Query,
        description = "For operators: only this team, by id or name; all if absent")),
    responses(
        (status = 200, description = "The events", content((OverviewNow = "text/event-stream"))),
        ErrorResponses
    ),
    security(("session" = []))
)]
pub(crate) async fn follow_console(
    State(state): State<AppState>,
    SessionAuth(who): SessionAuth,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let scope = OverviewScope::find(&state, &who, query.as_deref()).await?;
    let events = state.engine.console().activity().subscribe();
    let feed = ConsoleFeed {
        state,
        who,
        scope,
        events,
        next_figures: Instant::now(),
        pending: None,
        number: 0,
        is_over: false,
    };
    let body = Body::from_stream(stream::unfold(feed, |mut feed| async move {
        let chunk = feed.next_chunk().await?;
        Some((Ok::<_, Infallible>(chunk), feed))
    }));
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
        // Tells proxies not to buffer events.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    Ok((headers, body).into_response())
}

/// The events of one page.
struct ConsoleFeed {
    state: AppState,
    who: SignedIn,
    scope: OverviewScope,
    events: Receiver<Arc<ActivityEvent>>,
    next_figures: Instant,
    /// The number of pending approvals that was sent last.
    pending: Option<usize>,
    number: u64,
    is_over: bool,
}

impl ConsoleFeed {
    /// The next events as text. `None` if the stream is over.
    async fn next_chunk(&mut self) -> Option<Bytes> {
        let closing = self.state.mcp.closing.clone();
        let mut text = String::new();
        while text.is_empty() {
            if self.is_over {
                return None;
            }
            tokio::select! {
                () = closing.cancelled() => return None,
                event = self.events.recv() => self.push_executions(&mut text, event),
                () = sleep_until(self.next_figures) => {
                    self.push_figures(&mut text).await;
                    self.next_figures = Instant::now() + EVERY;
                }
            }
        }
        Some(text.into())
    }

    fn push_executions(&mut self, text: &mut String, first: Result<Arc<ActivityEvent>, RecvError>) {
        let mut event = match first {
            Ok(event) => Some(event),
            // Some were missed: the next figures are right again, and lists can be read anew.
            Err(RecvError::Lagged(_)) => None,
            Err(RecvError::Closed) => {
                self.is_over = true;
                None
            }
        };
        let mut sent = 0;
        while let Some(one) = event {
            if self.scope.team.as_ref().is_none_or(|team| *team == one.team) {
                self.push_event(text, "execution", &ExecutionActivity::from(&*one));
            }
            sent += 1;
            event = if sent < BATCH { self.events.try_recv().ok() } else { None };
        }
    }

    async fn push_figures(&mut self, text: &mut String) {
        if !self.is_still_signed_in().await {
            self.is_over = true;
            let reason = "this session has ended; sign in again".to_owned();
            self.push_event(text, "end", &SessionEnd { reason });
            return;
        }
        let pending = count_pending(&self.state, self.scope.team.as_ref()).await;
        let figures = current_figures(&self.state, &self.scope, pending).await;
        self.push_event(text, "overview", &figures);
        if self.pending != Some(pending) {
            self.pending = Some(pending);
            self.push_event(text, "approvals", &ApprovalsEvent { pending });
        }
    }

    /// Whether the session is still good, with the same role and team.
    async fn is_still_signed_in(&self) -> bool {
        let console = self.state.engine.console();
        match console.refresh_signed_in(&self.who).await {
            Ok(now) => now.role() == self.who.role() && now.team == self.who.team,
            Err(_) => false,
        }
    }

    fn push_event(&mut self, text: &mut String, name: &str, data: &impl serde::Serialize) {
        let Ok(data) = serde_json::to_string(data) else { return };
        self.number += 1;
        text.push_str(&format!("id: {}\nevent: {name}\ndata: {data}\n\n", self.number));
    }
}

async fn count_pending(state: &AppState, team: Option<&TeamId>) -> usize {
    let filter = ApprovalFilter {
        team: team.cloned(),
        state: Some(ApprovalState::Pending),
        limit: MOST_PENDING,
        ..ApprovalFilter::default()
    };
    let found = state.engine.approvals().list_approvals(&filter).await;
    found.map(|found| found.len()).unwrap_or_default()
}

async fn current_figures(
    state: &AppState,
    scope: &OverviewScope,
    pending_approvals: usize,
) -> OverviewNow {
    let team = scope.team.as_ref();
    let summary = state.engine.console().activity().summarize(team);
    let host = if scope.sees_host { Some(state.engine.host_figures()) } else { None };
    let mut names = HashMap::new();
    for (id, _) in &summary.top_sandboxes {
        if let Ok(sandbox) = state.engine.tenancy().find_sandbox(id.as_str()).await {
            names.insert(id.clone(), sandbox.name);
        }
    }
    let running = state.engine.executions().running_of(team);
    OverviewNow::new(now(), summary, &names, running)
        .with_host(host)
        .with_pending_approvals(pending_approvals)
}
