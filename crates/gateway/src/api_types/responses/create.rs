//! The body of a request for a response. `input` and `tools` are lists of different kinds of items,
//! so they are parsed by hand, with errors that name the position.

use cloche_agent::{InputItem, NewResponse, ToolRequest, WebToolRequest};
use cloche_engine::MAX_URLS;
use cloche_model::{Invalid, WebTool};
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::{
    ToSchema,
    openapi::{
        RefOr,
        schema::{ArrayBuilder, ObjectBuilder, OneOfBuilder, Schema, SchemaType, Type},
    },
};

use crate::api_types::number::whole;

/// Input for a model and the tools it may use. Unknown fields are ignored, except for those that
/// would change the answer, which are refused.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct CreateResponse {
    /// Text, or a list of messages, function calls and their outputs.
    #[schema(schema_with = input_schema)]
    input: Value,
    /// Instructions before the conversation.
    instructions: Option<String>,
    /// `provider/model`. Required unless `models` is present.
    #[schema(schema_with = model_schema, required)]
    model: Option<String>,
    /// Models to try in order, at most 5; takes precedence over `model`.
    #[schema(schema_with = models_schema)]
    models: Option<Vec<String>>,
    /// The tools: `{"type": "sandbox"}`, the web tools `web_search`, `fetch_url` and
    /// `people_search`, and functions of the caller.
    #[schema(schema_with = tools_schema)]
    tools: Option<Vec<Value>>,
    /// `auto`, `none` or `required`.
    #[schema(schema_with = choice_schema)]
    tool_choice: Option<Value>,
    /// The limit on rounds of tool calls; 20 if absent.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 100)]
    max_steps: Option<i64>,
    /// The limit on output tokens.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 1_000_000)]
    max_output_tokens: Option<i64>,
    /// Return immediately; the caller polls for the result.
    background: Option<bool>,
    /// Whether it can be retrieved later; true if absent.
    store: Option<bool>,
    /// The response that this one continues, in the same container.
    #[schema(pattern = "^resp_[A-Za-z0-9_-]{1,20}$")]
    previous_response_id: Option<String>,
    /// Return server-sent events.
    stream: Option<bool>,
    /// The sampling temperature.
    #[schema(minimum = 0, maximum = 2)]
    temperature: Option<f64>,
    /// The nucleus sampling threshold.
    #[schema(minimum = 0, maximum = 1)]
    top_p: Option<f64>,
    /// The language of the answer, as ISO 639-1 code.
    #[schema(pattern = "^[a-z]{2}$")]
    language_preference: Option<String>,
    #[schema(ignore)]
    preset: Option<Value>,
    #[schema(ignore)]
    profile: Option<Value>,
    #[schema(ignore)]
    skills: Option<Value>,
    #[schema(ignore)]
    response_format: Option<Value>,
}

impl CreateResponse {
    /// Whether the caller requests an event stream.
    pub(crate) fn wants_stream(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    /// Whether to return before the response has ended.
    pub(crate) fn is_background(&self) -> bool {
        self.background.unwrap_or(false)
    }
}

impl TryFrom<CreateResponse> for NewResponse {
    type Error = Invalid;

