//! Runs in: server (no capabilities).
//!
//! A call that waits for a person: what wakes it, and the result of the wait.

use std::time::Duration;

use cloche_model::{Approval, ApprovalId, ApprovalState};
use tokio::time::{Instant, sleep, sleep_until};

use super::Approvals;
use crate::{Caller, Refusal, clock};

/// The result of a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApprovalWaitResult {
    /// A person said yes: ask [`Approvals::decide_call`] again.
    Approved,
    /// A person said no.
    Denied {
        /// Who.
        by: String,
        /// Why, if they said.
        reason: Option<String>,
    },
    /// No answer came in time, or the approval was not used in time.
    Expired,
    /// The thread changed meanwhile: ask [`Approvals::decide_call`] again, which puts a new question.
    Changed,
    /// The approval was used by another call with the same arguments.
    Spent,
    /// There is no answer yet.
    StillPending,
}

impl Approvals {
    /// An approval of the caller's team.
    ///
    /// # Errors
    /// When there is none that the caller may see.
    pub async fn find_approval(
        &self,
        caller: &Caller,
        id: &ApprovalId,
    ) -> Result<Approval, Refusal> {
        let found = self.store.find_approval(id).await?;
        found
            .filter(|approval| approval.team == caller.team.id)
            .map(with_expiry_applied)
            .ok_or_else(|| Refusal::not_found("approval"))
    }

    /// Waits for an answer, at most so long. The answer wakes it; nothing is polled.
    ///
    /// # Errors
    /// When there is no such approval, too many calls of the team wait already, or the store fails.
    pub async fn wait_for_approval(
        &self,
        caller: &Caller,
        id: &ApprovalId,
        up_to: Duration,
    ) -> Result<ApprovalWaitResult, Refusal> {
        let deadline = Instant::now() + up_to;
        let place = self.waiters.add_waiter(&caller.team.id, id, self.config.waiting)?;
        loop {
            // Enabled before the state is read, so that an answer in between wakes this call.
            let changed = place.next_change();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let approval = self.find_approval(caller, id).await?;
            let left = approval.expires_at.duration_since(clock::now());
            let come_to = wait_result(approval);
            if come_to != ApprovalWaitResult::StillPending || self.lifecycle.is_draining() {
                return Ok(come_to);
            }
            tokio::select! {
                biased;
                () = changed => {}
                () = sleep_until(deadline) => return Ok(ApprovalWaitResult::StillPending),
                () = sleep(left) => {}
            }
        }
    }
}

fn wait_result(approval: Approval) -> ApprovalWaitResult {
    match approval.state {
        ApprovalState::Pending => ApprovalWaitResult::StillPending,
        ApprovalState::Approved => ApprovalWaitResult::Approved,
        ApprovalState::Denied => ApprovalWaitResult::Denied {
            by: approval.decided_by.unwrap_or_default(),
            reason: approval.reason,
        },
        ApprovalState::Expired if approval.reason.is_some() => ApprovalWaitResult::Changed,
        ApprovalState::Expired => ApprovalWaitResult::Expired,
        ApprovalState::Used => ApprovalWaitResult::Spent,
    }
}

/// An open approval whose time is up has expired, whether or not that was written down yet.
pub(super) fn with_expiry_applied(mut approval: Approval) -> Approval {
    let open = matches!(approval.state, ApprovalState::Pending | ApprovalState::Approved);
    if open && approval.expires_at <= clock::now() {
        approval.state = ApprovalState::Expired;
    }
    approval
}
