//! Who answers: the seam between the loop and the services that run models.

mod anthropic;
mod openai;
mod stream;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;

pub use anthropic::AnthropicProvider;
pub use openai::OpenAiProvider;

use crate::{ModelReply, ModelRequest, ProviderConfig, ProviderProtocol};

/// The most text that one answer may have.
const MAX_TEXT: usize = 1 << 20;
/// The most tools that one answer may call.
const MAX_CALLS: usize = 16;
/// The most bytes of the arguments of one call; a megabyte of code can need six in JSON escapes.
const MAX_ARGUMENTS: usize = 6 << 20;
/// The longest id or name of a call.
const MAX_NAME: usize = 128;

/// Where text goes as it comes.
pub trait TextListener: Send + Sync {
    /// A piece of text.
    fn on_text(&self, piece: &str);
    /// Whether there was any; then nobody else can be asked for the same answer.
    fn has_text(&self) -> bool;
}

/// Somebody who can be asked for what a model says.
#[async_trait]
pub trait ModelProvider: Send + Sync {
    /// Asks once. Text goes to the listener as it comes; the whole answer comes at the end.
    ///
    /// # Errors
    /// When there is no whole answer.
    async fn stream_reply(
        &self,
        turn: &ModelRequest<'_>,
        listener: &dyn TextListener,
    ) -> Result<ModelReply, ProviderError>;
}

/// What kind of thing went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProviderErrorKind {
    /// Too many requests or tokens for now.
    RateLimited,
    /// The provider has an error of its own.
    Overloaded,
    /// It cannot be reached.
    Unreachable,
    /// It went silent.
    TimedOut,
    /// It does not accept the request.
    Refused,
    /// What it sent makes no sense, or is too much.
    Malformed,
}

impl ProviderErrorKind {
    /// A name for machines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RateLimited => "rate_limited",
            Self::Overloaded => "overloaded",
            Self::Unreachable => "unreachable",
            Self::TimedOut => "timeout",
            Self::Refused => "refused",
            Self::Malformed => "malformed",
        }
    }
}

/// Why a provider did not answer.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct ProviderError {
    /// The kind.
    pub trouble: ProviderErrorKind,
    /// A sentence for the caller. It holds nothing that is secret.
    pub message: String,
    /// When the provider wants to be asked again.
    pub retry_after: Option<Duration>,
}

impl ProviderError {
    pub(crate) fn new(trouble: ProviderErrorKind, message: impl Into<String>) -> Self {
        Self { trouble, message: message.into(), retry_after: None }
    }

    fn malformed(what: &str) -> Self {
        Self::new(ProviderErrorKind::Malformed, format!("the model provider sent {what}"))
    }

    /// Whether asking again may help.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        matches!(
            self.trouble,
            ProviderErrorKind::RateLimited
                | ProviderErrorKind::Overloaded
                | ProviderErrorKind::Unreachable
                | ProviderErrorKind::TimedOut
        )
    }
}

/// The provider of these settings.
///
/// # Errors
/// When no client can be made.
pub(crate) fn connect_provider(
    config: &ProviderConfig,
) -> Result<Arc<dyn ModelProvider>, reqwest::Error> {
    Ok(match config.protocol {
        ProviderProtocol::OpenAi => Arc::new(OpenAiProvider::new(config)?),
        ProviderProtocol::Anthropic => Arc::new(AnthropicProvider::new(config)?),
    })
}

/// An answer while it comes in pieces, kept within bounds.
#[derive(Default)]
struct ReplyDraft {
    reply: ModelReply,
}

impl ReplyDraft {
    fn push_text(&mut self, piece: &str, listener: &dyn TextListener) -> Result<(), ProviderError> {
        if piece.is_empty() {
            return Ok(());
        }
        if self.reply.text.len() + piece.len() > MAX_TEXT {
            return Err(ProviderError::malformed("more text than is accepted"));
        }
        self.reply.text.push_str(piece);
        listener.on_text(piece);
        Ok(())
    }

    /// The call at this place, which is new or the last one.
    fn call_at(&mut self, place: usize) -> Result<&mut crate::ModelToolCall, ProviderError> {
        let calls = &mut self.reply.calls;
        if place >= MAX_CALLS || place > calls.len() {
            return Err(ProviderError::malformed("more tool calls than are accepted"));
        }
        if place == calls.len() {
            calls.push(crate::ModelToolCall::default());
        }
        Ok(&mut calls[place])
    }

    fn push_name(target: &mut String, piece: &str) -> Result<(), ProviderError> {
        if target.len() + piece.len() > MAX_NAME {
            return Err(ProviderError::malformed("a tool call with a name that is too long"));
        }
        target.push_str(piece);
        Ok(())
    }

    fn push_arguments(target: &mut String, piece: &str) -> Result<(), ProviderError> {
        if target.len() + piece.len() > MAX_ARGUMENTS {
            return Err(ProviderError::malformed("a tool call with too many arguments"));
        }
        target.push_str(piece);
        Ok(())
    }

    fn finish(self) -> Result<ModelReply, ProviderError> {
        if self.reply.calls.iter().any(|call| call.name.is_empty()) {
            return Err(ProviderError::malformed("a tool call without a name"));
        }
        Ok(self.reply)
    }
}
