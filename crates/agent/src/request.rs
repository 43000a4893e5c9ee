//! A request for a response. Nothing in it is trusted before it is checked, and everything in it
//! has a limit.

use std::collections::BTreeSet;

use cloche_model::{Invalid, NetworkPolicy, ResponseId};
use serde_json::{Value, json};

use crate::{ChatMessage, ModelToolCall, ToolChoice, ToolDefinition, sandbox};

/// The limit on input items.
const MAX_ITEMS: usize = 1000;
/// The limit on bytes of input and instructions.
const MAX_INPUT: usize = 2 << 20;
/// The limit on models in a chain.
const MAX_MODELS: usize = 5;
/// The limit on characters of a model's name.
const MAX_MODEL: usize = 200;
/// The limit on tools.
const MAX_TOOLS: usize = 64;
/// The limit on bytes of one tool's description and schema.
const MAX_TOOL: usize = 64 << 10;
/// The limit on characters of a call's id.
const MAX_CALL_ID: usize = 128;
/// The limit on rounds of tool calls.
const MAX_STEPS: i64 = 100;
/// The rounds of tool calls if the request sets none.
const DEFAULT_STEPS: u32 = 20;
/// The limit on output tokens that a request may set.
const MAX_TOKENS: i64 = 1_000_000;

/// A request for a response, not checked yet.
#[derive(Clone, Debug, Default)]
pub struct NewResponse {
    /// The input for the model.
    pub input: Vec<InputItem>,
    /// Instructions before the conversation.
    pub instructions: Option<String>,
    /// `provider/model`.
    pub model: Option<String>,
    /// Models to try in order; takes precedence over `model`.
    pub models: Option<Vec<String>>,
    /// The tools.
    pub tools: Vec<ToolRequest>,
    /// `auto`, `none` or `required`.
    pub tool_choice: Option<String>,
    /// The limit on rounds of tool calls.
    pub max_steps: Option<i64>,
    /// The limit on output tokens.
    pub max_output_tokens: Option<i64>,
    /// Whether to return before the response has ended.
    pub background: bool,
    /// Whether it can be retrieved later.
    pub store: Option<bool>,
    /// The response that this one continues.
    pub previous_response_id: Option<String>,
    /// The sampling temperature, 0 to 2.
    pub temperature: Option<f64>,
    /// The nucleus sampling threshold, 0 to 1.
    pub top_p: Option<f64>,
    /// The language of the answer, as ISO 639-1 code.
    pub language_preference: Option<String>,
}

/// One item of input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InputItem {
    /// A message.
    Message {
        /// Its author: `user`, `assistant`, `system` or `developer`.
        role: String,
        /// The text.
        text: String,
    },
    /// A function call by the model.
    FunctionCall {
        /// The id that its result refers to.
        call_id: String,
        /// The name of the function.
        name: String,
        /// Its arguments as JSON.
        arguments: String,
    },
    /// The result of a function call.
    FunctionOutput {
        /// The id of the call.
        call_id: String,
        /// The result.
        output: String,
    },
}

/// One tool.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolRequest {
    /// Runs code in a container.
    Sandbox,
    /// A function that the caller runs.
    Function {
        /// Its name.
        name: String,
        /// What it does.
        description: Option<String>,
        /// The JSON schema of its arguments.
        parameters: Option<Value>,
    },
}

/// A request in which every field is valid.
#[derive(Clone, Debug)]
pub(crate) struct CheckedResponseRequest {
    pub(crate) input: Vec<ChatMessage>,
    pub(crate) instructions: Option<String>,
    pub(crate) models: Vec<String>,
    pub(crate) tools: Vec<ToolDefinition>,
    pub(crate) sandbox: bool,
    pub(crate) choice: ToolChoice,
    pub(crate) max_steps: u32,
    pub(crate) max_tokens: Option<u32>,
    pub(crate) background: bool,
    pub(crate) store: bool,
    pub(crate) previous: Option<ResponseId>,
    pub(crate) temperature: Option<f64>,
    pub(crate) top_p: Option<f64>,
}

