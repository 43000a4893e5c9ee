//! File tools for agents. Files that an execution wrote are returned with its result. Files of a
//! thread can be listed, read and written. Every file can be read as a resource.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use cloche_engine::{Caller, FileFilter, Refusal, StoredFile};
use cloche_model::{Execution, HomePath, Invalid, ThreadId, TraceId};
use rmcp::model::{CallToolResult, ContentBlock, JsonObject, Resource, ResourceContents};
use serde::Deserialize;
use serde_json::json;
use tokio::io::AsyncReadExt;

use super::{
    arguments, media,
    resource_uri::{self, ResourceUri},
    result,
    server::McpHandler,
};

/// The limit on images in a result.
const MAX_IMAGES: usize = 4;
/// The limit on files that a result links to.
const MAX_LINKS: usize = 32;
/// The limit on files in a list.
const MAX_LISTED: usize = 1000;

#[derive(Deserialize)]
struct ListArguments {
    thread_id: String,
    path: Option<String>,
}

#[derive(Deserialize)]
struct ReadArguments {
    thread_id: String,
    path: String,
}

/// Adds the files that an execution wrote to its result: images inline, and a link for each file.
pub(super) async fn attach_written_files(
    handler: &McpHandler,
    caller: &Caller,
    execution: &Execution,
    result: &mut CallToolResult,
) {
    let Some(end) = &execution.end else { return };
    if end.written.layer.is_none() {
        // Files that were not kept cannot be read later.
        return;
    }
    let trace_id = &execution.start.trace_id;
    let limit = handler.config.file_bytes();
    let mut images = 0;
    for file in end.written.files.iter().take(MAX_LINKS) {
        let whole = !file.truncated && file.size <= limit && images < MAX_IMAGES;
        let most = if whole { limit } else { media::SNIFF_BYTES };
        let bytes = read_beginning(handler, caller, (trace_id, &file.name), most).await;
        let kind = media::detect_media_type(&file.name, &bytes);
        if media::is_image(kind) && whole {
            images += 1;
            result.content.push(ContentBlock::image(STANDARD.encode(&bytes), kind));
        }
        let address = resource_uri::execution_file_uri(trace_id, &file.name);
        let link = Resource::new(address, &file.name).with_mime_type(kind).with_size(file.size);
        result.content.push(ContentBlock::resource_link(link));
    }
    let omitted =
        end.written.files.len().saturating_sub(MAX_LINKS) as u64 + end.written.files_omitted;
    if omitted > 0 {
        let note = format!("the code wrote {omitted} more files that are not listed");
        result.content.push(ContentBlock::text(note));
    }
}

/// The first bytes of a file that an execution wrote, if they are needed to detect its type; empty
/// if they cannot be read.
async fn read_beginning(
    handler: &McpHandler,
    caller: &Caller,
    (trace_id, name): (&TraceId, &str),
    most: u64,
) -> Vec<u8> {
    if !media::needs_content(name) {
        return Vec::new();
    }
    let Ok(path) = name.parse::<HomePath>() else { return Vec::new() };
    match handler.engine.files().execution_file(caller, trace_id, &path).await {
        Ok(found) => read_bytes(found, most).await.unwrap_or_default(),
        Err(_) => Vec::new(),
    }
}

/// Calls one of the tools that read a thread's files.
pub(super) async fn call_file_tool(
    handler: &McpHandler,
    caller: &Caller,
    tool: &str,
    arguments: JsonObject,
) -> CallToolResult {
    let done = match tool {
        super::tools::LIST => list_files(handler, caller, arguments).await,
        _ => read_file(handler, caller, arguments).await,
    };
    done.unwrap_or_else(|refusal| refused_result(&refusal))
}

/// The result of a refused file tool call.
pub(super) fn refused_result(refusal: &Refusal) -> CallToolResult {
    crate::error::log_server_fault(refusal);
    result::tool_error(format!("{}: {}", refusal.code.name(), refusal.message))
}

pub(super) fn parse_or_refuse<T: for<'de> Deserialize<'de>>(
    given: JsonObject,
) -> Result<T, Refusal> {
    Ok(arguments::parse_arguments(given).map_err(Invalid::new)?)
}

pub(super) fn parse_thread_id(id: &str) -> Result<ThreadId, Refusal> {
    Ok(id.parse::<ThreadId>()?)
}

