//! Runs in: server (no capabilities).
//!
//! A call as the gates see it: the tool, and the arguments as a digest and as text to read.

use std::fmt::Write;

use cloche_model::{AgentTool, ResponseId, ThreadId, WebTool};
use serde_json::Value;

use crate::secrets;

/// The most bytes of the arguments that a person is shown. A call with more is not asked about.
pub(super) const SHOWN: usize = 2 << 20;

/// One call of a tool. An approval is good for exactly these arguments, so give all that decide what
/// happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    pub(crate) tool: AgentTool,
    pub(crate) digest: String,
    pub(crate) shown: String,
    pub(crate) bytes: u64,
    /// The thread that it names.
    pub(crate) thread: Option<ThreadId>,
}

/// The web tools that a response lets its code call.
#[derive(Clone, Debug, Default)]
pub struct ResponseTools {
    /// The tools.
    pub tools: Vec<WebTool>,
    /// The response; `None` for a call that belongs to none.
    pub response: Option<ResponseId>,
}

impl ToolCall {
    /// With these arguments. The order of the fields of an object does not matter; anything else
    /// does.
    #[must_use]
    pub fn new(tool: AgentTool, arguments: &Value) -> Self {
        let mut text = String::new();
        write_canonical_json(arguments, &mut text);
        let (digest, bytes) = (secrets::digest_secret(&text), text.len() as u64);
        text.truncate(text.floor_char_boundary(SHOWN));
        let thread = arguments["thread_id"].as_str().and_then(|id| id.parse().ok());
        Self { tool, digest, shown: text, bytes, thread }
    }

    /// SHA-256 of the arguments in their canonical form.
    #[must_use]
    pub fn digest(&self) -> &str {
        &self.digest
    }
}

/// Compact JSON with the fields of every object in order.
fn write_canonical_json(value: &Value, out: &mut String) {
    match value {
        Value::Object(fields) => {
            let mut names: Vec<_> = fields.keys().collect();
            names.sort();
            out.push('{');
            for (index, name) in names.into_iter().enumerate() {
                write_separator(index, out);
                write_canonical_json(&Value::String(name.clone()), out);
                out.push(':');
                write_canonical_json(&fields[name], out);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                write_separator(index, out);
                write_canonical_json(item, out);
            }
            out.push(']');
        }
        // Writing to a string cannot fail.
        plain => {
            let _ = write!(out, "{plain}");
        }
    }
}

fn write_separator(index: usize, out: &mut String) {
    if index > 0 {
        out.push(',');
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn digest(arguments: &Value) -> String {
        ToolCall::new(AgentTool::ExecuteCode, arguments).digest
    }

    #[test]
    fn the_order_of_fields_does_not_matter_and_all_else_does() {
        let one: Value = serde_json::from_str(r#"{"b": {"y": 1, "x": 2}, "a": "1"}"#).unwrap();
        let two: Value = serde_json::from_str(r#"{"a":"1","b":{"x":2,"y":1}}"#).unwrap();
        assert_eq!(digest(&one), digest(&two));
        let mut seen: Vec<_> = [
            json!({"a": "1"}),
            json!({"a": 1}),
            json!({"a": ["1"]}),
            json!({"a": null}),
            json!({}),
            json!({"a": "1", "b": ""}),
            json!({"a\",\"b": "1"}),
            json!([1, 2]),
            json!([2, 1]),
            json!([12]),
        ]
        .iter()
        .map(digest)
        .collect();
        let count = seen.len();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), count);
    }

    #[test]
    fn long_arguments_are_cut_for_reading_only() {
        let long = "ä".repeat(SHOWN);
        let call = ToolCall::new(AgentTool::ExecuteCode, &json!({"code": long}));
        assert!(call.shown.len() <= SHOWN && call.shown.len() > SHOWN - 4);
        assert_eq!(call.bytes, 2 * SHOWN as u64 + 11);
        let other = format!("{long}!");
        assert_ne!(call.digest, digest(&json!({"code": other})));
    }
}
