//! What is said between us and a model, in words that belong to no provider.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One turn of the conversation so far.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChatMessage {
    /// Instructions in the midst of it.
    System(String),
    /// What the user said.
    User(String),
    /// What the model said, and which tools it called.
    Assistant {
        /// The text; empty if it only called tools.
        text: String,
        /// The calls.
        calls: Vec<ModelToolCall>,
    },
    /// What a tool gave back.
    Tool {
        /// The call it answers.
        call_id: String,
        /// The result.
        text: String,
    },
}

impl ChatMessage {
    /// Bytes of text in it.
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

/// A model's wish to use a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelToolCall {
    /// What its result is matched by.
    pub id: String,
    /// The tool.
    pub name: String,
    /// Its arguments, JSON if the model did well.
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
    /// A JSON schema of its arguments.
    pub parameters: Value,
}

/// Whether the model calls tools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// As it likes.
    #[default]
    Auto,
    /// It must not.
    Never,
    /// It has to.
    Required,
}

/// What a model is asked.
#[derive(Clone, Copy, Debug)]
pub struct ModelRequest<'a> {
    /// The model, as its provider calls it.
    pub model: &'a str,
    /// What goes before everything else.
    pub instructions: Option<&'a str>,
    /// The conversation.
    pub messages: &'a [ChatMessage],
    /// The tools.
    pub tools: &'a [ToolDefinition],
    /// Whether to call them.
    pub choice: ToolChoice,
    /// The most tokens to answer with.
    pub max_tokens: Option<u32>,
    /// How adventurous.
    pub temperature: Option<f64>,
    /// How wide the choice of words.
    pub top_p: Option<f64>,
}

/// What a model answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelReply {
    /// The text.
    pub text: String,
    /// The tools it wants to use.
    pub calls: Vec<ModelToolCall>,
    /// What it took.
    pub tokens: TokenCounts,
    /// Whether it was cut off by the limit on tokens.
    pub cut: bool,
}

/// Tokens, as providers count them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenCounts {
    /// Tokens that were read, from caches too.
    pub input: u64,
    /// Tokens that were written.
    pub output: u64,
    /// Those of the input that came from a cache.
    pub cache_read: u64,
    /// Those of the input that went to a cache.
    pub cache_creation: u64,
}

impl TokenCounts {
    /// Adds what another call took.
    pub fn add(&mut self, other: Self) {
        self.input = self.input.saturating_add(other.input);
        self.output = self.output.saturating_add(other.output);
        self.cache_read = self.cache_read.saturating_add(other.cache_read);
        self.cache_creation = self.cache_creation.saturating_add(other.cache_creation);
    }
}
