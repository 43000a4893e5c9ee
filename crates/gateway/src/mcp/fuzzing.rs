//! Runs in: test. What the fuzz targets need of the MCP server: its readers of arguments and addresses.

use cloche_model::ExecuteRequest;
use rmcp::model::JsonObject;

use super::{addresses, arguments};

/// The arguments of `execute_code` as a request, or what is wrong with them.
pub(crate) fn read_execute(given: JsonObject) -> Result<ExecuteRequest, String> {
    match arguments::execute(given) {
        Ok(asked) => Ok(asked.request),
        Err(arguments::Unusable::Language(message) | arguments::Unusable::Other(message)) => {
            Err(message)
        }
    }
}

/// The thread and the path of a file that a tool is to write, or what is wrong with the arguments.
pub(crate) fn read_write(given: JsonObject) -> Result<(String, String), String> {
    #[derive(serde::Deserialize)]
    struct Given {
        thread_id: String,
        path: String,
        content: Option<String>,
        content_base64: Option<String>,
    }
    let given: Given = arguments::read(given)?;
    arguments::bytes(given.content, given.content_base64)?;
    Ok((given.thread_id, given.path))
}

/// An address that is read is written as one that is read as the same.
pub(crate) fn check_address(text: &str) {
    use addresses::Address;
    let Some(address) = Address::read(text) else { return };
    let again = match &address {
        Address::Execution(id, path) => addresses::of_execution(id, path.as_str()),
        Address::Thread(id, path) => addresses::of_thread(id, path),
    };
    assert_eq!(Address::read(&again), Some(address), "{text:?}");
}
