//! The definitions of the tools: names, descriptions and schemas.

use std::sync::Arc;

use cloche_model::NetworkPolicy;
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};

/// The name of the server.
pub(super) const SERVER: &str = "code_execution_sandbox";
/// The name of the tool that runs code.
pub(super) const EXECUTE: &str = "execute_code";

/// The tool that lists a thread's files.
pub(super) const LIST: &str = "list_files";
/// The tool that reads a file.
pub(super) const READ: &str = "read_file";
/// The tool that writes a file.
pub(super) const WRITE: &str = "write_file";

/// The canonical name of a tool. The contract uses `execute_code` with either of two prefixes.
pub(super) fn canonical_name(name: &str) -> Option<&'static str> {
    let short =
        name.strip_prefix("sandbox.").or_else(|| name.strip_prefix("code_execution_sandbox."));
    match (short, name) {
        (Some(EXECUTE), _) | (None, EXECUTE) => Some(EXECUTE),
        (None, LIST) => Some(LIST),
        (None, READ) => Some(READ),
        (None, WRITE) => Some(WRITE),
        _ => None,
    }
}

/// The tool that runs code. Without homes it has no `thread_id`.
fn execute_tool(keeps_homes: bool, network: &NetworkPolicy) -> Tool {
    let annotations = ToolAnnotations::with_title("Execute code")
        .read_only(false)
        .destructive(false)
        .idempotent(false)
        .open_world(*network != NetworkPolicy::Blocked);
    let mut input = execute_input_schema();
    let homes = if keeps_homes { HOMES } else { NO_HOMES };
    let description = format!("{EXECUTE_DESCRIPTION} {} {homes}", network.describe());
    if !keeps_homes && let Some(properties) = input["properties"].as_object_mut() {
        properties.remove("thread_id");
    }
    Tool::new(EXECUTE, description, to_json_object(input))
        .with_title("Execute code")
        .with_raw_output_schema(to_json_object(execute_output_schema()))
        .with_annotations(annotations)
}

const EXECUTE_DESCRIPTION: &str = "Runs a program in an isolated sandbox and returns its output, \
    its exit code and how it ended.";
const HOMES: &str = "Each call starts with an empty home, unless thread_id names one that is kept. \
    Images that the program writes to its home are returned with the result.";
const NO_HOMES: &str = "Each call starts with an empty home, and nothing is kept.";

/// The contract's four parameters, unchanged, followed by our own.
fn execute_input_schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "language": {
                "type": "string",
                "description": "Programming language (e.g., python, javascript, bash)."
            },
            "code": {
                "type": "string",
                "description": "The code snippet to execute."
            },
            "stdin_data": {
                "type": "string",
                "description": "Data to pass to the script's standard input."
            },
            "stdin": {
                "type": "string",
                "description": "Another name of stdin_data."
            },
            "timeout_ms": {
                "type": "integer",
                "description": "Max execution time in milliseconds. Default: 5000.",
                "default": 5000
            },
            "thread_id": {
                "type": "string",
                "description": "Keeps the home directory between calls that name the same thread."
            },
            "files": {
                "type": "array",
                "description": "Files written to the home directory before the code starts.",
                "items": {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string", "description": "A plain file name."},
                        "content": {"type": "string", "description": "Its text."},
                        "content_base64": {
                            "type": "string",
                            "description": "Its bytes in base64, instead of content."
                        }
                    },
                    "required": ["name"]
                }
            },
            "inert_output": {
                "type": "boolean",
                "description": "Replaces control characters and terminal escapes in the output.",
                "default": false
            }
        },
        "required": ["language", "code"]
    })
}

/// The contract's output schema, unchanged.
fn execute_output_schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "stdout": {"type": "string"},
            "stderr": {"type": "string"},
            "exit_code": {"type": "integer"},
            "status": {
                "type": "string",
                "enum": ["completed", "timeout", "error_runtime", "error_setup"]
            },
            "duration_ms": {"type": "integer"}
        },
        "required": ["stdout", "stderr", "exit_code", "status", "duration_ms"]
    })
}

/// All tools. Without homes, only the tool that runs code.
pub(super) fn list_tools(keeps_homes: bool, network: &NetworkPolicy) -> Vec<Tool> {
    if !keeps_homes {
        return vec![execute_tool(false, network)];
    }
    let reads = |title| ToolAnnotations::with_title(title).read_only(true).open_world(false);
    let writes = ToolAnnotations::with_title("Write a file").read_only(false).destructive(true);
    vec![
        execute_tool(true, network),
        Tool::new(
            LIST,
            "Lists the files of a thread's home.",
            to_json_object(thread_file_schema(json!({}), &[])),
        )
        .with_annotations(reads("List files")),
        Tool::new(
            READ,
            "Reads a file of a thread's home: text as text, an image as an image.",
            to_json_object(thread_file_schema(json!({}), &["path"])),
        )
        .with_annotations(reads("Read a file")),
        Tool::new(
            WRITE,
            "Writes a file into a thread's home. Creates the thread if it does not exist.",
            to_json_object(thread_file_schema(
                json!({
                    "content": {"type": "string", "description": "Its text."},
                    "content_base64": {
                        "type": "string",
                        "description": "Its bytes in base64, instead of content."
                    }
                }),
                &["path"],
            )),
        )
        .with_annotations(writes.idempotent(true).open_world(false)),
    ]
}

/// A schema with a thread, a path and further properties.
fn thread_file_schema(more: Value, required: &[&str]) -> Value {
    let mut properties = json!({
        "thread_id": {"type": "string", "description": "The thread."},
        "path": {"type": "string", "description": "A path below the home, e.g. out/plot.png."}
    });
    if let (Some(properties), Value::Object(more)) = (properties.as_object_mut(), more) {
        properties.extend(more);
    }
    let required: Vec<_> = ["thread_id"].iter().chain(required).collect();
    json!({"type": "object", "properties": properties, "required": required})
}

/// Converts a schema to the library's type.
fn to_json_object(schema: Value) -> Arc<JsonObject> {
    match schema {
        Value::Object(object) => Arc::new(object),
        _ => Arc::default(),
    }
}
