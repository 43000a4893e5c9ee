//! Runs in: server (no capabilities).
//!
//! The web tools as the code of one execution reaches them: which it may call, how often, and what
//! it is answered. What it reads is data: no answer changes what it may call.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use cloche_model::{ResponseId, TraceId, WebTool};

use super::{
    ToolCallOrigin, WebTools,
    call::{WebToolAnswer, WebToolCall, WebToolError},
    cell_request::parse_cell_request,
};
use crate::{ApprovalWaitResult, CallPermit, Caller, GateDecision};

/// The most bytes of an answer.
const MAX_ANSWER: usize = 1 << 20;
/// How long one wait for a person lasts before the gate is asked again.
const PATIENCE: Duration = Duration::from_secs(600);

/// The web tools of one execution.
pub struct CellTools {
    tools: Arc<WebTools>,
    caller: Caller,
    origin: ToolCallOrigin,
    allowed: BTreeSet<WebTool>,
    calls_left: AtomicU32,
}

impl std::fmt::Debug for CellTools {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CellTools").field("allowed", &self.allowed).finish_non_exhaustive()
    }
}

impl CellTools {
    /// The tools of an execution: those of its sandbox and of its response that this server offers.
    /// `None` where there are none; then nothing is put into the cell.
    pub(crate) fn open(
        tools: &Arc<WebTools>,
        caller: &Caller,
        trace_id: &TraceId,
        of_response: (&[WebTool], Option<ResponseId>),
    ) -> Option<Arc<Self>> {
        let named = caller.sandbox.shape.tools.iter().chain(of_response.0).copied();
        let allowed: BTreeSet<_> = named.filter(|tool| tools.config().offers(*tool)).collect();
        if allowed.is_empty() {
            return None;
        }
        let origin = ToolCallOrigin { execution: Some(trace_id.clone()), response: of_response.1 };
        Some(Arc::new(Self {
            calls_left: AtomicU32::new(tools.config().calls_per_execution),
            tools: Arc::clone(tools),
            caller: Arc::clone(caller),
            origin,
            allowed,
        }))
    }

    /// Answers one request of the guest, with one line of JSON.
    pub async fn answer_request(&self, request: &[u8]) -> Vec<u8> {
        let answer = match self.try_request(request).await {
            Ok(answer) => serde_json::to_string(&answer)
                .map_err(|_| WebToolError::unavailable("the answer cannot be encoded")),
            Err(error) => Err(error),
        };
        let answer = answer.and_then(|text| match text.len() {
            0..MAX_ANSWER => Ok(text),
            _ => Err(WebToolError::new(
                "too_large",
                format!("the answer has more than {MAX_ANSWER} bytes; ask for less"),
            )),
        });
        let mut line = answer.unwrap_or_else(|error| error.to_json());
        line.push('\n');
        line.into_bytes()
    }

    async fn try_request(&self, request: &[u8]) -> Result<WebToolAnswer, WebToolError> {
        let call = parse_cell_request(request)?;
        let tool = call.tool();
        if !self.allowed.contains(&tool) {
            return Err(WebToolError::not_allowed(format!(
                "this execution may not call {tool}: name it in `tools` of the sandbox or of the \
                 response"
            )));
        }
        let take = |left: u32| left.checked_sub(1);
        if self.calls_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_err() {
            let most = self.tools.config().calls_per_execution;
            let message = format!("an execution may call web tools {most} times");
            return Err(WebToolError::new("limit_reached", message));
        }
        let permit = self.obtain_permit(&call).await?;
        self.tools.run_call(&self.caller, &permit, &self.origin, &call).await
    }

    /// Asks the gates, and waits for a person where the policy is `ask`. The wait ends with the
    /// execution at the latest.
    async fn obtain_permit(&self, call: &WebToolCall) -> Result<CallPermit, WebToolError> {
        let (approvals, gate_call) = (self.tools.approvals(), call.to_gate_call());
        loop {
            let approval = match approvals.decide_call(&self.caller, &gate_call).await {
                GateDecision::Open(permit) => return Ok(permit),
                GateDecision::Closed(refusal) => {
                    return Err(WebToolError::not_allowed(refusal.message));
                }
                GateDecision::Ask(approval) => approval,
            };
            let waited = approvals.wait_for_approval(&self.caller, &approval.id, PATIENCE).await;
            match waited {
                Ok(ApprovalWaitResult::Expired) => {
                    return Err(WebToolError::not_allowed("this call was not approved in time"));
                }
                Ok(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                Err(refusal) => return Err(WebToolError::not_allowed(refusal.to_string())),
            }
        }
    }
}