    fn try_from(body: CreateResponse) -> Result<Self, Invalid> {
        let refused = [
            ("preset", body.preset.is_some()),
            ("profile", body.profile.is_some()),
            ("skills", body.skills.is_some()),
            ("response_format", body.response_format.is_some()),
        ];
        if let Some((name, _)) = refused.iter().find(|(_, there)| *there) {
            return Err(Invalid::new(format!("{name} is not supported; leave it out")));
        }
        let tools = body.tools.unwrap_or_default();
        Ok(Self {
            input: parse_input(body.input)?,
            instructions: body.instructions,
            model: body.model,
            models: body.models,
            tools: tools.into_iter().enumerate().map(parse_tool).collect::<Result<_, _>>()?,
            tool_choice: body.tool_choice.map(parse_tool_choice).transpose()?,
            max_steps: body.max_steps,
            max_output_tokens: body.max_output_tokens,
            background: body.background.unwrap_or(false),
            store: body.store,
            previous_response_id: body.previous_response_id,
            temperature: body.temperature,
            top_p: body.top_p,
            language_preference: body.language_preference,
        })
    }
}

fn parse_input(input: Value) -> Result<Vec<InputItem>, Invalid> {
    match input {
        Value::String(text) => Ok(vec![InputItem::Message { role: "user".to_owned(), text }]),
        Value::Array(items) => items.into_iter().enumerate().map(parse_input_item).collect(),
        _ => Err(Invalid::new("input must be a string or a list of items")),
    }
}

fn parse_input_item((at, item): (usize, Value)) -> Result<InputItem, Invalid> {
    let position = format!("input[{at}]");
    let Value::Object(mut fields) = item else {
        return Err(Invalid::new(format!("{position} must be an object")));
    };
    let mut text = |name: &str| match fields.remove(name) {
        Some(Value::String(text)) => Ok(text),
        _ => Err(Invalid::new(format!("{position}.{name} must be a string"))),
    };
    let kind = text("type").unwrap_or_else(|_| "message".to_owned());
    match kind.as_str() {
        "message" => {
            let role = text("role")?;
            let content = fields.remove("content").unwrap_or_default();
            Ok(InputItem::Message {
                role,
                text: flatten_text(content, &format!("{position}.content"))?,
            })
        }
        "function_call" => Ok(InputItem::FunctionCall {
            call_id: text("call_id")?,
            name: text("name")?,
            arguments: text("arguments")?,
        }),
        "function_call_output" => {
            let call_id = text("call_id")?;
            let output = fields.remove("output").unwrap_or_default();
            let output = flatten_text(output, &format!("{position}.output"))?;
            Ok(InputItem::FunctionOutput { call_id, output })
        }
        other => Err(Invalid::new(format!(
            "{position}.type must be one of: message, function_call, function_call_output; \
             got {:?}",
            shorten_word(other)
        ))),
    }
}

/// A string, or the concatenated text of a list of parts.
fn flatten_text(content: Value, position: &str) -> Result<String, Invalid> {
    let parts = match content {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        _ => return Err(Invalid::new(format!("{position} must be a string or a list of parts"))),
    };
    let mut whole = String::new();
    for (at, part) in parts.iter().enumerate() {
        match part["type"].as_str() {
            Some("input_text" | "output_text" | "text") => {}
            Some("input_image" | "input_file") => {
                let message = format!("{position}[{at}]: only text is supported");
                return Err(Invalid::new(message));
            }
            _ => return Err(Invalid::new(format!("{position}[{at}].type must be input_text"))),
        }
        let Some(text) = part["text"].as_str() else {
            return Err(Invalid::new(format!("{position}[{at}].text must be a string")));
        };
        whole.push_str(text);
    }
    Ok(whole)
}

fn parse_tool((at, tool): (usize, Value)) -> Result<ToolRequest, Invalid> {
    let position = format!("tools[{at}]");
    let Value::Object(mut fields) = tool else {
        return Err(Invalid::new(format!("{position} must be an object")));
    };
    let kind = fields.get("type").and_then(Value::as_str).unwrap_or_default();
    match kind {
        "sandbox" => Ok(ToolRequest::Sandbox),
        "function" => {
            let Some(Value::String(name)) = fields.remove("name") else {
                return Err(Invalid::new(format!("{position}.name must be a string")));
            };
            let description = match fields.remove("description") {
                None | Some(Value::Null) => None,
                Some(Value::String(text)) => Some(text),
                Some(_) => {
                    return Err(Invalid::new(format!("{position}.description must be a string")));
                }
            };
            let parameters = fields.remove("parameters").filter(|schema| !schema.is_null());
            Ok(ToolRequest::Function { name, description, parameters })
        }
        other => match other.parse() {
            Ok(tool) => parse_web_tool(&position, tool, &fields).map(ToolRequest::Web),
            Err(_) => Err(Invalid::new(format!(
                "{position}.type must be one of: sandbox, web_search, fetch_url, people_search, \
                 function; got {:?}",
                shorten_word(other)
            ))),
        },
    }
}

/// The options of a web tool. One that would change the answer and cannot be honoured is refused.
fn parse_web_tool(
    position: &str,
    tool: WebTool,
    fields: &Map<String, Value>,
) -> Result<WebToolRequest, Invalid> {
    let number = |name: &str, most: u64| match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64().filter(|number| (1..=most).contains(number)) {
            Some(number) => Ok(usize::try_from(number).ok()),
            None => Err(Invalid::new(format!("{position}.{name} must be between 1 and {most}"))),
        },
    };
    let count = match fields.get("search_context_size").and_then(Value::as_str) {
        None => None,
        Some("low") => Some(5),
        Some("medium") => Some(10),
        Some("high") => Some(20),
        Some(_) => {
            return Err(Invalid::new(format!(
                "{position}.search_context_size must be one of: low, medium, high"
            )));
        }
    };
    if fields.get("user_location").is_some_and(|location| !location.is_null()) {
        return Err(Invalid::new(format!(
            "{position}.user_location is not supported; leave it out"
        )));
    }
    Ok(WebToolRequest {
        tool,
        count,
        max_tokens: number("max_tokens", 1_000_000)?,
        max_tokens_per_page: number("max_tokens_per_page", 1_000_000)?,
        domains: parse_domains(position, fields.get("filters"))?,
        max_urls: number("max_urls", MAX_URLS as u64)?,
    })
}

