//! What can be wrong with what was asked, in words that are sent back.

use std::borrow::Cow;

/// Something that was asked breaks a rule. The text names the field, the limit and the size.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct Invalid(Cow<'static, str>);

impl Invalid {
    /// With this sentence, which the caller will read.
    pub fn new(message: impl Into<Cow<'static, str>>) -> Self {
        Self(message.into())
    }
}

/// The machine-readable names of the errors of the execute API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// A field breaks a rule.
    Validation,
    /// No key, a wrong key, or one that was revoked.
    Unauthorized,
    /// The key is good, and this is not for it to do.
    Forbidden,
    /// Nothing by that id that this caller may see.
    NotFound,
    /// The resource is in use.
    Conflict,
    /// The plan does not allow it, or not now.
    RateLimited,
    /// The home cannot hold it.
    QuotaExceeded,
    /// The host has no room for new data.
    InsufficientStorage,
    /// Nothing can run it at present.
    Unavailable,
    /// Our fault.
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
