//! Checks whether a body is a JSON-RPC message, and builds the error response otherwise. The
//! library drops invalid messages or answers in plain text; the client would then wait, or not
//! learn the reason.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, de::IgnoredAny};
use serde_json::{Value, json};

use crate::body;

/// The body is not JSON.
const PARSE_ERROR: i32 = -32700;
/// The body is JSON but not a message.
const INVALID_REQUEST: i32 = -32600;
/// The message has invalid parameters.
const INVALID_PARAMS: i32 = -32602;

/// The fields of a message that decide how it is handled.
#[derive(Deserialize)]
struct JsonRpcEnvelope<'a> {
    #[serde(borrow)]
    jsonrpc: Option<Cow<'a, str>>,
    /// Distinguishes null from absence.
    #[serde(default, deserialize_with = "present")]
    id: Option<Value>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    result: Option<IgnoredAny>,
    error: Option<IgnoredAny>,
}

/// An invalid message, with the error for its sender.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InvalidJsonRpc {
    pub(super) code: i32,
    /// The id of the message, if it has a valid one.
    id: Value,
    message: String,
}

impl InvalidJsonRpc {
    pub(super) fn invalid_request(message: impl Into<String>, id: Value) -> Self {
        Self { code: INVALID_REQUEST, id, message: message.into() }
    }

    /// A message with this id that the library could not parse, with the library's reason.
    pub(super) fn from_library_error(bytes: &[u8], id: Value, why: &str) -> Self {
        let message: Value = serde_json::from_slice(bytes).unwrap_or_default();
        match message["params"] {
            Value::Null | Value::Object(_) => Self::invalid_request(why, id),
            _ => Self { code: INVALID_PARAMS, id, message: "params must be an object".to_owned() },
        }
    }

    /// The error response.
    pub(super) fn to_json(&self) -> Value {
        let error = json!({"code": self.code, "message": self.message});
        json!({"jsonrpc": "2.0", "id": self.id, "error": error})
    }
}

fn present<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(value).map(Some)
}

/// The parts of a message that decide how it is routed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct JsonRpcHead {
    pub(super) method: Option<String>,
    /// Null if there is none.
    pub(super) id: Value,
}

/// Parses the head of a message.
pub(super) fn parse_head(bytes: &[u8]) -> Result<JsonRpcHead, InvalidJsonRpc> {
    let parse = |message: String| InvalidJsonRpc { code: PARSE_ERROR, id: Value::Null, message };
    match body::measure_shape(bytes) {
        body::BodyShape::Fine => {}
        body::BodyShape::Deep => return Err(parse("the message is nested too deeply".to_owned())),
        body::BodyShape::Crowded => {
            return Err(parse("the message has too many values".to_owned()));
        }
    }
    let invalid = |message: &str, id| Err(InvalidJsonRpc::invalid_request(message, id));
    if bytes.trim_ascii_start().first() == Some(&b'[') {
        return invalid("send messages one by one, not as a list", Value::Null);
    }
    let envelope: JsonRpcEnvelope<'_> = match serde_json::from_slice(bytes) {
        Ok(envelope) => envelope,
        Err(error) if error.is_data() => {
            return invalid(&format!("this is not a JSON-RPC message: {error}"), Value::Null);
        }
        Err(error) => return Err(parse(format!("this is not JSON: {error}"))),
    };
    let JsonRpcEnvelope { jsonrpc, id: given, method, result, error } = envelope;
    let usable = given.as_ref().is_some_and(|id| id.is_string() || id.is_i64());
    let id = given.clone().filter(|_| usable).unwrap_or_default();
    if jsonrpc.is_none_or(|version| version != "2.0") {
        return invalid("this is not a JSON-RPC 2.0 message: jsonrpc must be \"2.0\"", id);
    }
    match method {
        Some(_) if given.is_some() && !usable => {
            invalid("id must be a string or a whole number", Value::Null)
        }
        Some(method) => Ok(JsonRpcHead { method: Some(method.into_owned()), id }),
        // An error response to a message with an invalid id has a null id.
        None if error.is_some() || (result.is_some() && usable) => {
            Ok(JsonRpcHead { method: None, id })
        }
        None => invalid("this is neither a request nor a response: there is no method", id),
    }
}

/// Whether this is a method of the protocol that this server supports.
pub(super) fn is_known_method(method: &str) -> bool {
    matches!(
        method,
        "server/discover"
            | "tools/list"
            | "tools/call"
            | "prompts/list"
            | "prompts/get"
            | "resources/list"
            | "resources/read"
            | "resources/templates/list"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_message_gets_an_error_with_its_reason() {
        for (text, code, id) in [
            ("{bad", PARSE_ERROR, json!(null)),
            ("", PARSE_ERROR, json!(null)),
            ("null", INVALID_REQUEST, json!(null)),
            ("[]", INVALID_REQUEST, json!(null)),
            ("{\"a\": 1}", INVALID_REQUEST, json!(null)),
            ("{\"jsonrpc\": 2, \"id\": 1, \"method\": \"ping\"}", INVALID_REQUEST, json!(null)),
            ("{\"jsonrpc\": \"1.0\", \"id\": 1, \"method\": \"ping\"}", INVALID_REQUEST, json!(1)),
            (
                "{\"jsonrpc\": \"2.0\", \"id\": null, \"method\": \"ping\"}",
                INVALID_REQUEST,
                json!(null),
            ),
            (
                "{\"jsonrpc\": \"2.0\", \"id\": 1.5, \"method\": \"ping\"}",
                INVALID_REQUEST,
                json!(null),
            ),
            (
                "{\"jsonrpc\": \"2.0\", \"id\": [1], \"method\": \"ping\"}",
                INVALID_REQUEST,
                json!(null),
            ),
            ("{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": 5}", INVALID_REQUEST, json!(null)),
            ("{\"jsonrpc\": \"2.0\", \"id\": \"a\"}", INVALID_REQUEST, json!("a")),
        ] {
            let why = parse_head(text.as_bytes()).unwrap_err();
            assert_eq!((why.code, &why.to_json()["id"]), (code, &id), "{text}: {why:?}");
        }
    }

    #[test]
    fn requests_notifications_and_responses_are_messages() {
        for (text, method, id) in [
            ("{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"ping\"}", Some("ping"), json!(1)),
            ("{\"jsonrpc\": \"2.0\", \"method\": \"n\"}", Some("n"), json!(null)),
            ("{\"jsonrpc\": \"2.0\", \"id\": \"a\", \"result\": {}}", None, json!("a")),
            ("{\"jsonrpc\": \"2.0\", \"id\": null, \"error\": {}}", None, json!(null)),
        ] {
            let head = JsonRpcHead { method: method.map(ToOwned::to_owned), id };
            assert_eq!(parse_head(text.as_bytes()), Ok(head), "{text}");
        }
    }
}
