//! The format of errors, and the error statuses that all routes share.

use serde::Serialize;
use utoipa::{IntoResponses, ToSchema};

/// An error.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ErrorBody {
    /// The machine-readable code.
    #[schema(example = "validation_error")]
    pub(crate) error: String,
    /// A message for people.
    #[schema(example = "code must be between 1 byte and 1 MB")]
    pub(crate) message: String,
}

/// Errors that are the same for all routes.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "only its description is used")]
pub(crate) enum ErrorResponses {
    /// `validation_error`: a field breaks a rule.
    #[response(status = 400)]
    Validation(ErrorBody),
    /// `unauthorized`: a missing, invalid or revoked key.
    #[response(status = 401)]
    Unauthorized(ErrorBody),
    /// `forbidden`: the key is valid but not allowed to do this.
    #[response(status = 403)]
    Forbidden(ErrorBody),
    /// `not_found`: there is nothing with that id that this caller may see.
    #[response(status = 404)]
    NotFound(ErrorBody),
    /// `request_timeout`: the body did not arrive in time.
    #[response(status = 408)]
    Timeout(ErrorBody),
    /// `conflict`: the thread or the name is in use.
    #[response(status = 409)]
    Conflict(ErrorBody),
    /// `payload_too_large`: the body is too large. `quota_exceeded`: the home has no space left for
    /// it, or the team has used up its storage budget.
    #[response(status = 413)]
    TooLarge(ErrorBody),
    /// `unsupported_media_type`: the body is not JSON.
    #[response(status = 415)]
    MediaType(ErrorBody),
    /// `rate_limited`: the plan does not allow it, or a rate or concurrency limit is reached.
    #[response(status = 429,
        headers(("retry-after" = u64, description = "Seconds; absent if waiting does not help")))]
    RateLimited(ErrorBody),
    /// `internal_error`: a fault of the server.
    #[response(status = 500)]
    Internal(ErrorBody),
    /// `service_unavailable`: no executor can run it at present.
    #[response(status = 503,
        headers(("retry-after" = u64, description = "Seconds; absent if waiting does not help")))]
    Unavailable(ErrorBody),
    /// `insufficient_storage`: the host has no space left for new data.
    #[response(status = 507)]
    InsufficientStorage(ErrorBody),
}
