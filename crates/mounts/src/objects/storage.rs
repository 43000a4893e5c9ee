//! Runs in: server (no capabilities), mount server (no capabilities). A prefix of a bucket: list,
//! read, write, copy, delete.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

use bytes::Bytes;
use cloche_model::{KeyPrefix, ObjectConnection};
use futures::{StreamExt as _, stream::BoxStream};
use object_store::{
    GetOptions, GetRange, MultipartId, ObjectMeta, ObjectStoreExt as _, PutMode, PutOptions,
    PutPayload, UpdateVersion, list::PaginatedListOptions, multipart::PartId,
    path::Path as StorePath,
};
use reqwest::header::{HeaderName, HeaderValue, IF_MATCH, IF_NONE_MATCH};

use super::{
    EndpointAccess, ObjectPath,
    backend::{Backend, open_backend},
    http_client::COMPLETION,
    object_path::is_plain_name,
};
use crate::StorageError;

/// The most keys of a page.
const PAGE: usize = 1000;
/// How many keys are looked at to see whether a directory exists; some may have no name.
const LOOK: usize = 16;

/// A prefix of a bucket. Cheap to clone; nothing is requested before the first call.
#[derive(Clone)]
pub struct ObjectStorage {
    backend: Backend,
    prefix: KeyPrefix,
    hidden: Arc<AtomicU64>,
}

/// What is known of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Its bytes.
    pub size: u64,
    /// When it was written.
    pub modified: SystemTime,
    /// Names its content; a store without it has no conditions.
    pub tag: Option<String>,
}

/// One entry of a listing that is an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedObject {
    /// Its name in the directory.
    pub name: String,
    /// What is known of it.
    pub info: ObjectInfo,
}

/// One page of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListPage {
    /// The names of directories. A name that is both is in this list only.
    pub directories: Vec<String>,
    /// The objects.
    pub objects: Vec<ListedObject>,
    /// Continues the listing; `None` at its end.
    pub next: Option<String>,
}

/// When an object may be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PutCondition {
    /// Always.
    Always,
    /// If there is no object of this name.
    IfNew,
    /// If the object is still the one with this tag.
    IfTag(String),
}

/// The content of an object, as it arrives.
pub type ObjectBody = BoxStream<'static, Result<Bytes, StorageError>>;

impl ObjectStorage {
    /// Opens a prefix of the bucket of a connection.
    ///
    /// # Errors
    /// When the connection cannot be used: its endpoint, bucket or credentials have no valid form.
    pub fn connect(
        connection: &ObjectConnection,
        prefix: KeyPrefix,
        access: Arc<dyn EndpointAccess>,
    ) -> Result<Self, StorageError> {
        let (backend, hidden) = open_backend(connection, access)?;
        Ok(Self { backend, prefix, hidden })
    }

    /// How many keys were hidden so far because they have no name in a file system.
    #[must_use]
    pub fn hidden_keys(&self) -> u64 {
        self.hidden.load(Ordering::Relaxed)
    }

    /// One page of a directory, continued from the end of another page.
    pub async fn list_page(
        &self,
        directory: &ObjectPath,
        from: Option<String>,
    ) -> Result<ListPage, StorageError> {
        let prefix = directory.prefix_below(&self.prefix);
        let options = PaginatedListOptions {
            delimiter: Some("/".into()),
            max_keys: Some(PAGE),
            page_token: from,
            ..Default::default()
        };
        let page = self.backend.pages().list_paginated(Some(&prefix), options).await?;
        let (result, next) = (page.result, page.page_token);
        let name_of = |key: &StorePath| {
            // A hostile endpoint may answer with keys of another prefix.
            let name = key.as_ref().strip_prefix(&prefix)?;
            is_plain_name(name).then(|| name.to_owned())
        };
        let directories: Vec<String> = result.common_prefixes.iter().filter_map(name_of).collect();
        let objects = result.objects.iter().filter_map(|meta| {
            let name = name_of(&meta.location)?;
            (!directories.contains(&name)).then(|| ListedObject { name, info: info_of(meta) })
        });
        let objects = objects.collect();
        Ok(ListPage { directories, objects, next })
    }

