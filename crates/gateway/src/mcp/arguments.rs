//! Parses the arguments of the tools. Errors name the field.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use cloche_model::{ExecuteRequest, RequestFile};
use rmcp::model::JsonObject;
use serde::Deserialize;
use serde_json::Value;

use crate::{api_types::whole, body::shorten_reason};

/// The timeout in milliseconds if the call sets none.
const DEFAULT_TIMEOUT_MS: i64 = 5000;
/// The language if the call names none.
const DEFAULT_LANGUAGE: &str = "python";

/// Why arguments are invalid.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ToolArgumentsError {
    /// The language is not supported.
    Language(String),
    /// Any other error.
    Other(String),
}

/// The arguments of `execute_code` after [`unify_names`]. Unknown ones are ignored.
#[derive(Debug, Deserialize)]
pub(super) struct ExecuteArguments {
    language: String,
    code: String,
    stdin_data: Option<String>,
    #[serde(default, deserialize_with = "whole")]
    timeout_ms: Option<i64>,
    thread_id: Option<String>,
    files: Option<Vec<FileArgument>>,
    inert_output: Option<bool>,
    sub_paths: Option<Value>,
}

/// A file argument: text, or bytes in base64.
#[derive(Debug, Deserialize)]
struct FileArgument {
    name: String,
    content: Option<String>,
    content_base64: Option<String>,
}

/// A parsed call of `execute_code`: the request, and how to show its output.
#[derive(Debug)]
pub(super) struct ExecuteCodeCall {
    pub(super) request: ExecuteRequest,
    pub(super) inert: bool,
    /// The arguments as the gate shows them: under one name each, with the language that runs.
    pub(super) shown: JsonObject,
}

/// Deserializes arguments. Errors contain the path of the field.
pub(super) fn parse_arguments<T: for<'de> Deserialize<'de>>(
    arguments: JsonObject,
) -> Result<T, String> {
    let value = Value::Object(arguments);
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        shorten_reason(match path.as_str() {
            "." => error.into_inner().to_string(),
            _ => format!("{path}: {}", error.into_inner()),
        })
    })
}

/// Converts the arguments of `execute_code` to a request.
pub(super) fn parse_execute_arguments(
    given: JsonObject,
) -> Result<ExecuteCodeCall, ToolArgumentsError> {
    let shown = unify_names(given).map_err(ToolArgumentsError::Other)?;
    let arguments: ExecuteArguments =
        parse_arguments(shown.clone()).map_err(ToolArgumentsError::Other)?;
    if arguments.sub_paths.is_some_and(|value| !value.is_null()) {
        let message = "sub_paths is not available here: MCP calls cannot narrow storage mounts";
        return Err(ToolArgumentsError::Other(message.to_owned()));
    }
    let files = arguments.files.unwrap_or_default().into_iter().map(decode_file);
    let request = ExecuteRequest {
        code: arguments.code,
        language: Some(engine_language(&arguments.language)?.to_owned()),
        timeout_ms: Some(arguments.timeout_ms.unwrap_or(DEFAULT_TIMEOUT_MS)),
        thread_id: arguments.thread_id,
        stdin: arguments.stdin_data,
        files: Some(files.collect::<Result<_, _>>()?),
        ..ExecuteRequest::default()
    };
    Ok(ExecuteCodeCall { request, inert: arguments.inert_output.unwrap_or(false), shown })
}

/// Rewrites the names of the sidecar's contract to those of this tool: `stdin` is `stdin_data`, and
/// an absent `language` is Python. One call then has one form, whichever names it used.
fn unify_names(mut given: JsonObject) -> Result<JsonObject, String> {
    if given.get("language").is_none_or(Value::is_null) {
        given.insert("language".to_owned(), DEFAULT_LANGUAGE.into());
    }
    let Some(stdin) = given.remove("stdin").filter(|stdin| !stdin.is_null()) else {
        return Ok(given);
    };
    if !stdin.is_string() {
        return Err("stdin: invalid type, expected a string".to_owned());
    }
    match given.get("stdin_data") {
        Some(other) if *other == stdin => {}
        None | Some(Value::Null) => {
            given.insert("stdin_data".to_owned(), stdin);
        }
        Some(_) => {
            let message = "stdin and stdin_data are two names of the same input, and they differ \
                           here; give one of them";
            return Err(message.to_owned());
        }
    }
    Ok(given)
}

