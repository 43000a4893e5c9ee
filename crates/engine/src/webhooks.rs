//! Runs in: server (no capabilities).
//!
//! Webhooks: a due delivery is read from the store and sent once, and its result is written back.
//!
//! Delivery is at least once: a crash between the answer and its record sends it again. `lanes`
//! bounds how many deliveries of a team and to one receiver are under way, so a receiver that does
//! not answer delays only its own team.

mod address_guard;
mod client;
mod lanes;
mod payload;

use std::{sync::Arc, time::Duration};

use cloche_model::{Execution, Invalid, Moment};
use cloche_store::{DeliveryAttempt, DueDelivery, Store, StoreError};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use url::Url;

pub(crate) use address_guard::AddressGuard;

use crate::{
    EngineMetrics, WebhookConfig, clock,
    memory::{MemoryBudgets, hold_output},
    outgoing_http::OutgoingHttpError,
};
use client::WebhookClient;
use lanes::{DeliveryLanes, LaneLimits};

/// Deliveries that are looked at at once.
const LOOKED_AT: u32 = 256;
/// How long a delivery waits for memory; replies that hold it have shorter limits of their own.
const MEMORY_PATIENCE: Duration = Duration::from_mins(2);
/// The longest sleep; a delivery that another process queued is found by then.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);
/// The shortest, so that many that are due one after the other are looked at together.
const SHORTEST_SLEEP: Duration = Duration::from_millis(20);

/// Sends webhooks.
pub(crate) struct WebhookSender {
    store: Arc<dyn Store>,
    metrics: Arc<EngineMetrics>,
    guard: AddressGuard,
    client: WebhookClient,
    waits: Vec<Duration>,
    queued: Notify,
    lanes: Arc<DeliveryLanes>,
    memory: Option<Arc<MemoryBudgets>>,
}

impl WebhookSender {
    pub(crate) fn new(
        config: &WebhookConfig,
        store: Arc<dyn Store>,
        metrics: Arc<EngineMetrics>,
    ) -> Result<Self, OutgoingHttpError> {
        Ok(Self {
            store,
            metrics,
            guard: AddressGuard::new(config.allow.clone()),
            client: WebhookClient::new(config)?,
            waits: config.waits.clone(),
            queued: Notify::new(),
            lanes: Arc::new(DeliveryLanes::new(LaneLimits::from(config))),
            memory: None,
        })
    }

    /// The same, with records read only when there is memory for them.
    pub(crate) fn with_memory(self, memory: Arc<MemoryBudgets>) -> Self {
        Self { memory: Some(memory), ..self }
    }

    /// Checks a URL before it is accepted: its form, and the addresses its name has now. They are
    /// looked at again when it is used.
    pub(crate) async fn check_url(&self, field: &str, url: &str) -> Result<(), Invalid> {
        let url = address_guard::parse_webhook_url(field, url)?;
        match self.guard.resolve_allowed(&url).await {
            Ok(_) | Err(address_guard::BlockedUrl::Unresolved(_)) => Ok(()),
            Err(
                address_guard::BlockedUrl::Address(_) | address_guard::BlockedUrl::OwnAddress(_),
            ) => Err(Invalid::new(format!(
                "{field} points at an address that webhooks may not be sent to"
            ))),
        }
    }

    /// How long after the end of an execution its first delivery is due.
    pub(crate) fn first_delay(&self) -> Duration {
        self.waits.first().copied().unwrap_or_default()
    }

    /// Something may be due.
    pub(crate) fn wake(&self) {
        self.queued.notify_one();
    }

    /// Sends what is due until `closing` fires.
    pub(crate) async fn run(self: Arc<Self>, closing: CancellationToken) {
        loop {
            let next = match self.send_due().await {
                Ok(next) => next,
                Err(error) => {
                    tracing::error!(%error, "due webhooks could not be read");
                    None
                }
            };
            let sleep = next.map_or(LONGEST_SLEEP, |next| next.duration_since(clock::now()));
            tokio::select! {
                () = closing.cancelled() => break,
                () = self.queued.notified() => {}
                () = tokio::time::sleep(sleep.clamp(SHORTEST_SLEEP, LONGEST_SLEEP)) => {}
            }
        }
        // What is being sent may finish; what is not sent is still in the store.
        let _ = tokio::time::timeout(self.client.timeout(), self.lanes.wait_idle()).await;
    }

    /// Starts what is due and has a lane. The end of a delivery wakes the loop for the others.
    async fn send_due(self: &Arc<Self>) -> Result<Option<Moment>, StoreError> {
        let now = clock::now();
        for delivery in self.store.due_deliveries(now, LOOKED_AT).await? {
            let Some(lane) = self.lanes.enter(&delivery) else { continue };
            let sender = Arc::clone(self);
            tokio::spawn(async move {
                let trace_id = delivery.trace_id.clone();
                if let Err(error) = sender.deliver(delivery).await {
                    tracing::error!(%error, %trace_id, "a webhook's fate was not recorded");
                }
                drop(lane);
                sender.wake();
            });
        }
        self.store.next_delivery_due(now).await
    }

    async fn deliver(&self, delivery: DueDelivery) -> Result<(), StoreError> {
        let sent = self.attempt_delivery(&delivery).await;
        let made = delivery.attempts as usize + 1;
        let attempt = match sent {
            Ok(()) => {
                self.metrics.webhook_attempt("delivered");
                DeliveryAttempt::Delivered
            }
            Err(error) => {
                let trace_id = &delivery.trace_id;
                tracing::warn!(%error, %trace_id, attempt = made, "a webhook was not delivered");
                self.metrics.webhook_attempt("failed");
                match self.waits.get(made) {
                    Some(wait) => {
                        DeliveryAttempt::Again { at: clock::now().saturating_add(*wait), error }
                    }
                    None => DeliveryAttempt::GaveUp { error },
                }
            }
        };
        self.store.record_attempt(&delivery.trace_id, attempt).await
    }

    /// The record of a delivery, once there is memory for it.
    async fn read_record(&self, delivery: &DueDelivery) -> Result<Execution, String> {
        let trace_id = &delivery.trace_id;
        let bytes = self.store.record_bytes(trace_id).await.map_err(|error| error.to_string())?;
        let reserved = match &self.memory {
            Some(memory) => {
                let reserved =
                    memory.reserve_reply(delivery.key.as_str(), bytes, MEMORY_PATIENCE).await;
                Some(reserved.map_err(|refusal| refusal.to_string())?)
            }
            None => None,
        };
        let execution = self.store.find_execution_of_any_team(trace_id).await;
        let execution = execution.map_err(|error| error.to_string())?;
        let execution = execution.ok_or("the execution's record is gone")?;
        Ok(match reserved {
            Some(reserved) => hold_output(execution, reserved),
            None => execution,
        })
    }

    /// One attempt; the error is a sentence for the log and the record.
    async fn attempt_delivery(&self, delivery: &DueDelivery) -> Result<(), String> {
        let execution = self.read_record(delivery).await?;
        let key = self.store.find_key(&delivery.key).await.map_err(|error| error.to_string())?;
        let secret = key.and_then(|key| key.webhook_secret);
        let body = payload::encode_payload(&execution);
        let url = Url::parse(&delivery.url).map_err(|error| error.to_string())?;
        let request = client::WebhookDelivery { url, body, secret };
        self.client.send(&self.guard, request).await
    }
}
