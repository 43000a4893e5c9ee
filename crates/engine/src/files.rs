//! Runs in: server (no capabilities).
//!
//! Files of threads, of volumes and of executions: list, upload, download, and URLs that are signed for one
//! purpose.

mod signing;
mod transfer;

use std::{sync::Arc, time::Duration};

use cloche_model::{
    ByteSize, ErrorCode, HomePath, KeyId, Moment, SnapshotRef, Team, ThreadId, TraceId,
};
use cloche_store::Store;
use tokio::{io::AsyncRead, sync::OnceCell};

use crate::{
    EngineConfig, ExecutionReader, Executions, Refusal, StorageBudgets, StorageSources, Threads,
    VolumeAccess, admit::AdmissionControl, clock, lifecycle::Lifecycle, shared_parts::SharedParts,
    threads::layer_refusal,
};

pub use signing::{FileSource, UrlGrant, UrlPurpose};
pub use transfer::{FileReader, FileUpload, StoredFile};

/// The longest validity of a URL, whatever the configuration. Deletions of threads are remembered for
/// longer.
const LONGEST_URL: Duration = Duration::from_secs(7 * 86_400);

/// A file in a home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileInfo {
    /// Its path below the home, as `HomePath` writes it.
    pub path: String,
    /// Its size.
    pub size: u64,
    /// When it was last written.
    pub modified: Moment,
}

/// Some files of a home, by path.
pub struct FilePage {
    /// The files.
    pub files: Vec<FileInfo>,
    /// The last of them, if there are more.
    pub next: Option<String>,
    /// How many were left out because their paths are longer than one that can be asked for.
    pub unnamed: u64,
}

/// Which files to list.
#[derive(Clone, Debug, Default)]
pub struct FileFilter {
    /// Only this one, or those below it.
    pub below: Option<HomePath>,
    /// Only those after this path.
    pub after: Option<String>,
    /// At most so many.
    pub limit: usize,
}

/// A URL's last part, and until when it is good.
pub struct SignedToken {
    /// What the URL ends with.
    pub token: String,
    /// Until when.
    pub expires_at: Moment,
}

/// On whose behalf a URL is signed: a team, by one of its keys or through an operator.
pub struct UrlSigner<'a> {
    /// The team.
    pub team: &'a Team,
    /// The key; the URL is no good once it is revoked.
    pub key: Option<&'a KeyId>,
}

/// Files in homes, and those that executions wrote.
pub struct Files {
    store: Arc<dyn Store>,
    threads: Arc<Threads>,
    storage: Arc<StorageBudgets>,
    executions: Arc<Executions>,
    sources: Arc<StorageSources>,
    /// Places for uploads.
    admission: Arc<AdmissionControl>,
    lifecycle: Arc<Lifecycle>,
    largest_upload: ByteSize,
    url_expiry: Duration,
    /// What URLs are signed with, once one was.
    signing_key: OnceCell<Vec<u8>>,
}

impl Files {
    pub(crate) fn new(
        shared: &SharedParts,
        storage: Arc<StorageBudgets>,
        threads: Arc<Threads>,
        (executions, sources): (Arc<Executions>, Arc<StorageSources>),
        config: &EngineConfig,
    ) -> Self {
        Self {
            store: Arc::clone(&shared.store),
            storage,
            threads,
            executions,
            sources,
            admission: Arc::clone(&shared.admission),
            lifecycle: Arc::clone(&shared.lifecycle),
            largest_upload: config.homes.upload,
            url_expiry: config.homes.url_expiry,
            signing_key: OnceCell::new(),
        }
    }

    /// The files of a thread.
    ///
    /// # Errors
    /// When there is no thread that the team may see, or its layers cannot be read.
    pub async fn list_files(
        &self,
        team: &Team,
        id: &ThreadId,
        filter: &FileFilter,
    ) -> Result<FilePage, Refusal> {
        let thread = self.threads.find_thread(team, id).await?;
        self.files_of(&thread.layers, filter).await
    }

