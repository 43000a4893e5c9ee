//! The interface between the response loop and the services that run models.

mod anthropic;
mod openai;
mod stream;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use cloche_engine::outgoing_http::OutgoingHttpError;

pub use anthropic::AnthropicProvider;
pub use openai::OpenAiProvider;

use crate::{ModelReply, ModelRequest, ProviderConfig, ProviderProtocol};

/// The limit on text of one reply.
const MAX_TEXT: usize = 1 << 20;
/// The limit on tool calls of one reply.
const MAX_CALLS: usize = 16;
/// The limit on bytes of the arguments of one call. A megabyte of code can take six in JSON
/// escapes.
const MAX_ARGUMENTS: usize = 6 << 20;
/// The limit on the length of a call's id or name.
const MAX_NAME: usize = 128;

/// Receives text as it arrives.
pub trait TextListener: Send + Sync {
    /// Called with each piece of text.
    fn on_text(&self, piece: &str);
    /// Whether any text has arrived. If so, no other model can be tried for the same reply.
    fn has_text(&self) -> bool;
}

/// A service that runs models.
#[async_trait]
pub trait ModelProvider: Send + Sync {
    /// Makes one request. Text goes to the listener as it arrives; the complete reply is returned
    /// at the end.
    ///
    /// # Errors
    /// When there is no complete reply.
    async fn stream_reply(
        &self,
        turn: &ModelRequest<'_>,
        listener: &dyn TextListener,
    ) -> Result<ModelReply, ProviderError>;
}

/// The kind of a provider's error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProviderErrorKind {
    /// The provider's limit on requests or tokens is reached.
    RateLimited,
    /// The provider reports an internal error or overload.
    Overloaded,
    /// The provider cannot be reached.
    Unreachable,
    /// The provider stopped sending.
    TimedOut,
    /// The provider rejected the request.
    Refused,
    /// The reply is malformed or too large.
    Malformed,
}

impl ProviderErrorKind {
    /// The machine-readable name.
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

/// The error of a request to a provider.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct ProviderError {
    /// The kind of error.
    pub trouble: ProviderErrorKind,
    /// A message for the caller. It contains no secrets.
    pub message: String,
    /// The wait before a retry that the provider requests.
    pub retry_after: Option<Duration>,
}

impl ProviderError {
    pub(crate) fn new(trouble: ProviderErrorKind, message: impl Into<String>) -> Self {
        Self { trouble, message: message.into(), retry_after: None }
    }

    fn malformed(what: &str) -> Self {
        Self::new(ProviderErrorKind::Malformed, format!("the model provider sent {what}"))
    }

    /// Whether a retry may succeed.
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

/// Creates the client for a provider.
///
/// # Errors
/// When the HTTP client cannot be created.
pub(crate) fn connect_provider(
    config: &ProviderConfig,
) -> Result<Arc<dyn ModelProvider>, OutgoingHttpError> {
    Ok(match config.protocol {
        ProviderProtocol::OpenAi => Arc::new(OpenAiProvider::new(config)?),
        ProviderProtocol::Anthropic => Arc::new(AnthropicProvider::new(config)?),
    })
}

/// A partial reply, within the limits.
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

    /// The call at this index, which is a new call or the last one.
    fn call_at(&mut self, position: usize) -> Result<&mut crate::ModelToolCall, ProviderError> {
        let calls = &mut self.reply.calls;
        if position >= MAX_CALLS || position > calls.len() {
            return Err(ProviderError::malformed("more tool calls than are accepted"));
        }
        if position == calls.len() {
            calls.push(crate::ModelToolCall::default());
        }
        Ok(&mut calls[position])
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