async fn list_files(
    handler: &McpHandler,
    caller: &Caller,
    given: JsonObject,
) -> Result<CallToolResult, Refusal> {
    let ListArguments { thread_id, path } = parse_or_refuse(given)?;
    let below = path.as_deref().map(HomePath::parse_directory).transpose()?.flatten();
    let filter = FileFilter { below, after: None, limit: MAX_LISTED };
    let page = handler
        .engine
        .files()
        .list_files(&caller.team, &parse_thread_id(&thread_id)?, &filter)
        .await?;
    let files: Vec<_> = page
        .files
        .iter()
        .map(|file| {
            let modified = cloche_engine::format_rfc3339(file.modified);
            json!({"path": file.path, "size": file.size, "modified": modified})
        })
        .collect();
    let listed = json!({"files": files, "more": page.next.is_some()});
    let mut result = CallToolResult::success(vec![ContentBlock::text(listed.to_string())]);
    result.structured_content = Some(listed);
    Ok(result)
}

async fn read_file(
    handler: &McpHandler,
    caller: &Caller,
    given: JsonObject,
) -> Result<CallToolResult, Refusal> {
    let ReadArguments { thread_id, path } = parse_or_refuse(given)?;
    let (id, path) = (parse_thread_id(&thread_id)?, path.parse::<HomePath>()?);
    let found = handler.engine.files().find_file(&caller.team, &id, &path).await?;
    let limit = handler.config.file_bytes();
    let too_large = found.size.saturating_sub(limit);
    let bytes = read_bytes(found, limit).await?;
    let kind = media::detect_media_type(path.as_str(), &bytes);
    let address = resource_uri::thread_file_uri(&id, &path);
    let mut content = vec![match to_resource_contents(&bytes, address, kind) {
        _ if media::is_image(kind) && too_large == 0 => {
            ContentBlock::image(STANDARD.encode(&bytes), kind)
        }
        ResourceContents::TextResourceContents { text, .. } => ContentBlock::text(text),
        binary => ContentBlock::resource(binary),
    }];
    if too_large > 0 {
        content.push(ContentBlock::text(format!("the last {too_large} bytes are not shown")));
    }
    Ok(CallToolResult::success(content))
}

/// Reads the file at a URI, within the size limit.
pub(super) async fn read_resource(
    handler: &McpHandler,
    caller: &Caller,
    text: &str,
) -> Result<ResourceContents, Refusal> {
    let missing = || Refusal::not_found("resource");
    let address = ResourceUri::parse(text).ok_or_else(missing)?;
    let found = match &address {
        ResourceUri::Execution(id, path) => {
            handler.engine.files().execution_file(caller, id, path).await?
        }
        ResourceUri::Thread(id, path) => {
            handler.engine.files().find_file(&caller.team, id, path).await?
        }
    };
    let limit = handler.config.file_bytes();
    if found.size > limit {
        let message =
            format!("the file has {} bytes; the limit for resources is {limit}", found.size);
        return Err(Invalid::new(message).into());
    }
    let name = String::from_utf8_lossy(found.file_name()).into_owned();
    let bytes = read_bytes(found, limit).await?;
    Ok(to_resource_contents(&bytes, text.to_owned(), media::detect_media_type(&name, &bytes)))
}

/// Files of the latest executions, for clients that list resources.
pub(super) async fn list_recent_resources(
    handler: &McpHandler,
    caller: &Caller,
) -> Result<Vec<Resource>, Refusal> {
    const NEWEST: u32 = 10;
    let filter = cloche_engine::ExecutionFilter { limit: NEWEST, ..Default::default() };
    let page = handler.engine.executions().list_executions(caller, filter).await?;
    let mut resources = Vec::new();
    for execution in page.executions {
        let trace_id = execution.start.trace_id;
        let execution = handler.engine.executions().find_execution(caller, &trace_id).await?;
        for file in execution.end.unwrap_or_default().written.files.into_iter().take(MAX_LINKS) {
            let address = resource_uri::execution_file_uri(&trace_id, &file.name);
            let file_of = (&trace_id, file.name.as_str());
            let bytes = read_beginning(handler, caller, file_of, media::SNIFF_BYTES).await;
            let kind = media::detect_media_type(&file.name, &bytes);
            resources
                .push(Resource::new(address, file.name).with_mime_type(kind).with_size(file.size));
        }
    }
    Ok(resources)
}

fn to_resource_contents(bytes: &[u8], address: String, kind: &str) -> ResourceContents {
    match std::str::from_utf8(bytes) {
        Ok(text) => ResourceContents::text(text, address).with_mime_type(kind),
        Err(_) => ResourceContents::blob(STANDARD.encode(bytes), address).with_mime_type(kind),
    }
}

/// Reads the first bytes of a file.
async fn read_bytes(file: StoredFile, limit: u64) -> Result<Vec<u8>, Refusal> {
    let length = file.size.min(limit);
    let mut bytes = Vec::new();
    let reader = file.read_range(0..length).await?;
    reader.take(length).read_to_end(&mut bytes).await.map_err(|error| Refusal {
        source: Some(Box::new(error)),
        ..Refusal::new(cloche_model::ErrorCode::Internal, "the file could not be read")
    })?;
    Ok(bytes)
}
