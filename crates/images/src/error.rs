//! Runs in: server (no capabilities).
//!
//! Why an image could not be pulled or imported.

use std::io;

use cloche_layers::LayerError;

/// Why an image could not be pulled or imported. Nothing of it is kept then.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// It is not an image that can be used, or it is not what it claims to be.
    #[error("{0}")]
    Invalid(String),
    /// The registry has no such image.
    #[error("{0}")]
    NotFound(String),
    /// The registry does not accept the credentials, or wants some.
    #[error("{0}")]
    Denied(String),
    /// The registry did not answer, or not as it should.
    #[error("{0}")]
    Registry(String),
    /// The disk is full.
    #[error("no space is left on the disk of this host")]
    Full,
    /// A layer could not be converted or stored.
    #[error(transparent)]
    Layer(LayerError),
    /// A file operation of ours failed.
    #[error("{what}")]
    Io {
        /// The operation.
        what: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The caller's record of images failed.
    #[error("the record of images failed")]
    Catalog(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl ImageError {
    pub(crate) fn invalid(what: impl Into<String>) -> Self {
        Self::Invalid(what.into())
    }

    /// Adds the operation to an error of the operating system.
    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full,
            _ => Self::Io { what, source },
        }
    }
}

impl From<LayerError> for ImageError {
    fn from(error: LayerError) -> Self {
        match error {
            error if error.is_disk_full() => Self::Full,
            LayerError::Refused(what) => Self::Invalid(format!("a layer cannot be used: {what}")),
            LayerError::TooMuch(what) => Self::Invalid(format!("a layer has {what}")),
            LayerError::BadImage(what) => Self::Invalid(what),
            error => Self::Layer(error),
        }
    }
}