impl NewResponse {
    /// The models to try, in order. Checked before all other fields.
    pub(crate) fn model_names(&self) -> Result<Vec<String>, Invalid> {
        check_models(self.model.as_ref(), self.models.as_deref())
    }

    /// Checks each field against its own rule.
    pub(crate) fn check(self) -> Result<CheckedResponseRequest, Invalid> {
        let store = self.store.unwrap_or(true);
        if self.background && !store {
            return Err(Invalid::new(
                "background needs store: a response that is not stored cannot be polled",
            ));
        }
        let models = self.model_names()?;
        let instructions = build_instructions(self.instructions, self.language_preference)?;
        check_size(&self.input, instructions.as_deref())?;
        let (tools, sandbox) = check_tools(self.tools)?;
        let previous = self.previous_response_id.map(|id| id.parse()).transpose();
        let previous =
            previous.map_err(|why: Invalid| field_error("previous_response_id", &why))?;
        let max_steps = check_number("max_steps", self.max_steps, MAX_STEPS)?;
        Ok(CheckedResponseRequest {
            input: check_input(self.input)?,
            instructions,
            models,
            choice: check_choice(self.tool_choice.as_deref(), &tools)?,
            tools,
            sandbox,
            max_steps: max_steps.unwrap_or(DEFAULT_STEPS),
            max_tokens: check_number("max_output_tokens", self.max_output_tokens, MAX_TOKENS)?,
            background: self.background,
            store,
            previous,
            temperature: check_range("temperature", self.temperature, 2.0)?,
            top_p: check_range("top_p", self.top_p, 1.0)?,
        })
    }
}

impl CheckedResponseRequest {
    /// Tells the model what programs in the caller's sandbox can reach.
    pub(crate) fn describe_network(&mut self, network: &NetworkPolicy) {
        let sandbox = self.tools.iter_mut().find(|tool| tool.name == sandbox::NAME);
        if let Some(tool) = sandbox.filter(|_| self.sandbox) {
            tool.description = format!("{} {}", tool.description, network.describe());
        }
    }
}

fn field_error(field: &str, why: &impl ToString) -> Invalid {
    Invalid::new(format!("{field}: {}", why.to_string()))
}

fn check_number(field: &str, value: Option<i64>, most: i64) -> Result<Option<u32>, Invalid> {
    let Some(value) = value else { return Ok(None) };
    let within = u32::try_from(value).ok().filter(|_| (1..=most).contains(&value));
    let wrong = || Invalid::new(format!("{field} must be between 1 and {most}, got {value}"));
    within.map(Some).ok_or_else(wrong)
}

fn check_range(field: &str, value: Option<f64>, most: f64) -> Result<Option<f64>, Invalid> {
    match value {
        Some(value) if !(0.0..=most).contains(&value) => {
            Err(Invalid::new(format!("{field} must be between 0 and {most}, got {value}")))
        }
        value => Ok(value),
    }
}

fn check_models(model: Option<&String>, models: Option<&[String]>) -> Result<Vec<String>, Invalid> {
    let chain = match (models, model) {
        (Some(models @ [_, ..]), _) => models.to_vec(),
        (_, Some(model)) => vec![model.clone()],
        _ => return Err(Invalid::new("model or models is required")),
    };
    if chain.len() > MAX_MODELS {
        let got = chain.len();
        return Err(Invalid::new(format!("models exceeds {MAX_MODELS} entries, got {got}")));
    }
    for name in &chain {
        let (provider, model) = name.split_once('/').unwrap_or_default();
        let plain = name.len() <= MAX_MODEL && !name.chars().any(char::is_control);
        if provider.is_empty() || model.is_empty() || !plain {
            let shown: String = name.chars().take(64).collect();
            return Err(Invalid::new(format!("a model must be provider/model, got {shown:?}")));
        }
    }
    Ok(chain)
}