    /// Whether a directory has any entry, which is all that makes a directory exist.
    pub async fn has_entries(&self, directory: &ObjectPath) -> Result<bool, StorageError> {
        let prefix = directory.prefix_below(&self.prefix);
        let options = PaginatedListOptions { max_keys: Some(LOOK), ..Default::default() };
        let page = self.backend.pages().list_paginated(Some(&prefix), options).await?;
        // The object that marks a directory counts, too. The library drops the `/` of its key.
        let marker = prefix.strip_suffix('/').unwrap_or(&prefix);
        let is_below = |key: &str| key.starts_with(&prefix) || key == marker;
        Ok(page.result.objects.iter().any(|found| is_below(found.location.as_ref())))
    }

    /// What is known of an object.
    pub async fn head(&self, path: &ObjectPath) -> Result<ObjectInfo, StorageError> {
        let meta = self.backend.objects().head(&self.key(path)?).await?;
        Ok(info_of(&meta))
    }

    /// Reads an object or a range of it, if it is still the one with this tag.
    pub async fn read(
        &self,
        path: &ObjectPath,
        range: Option<Range<u64>>,
        tag: Option<&str>,
    ) -> Result<(ObjectInfo, ObjectBody), StorageError> {
        let options = GetOptions {
            range: range.map(GetRange::Bounded),
            if_match: tag.map(str::to_owned),
            ..GetOptions::default()
        };
        let found = self.backend.objects().get_opts(&self.key(path)?, options).await?;
        let info = info_of(&found.meta);
        let body = found.into_stream().map(|chunk| chunk.map_err(StorageError::from));
        Ok((info, body.boxed()))
    }

    /// Writes a whole object. It is visible when this returns, whole or not at all.
    pub async fn put(
        &self,
        path: &ObjectPath,
        content: PutPayload,
        condition: &PutCondition,
    ) -> Result<Option<String>, StorageError> {
        let mode = match condition {
            PutCondition::Always => PutMode::Overwrite,
            PutCondition::IfNew => PutMode::Create,
            PutCondition::IfTag(tag) => {
                let version = match self.backend.has_generations() {
                    true => Some(self.find_generation(path, tag).await?),
                    false => None,
                };
                PutMode::Update(UpdateVersion { e_tag: Some(tag.clone()), version })
            }
        };
        let options = PutOptions::from(mode);
        let key = self.key(path)?;
        let put = self.backend.objects().put_opts(&key, content.clone(), options).await;
        match put.map_err(StorageError::from) {
            // A store without conditions: what it can do is checked before.
            Err(StorageError::Unsupported(_)) => {
                self.check_condition(path, condition).await?;
                Ok(self.backend.objects().put(&key, content).await?.e_tag.map(quote_tag))
            }
            put => Ok(put?.e_tag.map(quote_tag)),
        }
    }

    /// The generation of an object with this tag. A store that has generations compares them and
    /// not the tags when an object is written.
    async fn find_generation(&self, path: &ObjectPath, tag: &str) -> Result<String, StorageError> {
        let found = self.backend.objects().head(&self.key(path)?).await.map_err(StorageError::from);
        match found {
            Ok(found) if found.e_tag.clone().map(quote_tag).as_deref() == Some(tag) => {
                let missing = || StorageError::Unsupported("there is no generation".to_owned());
                found.version.ok_or_else(missing)
            }
            Ok(_) | Err(StorageError::NotFound) => Err(StorageError::Changed),
            Err(error) => Err(error),
        }
    }

