//! The tools as clients see them: names, descriptions and schemas.

use std::sync::Arc;

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};

/// The name the server gives itself.
pub(super) const SERVER: &str = "code_execution_sandbox";
/// The name of the tool that runs code.
pub(super) const EXECUTE: &str = "execute_code";

/// The names of those for a thread's files.
pub(super) const LIST: &str = "list_files";
/// Reads one.
pub(super) const READ: &str = "read_file";
/// Writes one.
pub(super) const WRITE: &str = "write_file";

/// The tool that a name means. The contract writes the first one with either of two prefixes.
pub(super) fn named(name: &str) -> Option<&'static str> {
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

/// The tool that runs code; without homes that are kept, there is no thread to name.
fn execute(keeps_homes: bool) -> Tool {
    let annotations = ToolAnnotations::with_title("Execute code")
        .read_only(false)
        .destructive(false)
        .idempotent(false)
        .open_world(false);
    let (mut input, description) = (input(), [WHAT, HOMES].concat());
    let description = if keeps_homes { description } else { [WHAT, NO_HOMES].concat() };
    if !keeps_homes && let Some(properties) = input["properties"].as_object_mut() {
        properties.remove("thread_id");
    }
    Tool::new(EXECUTE, description, object(input))
        .with_title("Execute code")
        .with_raw_output_schema(object(output()))
        .with_annotations(annotations)
}

const WHAT: &str = "Runs a program in an isolated sandbox and returns what it printed, its exit code \
    and how it ended. There is no network. ";
const HOMES: &str = "Each call starts with an empty home, unless thread_id names one that is kept. \
    Images that the program writes to its home come back with the result.";
const NO_HOMES: &str = "Each call starts with an empty home, and nothing is kept.";

/// The contract's four parameters, as it has them, and ours after them.
fn input() -> Value {
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
                "description": "Files put into the home directory before the code starts.",
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

/// Exactly the contract's.
fn output() -> Value {
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

/// Every tool that there can be: without homes that are kept, only the one.
pub(super) fn all(keeps_homes: bool) -> Vec<Tool> {
    if !keeps_homes {
        return vec![execute(false)];
    }
    let reads = |title| ToolAnnotations::with_title(title).read_only(true).open_world(false);
    let writes = ToolAnnotations::with_title("Write a file").read_only(false).destructive(true);
    vec![
        execute(true),
        Tool::new(LIST, "Lists the files of a thread's home.", object(of_thread(json!({}), &[])))
            .with_annotations(reads("List files")),
        Tool::new(
            READ,
            "Reads a file of a thread's home: text as text, an image as an image.",
            object(of_thread(json!({}), &["path"])),
        )
        .with_annotations(reads("Read a file")),
        Tool::new(
            WRITE,
            "Writes a file into a thread's home. The thread begins with it, if there is none yet.",
            object(of_thread(
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

/// A schema with a thread, a path and more.
fn of_thread(more: Value, required: &[&str]) -> Value {
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

/// A schema as the library takes it.
fn object(schema: Value) -> Arc<JsonObject> {
    match schema {
        Value::Object(object) => Arc::new(object),
        _ => Arc::default(),
    }
}
