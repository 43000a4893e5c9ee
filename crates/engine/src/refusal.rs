//! Runs in: server (no capabilities), sidecar (no capabilities).
//!
//! Why a request was refused or failed: a code, a sentence for the caller, and a cause for the log.

use std::{borrow::Cow, error::Error, time::Duration};

use cloche_model::{ErrorCode, Invalid, TraceId};
use cloche_store::StoreError;

use crate::storage::NO_ROOM;

/// A request that was refused or that failed. The source is never sent out.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// What kind it is.
    pub code: ErrorCode,
    /// The sentence for the caller.
    pub message: Cow<'static, str>,
    /// The execution it belongs to, where the ledger has one.
    pub trace_id: Option<TraceId>,
    /// When asking again may help; `None` where it cannot.
    pub retry_after: Option<Duration>,
    /// The cause.
    #[source]
    pub source: Option<Box<dyn Error + Send + Sync>>,
}

impl Refusal {
    /// With this code and sentence.
    pub fn new(code: ErrorCode, message: impl Into<Cow<'static, str>>) -> Self {
        let retry_after = match code {
            ErrorCode::RateLimited | ErrorCode::Unavailable => Some(Duration::from_secs(1)),
            _ => None,
        };
        Self { code, message: message.into(), trace_id: None, retry_after, source: None }
    }

    /// The same for a request that will be refused again, however long its caller waits.
    #[must_use]
    pub fn without_retry(self) -> Self {
        Self { retry_after: None, ..self }
    }

    /// Nothing by that id, or nothing that this caller may see: the two look the same.
    #[must_use]
    pub fn not_found(what: &'static str) -> Self {
        Self::new(ErrorCode::NotFound, format!("no such {what}"))
    }

    pub(crate) fn internal(source: impl Error + Send + Sync + 'static) -> Self {
        Self {
            source: Some(Box::new(source)),
            ..Self::new(ErrorCode::Internal, "something went wrong on our side; try again")
        }
    }

    pub(crate) fn with_trace_id(self, trace_id: TraceId) -> Self {
        Self { trace_id: Some(trace_id), ..self }
    }
}

impl From<Invalid> for Refusal {
    fn from(invalid: Invalid) -> Self {
        Self::new(ErrorCode::Validation, invalid.to_string())
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Conflict(message) => Self::new(ErrorCode::Conflict, message),
            StoreError::Full => Self::new(ErrorCode::InsufficientStorage, NO_ROOM),
            error => Self::internal(error),
        }
    }
}
