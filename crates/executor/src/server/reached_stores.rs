//! Runs in: server (no capabilities). Which object stores have answered a short while ago.
//!
//! A mount of a bucket asks its store nothing until the program uses it. A run whose store is
//! unreachable must end before its code, so a store that has not answered recently is asked once,
//! before the run takes a cell.

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, Hash as _, Hasher as _, RandomState},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use cloche_model::{
    KeyPrefix, MountReport, MountSource, MountSpec, ObjectConnection, ObjectCredentials,
};
use cloche_mounts::{ObjectPath, ObjectStorage, StorageError, SystemAccess};
use futures::future::try_join_all;

use super::run_error::RunError;

/// How long an answer of a store counts.
const RECENT: Duration = Duration::from_secs(30);
/// How long a store may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The stores that have answered, and those that are being asked.
#[derive(Default)]
pub(crate) struct ReachedStores {
    /// By a number for the connection and its credentials.
    stores: Mutex<HashMap<u64, Arc<LastAnswer>>>,
    numbers: RandomState,
}

/// The last answer of a store and when it came. Locked while the store is asked, so that many runs
/// ask once.
type LastAnswer = tokio::sync::Mutex<Option<(Instant, Result<(), StorageError>)>>;

impl ReachedStores {
    /// Sees to it that the store of every mount has answered a short while ago. The stores are asked
    /// at the same time, so a run waits for the slowest one only; the first failure ends the wait.
    pub(super) async fn check_mounts(&self, mounts: &[MountSpec]) -> Result<(), RunError> {
        try_join_all(mounts.iter().map(|mount| self.check_mount(mount))).await.map(drop)
    }

    async fn check_mount(&self, mount: &MountSpec) -> Result<(), RunError> {
        let MountSource::Objects { connection, prefix } = &mount.source else { return Ok(()) };
        let checked = self.check(connection, prefix).await;
        checked.map_err(|error| {
            let slug = mount.slug.to_string();
            // What the store said is for the operator.
            tracing::warn!(name = slug, %error, "a store did not answer before a run");
            RunError::Storage { slug, reason: describe_fault(&error).to_owned() }
        })
    }

    /// Notes that stores have answered in a run.
    pub(super) fn note_use(&self, mounts: &[MountSpec], reports: &[MountReport]) {
        for (mount, report) in mounts.iter().zip(reports) {
            let MountSource::Objects { connection, .. } = &mount.source else { continue };
            let has_answered = report.errors == 0 && report.bytes_read + report.bytes_written > 0;
            let store = self.find_store(connection);
            if has_answered && let Ok(mut last) = store.try_lock() {
                *last = Some((Instant::now(), Ok(())));
            }
        }
    }

    async fn check(
        &self,
        connection: &ObjectConnection,
        prefix: &KeyPrefix,
    ) -> Result<(), StorageError> {
        let asked = Instant::now();
        let store = self.find_store(connection);
        let mut last = store.lock().await;
        if let Some((at, answer)) = &*last {
            let is_recent = answer.is_ok() && at.elapsed() < RECENT;
            // Or it came while this run waited.
            if is_recent || *at >= asked {
                return answer.clone();
            }
        }
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, ask(connection, prefix)).await;
        let answer = answer.unwrap_or(Err(StorageError::TimedOut(ANSWER_TIMEOUT)));
        *last = Some((Instant::now(), answer.clone()));
        answer
    }

    fn find_store(&self, connection: &ObjectConnection) -> Arc<LastAnswer> {
        let number = self.number_of(connection);
        let mut stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = stores.get(&number) {
            return Arc::clone(store);
        }
        // Old answers are of no use. One that is locked is being asked for.
        stores.retain(|_, store| match store.try_lock() {
            Ok(last) => last.as_ref().is_some_and(|(at, _)| at.elapsed() < RECENT),
            Err(_) => true,
        });
        Arc::clone(stores.entry(number).or_default())
    }

    /// A number for everything that decides how a store answers. It differs in each process.
    fn number_of(&self, connection: &ObjectConnection) -> u64 {
        let ObjectConnection {
            kind,
            endpoint,
            bucket,
            region,
            credentials,
            allows_private_endpoint,
        } = connection;
        let mut number = self.numbers.build_hasher();
        (kind, endpoint, bucket, region, allows_private_endpoint).hash(&mut number);
        match credentials {
            ObjectCredentials::Anonymous => {}
            ObjectCredentials::AccessKey { id, secret, session_token } => {
                let token = session_token.as_ref().map(|token| token.reveal());
                (id, secret.reveal(), token).hash(&mut number);
            }
            ObjectCredentials::ServiceAccount(document) => document.reveal().hash(&mut number),
            ObjectCredentials::AccountKey { account, key } => {
                (account, key.reveal()).hash(&mut number);
            }
        }
        number.finish()
    }
}

/// Asks for the first keys of a prefix, which every use of a mount needs.
async fn ask(connection: &ObjectConnection, prefix: &KeyPrefix) -> Result<(), StorageError> {
    let storage = ObjectStorage::connect(connection, prefix.clone(), Arc::new(SystemAccess))?;
    storage.has_entries(&ObjectPath::default()).await.map(drop)
}

/// What the caller of the run learns: nothing of where the storage is.
fn describe_fault(error: &StorageError) -> &'static str {
    match error {
        error if error.is_missing_bucket() => "the bucket does not exist",
        StorageError::Denied(_) => "the storage refuses the credentials of the connection",
        StorageError::TimedOut(_) => "the storage did not answer in time",
        StorageError::Invalid(_) => "the connection cannot be used",
        _ => "the storage could not be reached",
    }
}