/// The engine's name of a language. MCP has two names for Node.js.
fn engine_language(name: &str) -> Result<&'static str, ToolArgumentsError> {
    match name {
        "python" => Ok("python"),
        "javascript" | "node" => Ok("node"),
        "bash" => Ok("bash"),
        other => {
            let shown: String = other.chars().take(32).collect();
            Err(ToolArgumentsError::Language(format!(
                "language must be one of: python, javascript, node, bash; got {shown:?}"
            )))
        }
    }
}

fn decode_file(file: FileArgument) -> Result<RequestFile, ToolArgumentsError> {
    let FileArgument { name, content, content_base64 } = file;
    let shown: String = name.chars().take(64).collect();
    let unusable = |why: &str| ToolArgumentsError::Other(format!("files: {shown:?} {why}"));
    let content = decode_content(content, content_base64).map_err(|why| unusable(&why))?;
    Ok(RequestFile { name, content })
}

/// The content of a file that was given as text or in base64.
pub(super) fn decode_content(
    text: Option<String>,
    base64: Option<String>,
) -> Result<Vec<u8>, String> {
    match (text, base64) {
        (Some(text), None) => Ok(text.into_bytes()),
        (None, Some(text)) => {
            STANDARD.decode(text).map_err(|error| format!("content_base64 is not base64: {error}"))
        }
        _ => Err("needs either content or content_base64".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn asked(value: Value) -> Result<ExecuteCodeCall, ToolArgumentsError> {
        let Value::Object(arguments) = value else { unreachable!("tests pass objects only") };
        parse_execute_arguments(arguments)
    }

    fn refusal(value: Value) -> String {
        match asked(value).unwrap_err() {
            ToolArgumentsError::Language(message) | ToolArgumentsError::Other(message) => message,
        }
    }

    #[test]
    fn absent_arguments_get_their_defaults() {
        let request = asked(json!({"language": "javascript", "code": "1"})).unwrap().request;
        assert_eq!(request.timeout_ms, Some(5000));
        assert_eq!(request.language.as_deref(), Some("node"));
    }

    #[test]
    fn the_names_of_the_sidecar_contract_are_the_same_call() {
        let ours = asked(json!({"language": "python", "code": "1", "stdin_data": "in"})).unwrap();
        for same in [
            json!({"code": "1", "stdin": "in"}),
            json!({"code": "1", "stdin": "in", "stdin_data": "in", "language": null}),
            json!({"code": "1", "stdin": null, "stdin_data": "in"}),
        ] {
            let call = asked(same).unwrap();
            assert_eq!((&call.shown, &call.request.stdin), (&ours.shown, &ours.request.stdin));
            assert_eq!(call.request.language.as_deref(), Some("python"));
        }
        let both = refusal(json!({"code": "1", "stdin": "a", "stdin_data": "b"}));
        assert!(both.starts_with("stdin and stdin_data are two names"), "{both}");
        assert!(refusal(json!({"code": "1", "stdin": 5})).starts_with("stdin: "));
    }

    #[test]
    fn errors_name_the_argument() {
        let with = |name: &str, value: Value| json!({"language": "bash", "code": ":", name: value});
        assert_eq!(refusal(json!({"language": "python"})), "missing field `code`");
        assert!(refusal(with("timeout_ms", json!("soon"))).starts_with("timeout_ms: "));
        assert!(refusal(with("sub_paths", json!([]))).starts_with("sub_paths is not available"));
        let both = json!([{"name": "a", "content": "", "content_base64": ""}]);
        assert!(refusal(with("files", both)).contains("either content or content_base64"));
        let odd = json!([{"name": "a", "content_base64": "*"}]);
        assert!(refusal(with("files", odd)).contains("is not base64"));
        let ruby = asked(json!({"language": "ruby", "code": "1"})).unwrap_err();
        assert!(
            matches!(ruby, ToolArgumentsError::Language(message) if message.contains("\"ruby\""))
        );
    }

    #[test]
    fn files_are_given_as_text_or_as_base64() {
        let files = json!([
            {"name": "a.txt", "content": "ä"}, {"name": "b.bin", "content_base64": "AP8="}
        ]);
        let files = asked(json!({"language": "python", "code": "1", "files": files}));
        let files = files.unwrap().request.files.unwrap();
        assert_eq!((&files[0].content[..], &files[1].content[..]), ("ä".as_bytes(), &[0, 255][..]));
    }
}
