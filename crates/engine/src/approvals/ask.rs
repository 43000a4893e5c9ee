//! Runs in: server (no capabilities).
//!
//! A call that needs the answer of a person: an approval is used for it, or a question is asked, with
//! the state of the home that the answer is valid for.

use cloche_model::{
    Approval, ApprovalId, ApprovalState, Decision, DecisionKind, HomeChanges, HomeState,
};
use cloche_store::{ApprovalRequestOutcome, CallId, QuestionLimits};

use super::{
    Approvals, CallPermit, GateDecision, GateRefusal, GateRefusalReason, ToolCall, call::SHOWN,
    crowded_refusal, decision_about, denied_refusal, new_decision,
};
use crate::{Caller, Refusal, clock, secrets, threads::thread_key};

/// The most bytes of arguments of one team that wait to be read.
const OPEN_BYTES: u64 = 64 << 20;

impl Approvals {
    /// Uses an approval for the call, or asks for one.
    pub(super) async fn ask_person(
        &self,
        caller: &Caller,
        call: &ToolCall,
    ) -> Result<GateDecision, Refusal> {
        if call.bytes > SHOWN as u64 {
            return self.refuse_call(caller, call, "gate", too_large(call.bytes)).await;
        }
        let home = self.home_of(caller, call).await?;
        let id = CallId {
            team: caller.team.id.clone(),
            key: caller.key.id.clone(),
            tool: call.tool,
            digest: call.digest.clone(),
            home: home.clone(),
        };
        let store = &self.store;
        loop {
            let now = clock::now();
            let used = new_decision(DecisionKind::Used, String::new(), caller, call)?;
            let pass = used.id.clone();
            if let Some(approval) = store.consume_approval(&id, now, used).await? {
                self.metrics.agents.count_decision(DecisionKind::Used);
                self.waiters.wake_waiters(&approval.id);
                let by = approval.decided_by.unwrap_or_default();
                return Ok(GateDecision::Open(CallPermit {
                    decision: pass,
                    by,
                    home,
                    web_tools: super::ResponseTools::default(),
                }));
            }
            if let Some(denied) = store.find_denial(&id, now).await? {
                let by = denied.decided_by.as_deref().unwrap_or("someone");
                return self
                    .refuse_call(caller, call, by, denied_refusal(by, denied.reason.as_deref()))
                    .await;
            }
            match store.open_approvals(&id, now).await?.into_iter().next() {
                Some(open) if open.state == ApprovalState::Pending => {
                    return Ok(GateDecision::Ask(Box::new(open)));
                }
                // It was approved since we looked: it can be used.
                Some(_) => continue,
                None => {}
            }
            if let Some(gate) = self.create_approval(caller, call, &id).await? {
                return Ok(gate);
            }
        }
    }

    /// Asks; `None` if there is an answer by now.
    async fn create_approval(
        &self,
        caller: &Caller,
        call: &ToolCall,
        id: &CallId,
    ) -> Result<Option<GateDecision>, Refusal> {
        let note = self.end_outdated(id).await?;
        let changes = match &id.home {
            Some(home) => Some(HomeChanges { note, ..self.home_changes(caller, home).await? }),
            None => None,
        };
        let approval = self.new_approval(caller, call, (id.home.clone(), changes))?;
        let asked = new_decision(DecisionKind::Asked, caller.key.id.to_string(), caller, call)?;
        let asked = Decision { approval: Some(approval.id.clone()), ..asked };
        let most = QuestionLimits { count: self.config.pending, bytes: OPEN_BYTES };
        Ok(match self.store.request_approval(approval.clone(), most, asked).await? {
            ApprovalRequestOutcome::New => {
                self.metrics.agents.count_decision(DecisionKind::Asked);
                self.waiters.wake_expiry();
                Some(GateDecision::Ask(Box::new(approval)))
            }
            ApprovalRequestOutcome::Same(same) if same.state == ApprovalState::Approved => None,
            ApprovalRequestOutcome::Same(same) => Some(GateDecision::Ask(same)),
            ApprovalRequestOutcome::Crowded => {
                Some(self.refuse_call(caller, call, "gate", crowded_refusal()).await?)
            }
        })
    }

    /// The home that a call runs in, if it names a thread and this server keeps any.
    async fn home_of(
        &self,
        caller: &Caller,
        call: &ToolCall,
    ) -> Result<Option<HomeState>, Refusal> {
        let Some(thread) = call.thread.as_ref().filter(|_| self.threads.keeps_homes()) else {
            return Ok(None);
        };
        let layers = self.store.home_layers(&thread_key(&caller.team, thread)).await?;
        Ok(Some(HomeState { thread: thread.clone(), layers }))
    }

    /// Ends what was asked or approved for an earlier state of the home, and says so for the next
    /// question.
    async fn end_outdated(&self, id: &CallId) -> Result<Option<String>, Refusal> {
        let mut note = None;
        for outdated in self.store.outdated_approvals(id, clock::now()).await? {
            let decision = decision_about(DecisionKind::Expired, "gate".to_owned(), &outdated)?;
            if self.store.expire_changed_approval(&outdated.id, decision).await? {
                self.metrics.agents.count_decision(DecisionKind::Expired);
                self.waiters.wake_waiters(&outdated.id);
                let was = match outdated.state {
                    ApprovalState::Approved => "was approved",
                    _ => "was asked for",
                };
                note = Some(format!(
                    "the thread changed after {} {was}, so the call is asked about again",
                    outdated.id
                ));
            }
        }
        Ok(note)
    }

    fn new_approval(
        &self,
        caller: &Caller,
        call: &ToolCall,
        (home, changes): (Option<HomeState>, Option<HomeChanges>),
    ) -> Result<Approval, Refusal> {
        let now = clock::now();
        Ok(Approval {
            id: ApprovalId::from_random(secrets::random_bytes()?),
            team: caller.team.id.clone(),
            key: caller.key.id.clone(),
            tool: call.tool,
            digest: call.digest.clone(),
            arguments: Some(call.shown.clone()),
            arguments_bytes: call.bytes,
            home,
            changes,
            state: ApprovalState::Pending,
            created_at: now,
            expires_at: now.saturating_add(self.config.lifetime),
            decided_at: None,
            decided_by: None,
            reason: None,
        })
    }
}

/// What cannot be shown cannot be approved.
fn too_large(bytes: u64) -> GateRefusal {
    let message = format!(
        "the arguments of this call have {bytes} bytes, and a person can be shown at most {SHOWN}; \
         make the call smaller, or ask an operator of this server for the policy `allow`"
    );
    GateRefusal { why: GateRefusalReason::TooLarge, message }
}
