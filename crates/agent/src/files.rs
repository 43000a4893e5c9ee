//! Files that the code of a response wrote.

use cloche_model::Moment;

/// A file of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseFile {
    /// Its id, within the response.
    pub id: String,
    /// Its path below the container's home.
    pub filename: String,
    /// Its size.
    pub size: u64,
    /// When it was written.
    pub created_at: Moment,
}
