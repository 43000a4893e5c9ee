//! Runs in: server (no capabilities). One call of `write_file`: past the same gate as code, since what it
//! writes may run in the next call.

use cloche_engine::{Caller, NewFile, Pass, Refusal};
use cloche_model::{HomePath, Invalid, ThreadId, Tool};
use rmcp::{
    RoleServer,
    model::{CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, JsonObject},
    service::RequestContext,
};
use serde::Deserialize;

use super::{
    arguments, files,
    gate::{Visit, Way},
    server::Door,
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

/// Writes what the arguments say, if it may be written.
pub(super) async fn write_file(
    door: &Door,
    caller: &Caller,
    call: CallToolRequestParams,
    context: &RequestContext<RoleServer>,
) -> CallToolResponse {
    let given = call.arguments.unwrap_or_default();
    // A call that could not be made anyway is not asked about.
    let file = match read_arguments(given.clone()) {
        Ok(file) => file,
        Err(refusal) => return files::refused(&refusal).into(),
    };
    let tool = Tool::WriteFile;
    let visit = Visit { door, caller, context, answers: call.input_responses, tool };
    match visit.pass(&given).await {
        Way::Through(pass) => match write(door, caller, file, &pass).await {
            Ok(result) => result.into(),
            Err(refusal) => files::refused(&refusal).into(),
        },
        Way::Stopped(result) => (*result).into(),
        Way::AskFirst(question) => (*question).into(),
    }
}

fn read_arguments(given: JsonObject) -> Result<FileToWrite, Refusal> {
    let WriteArguments { thread_id, path, content, content_base64 } = files::arguments(given)?;
    let bytes = arguments::bytes(content, content_base64)
        .map_err(|why| Invalid::new(format!("the file {why}")))?;
    Ok(FileToWrite { thread: files::thread(&thread_id)?, path: path.parse()?, bytes })
}

async fn write(
    door: &Door,
    caller: &Caller,
    FileToWrite { thread, path, bytes }: FileToWrite,
    pass: &Pass,
) -> Result<CallToolResult, Refusal> {
    let length = bytes.len() as u64;
    let content = std::io::Cursor::new(bytes);
    let approved = pass.home.as_ref();
    let file = NewFile { thread: &thread, path: &path, length, allowed_at: None, approved };
    door.engine.upload(&caller.team, file, content).await?;
    let said = format!("wrote {length} bytes to {path} of the thread {thread}");
    Ok(CallToolResult::success(vec![ContentBlock::text(said)]))
}
