//! Runs in: server (no capabilities).
//!
//! Answers to calls that wait, and the record of all decisions.

use cloche_model::{
    Approval, ApprovalId, ApprovalState, Decision, DecisionKind, ErrorCode, Invalid,
};
use cloche_store::{ApprovalAnswer, ApprovalFilter, DecisionFilter};

use super::{Approvals, decision_about, form_text, waiting::with_expiry_applied};
use crate::{Caller, Refusal, clock};

/// The most characters of the name of an approver, and of a reason.
const MAX_NAME_CHARS: usize = 63;
const MAX_REASON_CHARS: usize = 500;

/// Why the person at the client cannot say yes.
const NOT_IN_FORM: &str = "this call does not fit into the client's form, so it cannot be approved \
                           there: it is decided with `cloche approval` or the admin API";

/// The one who answers.
#[derive(Clone, Debug)]
pub enum Approver {
    /// The holder of the admin token, with the name they gave.
    Admin(Option<String>),
    /// The holder of a key of the same team that may approve, and that did not ask.
    Key(Caller),
}

impl Approver {
    fn name(&self) -> String {
        match self {
            Self::Admin(None) => "admin".to_owned(),
            Self::Admin(Some(name)) => format!("admin ({name})"),
            Self::Key(caller) => format!("{} ({})", caller.key.id, caller.key.name),
        }
    }
}

impl Approvals {
    /// Approvals, newest first, without their arguments.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn list_approvals(&self, filter: &ApprovalFilter) -> Result<Vec<Approval>, Refusal> {
        let found = self.store.list_approvals(filter).await?;
        let as_asked = |approval: &Approval| filter.state.is_none_or(|it| it == approval.state);
        Ok(found.into_iter().map(with_expiry_applied).filter(as_asked).collect())
    }

    /// One approval with its arguments, as an approver sees it.
    ///
    /// # Errors
    /// When there is none that they may see.
    pub async fn approval_for(&self, by: &Approver, id: &str) -> Result<Approval, Refusal> {
        let missing = || Refusal::not_found("approval");
        let id: ApprovalId = id.parse().map_err(|_| missing())?;
        match by {
            Approver::Key(caller) => self.find_approval(caller, &id).await,
            Approver::Admin(_) => {
                let found = self.store.find_approval(&id).await?;
                found.map(with_expiry_applied).ok_or_else(missing)
            }
        }
    }

    /// Says yes: the call may be made once.
    ///
    /// # Errors
    /// When there is no such approval, it is not theirs to give, or it does not wait any more.
    pub async fn approve_call(&self, id: &str, by: &Approver) -> Result<Approval, Refusal> {
        self.decide_approval(id, by, true, None).await
    }

    /// Says no.
    ///
    /// # Errors
    /// As for [`Approvals::approve_call`].
    pub async fn deny_call(
        &self,
        id: &str,
        by: &Approver,
        reason: Option<String>,
    ) -> Result<Approval, Refusal> {
        self.decide_approval(id, by, false, reason).await
    }

    async fn decide_approval(
        &self,
        id: &str,
        by: &Approver,
        approve: bool,
        reason: Option<String>,
    ) -> Result<Approval, Refusal> {
        if let Approver::Admin(Some(name)) = by {
            check_text("by", name, MAX_NAME_CHARS)?;
        }
        if let Some(reason) = &reason {
            check_text("reason", reason, MAX_REASON_CHARS)?;
        }
        let approval = self.approval_for(by, id).await?;
        if let Approver::Key(caller) = by {
            check_may_answer(caller, &approval)?;
        }
        self.record_answer(&approval, by.name(), approve, reason).await
    }

    /// Records the answer of the person at the client, which the entry point asked itself.
    ///
    /// # Errors
    /// When the caller did not ask for this approval, the team does not take such answers, or it does
    /// not wait any more.
    pub async fn answer_by_elicitation(
        &self,
        caller: &Caller,
        id: &ApprovalId,
        approve: bool,
    ) -> Result<Approval, Refusal> {
        let approval = self.find_approval(caller, id).await?;
        if approval.key != caller.key.id {
            return Err(Refusal::not_found("approval"));
        }
        if !self.may_elicit(caller).await {
            return Err(forbidden_refusal(
                "this team does not take the answer of the client that asks",
            ));
        }
        if approve && form_text(&approval).is_none() {
            return Err(forbidden_refusal(NOT_IN_FORM));
        }
        let by = format!("person at the client of {}", caller.key.id);
        self.record_answer(&approval, by, approve, None).await
    }

    async fn record_answer(
        &self,
        approval: &Approval,
        by: String,
        approve: bool,
        reason: Option<String>,
    ) -> Result<Approval, Refusal> {
        let kind = if approve { DecisionKind::Approved } else { DecisionKind::Denied };
        let decision = decision_about(kind, by, approval)?;
        let at = clock::now();
        let answer = ApprovalAnswer {
            id: approval.id.clone(),
            approve,
            at,
            expires_at: at.saturating_add(self.config.lifetime),
            reason: reason.clone(),
            decision: Decision { note: reason, ..decision },
        };
        if let Some(answered) = self.store.answer_approval(answer).await? {
            let changed = answered.state == ApprovalState::Expired;
            self.metrics.agents.count_decision(if changed { DecisionKind::Expired } else { kind });
            self.waiters.wake_waiters(&answered.id);
            self.waiters.wake_expiry();
            return if changed { Err(already_closed_refusal(&answered)) } else { Ok(answered) };
        }
        let now = self.store.find_approval(&approval.id).await?.map(with_expiry_applied);
        Err(now.map_or_else(|| Refusal::not_found("approval"), |now| already_closed_refusal(&now)))
    }

    /// What was decided, newest first.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn list_decisions(&self, filter: &DecisionFilter) -> Result<Vec<Decision>, Refusal> {
        Ok(self.store.list_decisions(filter).await?)
    }
}

fn check_may_answer(caller: &Caller, approval: &Approval) -> Result<(), Refusal> {
    if approval.key == caller.key.id {
        return Err(forbidden_refusal("the key that asked cannot answer; another one has to"));
    }
    if !caller.key.may_approve {
        return Err(forbidden_refusal(
            "this key may not answer; an operator can give it the right with `cloche key set`",
        ));
    }
    Ok(())
}

fn check_text(field: &str, text: &str, most: usize) -> Result<(), Invalid> {
    let chars = text.chars().count();
    if chars == 0 || chars > most || text.chars().any(char::is_control) {
        return Err(Invalid::new(format!(
            "{field} must be 1 to {most} characters without control characters"
        )));
    }
    Ok(())
}

fn forbidden_refusal(message: &'static str) -> Refusal {
    Refusal::new(ErrorCode::Forbidden, message)
}

fn already_closed_refusal(approval: &Approval) -> Refusal {
    let by = approval.decided_by.as_deref().unwrap_or("someone");
    let message = match approval.state {
        ApprovalState::Denied => format!("it was denied already, by {by}"),
        ApprovalState::Approved | ApprovalState::Used => {
            format!("it was approved already, by {by}")
        }
        ApprovalState::Expired if approval.reason.is_some() => {
            let why = approval.reason.as_deref().unwrap_or_default();
            format!("it no longer counts: {why}; the call has to be asked about again")
        }
        ApprovalState::Pending | ApprovalState::Expired if approval.decided_by.is_some() => {
            format!("it has expired: {by} approved it, and it was not used in time")
        }
        ApprovalState::Pending | ApprovalState::Expired => {
            "it has expired: no answer came in time".to_owned()
        }
    };
    Refusal::new(ErrorCode::Conflict, message)
}
