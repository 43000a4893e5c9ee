//! The engine as a whole: what it holds, how it starts, how it stops.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, DirBuilder, File, TryLockError},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use cloche_model::{ErrorCode, TraceId};
use cloche_store::{KeySource, SqliteStore, Store, StoreError, ThreadKey};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, OnceCell};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    AgentMetrics, Caller, Dispatcher, EngineConfig, EngineMetrics, Refusal,
    access::{KeyCache, unauthorized_refusal},
    admit::{AdmissionControl, TeamSlots},
    clock,
    gates::ApprovalWaiters,
    live_execution::{LiveExecution, StopCause},
    memory::MemoryBudgets,
    secrets,
    storage::{HostStorage, StorageReservations},
    webhook::{WebhookSender, WebhookSetupError},
};

/// What the record of an execution says that a restart has ended.
const RESTARTED: &str = "the server was restarted while this execution was running";
/// The name of the setting that holds the digest of the admin token.
pub(crate) const ADMIN_TOKEN: &str = "admin_token_digest";
/// How long executions may take to die once they are told to.
const LAST_MOMENTS: Duration = Duration::from_secs(5);

/// Everything behind the doors. Cheap to clone.
#[derive(Clone)]
pub struct Engine {
    pub(crate) inner: Arc<EngineInner>,
}

pub(crate) struct EngineInner {
    pub(crate) config: EngineConfig,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) dispatcher: Arc<dyn Dispatcher>,
    pub(crate) key_cache: KeyCache,
    pub(crate) slots: TeamSlots,
    /// Who may use the host now, and who is next.
    pub(crate) admission: AdmissionControl,
    pub(crate) live: RwLock<HashMap<TraceId, Arc<LiveExecution>>>,
    pub(crate) metrics: Arc<EngineMetrics>,
    pub(crate) memory: Arc<MemoryBudgets>,
    pub(crate) webhook_sender: Arc<WebhookSender>,
    /// Calls that wait for a person.
    pub(crate) approval_waiters: Arc<ApprovalWaiters>,
    /// Executions under way.
    pub(crate) runs: TaskTracker,
    draining: AtomicBool,
    /// Threads that are being squashed.
    pub(crate) squashing: Mutex<HashSet<ThreadKey>>,
    /// Parts of budgets that are promised to bytes on their way.
    pub(crate) reservations: StorageReservations,
    /// The file system of the data directory.
    pub(crate) host_storage: HostStorage,
    /// Held while history is pruned to make room.
    pub(crate) pruning: tokio::sync::Mutex<()>,
    /// Asks for a sweep before it is time.
    pub(crate) sweep_now: Notify,
    /// What URLs are signed with, once one was.
    pub(crate) signing_key: OnceCell<Vec<u8>>,
    /// For what is being taken apart or put together; empty at every start.
    pub(crate) scratch: PathBuf,
    /// Ends what runs in the background.
    pub(crate) closing: CancellationToken,
    pub(crate) background: TaskTracker,
    /// Held as long as the directory is ours.
    lock: File,
}

