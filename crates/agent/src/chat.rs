//! The conversation with a model, in types that are independent of any provider.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One message of the conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChatMessage {
    /// Instructions within the conversation.
    System(String),
    /// Text from the user.
    User(String),
    /// Text and tool calls from the model.
    Assistant {
        /// The text; empty if there are only tool calls.
        text: String,
        /// The tool calls.
        calls: Vec<ModelToolCall>,
    },
    /// The result of a tool call.
    Tool {
        /// The id of the call.
        call_id: String,
        /// The result.
        text: String,
    },
}

impl ChatMessage {
    /// The number of bytes of text.
    #[must_use]
    pub fn size(&self) -> usize {
        match self {
            Self::System(text) | Self::User(text) => text.len(),
            Self::Tool { call_id, text } => call_id.len() + text.len(),
            Self::Assistant { text, calls } => {
                text.len() + calls.iter().map(ModelToolCall::size).sum::<usize>()
            }
        }
    }
}

/// A tool call that a model requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelToolCall {
    /// The id that its result refers to.
    pub id: String,
    /// The name of the tool.
    pub name: String,
    /// Its arguments, which should be JSON.
    pub arguments: String,
}

impl ModelToolCall {
    fn size(&self) -> usize {
        self.id.len() + self.name.len() + self.arguments.len()
    }
}

/// A tool that a model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolDefinition {
    /// Its name.
    pub name: String,
    /// What it does.
    pub description: String,
    /// The JSON schema of its arguments.
    pub parameters: Value,
}

/// Whether the model may or must call tools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// The model must not call tools.
    Never,
    /// The model must call a tool.
    Required,
}

/// A request to a model.
#[derive(Clone, Copy, Debug)]
pub struct ModelRequest<'a> {
    /// The model, by its provider's name for it.
    pub model: &'a str,
    /// Instructions before the conversation.
    pub instructions: Option<&'a str>,
    /// The conversation.
    pub messages: &'a [ChatMessage],
    /// The tools offered.
    pub tools: &'a [ToolDefinition],
    /// Whether to call them.
    pub choice: ToolChoice,
    /// The limit on output tokens.
    pub max_tokens: Option<u32>,
    /// The sampling temperature.
    pub temperature: Option<f64>,
    /// The nucleus sampling threshold.
    pub top_p: Option<f64>,
}

/// A reply from a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelReply {
    /// The text.
    pub text: String,
    /// The tool calls it requests.
    pub calls: Vec<ModelToolCall>,
    /// The tokens used.
    pub tokens: TokenCounts,
    /// Whether the limit on tokens truncated it.
    pub cut: bool,
}

/// Token counts, as providers report them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenCounts {
    /// Input tokens, including cached ones.
    pub input: u64,
    /// Output tokens.
    pub output: u64,
    /// Input tokens read from a cache.
    pub cache_read: u64,
    /// Input tokens written to a cache.
    pub cache_creation: u64,
}

impl TokenCounts {
    /// Adds the counts of another call.
    pub fn add(&mut self, other: Self) {
        self.input = self.input.saturating_add(other.input);
        self.output = self.output.saturating_add(other.output);
        self.cache_read = self.cache_read.saturating_add(other.cache_read);
        self.cache_creation = self.cache_creation.saturating_add(other.cache_creation);
    }
}
