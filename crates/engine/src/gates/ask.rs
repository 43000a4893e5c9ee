//! Runs in: server (no capabilities). A call that needs a person's word: an approval is used for it, or
//! the question is put, with the state of the home that the answer will be good for.

use cloche_model::{
    Approval, ApprovalId, ApprovalState, Decision, DecisionKind, HomeChanges, HomeState,
};
use cloche_store::{Asked, CallId, QuestionLimits};

use super::{
    Closed, Gate, Pass, Shut, ToolCall, call::SHOWN, crowded, decision, decision_about, no,
};
use crate::{Caller, Engine, Refusal, clock, secrets, threads::key};

/// The most bytes of arguments of one team that wait to be read.
const OPEN_BYTES: u64 = 64 << 20;

impl Engine {
    /// Uses an approval for the call, or asks for one.
    pub(super) async fn ask(&self, caller: &Caller, call: &ToolCall) -> Result<Gate, Refusal> {
        if call.bytes > SHOWN as u64 {
            return self.refuse(caller, call, "gate", too_large(call.bytes)).await;
        }
        let home = self.home_of(caller, call).await?;
        let id = CallId {
            team: caller.team.id.clone(),
            key: caller.key.id.clone(),
            tool: call.tool,
            digest: call.digest.clone(),
            home: home.clone(),
        };
        let store = &self.inner.store;
        loop {
            let now = clock::now();
            let used = decision(DecisionKind::Used, String::new(), caller, call)?;
            let pass = used.id.clone();
            if let Some(approval) = store.consume(&id, now, used).await? {
                self.agent_metrics().decided(DecisionKind::Used);
                self.inner.desk.tell(&approval.id);
                let by = approval.decided_by.unwrap_or_default();
                return Ok(Gate::Open(Pass { decision: pass, by, home }));
            }
            if let Some(denied) = store.denial(&id, now).await? {
                let by = denied.decided_by.as_deref().unwrap_or("someone");
                return self.refuse(caller, call, by, no(by, denied.reason.as_deref())).await;
            }
            match store.open_approvals(&id, now).await?.into_iter().next() {
                Some(open) if open.state == ApprovalState::Pending => {
                    return Ok(Gate::Ask(Box::new(open)));
                }
                // It was approved since we looked: it can be used.
                Some(_) => continue,
                None => {}
            }
            if let Some(gate) = self.put_question(caller, call, &id).await? {
                return Ok(gate);
            }
        }
    }

    /// Asks; `None` if there is an answer by now.
    async fn put_question(
        &self,
        caller: &Caller,
        call: &ToolCall,
        id: &CallId,
    ) -> Result<Option<Gate>, Refusal> {
        let note = self.end_outdated(id).await?;
        let changes = match &id.home {
            Some(home) => Some(HomeChanges { note, ..self.home_changes(caller, home).await? }),
            None => None,
        };
        let approval = self.question(caller, call, (id.home.clone(), changes))?;
        let asked = decision(DecisionKind::Asked, caller.key.id.to_string(), caller, call)?;
        let asked = Decision { approval: Some(approval.id.clone()), ..asked };
        let most = QuestionLimits { count: self.inner.config.gates.pending, bytes: OPEN_BYTES };
        Ok(match self.inner.store.ask(approval.clone(), most, asked).await? {
            Asked::New => {
                self.agent_metrics().decided(DecisionKind::Asked);
                self.inner.desk.nudge();
                Some(Gate::Ask(Box::new(approval)))
            }
            Asked::Same(same) if same.state == ApprovalState::Approved => None,
            Asked::Same(same) => Some(Gate::Ask(same)),
            Asked::Crowded => Some(self.refuse(caller, call, "gate", crowded()).await?),
        })
    }

    /// The home that a call runs in, if it names a thread and this server keeps any.
    async fn home_of(
        &self,
        caller: &Caller,
        call: &ToolCall,
    ) -> Result<Option<HomeState>, Refusal> {
        let Some(thread) = call.thread.as_ref().filter(|_| self.keeps_homes()) else {
            return Ok(None);
        };
        let layers = self.inner.store.home_layers(&key(&caller.team, thread)).await?;
        Ok(Some(HomeState { thread: thread.clone(), layers }))
    }

    /// Ends what was asked or approved for an earlier state of the home, and says so for the next
    /// question.
    async fn end_outdated(&self, id: &CallId) -> Result<Option<String>, Refusal> {
        let mut note = None;
        for outdated in self.inner.store.outdated_approvals(id, clock::now()).await? {
            let decision = decision_about(DecisionKind::Expired, "gate".to_owned(), &outdated)?;
            if self.inner.store.expire_changed(&outdated.id, decision).await? {
                self.agent_metrics().decided(DecisionKind::Expired);
                self.inner.desk.tell(&outdated.id);
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

    fn question(
        &self,
        caller: &Caller,
        call: &ToolCall,
        (home, changes): (Option<HomeState>, Option<HomeChanges>),
    ) -> Result<Approval, Refusal> {
        let now = clock::now();
        Ok(Approval {
            id: ApprovalId::from_random(secrets::random()?),
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
            expires_at: now.plus(self.inner.config.gates.lifetime),
            decided_at: None,
            decided_by: None,
            reason: None,
        })
    }
}

/// What cannot be shown cannot be approved.
fn too_large(bytes: u64) -> Closed {
    let message = format!(
        "the arguments of this call have {bytes} bytes, and a person can be shown at most {SHOWN}; \
         make the call smaller, or ask an operator of this server for the policy `allow`"
    );
    Closed { why: Shut::TooLarge, message }
}
