//! Errors in a request, with messages for the caller.

use std::borrow::Cow;

/// A request breaks a rule. The text names the field, the limit and the size.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct Invalid(Cow<'static, str>);

impl Invalid {
    /// Creates an error with this message, which is sent to the caller.
    pub fn new(message: impl Into<Cow<'static, str>>) -> Self {
        Self(message.into())
    }
}

/// The machine-readable names of the errors of the execute API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// A field breaks a rule.
    Validation,
    /// The key is missing, wrong or revoked.
    Unauthorized,
    /// The key is valid but not allowed to do this.
    Forbidden,
    /// There is nothing with that id that this caller may see.
    NotFound,
    /// The resource is in use.
    Conflict,
    /// The plan does not allow it, or a rate or concurrency limit is reached.
    RateLimited,
    /// The home has no space left for it.
    QuotaExceeded,
    /// The host has no space left for new data.
    InsufficientStorage,
    /// No executor can run it at present.
    Unavailable,
    /// A fault of the server.
    Internal,
}

impl ErrorCode {
    /// The name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Validation => "validation_error",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::NotFound => "not_found",
            Self::Conflict => "conflict",
            Self::RateLimited => "rate_limited",
            Self::QuotaExceeded => "quota_exceeded",
            Self::InsufficientStorage => "insufficient_storage",
            Self::Unavailable => "service_unavailable",
            Self::Internal => "internal_error",
        }
    }
}
