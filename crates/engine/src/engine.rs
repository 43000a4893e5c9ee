//! Runs in: server (no capabilities).
//!
//! The engine as a whole: its parts, how they start, how they stop. What a part does is in the
//! folder of the part; no part holds the engine.

use std::{io, sync::Arc, time::Duration};

use cloche_model::Secret;
use cloche_mounts::VolumeStore;
use cloche_store::{Store, StoreError};

use crate::{
    AgentMetrics, Approvals, Backups, Console, Dispatcher, DispatcherLoad, EngineConfig,
    Executions, Files, Images, LockedDataDir, Refusal, Responses, StorageBudgets, StorageSources,
    Tenancy, Threads, UsageAccounts, WebTools, clock,
    maintenance::Maintenance,
    memory::{MemoryBudgets, MemoryPool},
    outgoing_http::OutgoingHttpError,
    search_indexer::SearchIndexer,
    shared_parts::SharedParts,
};

/// The error in the record of an execution that a restart has ended.
const RESTARTED: &str = "the server was restarted while this execution was running";

/// Everything behind the entry points. Cheap to clone.
#[derive(Clone)]
pub struct Engine {
    parts: Arc<EngineParts>,
}

struct EngineParts {
    tenancy: Tenancy,
    console: Arc<Console>,
    approvals: Arc<Approvals>,
    executions: Arc<Executions>,
    threads: Arc<Threads>,
    files: Files,
    storage: Arc<StorageBudgets>,
    sources: Arc<StorageSources>,
    images: Arc<Images>,
    backups: Backups,
    responses: Responses,
    web_tools: Arc<WebTools>,
    shared: SharedParts,
    /// How long executions may go on once the engine shuts down.
    grace: Duration,
    data_dir: LockedDataDir,
}

/// The load of the host.
#[derive(Clone, Debug)]
pub struct HostFigures {
    /// Cells and pools.
    pub load: DispatcherLoad,
    /// Executions that wait for a place.
    pub queued: usize,
    /// Memory that bodies, outputs and replies take.
    pub memory_used_bytes: u64,
    /// Memory that they may take.
    pub memory_limit_bytes: u64,
}

