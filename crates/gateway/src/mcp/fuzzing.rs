//! Runs in: test. What the fuzz targets need of the MCP server: its readers of arguments and addresses.

use cloche_model::ExecuteRequest;
use rmcp::model::JsonObject;

use super::{arguments, resource_uri};

/// The arguments of `execute_code` as a request, or what is wrong with them.
pub(crate) fn read_execute(given: JsonObject) -> Result<ExecuteRequest, String> {
    match arguments::parse_execute_arguments(given) {
        Ok(asked) => Ok(asked.request),
        Err(
            arguments::ToolArgumentsError::Language(message)
            | arguments::ToolArgumentsError::Other(message),
        ) => Err(message),
    }
}

/// The thread and the path of a file that a tool is to write, or what is wrong with the arguments.
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

/// An address that is read is written as one that is read as the same.
pub(crate) fn check_resource_uri(text: &str) {
    use resource_uri::ResourceUri;
    let Some(address) = ResourceUri::parse(text) else { return };
    let again = match &address {
        ResourceUri::Execution(id, path) => resource_uri::execution_file_uri(id, path.as_str()),
        ResourceUri::Thread(id, path) => resource_uri::thread_file_uri(id, path),
    };
    assert_eq!(ResourceUri::parse(&again), Some(address), "{text:?}");
}