/// Why an engine could not start.
#[derive(Debug, thiserror::Error)]
pub enum EngineOpenError {
    /// The directory for the data could not be made or written to.
    #[error("cannot use the data directory {path}")]
    Directory {
        /// Which.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Another server uses the directory; it would take our executions for its own leftovers.
    #[error("the data directory {path} is in use by another server")]
    InUse {
        /// Which.
        path: String,
    },
    /// The store could not be opened or brought into order.
    #[error("cannot open the store")]
    Store(#[from] StoreError),
    /// What teams store could not be counted, so that no budget would hold.
    #[error("cannot count what teams store")]
    Uncounted(#[source] Refusal),
    /// Webhooks cannot be sent with these settings.
    #[error("cannot prepare webhooks")]
    Webhook(#[from] WebhookSetupError),
}

impl Engine {
    /// Opens the store in `data_dir`, ends what a crash left running, and starts what runs in the
    /// background.
    ///
    /// # Errors
    /// When the directory, the store or the webhook settings cannot be used.
    pub async fn open(
        data_dir: &Path,
        config: EngineConfig,
        dispatcher: Arc<dyn Dispatcher>,
    ) -> Result<Self, EngineOpenError> {
        let lock = lock_data_dir(data_dir)?;
        let scratch = reset_scratch_dir(data_dir)?;
        let host_storage = HostStorage::open(data_dir, config.storage.reserve);
        let key = config.secret_key.clone();
        let key = key.unwrap_or_else(|| KeySource::File(data_dir.join("secret.key")));
        let database = data_dir.join("cloche.db");
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open_with_key(&database, &key).await?);
        let first_attempt = config.webhook.schedule.first().copied().unwrap_or_default();
        let ended = store.fail_running_executions(clock::now(), RESTARTED, first_attempt).await?;
        if ended > 0 {
            tracing::warn!(ended, "executions that a restart cut short are recorded as failed");
        }
        let metrics = Arc::new(EngineMetrics::new());
        let memory = Arc::new(MemoryBudgets::new(&config.memory, config.output));
        let courier =
            WebhookSender::new(&config.webhook, Arc::clone(&store), Arc::clone(&metrics))?;
        let courier = courier.with_memory(Arc::clone(&memory));
        let admission = AdmissionControl::new(&config.admission, &metrics);
        let inner = EngineInner {
            config,
            store,
            dispatcher,
            key_cache: KeyCache::default(),
            slots: TeamSlots::default(),
            admission,
            live: RwLock::default(),
            metrics,
            memory,
            webhook_sender: Arc::new(courier),
            approval_waiters: Arc::default(),
            runs: TaskTracker::new(),
            draining: AtomicBool::new(false),
            squashing: Mutex::default(),
            reservations: StorageReservations::default(),
            host_storage,
            pruning: tokio::sync::Mutex::default(),
            sweep_now: Notify::new(),
            signing_key: OnceCell::new(),
            scratch,
            closing: CancellationToken::new(),
            background: TaskTracker::new(),
            lock,
        };
        let engine = Self { inner: Arc::new(inner) };
        engine.count_storage_once().await.map_err(EngineOpenError::Uncounted)?;
        engine.start_background();
        Ok(engine)
    }

    fn start_background(&self) {
        let inner = &self.inner;
        let courier = Arc::clone(&inner.webhook_sender);
        inner.background.spawn(courier.run(inner.closing.clone()));
        inner.background.spawn(self.clone().expire_approvals());
        inner.background.spawn(self.clone().watch_disk());
        inner.background.spawn(self.clone().run_maintenance(inner.config.homes.sweep_every));
    }

    /// Who holds this API key.
    ///
    /// # Errors
    /// When nobody does, or the key was revoked.
    pub async fn find_caller(&self, secret: &str) -> Result<Caller, Refusal> {
        self.inner.key_cache.find_caller(&*self.inner.store, secret).await
    }

    /// Checks an admin token.
    ///
    /// # Errors
    /// When it is not the one.
    pub async fn check_admin_token(&self, token: &str) -> Result<(), Refusal> {
        let known = self.inner.store.read_setting(ADMIN_TOKEN).await?;
        // Digests are compared, so the time this takes says nothing about the token.
        if known.is_some_and(|known| known == secrets::digest_secret(token)) {
            return Ok(());
        }
        Err(Refusal { message: "missing or invalid admin token".into(), ..unauthorized_refusal() })
    }

    /// Whether executions can be taken now.
    ///
    /// # Errors
    /// Why not, for an operator.
    pub async fn check_ready(&self) -> Result<(), String> {
        if self.is_draining() {
            return Err("the server is shutting down".to_owned());
        }
        self.inner.store.ping().await.map_err(|error| error.to_string())?;
        self.inner.dispatcher.check_ready()
    }

    /// Whether anything was set up to run code. Where not, no door may offer it to an agent.
    #[must_use]
    pub fn can_run_code(&self) -> bool {
        self.inner.dispatcher.is_wired()
    }

    /// Whether runs can have a thread whose home outlives them.
    #[must_use]
    pub fn keeps_homes(&self) -> bool {
        self.inner.config.homes.layers.is_some() && self.inner.dispatcher.keeps_homes()
    }

    /// The memory that callers share.
    #[must_use]
    pub fn memory_budgets(&self) -> &MemoryBudgets {
        &self.inner.memory
    }

    /// Where what agents do is counted.
    #[must_use]
    pub fn agent_metrics(&self) -> &AgentMetrics {
        &self.inner.metrics.agents
    }

    /// Everything that is counted, in the text format of Prometheus.
    pub async fn metrics_text(&self) -> String {
        match self.inner.store.count_pending_approvals(clock::now()).await {
            Ok(count) => self.agent_metrics().set_pending(count),
            Err(error) => tracing::error!(%error, "pending approvals could not be counted"),
        }
        self.inner.metrics.show_memory(&self.inner.memory);
        self.measure_storage().await;
        self.inner.admission.show_levels();
        let running = self.inner.live.read().len();
        self.inner.metrics.encode_text(running, self.inner.dispatcher.current_load())
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.inner.draining.load(Ordering::SeqCst)
    }

    pub(crate) fn draining_refusal() -> Refusal {
        Refusal::new(ErrorCode::Unavailable, "the server is shutting down; try again in a moment")
    }

    /// From now on nothing new is taken; what runs goes on.
    pub fn drain(&self) {
        self.inner.draining.store(true, Ordering::SeqCst);
        self.inner.runs.close();
        self.inner.approval_waiters.wake_all();
    }

    /// Takes nothing new, lets executions end within the grace period, then ends them.
    pub async fn shutdown(&self) {
        self.drain();
        if tokio::time::timeout(self.inner.config.grace, self.inner.runs.wait()).await.is_err() {
            let left: Vec<_> = self.inner.live.read().values().cloned().collect();
            tracing::warn!(left = left.len(), "executions are ended, the grace period is over");
            left.iter().for_each(|live| live.stop(StopCause::Shutdown));
            if tokio::time::timeout(LAST_MOMENTS, self.inner.runs.wait()).await.is_err() {
                tracing::error!("some executions did not end; the next start will record them");
            }
        }
        self.inner.closing.cancel();
        self.inner.background.close();
        self.inner.background.wait().await;
        self.inner.store.close().await;
        if let Err(error) = self.inner.lock.unlock() {
            tracing::warn!(%error, "the data directory is still locked");
        }
    }
}

/// Makes the directory, for its owner only, and takes it for this process.
fn lock_data_dir(data_dir: &Path) -> Result<File, EngineOpenError> {
    let path = data_dir.display().to_string();
    let unusable = |source| EngineOpenError::Directory { path: path.clone(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(data_dir).map_err(unusable)?;
    let lock = File::create(data_dir.join("lock")).map_err(unusable)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(EngineOpenError::InUse { path }),
        Err(TryLockError::Error(source)) => Err(unusable(source)),
    }
}

/// Makes the directory for unfinished work, without what a crash left in it.
fn reset_scratch_dir(data_dir: &Path) -> Result<PathBuf, EngineOpenError> {
    let path = data_dir.join("scratch");
    let cleared = match fs::remove_dir_all(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => DirBuilder::new().mode(0o700).create(&path),
    };
    let shown = || data_dir.display().to_string();
    cleared.map_err(|source| EngineOpenError::Directory { path: shown(), source })?;
    Ok(path)
}
