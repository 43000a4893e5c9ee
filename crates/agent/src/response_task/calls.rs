//! The tool calls of a model: code runs here, functions are returned to the caller.

use std::{collections::BTreeMap, time::Duration};

use cloche_engine::{CallPermit, ResponseTools, ToolCall, now};
use cloche_model::{OutputFile, ResponseStatus, TraceId};

use super::{ResponseTask, deadline_message, interrupted_failure};
use crate::{
    ChatMessage, ModelToolCall, ResponseEventKind, ResponseFailure, ResponseItem, RunResult,
    RunStatus, SandboxCall,
    agent::random_name,
    gate::{self, GateVerdict},
    live::ResponseStopReason,
    price::ResponseContainer,
    response::StoredResponseFile,
    sandbox::{self, ProgramContext, SandboxCallOutcome, SandboxProgram},
};

/// The limit on files of a response.
const MAX_FILES: usize = 1000;

impl ResponseTask {
    /// Runs calls of the sandbox and of web tools; returns true if the caller has to run a function.
    pub(super) async fn run_calls(
        &mut self,
        calls: Vec<ModelToolCall>,
    ) -> Result<bool, ResponseFailure> {
        let mut waiting = false;
        for call in calls {
            if self.order.sandbox && call.name == sandbox::NAME {
                let for_model = self.run_code(&call).await?;
                self.conversation.push(ChatMessage::Tool { call_id: call.id, text: for_model });
            } else if let Some(request) = self.find_web_tool(&call.name) {
                let for_model = self.run_web_call(&request, &call).await?;
                self.conversation.push(ChatMessage::Tool { call_id: call.id, text: for_model });
            } else if self.order.tools.iter().any(|tool| tool.name == call.name) {
                self.hand_over_call(call);
                waiting = true;
            } else {
                let text = "there is no tool of that name".to_owned();
                self.conversation.push(ChatMessage::Tool { call_id: call.id, text });
            }
        }
        Ok(waiting)
    }

    /// Adds a function call for the caller to the output.
    fn hand_over_call(&self, call: ModelToolCall) {
        self.live.change(|response| {
            let item = ResponseItem::Function {
                id: random_name("fc_"),
                call_id: call.id,
                name: call.name,
                arguments: call.arguments,
            };
            let index = response.output.len();
            response.output.push(item.clone());
            let added = ResponseEventKind::ItemAdded { index, item: item.clone() };
            ((), vec![added, ResponseEventKind::ItemDone { index, item }])
        });
    }

    /// Runs one sandbox call, from its first event to its result. Returns the result for the model.
    async fn run_code(&mut self, call: &ModelToolCall) -> Result<String, ResponseFailure> {
        let program = sandbox::parse_program(&call.arguments, &self.caller);
        let container =
            self.container.get_or_insert_with(|| ResponseContainer::new(random_name("")));
        let (language, code) = sandbox::as_given(&call.arguments);
        let shown = SandboxCall {
            call_id: call.id.clone(),
            container_id: container.id.clone(),
            language,
            code,
            status: RunStatus::InProgress,
            results: Vec::new(),
        };
        let index = self.live.change(|response| {
            let (index, item) = (response.output.len(), ResponseItem::Sandbox(shown.clone()));
            response.output.push(item.clone());
            (index, vec![ResponseEventKind::ItemAdded { index, item }])
        });
        // The state so far is stored before the program runs, so that a crash cannot lose it.
        self.save_progress(None).await?;
        let ran = match program {
            Ok(program) => self.run_program(call, &program).await,
            Err(why) => Ok(SandboxCallOutcome::not_run(&why)),
        };
        let (ran, failure) = match ran {
            Ok(ran) => (ran, None),
            Err(failure) => {
                let ran = SandboxCallOutcome::not_run(&failure.message);
                let interrupted = failure == interrupted_failure();
                (SandboxCallOutcome { interrupted, ..ran }, Some(failure))
            }
        };
        let result = self.result_to_show(&ran);
        self.show_result(
            index,
            SandboxCall { status: result.status, results: vec![result], ..shown },
        );
        match failure {
            Some(failure) => Err(failure),
            None if self.live.stopped.is_cancelled() => Err(interrupted_failure()),
            None => Ok(ran.for_model),
        }
    }

    /// The result of a call. One that was stopped because the time of the response was up is timed
    /// out.
    fn result_to_show(&self, ran: &SandboxCallOutcome) -> RunResult {
        let result = ran.result.clone();
        match self.live.stop_reason() {
            Some(ResponseStopReason::Deadline(longest)) if ran.interrupted => {
                let stderr = if ran.began { result.stderr } else { deadline_message(longest) };
                RunResult { status: RunStatus::TimedOut, stderr, ..result }
            }
            _ => result,
        }
    }