    /// A URL that a file of this length can be put to, once its path and length are acceptable.
    ///
    /// # Errors
    /// When the file is too large, or something is in its place that it cannot replace.
    pub async fn upload_url(
        &self,
        signer: &UrlSigner<'_>,
        id: &ThreadId,
        path: HomePath,
        length: u64,
    ) -> Result<SignedToken, Refusal> {
        self.check_length(length)?;
        self.check_upload(signer.team, id, &path, length).await?;
        self.sign_url(signer, UrlPurpose::Put { length }, FileSource::Thread(id.clone()), path)
            .await
    }

    fn check_length(&self, length: u64) -> Result<(), Refusal> {
        let limit = self.largest_upload.bytes();
        if length <= limit {
            return Ok(());
        }
        let message = format!("content_length must be at most {limit} bytes, got {length}");
        Err(Refusal::new(ErrorCode::Validation, message))
    }

    /// A URL that a file of this length can be put to in a volume.
    ///
    /// # Errors
    /// When the file is too large, or the signer may not write there.
    pub async fn volume_upload_url(
        &self,
        signer: &UrlSigner<'_>,
        volume: &VolumeAccess,
        path: HomePath,
        length: u64,
    ) -> Result<SignedToken, Refusal> {
        self.check_length(length)?;
        self.sources.check_volume_upload(volume, &path, length).await?;
        let source = FileSource::Volume(volume.id.clone());
        self.sign_url(signer, UrlPurpose::Put { length }, source, path).await
    }

    /// A URL that a file of a volume can be had from.
    ///
    /// # Errors
    /// When there is no such file that the signer may see.
    pub async fn volume_download_url(
        &self,
        signer: &UrlSigner<'_>,
        volume: &VolumeAccess,
        path: HomePath,
    ) -> Result<SignedToken, Refusal> {
        self.sources.open_volume_file(volume, &path).await?;
        self.sign_url(signer, UrlPurpose::Get, FileSource::Volume(volume.id.clone()), path).await
    }

    /// A URL that a file can be had from.
    ///
    /// # Errors
    /// When there is no such file that the team may see.
    pub async fn download_url(
        &self,
        signer: &UrlSigner<'_>,
        id: &ThreadId,
        path: HomePath,
    ) -> Result<SignedToken, Refusal> {
        let thread = self.threads.find_thread(signer.team, id).await?;
        self.file_in(thread.layers, &path).await?;
        self.sign_url(signer, UrlPurpose::Get, FileSource::Thread(id.clone()), path).await
    }

    async fn sign_url(
        &self,
        signer: &UrlSigner<'_>,
        purpose: UrlPurpose,
        source: FileSource,
        path: HomePath,
    ) -> Result<SignedToken, Refusal> {
        let signed_at = clock::now();
        let expires_at = signed_at.saturating_add(self.url_expiry.min(LONGEST_URL));
        let grant = UrlGrant {
            purpose,
            team: signer.team.id.clone(),
            key: signer.key.cloned(),
            source,
            path,
            signed_at,
            expires_at,
        };
        let token = grant.sign_token(self.signing_key().await?);
        Ok(SignedToken { token, expires_at })
    }

    /// What a signed URL allows, if it is ours, still good, and its key was not revoked.
    ///
    /// # Errors
    /// The same refusal for every defect.
    pub async fn verify_grant(&self, token: &str) -> Result<(UrlGrant, Team), Refusal> {
        let refused = || {
            Refusal::new(ErrorCode::Unauthorized, "this URL was not signed here, or it has expired")
        };
        let grant = UrlGrant::verify_token(token, self.signing_key().await?).ok_or_else(refused)?;
        if grant.expires_at <= clock::now() {
            return Err(refused());
        }
        if let Some(key) = &grant.key {
            let key = self.store.find_key(key).await?;
            key.filter(|key| key.revoked_at.is_none()).ok_or_else(refused)?;
        }
        let team = self.store.find_team(grant.team.as_str()).await?.ok_or_else(refused)?;
        Ok((grant, team))
    }

