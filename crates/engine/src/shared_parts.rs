//! Runs in: server (no capabilities).
//!
//! What more than one part of the engine uses. A part takes from here what it needs when it is
//! made, and keeps nothing else.

use std::sync::Arc;

use cloche_store::Store;

use crate::{
    Activity, Dispatcher, EngineConfig, EngineMetrics, admit::AdmissionControl,
    lifecycle::Lifecycle, memory::MemoryBudgets, outgoing_http::OutgoingHttpError,
    tenancy::KeyCache, usage::UsageAccounts, webhooks::WebhookSender,
};

pub(crate) struct SharedParts {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) dispatcher: Arc<dyn Dispatcher>,
    /// The callers that are remembered, until a key, a team, a sandbox or an image changes.
    pub(crate) key_cache: Arc<KeyCache>,
    pub(crate) lifecycle: Arc<Lifecycle>,
    pub(crate) metrics: Arc<EngineMetrics>,
    pub(crate) memory: Arc<MemoryBudgets>,
    /// Who may use the host now, and who is next.
    pub(crate) admission: Arc<AdmissionControl>,
    pub(crate) webhooks: Arc<WebhookSender>,
    /// What teams use, and may use in a month.
    pub(crate) usage: Arc<UsageAccounts>,
    /// What executions did lately.
    pub(crate) activity: Arc<Activity>,
}

impl SharedParts {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        dispatcher: Arc<dyn Dispatcher>,
        config: &EngineConfig,
    ) -> Result<Self, OutgoingHttpError> {
        let metrics = Arc::new(EngineMetrics::new());
        let memory = Arc::new(MemoryBudgets::new(&config.memory, config.output));
        let admission = Arc::new(AdmissionControl::new(&config.admission, &metrics));
        let webhooks =
            WebhookSender::new(&config.webhook, Arc::clone(&store), Arc::clone(&metrics))?;
        let webhooks = Arc::new(webhooks.with_memory(Arc::clone(&memory)));
        let lifecycle = Arc::new(Lifecycle::default());
        let usage = Arc::new(UsageAccounts::new(Arc::clone(&store), config.allowances));
        let key_cache = Arc::default();
        Ok(Self {
            store,
            dispatcher,
            key_cache,
            lifecycle,
            metrics,
            memory,
            admission,
            webhooks,
            usage,
            activity: Arc::default(),
        })
    }
}
