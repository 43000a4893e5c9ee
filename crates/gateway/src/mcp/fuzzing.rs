//! Runs in: test.
//!
//! The parsers of arguments and resource URIs of the MCP server, for the fuzz targets.

use cloche_model::ExecuteRequest;
use rmcp::model::JsonObject;

use super::{arguments, resource_uri};

/// Parses the arguments of `execute_code`; returns the request or an error message.
pub(crate) fn read_execute(given: JsonObject) -> Result<ExecuteRequest, String> {
    match arguments::parse_execute_arguments(given) {
        Ok(asked) => Ok(asked.request),
        Err(
            arguments::ToolArgumentsError::Language(message)
            | arguments::ToolArgumentsError::Other(message),
        ) => Err(message),
    }
}

/// Parses the arguments of a tool that writes a file; returns thread and path or an error message.
pub(crate) fn read_write(given: JsonObject) -> Result<(String, String), String> {
    #[derive(serde::Deserialize)]
    struct FuzzedWriteArguments {
        thread_id: String,
        path: String,
        content: Option<String>,
        content_base64: Option<String>,
    }
    let given: FuzzedWriteArguments = arguments::parse_arguments(given)?;
    arguments::decode_content(given.content, given.content_base64)?;
    Ok((given.thread_id, given.path))
}

/// Checks that a parsed URI round-trips.
pub(crate) fn check_resource_uri(text: &str) {
    use resource_uri::ResourceUri;
    let Some(address) = ResourceUri::parse(text) else { return };
    let again = match &address {
        ResourceUri::Execution(id, path) => resource_uri::execution_file_uri(id, path.as_str()),
        ResourceUri::Thread(id, path) => resource_uri::thread_file_uri(id, path),
    };
    assert_eq!(ResourceUri::parse(&again), Some(address), "{text:?}");
}
