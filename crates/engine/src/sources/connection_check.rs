//! Runs in: server (no capabilities).
//!
//! Tries a connection as its mounts will use it: list, write, read and delete a probe object.

use std::{sync::Arc, time::Duration};

use cloche_model::StorageConnection;
use cloche_mounts::{ObjectPath, ObjectStorage, PutCondition, StorageError, SystemAccess};
use futures::TryStreamExt as _;

use crate::{Refusal, secrets};

/// How long the whole check may take: less than a client waits for an answer.
const CHECK_TIMEOUT: Duration = Duration::from_secs(20);
/// The content of the probe object.
const PROBE: &[u8] = b"cloche checks that this connection works; this object can be deleted\n";
const NO_BUCKET: &str =
    "the bucket does not exist at this endpoint; check the bucket and the region";
/// The most bytes of an object that are read back.
const MOST_READ: u64 = 4096;

/// What trying a connection found out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectionCheck {
    /// The steps that were tried. The last one may have failed.
    pub steps: Vec<CheckStep>,
}

/// One step of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckStep {
    /// `list`, `write`, `read` or `delete`.
    pub name: &'static str,
    /// What went wrong, for the operator. It names no secret.
    pub error: Option<String>,
}

impl ConnectionCheck {
    /// The step that failed and why, as a sentence.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let failed =
            |step: &CheckStep| Some(format!("{} failed: {}", step.name, step.error.as_ref()?));
        self.steps.iter().find_map(failed)
    }

    fn note(&mut self, name: &'static str, result: Result<(), StorageError>) -> bool {
        let error = result.err().map(|error| describe_fault(name, &error));
        let is_good = error.is_none();
        self.steps.push(CheckStep { name, error });
        is_good
    }
}

/// Tries a connection. A failure of the storage is a value.
pub(super) async fn check_bucket(
    connection: &StorageConnection,
) -> Result<ConnectionCheck, Refusal> {
    let object = connection.to_object_connection()?;
    let mut check = ConnectionCheck::default();
    let opened = ObjectStorage::connect(&object, connection.prefix.clone(), Arc::new(SystemAccess));
    let storage = match opened {
        Ok(storage) => storage,
        Err(error) => {
            check.note("list", Err(error));
            return Ok(check);
        }
    };
    let name = format!(".cloche-probe-{}", hex::encode(secrets::random_bytes::<8>()?));
    let probe = ObjectPath::parse(&name)?;
    let steps = try_steps(&storage, connection.read_only, &probe, &mut check);
    if tokio::time::timeout(CHECK_TIMEOUT, steps).await.is_err() {
        let next = match check.steps.len() {
            0 => "list",
            1 if connection.read_only => "read",
            1 => "write",
            2 => "read",
            _ => "delete",
        };
        check.note(next, Err(StorageError::TimedOut(CHECK_TIMEOUT)));
    }
    Ok(check)
}

async fn try_steps(
    storage: &ObjectStorage,
    read_only: bool,
    probe: &ObjectPath,
    check: &mut ConnectionCheck,
) {
    let listed = storage.list_page(&ObjectPath::default(), None).await;
    let (listed, result) = match listed {
        Ok(page) => (page, Ok(())),
        Err(error) => (Default::default(), Err(error)),
    };
    if !check.note("list", result) {
        return;
    }
    if read_only {
        // What may not be written can only be read if there is something.
        if let Some(object) = listed.objects.first() {
            let first = ObjectPath::default().join(&object.name);
            let read = match first {
                Ok(path) => read_some(storage, &path, object.info.size).await.map(drop),
                Err(error) => Err(StorageError::Invalid(error.to_string())),
            };
            check.note("read", read);
        }
        return;
    }
    let put = storage.put(probe, PROBE.to_vec().into(), &PutCondition::Always).await;
    if !check.note("write", put.map(drop)) {
        return;
    }
    let read = read_some(storage, probe, PROBE.len() as u64).await;
    check.note(
        "read",
        read.and_then(|content| match content == PROBE {
            true => Ok(()),
            false => Err(StorageError::Invalid("the probe object has another content".to_owned())),
        }),
    );
    check.note("delete", storage.delete(probe).await);
}

async fn read_some(
    storage: &ObjectStorage,
    path: &ObjectPath,
    size: u64,
) -> Result<Vec<u8>, StorageError> {
    let range = (size > 0).then(|| 0..size.min(MOST_READ));
    let (_, body) = storage.read(path, range, None).await?;
    let chunks: Vec<bytes::Bytes> = body.try_collect().await?;
    Ok(chunks.concat())
}

/// A sentence for the operator: what is wrong, and what to do.
fn describe_fault(step: &str, error: &StorageError) -> String {
    match error {
        error if error.is_missing_bucket() => NO_BUCKET.to_owned(),
        StorageError::Denied(_) if step == "list" => {
            "the storage refuses these credentials; check the access key and its secret, and that \
             they may list the bucket"
                .to_owned()
        }
        StorageError::Denied(_) => format!("the credentials may not {step} objects in this bucket"),
        StorageError::Unreachable(_) => {
            "the storage could not be reached or did not answer as one; check the endpoint"
                .to_owned()
        }
        StorageError::TimedOut(limit) => {
            format!("the storage did not answer within {} s; check the endpoint", limit.as_secs())
        }
        other => other.to_string(),
    }
}
