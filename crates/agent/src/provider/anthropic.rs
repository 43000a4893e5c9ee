//! Anthropic's messages API with tools, streamed.

use std::collections::HashMap;

use async_trait::async_trait;
use cloche_engine::outgoing_http::OutgoingHttpError;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    ModelProvider, ProviderError, ProviderErrorKind, ReplyDraft, TextListener,
    stream::ProviderClient,
};
use crate::{ChatMessage, ModelReply, ModelRequest, ProviderConfig, ToolChoice};

/// The version of the protocol.
const VERSION: &str = "2023-06-01";
/// The limit on output tokens if the request sets none; the protocol requires one.
const DEFAULT_MAX_TOKENS: u32 = 8192;

/// A provider with Anthropic's messages API.
pub struct AnthropicProvider {
    line: ProviderClient,
}

impl AnthropicProvider {
    /// Creates the client for these settings.
    ///
    /// # Errors
    /// When the HTTP client cannot be created.
    pub fn new(config: &ProviderConfig) -> Result<Self, OutgoingHttpError> {
        Ok(Self { line: ProviderClient::new(config, "messages")? })
    }

    fn stream_error(&self, error: &Value) -> ProviderError {
        let trouble = match error["type"].as_str() {
            Some("rate_limit_error") => ProviderErrorKind::RateLimited,
            Some("invalid_request_error") => ProviderErrorKind::Refused,
            _ => ProviderErrorKind::Overloaded,
        };
        let quote =
            self.line.sanitize_quote(error["message"].as_str().unwrap_or("no reason given"));
        ProviderError::new(trouble, format!("the model provider failed: {quote}"))
    }
}

#[async_trait]
impl ModelProvider for AnthropicProvider {
    async fn stream_reply(
        &self,
        turn: &ModelRequest<'_>,
        listener: &dyn TextListener,
    ) -> Result<ModelReply, ProviderError> {
        let mut request = self.line.post(&request_body(turn)).header("anthropic-version", VERSION);
        if let Some(secret) = self.line.secret() {
            request = request.header("x-api-key", secret);
        }
        let mut events = self.line.send(request).await?;
        let mut reading = AnthropicReader::default();
        while let Some(data) = events.next().await? {
            let event: AnthropicEvent = serde_json::from_str(&data)
                .map_err(|_| ProviderError::malformed("an event that cannot be parsed"))?;
            match event {
                AnthropicEvent::Error { error } => return Err(self.stream_error(&error)),
                AnthropicEvent::MessageStop => return reading.draft.finish(),
                event => reading.take_event(event, listener)?,
            }
        }
        Err(ProviderError::new(
            ProviderErrorKind::Unreachable,
            "the model provider closed the connection before the end of its reply",
        ))
    }
}