    /// The file of a signed URL as it is now.
    ///
    /// # Errors
    /// When there is none, or the key of the URL may not see it any more.
    pub async fn find_granted_file(
        &self,
        team: &Team,
        grant: &UrlGrant,
    ) -> Result<StoredFile, Refusal> {
        match &grant.source {
            FileSource::Thread(id) => self.find_file(team, id, &grant.path).await,
            FileSource::Volume(id) => {
                let sources = &self.sources;
                let volume = sources.find_granted_volume(team, grant.key.as_ref(), id).await?;
                let file = sources.open_volume_file(&volume, &grant.path).await?;
                Ok(StoredFile::from_volume(file, grant.path.clone()))
            }
        }
    }

    /// Takes the content of a file that a signed URL is for.
    ///
    /// # Errors
    /// As for [`Files::upload_file`], or when the key of the URL may not write there any more.
    pub async fn upload_granted_file(
        &self,
        team: &Team,
        grant: &UrlGrant,
        length: u64,
        content: impl AsyncRead + Send + Unpin,
    ) -> Result<(), Refusal> {
        let (path, allowed_at) = (&grant.path, Some(grant.signed_at));
        match &grant.source {
            FileSource::Thread(thread) => {
                let file = FileUpload { thread, path, length, allowed_at, approved: None };
                self.upload_file(team, file, content).await
            }
            FileSource::Volume(id) => {
                self.lifecycle.check_taking_work()?;
                let _place = self.admission.enter_transfer(team).await?;
                self.storage.host().check_lately()?;
                let sources = &self.sources;
                let volume = sources.find_granted_volume(team, grant.key.as_ref(), id).await?;
                sources.write_volume_file(&volume, path, length, content).await
            }
        }
    }

    /// A file of a thread as it is now.
    ///
    /// # Errors
    /// When there is none that the team may see.
    pub async fn find_file(
        &self,
        team: &Team,
        id: &ThreadId,
        path: &HomePath,
    ) -> Result<StoredFile, Refusal> {
        let thread = self.threads.find_thread(team, id).await?;
        self.file_in(thread.layers, path).await
    }

    /// The files of a thread at a snapshot; as it is now without one.
    ///
    /// # Errors
    /// When there is no such thread or snapshot, or its layers cannot be read.
    pub async fn list_files_at(
        &self,
        team: &Team,
        id: &ThreadId,
        at: Option<&SnapshotRef>,
        filter: &FileFilter,
    ) -> Result<FilePage, Refusal> {
        let layers = self.threads.layers_at(team, id, at).await?;
        self.files_of(&layers, filter).await
    }

    /// A file of a thread at a snapshot; as it is now without one.
    ///
    /// # Errors
    /// When there is no such thread, snapshot or file.
    pub async fn find_file_at(
        &self,
        team: &Team,
        id: &ThreadId,
        at: Option<&SnapshotRef>,
        path: &HomePath,
    ) -> Result<StoredFile, Refusal> {
        let layers = self.threads.layers_at(team, id, at).await?;
        self.file_in(layers, path).await
    }

    /// A file that an execution wrote.
    ///
    /// # Errors
    /// When there is no such execution or file that the caller may see.
    pub async fn execution_file(
        &self,
        reader: impl Into<ExecutionReader>,
        trace_id: &TraceId,
        path: &HomePath,
    ) -> Result<StoredFile, Refusal> {
        let execution = self.executions.find_execution(reader, trace_id).await?;
        let layer = execution.end.and_then(|end| end.written.layer);
        let layer = layer.ok_or_else(|| Refusal::not_found("file"))?;
        self.file_in(vec![layer.digest], path).await
    }
}

/// The refusal of a write beyond the home quota of the plan.
pub(crate) fn over_quota_refusal(team: &Team, limit: cloche_model::HomeQuota) -> Refusal {
    let (plan, bytes, inodes) = (team.plan.display_name(), limit.bytes, limit.inodes);
    Refusal::new(
        ErrorCode::QuotaExceeded,
        format!(
            "disk quota exceeded: a home may hold {bytes} in {inodes} files and directories on the \
             {plan} plan"
        ),
    )
}