fn build_instructions(
    instructions: Option<String>,
    language: Option<String>,
) -> Result<Option<String>, Invalid> {
    let Some(language) = language else { return Ok(instructions) };
    if language.len() != 2 || !language.chars().all(|c| c.is_ascii_lowercase()) {
        return Err(Invalid::new("language_preference must be two letters, as in ISO 639-1"));
    }
    let wish = format!("Answer in the language with the ISO 639-1 code {language:?}.");
    Ok(Some(match instructions {
        Some(instructions) => format!("{instructions}\n\n{wish}"),
        None => wish,
    }))
}

fn check_size(input: &[InputItem], instructions: Option<&str>) -> Result<(), Invalid> {
    if input.is_empty() {
        return Err(Invalid::new("input must not be empty"));
    }
    if input.len() > MAX_ITEMS {
        let got = input.len();
        return Err(Invalid::new(format!("input exceeds {MAX_ITEMS} items, got {got}")));
    }
    let size = |item: &InputItem| match item {
        InputItem::Message { text, .. } => text.len(),
        InputItem::FunctionCall { name, arguments, .. } => name.len() + arguments.len(),
        InputItem::FunctionOutput { output, .. } => output.len(),
    };
    let total = input.iter().map(size).sum::<usize>() + instructions.map_or(0, str::len);
    if total > MAX_INPUT {
        return Err(Invalid::new(format!(
            "input and instructions must be at most 2 MB, got {total} bytes"
        )));
    }
    Ok(())
}

fn check_input(items: Vec<InputItem>) -> Result<Vec<ChatMessage>, Invalid> {
    let mut messages = Vec::with_capacity(items.len());
    for (at, item) in items.into_iter().enumerate() {
        let wrong = |why: &str| Invalid::new(format!("input[{at}]: {why}"));
        match item {
            InputItem::Message { text, .. } if text.is_empty() => {
                return Err(wrong("content must not be empty"));
            }
            InputItem::Message { role, text } => messages.push(match role.as_str() {
                "user" => ChatMessage::User(text),
                "assistant" => ChatMessage::Assistant { text, calls: Vec::new() },
                "system" | "developer" => ChatMessage::System(text),
                _ => return Err(wrong("role must be one of: user, assistant, system, developer")),
            }),
            InputItem::FunctionCall { call_id, name, arguments } => {
                check_call_id(&call_id).map_err(|why| wrong(&why.to_string()))?;
                check_function_name(&name).map_err(|why| wrong(&why.to_string()))?;
                push_call(&mut messages, ModelToolCall { id: call_id, name, arguments });
            }
            InputItem::FunctionOutput { call_id, output } => {
                check_call_id(&call_id).map_err(|why| wrong(&why.to_string()))?;
                messages.push(ChatMessage::Tool { call_id, text: output });
            }
        }
    }
    Ok(messages)
}

/// Appends a call. Consecutive calls belong to the same message.
fn push_call(messages: &mut Vec<ChatMessage>, call: ModelToolCall) {
    if let Some(ChatMessage::Assistant { calls, .. }) = messages.last_mut() {
        calls.push(call);
    } else {
        messages.push(ChatMessage::Assistant { text: String::new(), calls: vec![call] });
    }
}

fn check_call_id(id: &str) -> Result<(), Invalid> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if id.is_empty() || id.len() > MAX_CALL_ID || !id.chars().all(plain) {
        return Err(Invalid::new(
            "call_id must be 1 to 128 letters, digits, hyphens and underscores",
        ));
    }
    Ok(())
}

fn check_function_name(name: &str) -> Result<(), Invalid> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
        return Err(Invalid::new(
            "the name of a function must be 1 to 64 letters, digits, hyphens and underscores",
        ));
    }
    Ok(())
}

/// Returns the tool definitions for the model, and whether the sandbox is one of them.
fn check_tools(tools: Vec<ToolRequest>) -> Result<(Vec<ToolDefinition>, bool), Invalid> {
    if tools.len() > MAX_TOOLS {
        let got = tools.len();
        return Err(Invalid::new(format!("tools exceeds {MAX_TOOLS} entries, got {got}")));
    }
    let mut names = BTreeSet::new();
    let (mut checked, mut with_sandbox) = (Vec::with_capacity(tools.len()), false);
    for tool in tools {
        let tool = match tool {
            ToolRequest::Sandbox if with_sandbox => continue,
            ToolRequest::Sandbox => {
                with_sandbox = true;
                sandbox::tool_definition()
            }
            ToolRequest::Function { name, description, parameters } => {
                check_function(name, description, parameters)?
            }
        };
        if !names.insert(tool.name.clone()) {
            return Err(Invalid::new(format!("tools: the name {} is used twice", tool.name)));
        }
        checked.push(tool);
    }
    Ok((checked, with_sandbox))
}