    /// The header with the condition of an upload in parts.
    async fn completion_header(
        &self,
        path: &ObjectPath,
        condition: &PutCondition,
    ) -> Result<Option<(HeaderName, HeaderValue)>, StorageError> {
        const GENERATION: HeaderName = HeaderName::from_static("x-goog-if-generation-match");
        if self.backend.signs_conditions() {
            return Ok(None);
        }
        let (name, text) = match (condition, self.backend.has_generations()) {
            (PutCondition::Always, _) => return Ok(None),
            (PutCondition::IfNew, false) => (IF_NONE_MATCH, "*".to_owned()),
            (PutCondition::IfNew, true) => (GENERATION, "0".to_owned()),
            (PutCondition::IfTag(tag), false) => (IF_MATCH, tag.clone()),
            (PutCondition::IfTag(tag), true) => {
                (GENERATION, self.find_generation(path, tag).await?)
            }
        };
        let invalid = |_| StorageError::Invalid("the tag of the object is no header".to_owned());
        Ok(Some((name, HeaderValue::from_str(&text).map_err(invalid)?)))
    }

    /// Begins an upload in parts.
    pub async fn begin_upload(&self, path: &ObjectPath) -> Result<MultipartId, StorageError> {
        Ok(self.backend.parts().create_multipart(&self.key(path)?).await?)
    }

    /// Uploads one part. All but the last must have the same length, of at least 5 MiB.
    pub async fn put_part(
        &self,
        path: &ObjectPath,
        upload: &MultipartId,
        (index, content): (usize, PutPayload),
    ) -> Result<PartId, StorageError> {
        let key = self.key(path)?;
        Ok(self.backend.parts().put_part(&key, upload, index, content).await?)
    }

    /// Completes an upload: only now is the object visible.
    pub async fn complete_upload(
        &self,
        path: &ObjectPath,
        upload: &MultipartId,
        parts: Vec<PartId>,
        condition: &PutCondition,
    ) -> Result<Option<String>, StorageError> {
        // Not every store checks the header below, and the time between is short.
        self.check_condition(path, condition).await?;
        let header = self.completion_header(path, condition).await?;
        let key = self.key(path)?;
        let completing = self.backend.parts().complete_multipart(&key, upload, parts);
        let done = match header {
            None => completing.await,
            Some(header) => COMPLETION.scope(header, completing).await,
        };
        Ok(done?.e_tag.map(quote_tag))
    }

    /// Gives up an upload.
    pub async fn abort_upload(
        &self,
        path: &ObjectPath,
        upload: &MultipartId,
    ) -> Result<(), StorageError> {
        Ok(self.backend.parts().abort_multipart(&self.key(path)?, upload).await?)
    }

    /// Copies an object within the prefix, in the store.
    pub async fn copy(&self, from: &ObjectPath, to: &ObjectPath) -> Result<(), StorageError> {
        Ok(self.backend.objects().copy(&self.key(from)?, &self.key(to)?).await?)
    }

    /// Deletes an object; no error if there is none.
    pub async fn delete(&self, path: &ObjectPath) -> Result<(), StorageError> {
        match self.backend.objects().delete(&self.key(path)?).await.map_err(StorageError::from) {
            Ok(()) | Err(StorageError::NotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn check_condition(
        &self,
        path: &ObjectPath,
        condition: &PutCondition,
    ) -> Result<(), StorageError> {
        let found = match condition {
            PutCondition::Always => return Ok(()),
            _ => self.head(path).await,
        };
        match (condition, found) {
            (PutCondition::IfNew, Err(StorageError::NotFound)) => Ok(()),
            (PutCondition::IfTag(tag), Ok(info)) if info.tag.as_ref() == Some(tag) => Ok(()),
            (_, Ok(_) | Err(StorageError::NotFound)) => Err(StorageError::Changed),
            (_, Err(error)) => Err(error),
        }
    }

    fn key(&self, path: &ObjectPath) -> Result<StorePath, StorageError> {
        path.key_below(&self.prefix).map_err(|error| StorageError::Invalid(error.to_string()))
    }
}

fn info_of(meta: &ObjectMeta) -> ObjectInfo {
    let tag = meta.e_tag.clone().map(quote_tag);
    ObjectInfo { size: meta.size, modified: meta.last_modified.into(), tag }
}

/// The tag as headers have it. Azure leaves out the quotes in lists.
fn quote_tag(tag: String) -> String {
    if tag.starts_with('"') || tag.starts_with("W/") { tag } else { format!("\"{tag}\"") }
}
