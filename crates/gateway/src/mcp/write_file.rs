//! Runs in: server (no capabilities).
//!
//! One call of `write_file`. It passes the same gate as code, because the file may run in the next
//! call.

use cloche_engine::{CallPermit, Caller, FileUpload, Refusal};
use cloche_model::{AgentTool, HomePath, Invalid, ThreadId};
use rmcp::{
    RoleServer,
    model::{CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, JsonObject},
    service::RequestContext,
};
use serde::Deserialize;

use super::{
    arguments, files,
    gate::{ApprovalFlow, McpGateOutcome},
    server::McpHandler,
};

#[derive(Deserialize)]
struct WriteArguments {
    thread_id: String,
    path: String,
    content: Option<String>,
    content_base64: Option<String>,
}

/// A file that an agent wants to write.
struct FileToWrite {
    thread: ThreadId,
    path: HomePath,
    bytes: Vec<u8>,
}

/// Writes the file of a call, if its arguments are valid and the gate permits it.
pub(super) async fn write_file(
    handler: &McpHandler,
    caller: &Caller,
    call: CallToolRequestParams,
    context: &RequestContext<RoleServer>,
) -> CallToolResponse {
    let given = call.arguments.unwrap_or_default();
    // Checked before the gate, so that no person has to approve a call that could not run.
    let file = match read_arguments(given.clone()) {
        Ok(file) => file,
        Err(refusal) => return files::refused_result(&refusal).into(),
    };
    let tool = AgentTool::WriteFile;
    let flow = ApprovalFlow { handler, caller, context, answers: call.input_responses, tool };
    match flow.pass_gate(&given).await {
        McpGateOutcome::Through(permit) => match store_file(handler, caller, file, &permit).await {
            Ok(result) => result.into(),
            Err(refusal) => files::refused_result(&refusal).into(),
        },
        McpGateOutcome::Stopped(result) => (*result).into(),
        McpGateOutcome::AskFirst(question) => (*question).into(),
    }
}

fn read_arguments(given: JsonObject) -> Result<FileToWrite, Refusal> {
    let WriteArguments { thread_id, path, content, content_base64 } =
        files::parse_or_refuse(given)?;
    let bytes = arguments::decode_content(content, content_base64)
        .map_err(|why| Invalid::new(format!("the file {why}")))?;
    Ok(FileToWrite { thread: files::parse_thread_id(&thread_id)?, path: path.parse()?, bytes })
}

async fn store_file(
    handler: &McpHandler,
    caller: &Caller,
    FileToWrite { thread, path, bytes }: FileToWrite,
    permit: &CallPermit,
) -> Result<CallToolResult, Refusal> {
    let length = bytes.len() as u64;
    let content = std::io::Cursor::new(bytes);
    let approved = permit.home.as_ref();
    let file = FileUpload { thread: &thread, path: &path, length, allowed_at: None, approved };
    handler.engine.files().upload_file(&caller.team, file, content).await?;
    let message = format!("wrote {length} bytes to {path} of the thread {thread}");
    Ok(CallToolResult::success(vec![ContentBlock::text(message)]))
}
