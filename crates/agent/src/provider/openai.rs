//! Chat completions with tools, streamed, as OpenAI and many others implement them.

use async_trait::async_trait;
use cloche_engine::outgoing_http::OutgoingHttpError;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    ModelProvider, ProviderError, ProviderErrorKind, ReplyDraft, TextListener,
    stream::ProviderClient,
};
use crate::{ChatMessage, ModelReply, ModelRequest, ProviderConfig, TokenCounts, ToolChoice};

/// A provider with the chat completions API.
pub struct OpenAiProvider {
    line: ProviderClient,
}

impl OpenAiProvider {
    /// Creates the client for these settings.
    ///
    /// # Errors
    /// When the HTTP client cannot be created.
    pub fn new(config: &ProviderConfig) -> Result<Self, OutgoingHttpError> {
        Ok(Self { line: ProviderClient::new(config, "chat/completions")? })
    }
}

#[async_trait]
impl ModelProvider for OpenAiProvider {
    async fn stream_reply(
        &self,
        turn: &ModelRequest<'_>,
        listener: &dyn TextListener,
    ) -> Result<ModelReply, ProviderError> {
        let mut request = self.line.post(&request_body(turn));
        if let Some(secret) = self.line.secret() {
            request = request.bearer_auth(secret);
        }
        let mut events = self.line.send(request).await?;
        let mut draft = ReplyDraft::default();
        let mut finished = false;
        while let Some(data) = events.next().await? {
            if data == "[DONE]" {
                finished = true;
                break;
            }
            let chunk: CompletionChunk = serde_json::from_str(&data)
                .map_err(|_| ProviderError::malformed("an event that cannot be parsed"))?;
            if let Some(error) = chunk.error {
                return Err(self.stream_error(&error));
            }
            finished |= apply_chunk(&mut draft, chunk, listener)?;
        }
        if !finished {
            let message = "the model provider closed the connection before the end of its reply";
            return Err(ProviderError::new(ProviderErrorKind::Unreachable, message));
        }
        draft.finish()
    }
}

impl OpenAiProvider {
    /// An error inside a stream.
    fn stream_error(&self, error: &Value) -> ProviderError {
        let quote =
            self.line.sanitize_quote(error["message"].as_str().unwrap_or("no reason given"));
        let message = format!("the model provider failed: {quote}");
        ProviderError::new(ProviderErrorKind::Overloaded, message)
    }
}

fn request_body(turn: &ModelRequest<'_>) -> Value {
    let system = turn.instructions.map(|text| json!({"role": "system", "content": text}));
    let messages: Vec<_> =
        system.into_iter().chain(turn.messages.iter().map(to_wire_message)).collect();
    let mut body = json!({
        "model": turn.model,
        "messages": messages,
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    if !turn.tools.is_empty() {
        let tool = |tool: &crate::ToolDefinition| {
            json!({"type": "function", "function": {
                "name": tool.name, "description": tool.description, "parameters": tool.parameters,
            }})
        };
        body["tools"] = turn.tools.iter().map(tool).collect();
        body["tool_choice"] = match turn.choice {
            ToolChoice::Auto => "auto".into(),
            ToolChoice::Never => "none".into(),
            ToolChoice::Required => "required".into(),
        };
    }
    if let Some(most) = turn.max_tokens {
        body["max_completion_tokens"] = most.into();
    }
    if let Some(temperature) = turn.temperature {
        body["temperature"] = temperature.into();
    }
    if let Some(top_p) = turn.top_p {
        body["top_p"] = top_p.into();
    }
    body
}

fn to_wire_message(message: &ChatMessage) -> Value {
    match message {
        ChatMessage::System(text) => json!({"role": "system", "content": text}),
        ChatMessage::User(text) => json!({"role": "user", "content": text}),
        ChatMessage::Tool { call_id, text } => {
            json!({"role": "tool", "tool_call_id": call_id, "content": text})
        }
        ChatMessage::Assistant { text, calls } => {
            let content = if text.is_empty() { Value::Null } else { text.as_str().into() };
            let mut message = json!({"role": "assistant", "content": content});
            if !calls.is_empty() {
                let call = |call: &crate::ModelToolCall| {
                    json!({"id": call.id, "type": "function", "function": {
                        "name": call.name, "arguments": call.arguments,
                    }})
                };
                message["tool_calls"] = calls.iter().map(call).collect();
            }
            message
        }
    }
}

#[derive(Deserialize)]
struct CompletionChunk {
    #[serde(default)]
    choices: Vec<ChunkChoice>,
    usage: Option<CompletionUsage>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct ChunkChoice {
    #[serde(default)]
    delta: ChoiceDelta,
    finish_reason: Option<String>,
}

#[derive(Default, Deserialize)]
struct ChoiceDelta {
    content: Option<String>,
    tool_calls: Option<Vec<CallDelta>>,
}

#[derive(Deserialize)]
struct CallDelta {
    index: Option<usize>,
    id: Option<String>,
    function: Option<FunctionDelta>,
}

#[derive(Deserialize)]
struct FunctionDelta {
    name: Option<String>,
    arguments: Option<String>,
}

#[derive(Deserialize)]
struct CompletionUsage {
    #[serde(default)]
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: u64,
    prompt_tokens_details: Option<UsageDetails>,
}

#[derive(Deserialize)]
struct UsageDetails {
    cached_tokens: Option<u64>,
}

/// Adds a chunk to the draft; returns true if it is the last one with content.
fn apply_chunk(
    draft: &mut ReplyDraft,
    chunk: CompletionChunk,
    listener: &dyn TextListener,
) -> Result<bool, ProviderError> {
    if let Some(usage) = chunk.usage {
        let cached = usage.prompt_tokens_details.and_then(|details| details.cached_tokens);
        draft.reply.tokens = TokenCounts {
            input: usage.prompt_tokens,
            output: usage.completion_tokens,
            cache_read: cached.unwrap_or(0),
            cache_creation: 0,
        };
    }
    let Some(choice) = chunk.choices.into_iter().next() else { return Ok(false) };
    draft.push_text(choice.delta.content.as_deref().unwrap_or_default(), listener)?;
    for piece in choice.delta.tool_calls.unwrap_or_default() {
        let position = piece.index.unwrap_or(draft.reply.calls.len());
        let call = draft.call_at(position)?;
        // Some providers repeat the id and the name with every chunk.
        if call.id.is_empty() {
            ReplyDraft::push_name(&mut call.id, piece.id.as_deref().unwrap_or_default())?;
        }
        let Some(function) = piece.function else { continue };
        if call.name.is_empty() {
            ReplyDraft::push_name(&mut call.name, function.name.as_deref().unwrap_or_default())?;
        }
        ReplyDraft::push_arguments(
            &mut call.arguments,
            function.arguments.as_deref().unwrap_or_default(),
        )?;
    }
    draft.reply.cut |= choice.finish_reason.as_deref() == Some("length");
    Ok(choice.finish_reason.is_some())
}