fn request_body(turn: &ModelRequest<'_>) -> Value {
    let inner = turn.messages.iter().filter_map(|message| match message {
        ChatMessage::System(text) => Some(text.as_str()),
        _ => None,
    });
    let system: Vec<_> = turn.instructions.into_iter().chain(inner).collect();
    let mut body = json!({
        "model": turn.model,
        "max_tokens": turn.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS),
        "messages": to_wire_messages(turn.messages),
        "stream": true,
    });
    if !system.is_empty() {
        body["system"] = system.join("\n\n").into();
    }
    if !turn.tools.is_empty() {
        let tool = |tool: &crate::ToolDefinition| {
            json!({
                "name": tool.name, "description": tool.description, "input_schema": tool.parameters,
            })
        };
        body["tools"] = turn.tools.iter().map(tool).collect();
        body["tool_choice"] = match turn.choice {
            ToolChoice::Auto => json!({"type": "auto"}),
            ToolChoice::Never => json!({"type": "none"}),
            ToolChoice::Required => json!({"type": "any"}),
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

/// The conversation in the two roles of the protocol. Tool results belong to the user; consecutive
/// messages of one role are merged.
fn to_wire_messages(messages: &[ChatMessage]) -> Vec<Value> {
    let mut merged: Vec<(&str, Vec<Value>)> = Vec::new();
    for message in messages {
        let (role, blocks) = match message {
            ChatMessage::System(_) => continue,
            ChatMessage::User(text) => ("user", text_block(text)),
            ChatMessage::Tool { call_id, text } => (
                "user",
                vec![json!({"type": "tool_result", "tool_use_id": call_id, "content": text})],
            ),
            ChatMessage::Assistant { text, calls } => {
                let mut blocks = text_block(text);
                blocks.extend(calls.iter().map(tool_use));
                ("assistant", blocks)
            }
        };
        match merged.last_mut() {
            Some((last, content)) if *last == role => content.extend(blocks),
            _ => merged.push((role, blocks)),
        }
    }
    let full = merged.into_iter().filter(|(_, content)| !content.is_empty());
    full.map(|(role, content)| json!({"role": role, "content": content})).collect()
}

/// The content blocks of a text. The protocol does not allow empty text blocks.
fn text_block(text: &str) -> Vec<Value> {
    if text.is_empty() { Vec::new() } else { vec![json!({"type": "text", "text": text})] }
}

fn tool_use(call: &crate::ModelToolCall) -> Value {
    let input = serde_json::from_str(&call.arguments).ok().filter(Value::is_object);
    let input = input.unwrap_or_else(|| json!({}));
    json!({"type": "tool_use", "id": call.id, "name": call.name, "input": input})
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum AnthropicEvent {
    MessageStart {
        message: MessageStarted,
    },
    ContentBlockStart {
        index: u64,
        content_block: AnthropicBlock,
    },
    ContentBlockDelta {
        index: u64,
        delta: ContentDelta,
    },
    MessageDelta {
        #[serde(default)]
        delta: MessageEnding,
        usage: Option<AnthropicUsage>,
    },
    MessageStop,
    Error {
        error: Value,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct MessageStarted {
    usage: Option<AnthropicUsage>,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum AnthropicBlock {
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
enum ContentDelta {
    #[serde(rename = "text_delta")]
    Text { text: String },
    #[serde(rename = "input_json_delta")]
    Arguments { partial_json: String },
    #[serde(other)]
    Other,
}

#[derive(Default, Deserialize)]
struct MessageEnding {
    stop_reason: Option<String>,
}

#[derive(Deserialize)]
struct AnthropicUsage {
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
}

#[derive(Default)]
struct AnthropicReader {
    draft: ReplyDraft,
    /// The call of each content block.
    calls: HashMap<u64, usize>,
}

impl AnthropicReader {
    fn take_event(
        &mut self,
        event: AnthropicEvent,
        listener: &dyn TextListener,
    ) -> Result<(), ProviderError> {
        match event {
            AnthropicEvent::MessageStart { message } => self.take_usage(message.usage),
            AnthropicEvent::ContentBlockStart {
                content_block: AnthropicBlock::Text { text },
                ..
            } => {
                self.draft.push_text(&text, listener)?;
            }
            AnthropicEvent::ContentBlockStart {
                index,
                content_block: AnthropicBlock::ToolUse { id, name },
            } => {
                let position = self.draft.reply.calls.len();
                let call = self.draft.call_at(position)?;
                ReplyDraft::push_name(&mut call.id, &id)?;
                ReplyDraft::push_name(&mut call.name, &name)?;
                self.calls.insert(index, position);
            }
            AnthropicEvent::ContentBlockDelta { delta: ContentDelta::Text { text }, .. } => {
                self.draft.push_text(&text, listener)?;
            }
            AnthropicEvent::ContentBlockDelta {
                index,
                delta: ContentDelta::Arguments { partial_json },
            } => {
                let position = self.calls.get(&index).copied().ok_or_else(|| {
                    ProviderError::malformed("arguments of a tool call that was not started")
                })?;
                ReplyDraft::push_arguments(
                    &mut self.draft.call_at(position)?.arguments,
                    &partial_json,
                )?;
            }
            AnthropicEvent::MessageDelta { delta, usage } => {
                self.take_usage(usage);
                self.draft.reply.cut |= delta.stop_reason.as_deref() == Some("max_tokens");
            }
            _ => {}
        }
        Ok(())
    }

    /// Usage is reported twice; the later report is the total.
    fn take_usage(&mut self, usage: Option<AnthropicUsage>) {
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
