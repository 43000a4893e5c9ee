//! Files that the code of a response wrote.

use cloche_engine::{Caller, Refusal, StoredFile};
use cloche_model::{HomePath, Moment, ResponseId};

use crate::{Agent, gate, response::StoredResponseFile};

/// A file written by a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseFile {
    /// Its id, unique within the response.
    pub id: String,
    /// Its path below the container's home.
    pub filename: String,
    /// Its size.
    pub size: u64,
    /// When it was written.
    pub created_at: Moment,
}

impl Agent {
    /// Lists the files that the code of a response wrote, sorted by name.
    ///
    /// # Errors
    /// When there is no such response that the caller may see.
    pub async fn list_files(
        &self,
        caller: &Caller,
        id: &ResponseId,
    ) -> Result<Vec<ResponseFile>, Refusal> {
        gate::check_offered(self.engine(), caller).await?;
        let (kept, _) = self.load_stored(&caller.team.id, id).await?;
        Ok(kept.files.into_iter().map(ResponseFile::from).collect())
    }

    /// Opens one of them, with the content that the code wrote.
    ///
    /// # Errors
    /// When there is no such response or file that the caller may see.
    pub async fn open_file(
        &self,
        caller: &Caller,
        id: &ResponseId,
        file_id: &str,
    ) -> Result<StoredFile, Refusal> {
        gate::check_offered(self.engine(), caller).await?;
        let (kept, _) = self.load_stored(&caller.team.id, id).await?;
        let none = || Refusal::not_found("file");
        let file = kept.files.into_iter().find(|file| file.id == file_id).ok_or_else(none)?;
        let path: HomePath = file.path.parse().map_err(|_| none())?;
        self.engine().files().execution_file(caller, &file.trace_id, &path).await
    }
}

impl From<StoredResponseFile> for ResponseFile {
    fn from(file: StoredResponseFile) -> Self {
        Self { id: file.id, filename: file.path, size: file.size, created_at: file.written_at }
    }
}
