//! Runs in: server (no capabilities), mount server (no capabilities). Why storage did not answer as
//! asked, and the errno that a guest sees for it.

use std::time::Duration;

use object_store::client::{HttpError, HttpErrorKind};
use rustix::io::Errno;

use crate::objects::STALL_TIMEOUT;

/// Why an object store did not do what was asked. The text is for the owner of the connection: it
/// names no secret, but it may name the endpoint.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum StorageError {
    /// There is no such object or bucket.
    #[error("not found")]
    NotFound,
    /// The credentials do not allow it, or are wrong.
    #[error("the credentials do not allow this: {0}")]
    Denied(String),
    /// The object is not the one that was seen before, or exists already.
    #[error("the object was changed by another writer")]
    Changed,
    /// The endpoint cannot be reached, or answered with an error after all attempts.
    #[error("the storage did not answer: {0}")]
    Unreachable(String),
    /// The storage was too slow.
    #[error("the storage did not answer within {}s", .0.as_secs())]
    TimedOut(Duration),
    /// A key, endpoint or credential that cannot be used.
    #[error("{0}")]
    Invalid(String),
    /// The storage cannot do this.
    #[error("the storage does not support this: {0}")]
    Unsupported(String),
}

impl StorageError {
    /// What the guest sees.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::NotFound => Errno::NOENT,
            Self::Denied(_) => Errno::ACCESS,
            Self::Changed => Errno::STALE,
            Self::Unreachable(_) => Errno::IO,
            Self::TimedOut(_) => Errno::TIMEDOUT,
            Self::Invalid(_) => Errno::INVAL,
            Self::Unsupported(_) => Errno::OPNOTSUPP,
        }
    }

    /// Whether it says, as the answer to a list, that there is no such bucket. The client library has
    /// no kind of error for it.
    #[must_use]
    pub fn is_missing_bucket(&self) -> bool {
        match self {
            Self::NotFound => true,
            Self::Unreachable(text) => {
                text.contains("NoSuchBucket") || text.contains("404 Not Found")
            }
            _ => false,
        }
    }

    /// Whether it says something about the storage and not about what the guest asked for.
    #[must_use]
    pub fn is_storage_fault(&self) -> bool {
        matches!(self, Self::Denied(_) | Self::Unreachable(_) | Self::TimedOut(_))
    }
}

impl From<object_store::Error> for StorageError {
    fn from(error: object_store::Error) -> Self {
        use object_store::Error as Source;
        match &error {
            Source::NotFound { .. } => Self::NotFound,
            Source::Precondition { .. }
            | Source::AlreadyExists { .. }
            | Source::NotModified { .. } => Self::Changed,
            Source::PermissionDenied { .. } | Source::Unauthenticated { .. } => {
                Self::Denied(describe(&error))
            }
            Source::NotImplemented { .. } | Source::NotSupported { .. } => {
                Self::Unsupported(describe(&error))
            }
            Source::InvalidPath { .. } => Self::Invalid(describe(&error)),
            // The deadline of an operation and that of its request give the same error.
            _ if is_timeout(&error) => Self::TimedOut(STALL_TIMEOUT),
            _ => match find_status(&error) {
                // An archived object that was not restored, and other refusals of this kind.
                Some(401 | 403) => Self::Denied(describe(&error)),
                Some(416) => Self::Changed,
                Some(501) => Self::Unsupported(describe(&error)),
                _ => Self::Unreachable(describe(&error)),
            },
        }
    }
}

/// Whether the HTTP client gave up waiting, for a connection or for bytes.
fn is_timeout(error: &object_store::Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<HttpError>() {
            return error.kind() == HttpErrorKind::Timeout;
        }
        cause = error.source();
    }
    false
}

/// The HTTP status that the text of a client error names; the client does not export the type.
fn find_status(error: &object_store::Error) -> Option<u16> {
    let text = describe(error);
    let at = text.find("status ").or_else(|| text.find("status code: "))?;
    let digits = text[at..].split(|c: char| !c.is_ascii_digit()).find(|part| !part.is_empty())?;
    digits.parse().ok()
}

/// The error with its causes, shortened. Error bodies of stores can be long.
fn describe(error: &dyn std::error::Error) -> String {
    const MOST: usize = 300;
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    let one_line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    one_line.chars().take(MOST).collect()
}
