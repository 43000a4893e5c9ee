//! Anthropic's messages with tools, streamed.

use std::collections::HashMap;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Draft, Listener, ModelProvider, ProviderError, Trouble, stream::Line};
use crate::{Choice, Message, ProviderConfig, Reply, Turn};

/// The version of the protocol.
const VERSION: &str = "2023-06-01";
/// The protocol wants a limit on every answer; this one where the caller names none.
const DEFAULT_MAX_TOKENS: u32 = 8192;

/// A provider that speaks Anthropic's messages.
pub struct Anthropic {
    line: Line,
}

impl Anthropic {
    /// With these settings.
    ///
    /// # Errors
    /// When no client can be made.
    pub fn new(config: &ProviderConfig) -> Result<Self, reqwest::Error> {
        Ok(Self { line: Line::new(config, "messages")? })
    }

    fn failed(&self, error: &Value) -> ProviderError {
        let trouble = match error["type"].as_str() {
            Some("rate_limit_error") => Trouble::RateLimited,
            Some("invalid_request_error") => Trouble::Refused,
            _ => Trouble::Overloaded,
        };
        let words = self.line.harmless(error["message"].as_str().unwrap_or("no reason given"));
        ProviderError::new(trouble, format!("the model provider failed: {words}"))
    }
}

#[async_trait]
impl ModelProvider for Anthropic {
    async fn answer(
        &self,
        turn: &Turn<'_>,
        listener: &dyn Listener,
    ) -> Result<Reply, ProviderError> {
        let mut request = self.line.post(&body(turn)).header("anthropic-version", VERSION);
        if let Some(secret) = self.line.secret() {
            request = request.header("x-api-key", secret);
        }
        let mut events = self.line.send(request).await?;
        let mut reading = Reading::default();
        while let Some(data) = events.next().await? {
            let event: Event = serde_json::from_str(&data)
                .map_err(|_| ProviderError::malformed("an event that cannot be read"))?;
            match event {
                Event::Error { error } => return Err(self.failed(&error)),
                Event::MessageStop => return reading.draft.finish(),
                event => reading.take(event, listener)?,
            }
        }
        Err(ProviderError::new(Trouble::Unreachable, "the model provider broke off its answer"))
    }
}

fn body(turn: &Turn<'_>) -> Value {
    let inner = turn.messages.iter().filter_map(|message| match message {
        Message::System(text) => Some(text.as_str()),
        _ => None,
    });
    let system: Vec<_> = turn.instructions.into_iter().chain(inner).collect();
    let mut body = json!({
        "model": turn.model,
        "max_tokens": turn.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS),
        "messages": messages(turn.messages),
        "stream": true,
    });
    if !system.is_empty() {
        body["system"] = system.join("\n\n").into();
    }
    if !turn.tools.is_empty() {
        let tool = |tool: &crate::Tool| {
            json!({
                "name": tool.name, "description": tool.description, "input_schema": tool.parameters,
            })
        };
        body["tools"] = turn.tools.iter().map(tool).collect();
        body["tool_choice"] = match turn.choice {
            Choice::Auto => json!({"type": "auto"}),
            Choice::Never => json!({"type": "none"}),
            Choice::Required => json!({"type": "any"}),
        };
    }
    if let Some(temperature) = turn.temperature {
        body["temperature"] = temperature.into();
    }
    if let Some(top_p) = turn.top_p {
        body["top_p"] = top_p.into();
    }
    body
}

/// The conversation in the protocol's two roles. Results of tools are things that the user says, all
/// of one turn together.
fn messages(talk: &[Message]) -> Vec<Value> {
    let mut said: Vec<(&str, Vec<Value>)> = Vec::new();
    for message in talk {
        let (role, blocks) = match message {
            Message::System(_) => continue,
            Message::User(text) => ("user", text_block(text)),
            Message::Tool { call_id, text } => (
                "user",
                vec![json!({"type": "tool_result", "tool_use_id": call_id, "content": text})],
            ),
            Message::Assistant { text, calls } => {
                let mut blocks = text_block(text);
                blocks.extend(calls.iter().map(tool_use));
                ("assistant", blocks)
            }
        };
        match said.last_mut() {
            Some((last, content)) if *last == role => content.extend(blocks),
            _ => said.push((role, blocks)),
        }
    }
    let full = said.into_iter().filter(|(_, content)| !content.is_empty());
    full.map(|(role, content)| json!({"role": role, "content": content})).collect()
}