/// Why an engine could not start.
#[derive(Debug, thiserror::Error)]
pub enum EngineOpenError {
    /// The data directory could not be made or written to.
    #[error("cannot use the data directory {path}")]
    Directory {
        /// Which.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Another server uses the directory; it would end our executions as leftovers of a crash.
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
    Webhook(#[from] OutgoingHttpError),
    /// The OpenID provider cannot be asked with these settings.
    #[error("cannot prepare sign-on by the OpenID provider")]
    SignOn(#[source] OutgoingHttpError),
}

impl Engine {
    /// Ends what a crash left running in the store, and starts what runs in the background. The
    /// engine keeps the data directory and closes the store when it shuts down.
    ///
    /// # Errors
    /// When the directory, the store or the webhook settings cannot be used.
    pub async fn open(
        data_dir: LockedDataDir,
        store: Arc<dyn Store>,
        dispatcher: Arc<dyn Dispatcher>,
        config: EngineConfig,
    ) -> Result<Self, EngineOpenError> {
        let first_attempt = config.webhook.waits.first().copied().unwrap_or_default();
        let ended = store.fail_running_executions(clock::now(), RESTARTED, first_attempt).await?;
        if ended > 0 {
            tracing::warn!(ended, "executions that a restart cut short are recorded as failed");
        }
        let shared = SharedParts::new(store, dispatcher, &config)?;
        let engine = Self { parts: Arc::new(EngineParts::build(data_dir, shared, &config)?) };
        engine.storage().count_once().await.map_err(EngineOpenError::Uncounted)?;
        engine.start_background(&config);
        Ok(engine)
    }

    fn start_background(&self, config: &EngineConfig) {
        let EngineParts { shared, storage, threads, images, approvals, console, .. } = &*self.parts;
        let closing = shared.lifecycle.closing_token();
        let maintenance = Maintenance::new(shared, storage, (threads, images), config.gates.keep)
            .with_console(Arc::clone(console));
        shared.lifecycle.spawn(Arc::clone(&shared.webhooks).run(closing.clone()));
        shared.lifecycle.spawn(Arc::clone(approvals).expire_overdue());
        let indexer = SearchIndexer::new(shared);
        shared.lifecycle.spawn(indexer.run(closing.clone()));
        shared.lifecycle.spawn(Arc::clone(&shared.usage).record_transfers(closing.clone()));
        shared.lifecycle.spawn(Arc::clone(storage).watch_disk(closing));
        shared.lifecycle.spawn(maintenance.run(config.homes.sweep_every));
    }

    /// From now on nothing new is taken; what runs goes on.
    pub fn drain(&self) {
        self.parts.shared.lifecycle.begin_draining();
        self.parts.executions.take_no_more();
        self.parts.approvals.wake_all();
    }

    /// Takes nothing new, lets executions end within the grace period, then ends them.
    pub async fn shutdown(&self) {
        self.drain();
        self.parts.executions.end_within(self.parts.grace).await;
        self.parts.shared.lifecycle.close().await;
        self.parts.shared.store.close().await;
        self.parts.data_dir.unlock();
    }

    /// Teams, sandboxes, keys, gate settings and the admin token.
    #[must_use]
    pub fn tenancy(&self) -> &Tenancy {
        &self.parts.tenancy
    }

    /// Replaces the admin token. The old one is refused from now on.
    ///
    /// # Errors
    /// When the store or the bootstrap file cannot be written.
    pub async fn rotate_admin_token(&self) -> Result<Secret, Refusal> {
        self.parts.tenancy.rotate_admin_token(self.parts.data_dir.path()).await
    }

    /// Members, their sign-ins, and the log of changes.
    #[must_use]
    pub fn console(&self) -> &Console {
        &self.parts.console
    }

    /// The gates in front of agent tools, and the answers of people.
    #[must_use]
    pub fn approvals(&self) -> &Approvals {
        &self.parts.approvals
    }

    /// Executions: start, follow, cancel, look up.
    #[must_use]
    pub fn executions(&self) -> &Arc<Executions> {
        &self.parts.executions
    }

    /// Threads and their homes.
    #[must_use]
    pub fn threads(&self) -> &Arc<Threads> {
        &self.parts.threads
    }

    /// Files of threads and of executions.
    #[must_use]
    pub fn files(&self) -> &Files {
        &self.parts.files
    }

    /// What teams store and may store.
    #[must_use]
    pub fn storage(&self) -> &Arc<StorageBudgets> {
        &self.parts.storage
    }

    /// Storage connections and volumes, and what may use them.
    #[must_use]
    pub fn storage_sources(&self) -> &StorageSources {
        &self.parts.sources
    }

    /// What teams used, and may use in a month.
    #[must_use]
    pub fn usage(&self) -> &Arc<UsageAccounts> {
        &self.parts.shared.usage
    }

    /// Images, and the work of getting them.
    #[must_use]
    pub fn images(&self) -> &Images {
        &self.parts.images
    }

    /// Backups of everything.
    #[must_use]
    pub fn backups(&self) -> &Backups {
        &self.parts.backups
    }

    /// Rows of the Agent API.
    #[must_use]
    pub fn responses(&self) -> &Responses {
        &self.parts.responses
    }

    /// The web tools.
    #[must_use]
    pub fn web_tools(&self) -> &Arc<WebTools> {
        &self.parts.web_tools
    }

    /// The memory that callers share.
    #[must_use]
    pub fn memory_budgets(&self) -> &MemoryBudgets {
        &self.parts.shared.memory
    }

    /// The counters of what agents do.
    #[must_use]
    pub fn agent_metrics(&self) -> &AgentMetrics {
        &self.parts.shared.metrics.agents
    }

    /// Whether anything was set up to run code. Where not, no entry point may offer it to an agent.
    #[must_use]
    pub fn can_run_code(&self) -> bool {
        self.parts.shared.dispatcher.is_wired()
    }

    /// Whether executions can have a thread whose home outlives them.
    #[must_use]
    pub fn keeps_homes(&self) -> bool {
        self.parts.threads.keeps_homes()
    }

    /// Whether executions can be taken now.
    ///
    /// # Errors
    /// Why not, for an operator.
    pub async fn check_ready(&self) -> Result<(), String> {
        if self.parts.shared.lifecycle.is_draining() {
            return Err("the server is shutting down".to_owned());
        }
        self.parts.shared.store.ping().await.map_err(|error| error.to_string())?;
        self.parts.shared.dispatcher.check_ready()
    }

    /// The load of the host.
    #[must_use]
    pub fn host_figures(&self) -> HostFigures {
        let shared = &self.parts.shared;
        let pools = shared.memory.named_pools();
        let sum = |figure: fn(&MemoryPool) -> u64| pools.iter().map(|(_, pool)| figure(pool)).sum();
        HostFigures {
            load: shared.dispatcher.current_load(),
            queued: shared.admission.queued_runs(),
            memory_used_bytes: sum(|pool| pool.budget().used_bytes()),
            memory_limit_bytes: sum(|pool| pool.budget().total_bytes()),
        }
    }

    /// What is counted, in the text format of Prometheus; with or without what names teams.
    pub async fn metrics_text(&self, with_teams: bool) -> String {
        let EngineParts { shared, approvals, storage, executions, .. } = &*self.parts;
        approvals.show_pending().await;
        storage.show_usage(&shared.metrics.storage).await;
        if with_teams {
            shared.usage.show_usage(&shared.metrics.usage).await;
        }
        shared.metrics.show_memory(&shared.memory);
        shared.admission.show_levels();
        let load = shared.dispatcher.current_load();
        shared.metrics.encode_text(executions.running_count(), load, with_teams)
    }
}

fn shown(path: &std::path::Path) -> String {
    path.display().to_string()
}

impl EngineParts {
    /// Each part gets what it uses of the others; the order is that of their dependencies.
    fn build(
        data_dir: LockedDataDir,
        shared: SharedParts,
        config: &EngineConfig,
    ) -> Result<Self, EngineOpenError> {
        let scratch = data_dir.reset_scratch()?;
        let storage = Arc::new(StorageBudgets::new(&shared, data_dir.path(), config));
        let dirs = (data_dir.path(), scratch.as_path());
        let images = Arc::new(Images::new(&shared, &storage, config, dirs)?);
        let budgets = Arc::clone(&storage);
        let threads = Arc::new(Threads::new(&shared, budgets, config, scratch.clone()));
        let approvals = Arc::new(Approvals::new(&shared, Arc::clone(&threads), config.gates));
        let web_tools = config.web_tools.clone();
        let web_tools = Arc::new(WebTools::new(&shared, Arc::clone(&approvals), web_tools)?);
        let (budgets, homes) = (Arc::clone(&storage), Arc::clone(&threads));
        let executions = Executions::new(&shared, budgets, homes, config);
        let executions = Arc::new(executions.with_web_tools(Arc::clone(&web_tools)));
        let (budgets, homes) = (Arc::clone(&storage), Arc::clone(&threads));
        let volumes = data_dir.path().join("volumes");
        let unusable = |source| EngineOpenError::Directory { path: shown(&volumes), source };
        let volumes = VolumeStore::open(&volumes)
            .and_then(|volumes| volumes.remove_partial_uploads().map(|()| Arc::new(volumes)))
            .map_err(unusable)?;
        let sources = Arc::new(StorageSources::new(&shared, Arc::clone(&volumes)));
        let kept = (config.homes.layers.clone(), volumes);
        let backups = Backups::new(&shared, &storage, kept, scratch);
        let with_files = (Arc::clone(&executions), Arc::clone(&sources));
        let files = Files::new(&shared, budgets, homes, with_files, config);
        let console = Console::new(&shared, config.console.clone());
        let console = console.map_err(EngineOpenError::SignOn)?;
        Ok(Self {
            tenancy: Tenancy::new(&shared),
            console: Arc::new(console),
            approvals,
            files,
            responses: Responses::new(&shared, Arc::clone(&storage)),
            executions,
            web_tools,
            threads,
            storage,
            sources,
            images,
            backups,
            shared,
            grace: config.grace,
            data_dir,
        })
    }
}