    async fn run_program(
        &mut self,
        call: &ModelToolCall,
        program: &SandboxProgram,
    ) -> Result<SandboxCallOutcome, ResponseFailure> {
        let container = self.container.as_ref().map_or("", |container| &container.id);
        let gate_call = gate::sandbox_tool_call(program, container);
        let mut permit = match self.obtain_permit(&gate_call).await? {
            Ok(permit) => permit,
            Err(why) => return Ok(SandboxCallOutcome::not_run(&why)),
        };
        permit.web_tools = ResponseTools {
            tools: self.order.web_tools.iter().map(|request| request.tool).collect(),
            response: Some(self.live.id.clone()),
        };
        let Some(container) = &mut self.container else {
            return Ok(SandboxCallOutcome::not_run("no container"));
        };
        let metadata = BTreeMap::from([
            ("response_id".to_owned(), self.live.id.to_string()),
            ("call_id".to_owned(), call.id.clone()),
        ]);
        let context = ProgramContext {
            engine: &self.engine,
            caller: &self.caller,
            container: &container.id,
            permit: &permit,
            metadata,
            stopped: &self.live.stopped,
        };
        let ran = sandbox::run_in_sandbox(context, program).await?;
        if let Some(trace_id) = &ran.trace_id {
            if let Err(error) = self.engine.approvals().note_execution(&permit, trace_id).await {
                tracing::error!(%error, %trace_id, "cannot record the execution of a decision");
            }
            for file in &ran.files {
                record_file(&mut self.files, trace_id, file);
            }
        }
        if ran.began {
            let sessions = container.record_use(Duration::from_millis(ran.result.duration_ms));
            let price = self.session_price;
            self.live.change(|response| {
                response.bill.sandbox_invocations += 1;
                for _ in 0..sessions {
                    response.bill.sandbox_cost += price;
                }
                ((), Vec::new())
            });
        }
        if let Some(trace_id) = &ran.trace_id {
            for used in self.engine.web_tools().usage_of(trace_id).await {
                self.bill_web_calls(used.tool, used.calls, used.micro_dollars);
            }
        }
        Ok(ran)
    }

    /// Obtains the permit for a call, or the reason of a refusal. While a person's answer is
    /// awaited, the response names the approval, and the team's setting decides its status.
    pub(super) async fn obtain_permit(
        &mut self,
        call: &ToolCall,
    ) -> Result<Result<CallPermit, String>, ResponseFailure> {
        loop {
            let approval = match gate::ask_gate(&self.engine, &self.caller, call).await {
                GateVerdict::Go(permit) => return Ok(Ok(permit)),
                GateVerdict::No(why) => return Ok(Err(why)),
                GateVerdict::Wait(approval) => approval,
            };
            let background = self.order.background;
            let status = gate::pending_status(&self.engine, &self.caller, background).await;
            self.set_status(status, Some(gate::approval_action(&approval)));
            self.save_progress(None).await?;
            let waited = tokio::select! {
                waited = gate::wait_for_person(&self.engine, &self.caller, &approval) => waited,
                () = self.live.stopped.cancelled() => return Err(interrupted_failure()),
            };
            self.set_status(ResponseStatus::InProgress, None);
            if let Err(why) = waited {
                return Ok(Err(why));
            }
        }
    }

    /// Replaces the item of a call with its result.
    fn show_result(&self, index: usize, call: SandboxCall) {
        self.live.change(|response| {
            let item = ResponseItem::Sandbox(call);
            if let Some(shown) = response.output.get_mut(index) {
                shown.clone_from(&item);
            }
            ((), vec![ResponseEventKind::ItemDone { index, item }])
        });
    }
}

/// Records a file that an execution wrote. The last execution that wrote a path is kept.
fn record_file(files: &mut Vec<StoredResponseFile>, trace_id: &TraceId, file: &OutputFile) {
    let position = files.binary_search_by(|known| known.path.as_str().cmp(&file.name));
    let kept = |id: String| StoredResponseFile {
        id,
        trace_id: trace_id.clone(),
        path: file.name.clone(),
        size: file.size,
        written_at: now(),
    };
    match position {
        Ok(at) => files[at] = kept(std::mem::take(&mut files[at].id)),
        Err(at) if files.len() < MAX_FILES => files.insert(at, kept(random_name("file_"))),
        Err(_) => {}
    }
}