/// The hosts of `filters.search_domain_filter`. No other filter is supported.
fn parse_domains(position: &str, filters: Option<&Value>) -> Result<Vec<String>, Invalid> {
    let filters = match filters {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Object(filters)) => filters,
        Some(_) => return Err(Invalid::new(format!("{position}.filters must be an object"))),
    };
    let other = |(name, value): &(&String, &Value)| {
        name.as_str() != "search_domain_filter" && !value.is_null()
    };
    if let Some((name, _)) = filters.iter().find(other) {
        return Err(Invalid::new(format!(
            "{position}.filters.{} is not supported; leave it out",
            shorten_word(name)
        )));
    }
    let wrong = || {
        Invalid::new(format!(
            "{position}.filters.search_domain_filter must be a list of at most 20 host names"
        ))
    };
    match filters.get("search_domain_filter") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(hosts)) if hosts.len() <= 20 => hosts
            .iter()
            .map(|host| {
                let host = host.as_str().filter(|host| host.len() <= 253);
                host.map(str::to_ascii_lowercase).ok_or_else(wrong)
            })
            .collect(),
        Some(_) => Err(wrong()),
    }
}

fn parse_tool_choice(choice: Value) -> Result<String, Invalid> {
    match choice {
        Value::String(name) => Ok(name),
        _ => Err(Invalid::new("tool_choice must be one of: auto, none, required")),
    }
}

/// Truncates a word from a request for an error message.
fn shorten_word(text: &str) -> String {
    text.chars().take(32).collect()
}

fn string_schema() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

fn enum_schema(words: &[&str]) -> ObjectBuilder {
    string_schema().enum_values(Some(words.iter().copied()))
}

fn input_schema() -> Schema {
    let message = ObjectBuilder::new()
        .property("type", enum_schema(&["message"]))
        .property("role", enum_schema(&["user", "assistant", "system", "developer"]))
        .required("role")
        .property("content", string_schema().min_length(Some(1)))
        .required("content");
    let items = ArrayBuilder::new().items(message).min_items(Some(1)).max_items(Some(1000));
    OneOfBuilder::new().item(string_schema().min_length(Some(1))).item(items).into()
}

fn model_schema() -> Schema {
    string_schema().pattern(Some("^[A-Za-z0-9_-]+/[A-Za-z0-9._:/-]+$")).max_length(Some(200)).into()
}

fn models_schema() -> Schema {
    list_schema(model_schema().into(), 5)
}