fn check_function(
    name: String,
    description: Option<String>,
    parameters: Option<Value>,
) -> Result<ToolDefinition, Invalid> {
    check_function_name(&name).map_err(|why| field_error("tools", &why))?;
    let parameters = parameters.unwrap_or_else(|| json!({"type": "object", "properties": {}}));
    if !parameters.is_object() {
        return Err(Invalid::new(format!("tools: the parameters of {name} must be an object")));
    }
    let description = description.unwrap_or_default();
    if description.len() + parameters.to_string().len() > MAX_TOOL {
        return Err(Invalid::new(format!(
            "tools: description and parameters of {name} exceed 64 kB"
        )));
    }
    Ok(ToolDefinition { name, description, parameters })
}

fn check_choice(choice: Option<&str>, tools: &[ToolDefinition]) -> Result<ToolChoice, Invalid> {
    match choice {
        None | Some("auto") => Ok(ToolChoice::Auto),
        Some("none") => Ok(ToolChoice::Never),
        Some("required") if tools.is_empty() => {
            Err(Invalid::new("tool_choice is required, but there are no tools"))
        }
        Some("required") => Ok(ToolChoice::Required),
        Some(_) => Err(Invalid::new("tool_choice must be one of: auto, none, required")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> NewResponse {
        NewResponse {
            input: vec![InputItem::Message { role: "user".into(), text: "hi".into() }],
            model: Some("a/b".into()),
            ..NewResponse::default()
        }
    }

    fn refusal(request: NewResponse) -> String {
        request.check().unwrap_err().to_string()
    }

    #[test]
    fn every_field_has_a_limit_named_in_its_error() {
        assert!(request().check().is_ok());
        let many = Some(vec!["a/b".to_owned(); 6]);
        assert_eq!(
            refusal(NewResponse { models: many, ..request() }),
            "models exceeds 5 entries, got 6"
        );
        assert_eq!(
            refusal(NewResponse { model: Some("gpt".into()), ..request() }),
            "a model must be provider/model, got \"gpt\""
        );
        assert_eq!(
            refusal(NewResponse { max_steps: Some(101), ..request() }),
            "max_steps must be between 1 and 100, got 101"
        );
        assert_eq!(
            refusal(NewResponse { max_output_tokens: Some(0), ..request() }),
            "max_output_tokens must be between 1 and 1000000, got 0"
        );
        assert_eq!(
            refusal(NewResponse { temperature: Some(f64::NAN), ..request() }),
            "temperature must be between 0 and 2, got NaN"
        );
        let big = vec![InputItem::Message { role: "user".into(), text: "x".repeat(3 << 20) }];
        assert!(refusal(NewResponse { input: big, ..request() }).contains("at most 2 MB"));
        let twice = vec![
            ToolRequest::Sandbox,
            ToolRequest::Function { name: "sandbox".into(), description: None, parameters: None },
        ];
        let refused = refusal(NewResponse { tools: twice, ..request() });
        assert_eq!(refused, "tools: the name sandbox is used twice");
    }

    #[test]
    fn consecutive_calls_form_one_message() {
        let call = |id: &str| InputItem::FunctionCall {
            call_id: id.into(),
            name: "f".into(),
            arguments: "{}".into(),
        };
        let input = vec![request().input[0].clone(), call("a"), call("b")];
        let order = NewResponse { input, ..request() }.check().unwrap();
        assert_eq!(order.input.len(), 2);
        let ChatMessage::Assistant { calls, .. } = &order.input[1] else { panic!("{order:?}") };
        assert_eq!(calls.len(), 2);
    }
}