/// The protocol has no empty text.
fn text_block(text: &str) -> Vec<Value> {
    if text.is_empty() { Vec::new() } else { vec![json!({"type": "text", "text": text})] }
}

fn tool_use(call: &crate::Call) -> Value {
    let input = serde_json::from_str(&call.arguments).ok().filter(Value::is_object);
    let input = input.unwrap_or_else(|| json!({}));
    json!({"type": "tool_use", "id": call.id, "name": call.name, "input": input})
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Event {
    MessageStart {
        message: Started,
    },
    ContentBlockStart {
        index: u64,
        content_block: Block,
    },
    ContentBlockDelta {
        index: u64,
        delta: Delta,
    },
    MessageDelta {
        #[serde(default)]
        delta: Ending,
        usage: Option<Usage>,
    },
    MessageStop,
    Error {
        error: Value,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Started {
    usage: Option<Usage>,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block {
    Text {
        #[serde(default)]
        text: String,
    },
    ToolUse {
        id: String,
        name: String,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Delta {
    #[serde(rename = "text_delta")]
    Text { text: String },
    #[serde(rename = "input_json_delta")]
    Arguments { partial_json: String },
    #[serde(other)]
    Other,
}

#[derive(Default, Deserialize)]
struct Ending {
    stop_reason: Option<String>,
}

#[derive(Deserialize)]
struct Usage {
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
}

#[derive(Default)]
struct Reading {
    draft: Draft,
    /// Which call a content block is.
    calls: HashMap<u64, usize>,
}

impl Reading {
    fn take(&mut self, event: Event, listener: &dyn Listener) -> Result<(), ProviderError> {
        match event {
            Event::MessageStart { message } => self.usage(message.usage),
            Event::ContentBlockStart { content_block: Block::Text { text }, .. } => {
                self.draft.text(&text, listener)?;
            }
            Event::ContentBlockStart { index, content_block: Block::ToolUse { id, name } } => {
                let place = self.draft.reply.calls.len();
                let call = self.draft.call(place)?;
                Draft::name(&mut call.id, &id)?;
                Draft::name(&mut call.name, &name)?;
                self.calls.insert(index, place);
            }
            Event::ContentBlockDelta { delta: Delta::Text { text }, .. } => {
                self.draft.text(&text, listener)?;
            }
            Event::ContentBlockDelta { index, delta: Delta::Arguments { partial_json } } => {
                let place = self.calls.get(&index).copied().ok_or_else(|| {
                    ProviderError::malformed("arguments of a tool call that it never began")
                })?;
                Draft::arguments(&mut self.draft.call(place)?.arguments, &partial_json)?;
            }
            Event::MessageDelta { delta, usage } => {
                self.usage(usage);
                self.draft.reply.cut |= delta.stop_reason.as_deref() == Some("max_tokens");
            }
            _ => {}
        }
        Ok(())
    }

    /// Counts come twice; the later one is the whole.
    fn usage(&mut self, usage: Option<Usage>) {
        let Some(usage) = usage else { return };
        let tokens = &mut self.draft.reply.tokens;
        if let Some(read) = usage.input_tokens {
            tokens.cache_read = usage.cache_read_input_tokens.unwrap_or(tokens.cache_read);
            tokens.cache_creation =
                usage.cache_creation_input_tokens.unwrap_or(tokens.cache_creation);
            tokens.input = read + tokens.cache_read + tokens.cache_creation;
        }
        tokens.output = usage.output_tokens.unwrap_or(tokens.output);
    }
}
