//! Runs in: server (no capabilities).
//!
//! Approvals expire: they are closed, and a decision records it.

use std::{sync::Arc, time::Duration};

use cloche_model::{Approval, ApprovalState, Decision, DecisionKind};

use super::{Approvals, decision_about};
use crate::{Refusal, clock};

/// The longest sleep, because the wall clock can be set.
const LONGEST: Duration = Duration::from_mins(1);
/// Approvals that are closed at once.
const BATCH: u32 = 100;

impl Approvals {
    /// Brings the metric of open questions up to date.
    pub(crate) async fn show_pending(&self) {
        match self.store.count_pending_approvals(clock::now()).await {
            Ok(count) => self.metrics.agents.set_pending(count),
            Err(error) => tracing::error!(%error, "pending approvals could not be counted"),
        }
    }

    /// Wakes every call that waits, as the server shuts down.
    pub(crate) fn wake_all(&self) {
        self.waiters.wake_all();
    }

    /// Sleeps until the next approval is due, and closes it; until the engine closes.
    pub(crate) async fn expire_overdue(self: Arc<Self>) {
        loop {
            let pause = self.close_overdue().await.unwrap_or_else(|error| {
                tracing::error!(%error, "expired approvals were not written down");
                LONGEST
            });
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.waiters.expiry.notified() => {}
                () = self.lifecycle.closed() => return,
            }
        }
    }

    /// Closes what is due; says how long until there is more.
    async fn close_overdue(&self) -> Result<Duration, Refusal> {
        let (store, now) = (&self.store, clock::now());
        for approval in store.overdue_approvals(now, BATCH).await? {
            let decision = decision_about(DecisionKind::Expired, "time".to_owned(), &approval)?;
            let note = Some(expiry_note(&approval).to_owned());
            if store
                .expire_overdue_approval(&approval.id, now, Decision { note, ..decision })
                .await?
            {
                self.metrics.agents.count_decision(DecisionKind::Expired);
            }
            self.waiters.wake_waiters(&approval.id);
        }
        let next = store.next_expiry().await?;
        Ok(next.map_or(LONGEST, |at| at.duration_since(clock::now()).min(LONGEST)))
    }
}

fn expiry_note(approval: &Approval) -> &'static str {
    match approval.state {
        ApprovalState::Approved => "it was approved, and not used in time",
        _ => "no answer came in time",
    }
}
