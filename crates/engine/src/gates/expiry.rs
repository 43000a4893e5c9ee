//! Approvals whose time is up are closed, and that is written down like any other decision.

use std::time::Duration;

use cloche_model::{Approval, ApprovalState, Decision, DecisionKind};

use super::decision_about;
use crate::{Engine, Refusal, clock};

/// The longest sleep; clocks are set.
const LONGEST: Duration = Duration::from_mins(1);
/// Approvals that are closed at once.
const BATCH: u32 = 100;

impl Engine {
    /// Sleeps until the next approval is due, and closes it; until the engine closes.
    pub(crate) async fn expire_approvals(self) {
        loop {
            let pause = self.close_overdue().await.unwrap_or_else(|error| {
                tracing::error!(%error, "expired approvals were not written down");
                LONGEST
            });
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.inner.approval_waiters.expiry.notified() => {}
                () = self.inner.closing.cancelled() => return,
            }
        }
    }

    /// Closes what is due; says how long until there is more.
    async fn close_overdue(&self) -> Result<Duration, Refusal> {
        let (store, now) = (&self.inner.store, clock::now());
        for approval in store.overdue_approvals(now, BATCH).await? {
            let decision = decision_about(DecisionKind::Expired, "time".to_owned(), &approval)?;
            let note = Some(expiry_note(&approval).to_owned());
            if store
                .expire_overdue_approval(&approval.id, now, Decision { note, ..decision })
                .await?
            {
                self.agent_metrics().count_decision(DecisionKind::Expired);
            }
            self.inner.approval_waiters.wake_waiters(&approval.id);
        }
        let next = store.next_expiry().await?;
        Ok(next.map_or(LONGEST, |at| at.duration_since(clock::now()).min(LONGEST)))
    }
}

fn expiry_note(approval: &Approval) -> &'static str {
    match approval.state {
        ApprovalState::Approved => "it was approved, and not used in time",
        _ => "nobody answered in time",
    }
}