fn tools_schema() -> Schema {
    let sandbox = ObjectBuilder::new().property("type", enum_schema(&["sandbox"])).required("type");
    let web_tools = WebTool::ALL.iter().map(|tool| tool.name()).collect::<Vec<_>>();
    let web_tool = ObjectBuilder::new().property("type", enum_schema(&web_tools)).required("type");
    let function = ObjectBuilder::new()
        .property("type", enum_schema(&["function"]))
        .required("type")
        .property("name", string_schema().pattern(Some("^[A-Za-z0-9_-]{1,64}$")))
        .required("name")
        .property("description", string_schema())
        .property("parameters", ObjectBuilder::new().schema_type(Type::Object));
    let any = OneOfBuilder::new().item(sandbox).item(web_tool).item(function);
    list_schema(any.into(), 64)
}

fn list_schema(item: RefOr<Schema>, most: usize) -> Schema {
    let mut array = ArrayBuilder::new().items(item).max_items(Some(most)).build();
    array.schema_type = SchemaType::from_iter([Type::Array, Type::Null]);
    Schema::Array(array)
}

fn choice_schema() -> Schema {
    enum_schema(&["auto", "none", "required"]).into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: Value) -> Result<NewResponse, String> {
        let body: CreateResponse = serde_json::from_value(body).map_err(|why| why.to_string())?;
        NewResponse::try_from(body).map_err(|why| why.to_string())
    }

    #[test]
    fn every_kind_of_input_is_parsed() {
        let items = json!([
            {"role": "user", "content": "a"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "b"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "1"},
        ]);
        let read = read(json!({"input": items, "model": "a/b"})).unwrap();
        assert_eq!(read.input.len(), 4);
        let text = "b".to_owned();
        assert_eq!(read.input[1], InputItem::Message { role: "user".to_owned(), text });
    }

    #[test]
    fn options_of_web_tools_are_parsed_or_refused() {
        let tools = |tool: Value| read(json!({"input": "a", "tools": [tool]}));
        let read = tools(json!({"type": "web_search", "search_context_size": "low",
            "max_tokens_per_page": 9, "filters": {"search_domain_filter": ["-A.example"]}}));
        let expected = WebToolRequest {
            count: Some(5),
            max_tokens_per_page: Some(9),
            domains: vec!["-a.example".to_owned()],
            ..WebToolRequest::new(WebTool::WebSearch)
        };
        assert_eq!(read.unwrap().tools, [ToolRequest::Web(expected)]);
        for (tool, error) in [
            (json!({"type": "fetch_url", "max_urls": 11}), "tools[0].max_urls must be between 1"),
            (
                json!({"type": "web_search", "filters": {"search_recency_filter": "day"}}),
                "tools[0].filters.search_recency_filter is not supported; leave it out",
            ),
            (
                json!({"type": "web_search", "user_location": {"country": "DE"}}),
                "tools[0].user_location is not supported; leave it out",
            ),
            (
                json!({"type": "web_search", "filters": {"search_domain_filter": [1]}}),
                "must be a list of at most 20 host names",
            ),
        ] {
            let refused = tools(tool).unwrap_err();
            assert!(refused.contains(error), "{refused}");
        }
    }

    #[test]
    fn errors_name_the_position() {
        let tools = |tools: Value| read(json!({"input": "a", "tools": tools})).unwrap_err();
        assert_eq!(
            tools(json!([{"type": "sandbox"}, {"type": "finance_search"}])),
            "tools[1].type must be one of: sandbox, web_search, fetch_url, people_search, \
             function; got \"finance_search\""
        );
        assert_eq!(tools(json!([{"type": "function"}])), "tools[0].name must be a string");
        assert_eq!(
            read(json!({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}))
                .unwrap_err(),
            "input[0].content[0]: only text is supported"
        );
        assert_eq!(
            read(json!({"input": "a", "skills": []})).unwrap_err(),
            "skills is not supported; leave it out"
        );
        assert!(read(json!({"input": 1})).unwrap_err().contains("a string or a list"));
    }
}
