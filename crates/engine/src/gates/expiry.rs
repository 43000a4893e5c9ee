//! Approvals whose time is up are closed, and that is written down like any other decision.

use std::{sync::Arc, time::Duration};

use cloche_model::{Approval, ApprovalState, Decision, DecisionKind};
use cloche_store::Store;
use tokio_util::sync::CancellationToken;

use super::{Desk, decision_about};
use crate::{Refusal, clock};

/// The longest sleep; clocks are set.
const LONGEST: Duration = Duration::from_mins(1);
/// Approvals that are closed at once.
const BATCH: u32 = 100;

/// Sleeps until the next approval is due, and closes it; until the engine closes.
pub(crate) async fn expire(store: Arc<dyn Store>, desk: Arc<Desk>, closing: CancellationToken) {
    loop {
        let pause = close_overdue(&*store, &desk).await.unwrap_or_else(|error| {
            tracing::error!(%error, "expired approvals were not written down");
            LONGEST
        });
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = desk.expiry.notified() => {}
            () = closing.cancelled() => return,
        }
    }
}

/// Closes what is due; says how long until there is more.
async fn close_overdue(store: &dyn Store, desk: &Desk) -> Result<Duration, Refusal> {
    let now = clock::now();
    for approval in store.overdue(now, BATCH).await? {
        let decision = decision_about(DecisionKind::Expired, "time".to_owned(), &approval)?;
        let note = Some(note(&approval).to_owned());
        store.expire(&approval.id, now, Decision { note, ..decision }).await?;
        desk.tell(&approval.id);
    }
    let next = store.next_expiry().await?;
    Ok(next.map_or(LONGEST, |at| at.since(clock::now()).min(LONGEST)))
}

fn note(approval: &Approval) -> &'static str {
    match approval.state {
        ApprovalState::Approved => "it was approved, and not used in time",
        _ => "nobody answered in time",
    }
}
