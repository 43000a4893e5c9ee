//! Runs in: server (no capabilities).
//!
//! The dispatcher over sidecars: HTTP to other hosts, behind the same trait as the executor of this
//! host.
//!
//! A run goes to the least busy sidecar. A sidecar that fails is left out until its health check
//! succeeds again. A run that has begun is never begun again elsewhere. The home of a thread goes
//! only to a sidecar that shares the layer store of this server.

mod events;
mod health;
mod job_body;
mod registry;
mod remote_job;
mod remote_run;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use cloche_layers::Layers;
use cloche_model::{OutputChunk, RunOutcome, Secret};
use futures::future::BoxFuture;
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode, header};
use tokio::{sync::mpsc, task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;
use url::Url;

use crate::{
    AdmittedRun, DispatchError, Dispatcher, DispatcherLoad, RunNeeds,
    outgoing_http::{self, OutgoingHttpError},
};

use registry::{SidecarRegistry, SidecarSlot};
use remote_job::RemoteJob;
use remote_run::RemoteRun;

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(3);
/// The most that is read of the body of an error or of a health check.
const MAX_SHORT_BODY: usize = 64 << 10;

/// Settings of a remote dispatcher.
#[derive(Clone, Debug)]
pub struct RemoteConfig {
    /// Where sidecars are, e.g. `http://sandbox-executor:9099`.
    pub urls: Vec<String>,
    /// The service key; none where they run without one.
    pub key: Option<Secret>,
    /// The time one run may take in all, network included.
    pub timeout: Duration,
    /// The interval of health checks.
    pub check_every: Duration,
    /// How long a sidecar may be silent during a run.
    pub silence: Duration,
}

impl Default for RemoteConfig {
    fn default() -> Self {
        Self {
            urls: Vec::new(),
            key: None,
            timeout: Duration::from_secs(65),
            check_every: Duration::from_secs(2),
            silence: Duration::from_secs(20),
        }
    }
}

/// Why sidecars cannot be used with these settings.
#[derive(Debug, thiserror::Error)]
pub enum RemoteConfigError {
    /// An address cannot be used.
    #[error("{url:?} is not an address of an executor such as http://sandbox-executor:9099: {why}")]
    Url {
        /// Which.
        url: String,
        /// Why.
        why: String,
    },
    /// No address is left.
    #[error("no address of an executor is given")]
    Nothing,
    /// The key cannot be sent.
    #[error("the executors' key has characters that cannot be in a header")]
    Key,
    /// The client could not be made.
    #[error("cannot prepare connections to executors")]
    Client(#[from] OutgoingHttpError),
}

/// The executors at some addresses.
pub struct RemoteDispatcher {
    shared: Arc<RemoteInner>,
    checks: JoinHandle<()>,
}

struct RemoteInner {
    client: Client,
    config: RemoteConfig,
    registry: SidecarRegistry,
    /// The layers of this server, which sidecars may share.
    layers: Option<Layers>,
}

impl RemoteDispatcher {
    /// Checks the addresses and starts their health checks. Call it within a Tokio runtime.
    /// Sidecars that use the store of these layers run threads.
    ///
    /// # Errors
    /// When an address or the key cannot be used.
    pub fn new(config: RemoteConfig, layers: Option<Layers>) -> Result<Self, RemoteConfigError> {
        let urls =
            config.urls.iter().map(|url| parse_base_url(url)).collect::<Result<Vec<_>, _>>()?;
        if urls.is_empty() {
            return Err(RemoteConfigError::Nothing);
        }
        // Code and key go to the configured addresses, and nowhere else: no redirects, no proxy.
        let client = outgoing_http::client_builder()?
            .default_headers(key_header(config.key.as_ref())?)
            .connect_timeout(CONNECT)
            .http1_only()
            // A connection that was kept may be dead already, and whether a run has begun on it
            // could not be told.
            .pool_max_idle_per_host(0)
            .tcp_nodelay(true)
            .build()
            .map_err(OutgoingHttpError::from)?;
        let registry = SidecarRegistry::new(urls);
        let shared = Arc::new(RemoteInner { client, registry, config, layers });
        let checks = tokio::spawn(health::watch_sidecars(Arc::clone(&shared)));
        Ok(Self { shared, checks })
    }

    /// Checks every sidecar once, so that it is known what they offer before the first request.
    pub async fn check_sidecars(&self) {
        health::check_sidecars(&self.shared).await;
    }
}

impl Drop for RemoteDispatcher {
    fn drop(&mut self) {
        self.checks.abort();
    }
}

/// The address with a slash at its end, so that paths are put behind it.
fn parse_base_url(text: &str) -> Result<Url, RemoteConfigError> {
    let wrong = |why: String| RemoteConfigError::Url { url: text.to_owned(), why };
    let mut url: Url = text.trim().parse().map_err(|why| wrong(format!("{why}")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(wrong("it must begin with http:// or https://".to_owned()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(RemoteConfigError::Url {
            url: format!("{}://…", url.scheme()),
            why: "the key belongs into SANDBOX_EXECUTOR_API_KEY".to_owned(),
        });
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(wrong("it must end with its path".to_owned()));
    }
    if !url.path().ends_with('/') {
        let path = format!("{}/", url.path());
        url.set_path(&path);
    }
    Ok(url)
}

fn key_header(key: Option<&Secret>) -> Result<header::HeaderMap, RemoteConfigError> {
    let mut headers = header::HeaderMap::new();
    if let Some(key) = key {
        let value = format!("Bearer {}", key.reveal());
        let mut value =
            header::HeaderValue::from_str(&value).map_err(|_| RemoteConfigError::Key)?;
        value.set_sensitive(true);
        headers.insert("x-service-api-key", value);
    }
    Ok(headers)
}

impl Dispatcher for RemoteDispatcher {
    fn dispatch(
        &self,
        mut run: AdmittedRun,
        output: mpsc::Sender<OutputChunk>,
        cancel: CancellationToken,
    ) -> BoxFuture<'static, Result<RunOutcome, DispatchError>> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let (limits, memory) = (run.limits(), run.output_account());
            let taken = run.take_signal();
            let job = RemoteJob::new(run.into_spec(), taken, shared.layers.clone());
            let follow = RemoteRun::new(output, cancel, limits.output);
            shared.run_on_sidecar(job, follow.charged_to(memory.as_ref())).await
        })
    }

    fn check_run(&self, needs: &RunNeeds) -> Result<(), DispatchError> {
        let most = self.shared.config.timeout;
        if needs.timeout > most {
            return Err(DispatchError::Refused(registry::timeout_sentence(needs.timeout, most)));
        }
        self.shared.registry.check_run(needs)
    }

    fn takes_at_once(&self) -> bool {
        false
    }

    fn runs_images(&self) -> bool {
        false
    }

    fn check_network(&self) -> Result<(), String> {
        Err(registry::NO_NETWORK.to_owned())
    }

    fn check_ready(&self) -> Result<(), String> {
        self.shared.registry.check_ready()
    }

    fn keeps_homes(&self) -> bool {
        self.shared.registry.shares_store()
    }

    fn current_load(&self) -> DispatcherLoad {
        DispatcherLoad {
            cells_running: self.shared.registry.in_flight(),
            nodes: self.shared.registry.current_nodes(),
            ..DispatcherLoad::default()
        }
    }
}

/// The answer of one sidecar.
enum SidecarAnswer {
    /// It took the run.
    Taken(Response),
    /// It did not, and another may.
    Elsewhere(String),
    /// It did not, and no other should be asked.
    Refused(DispatchError),
}

impl RemoteInner {
    fn request_to(&self, method: Method, place: &SidecarSlot, path: &str) -> RequestBuilder {
        // The base ends with a slash and the path is ours, so joining cannot fail.
        let url = place.url.join(path).unwrap_or_else(|_| place.url.clone());
        self.client.request(method, url)
    }

    /// Asks one sidecar after the other until one takes the run, then follows it there.
    async fn run_on_sidecar(
        self: Arc<Self>,
        mut job: RemoteJob,
        mut follow: RemoteRun,
    ) -> Result<RunOutcome, DispatchError> {
        // What the sidecars offer may have changed since the execution was admitted.
        self.registry.check_run(&job.needs)?;
        let deadline = Instant::now() + self.config.timeout;
        let mut reasons = Vec::new();
        let mut tried = Vec::new();
        while let Some(place) = self.registry.take(&job.needs, &tried) {
            tried.push(place.index);
            let cancel = follow.cancel_token();
            let body = job.encode_for(&place)?;
            let asked = tokio::time::timeout_at(deadline, self.post_job(&place, body));
            let answer = tokio::select! {
                biased;
                // Letting go of the request closes its connection, and that stops the run.
                () = cancel.cancelled() => return Ok(follow.cancelled_outcome()),
                answer = asked => answer,
            };
            match answer {
                Ok(SidecarAnswer::Taken(response)) => {
                    job.report_taken();
                    let mut outcome = follow.until_over(&self, &place, response, deadline).await?;
                    outcome.written.layer = job.adopt_layer(&place, follow.take_layer()).await?;
                    return Ok(outcome);
                }
                Ok(SidecarAnswer::Refused(error)) => return Err(error),
                Ok(SidecarAnswer::Elsewhere(why)) => reasons.push(format!("{}: {why}", place.url)),
                Err(_) => {
                    place.mark_down("it did not answer in time");
                    return Err(DispatchError::Failed(format!("{}: no answer", place.url)));
                }
            }
        }
        reasons.extend(self.registry.left_out(&tried));
        Err(DispatchError::Unavailable(reasons.join("; ")))
    }

    async fn post_job(&self, place: &SidecarSlot, body: Bytes) -> SidecarAnswer {
        let request = self
            .request_to(Method::POST, place, "execute")
            .header(header::ACCEPT, "application/x-ndjson")
            .header(header::CONTENT_TYPE, "application/json")
            .body(body);
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) if error.is_connect() => {
                place.mark_down("it cannot be reached");
                return SidecarAnswer::Elsewhere("it cannot be reached".to_owned());
            }
            Err(error) => {
                place.mark_down("it broke a connection");
                let why = format!("{} broke the connection: {}", place.url, error.without_url());
                return SidecarAnswer::Refused(DispatchError::Failed(why));
            }
        };
        match response.status() {
            StatusCode::OK if is_event_stream(&response) => SidecarAnswer::Taken(response),
            status => classify_refusal(place, status, &read_error_message(response).await),
        }
    }
}

fn is_event_stream(response: &Response) -> bool {
    let kind = response.headers().get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/x-ndjson"))
}

/// What an answer that is no run means.
fn classify_refusal(place: &SidecarSlot, status: StatusCode, message: &str) -> SidecarAnswer {
    match status {
        StatusCode::BAD_REQUEST
        | StatusCode::PAYLOAD_TOO_LARGE
        | StatusCode::UNPROCESSABLE_ENTITY => {
            SidecarAnswer::Refused(DispatchError::Refused(message.to_owned()))
        }
        StatusCode::CONFLICT => {
            place.mark_other_store();
            SidecarAnswer::Elsewhere("it uses another layer store".to_owned())
        }
        // It is well, and has no place at present.
        StatusCode::TOO_MANY_REQUESTS => SidecarAnswer::Elsewhere("it is busy".to_owned()),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            place.mark_down("it refuses the key");
            SidecarAnswer::Elsewhere("it refuses the key".to_owned())
        }
        StatusCode::INTERNAL_SERVER_ERROR => {
            SidecarAnswer::Refused(DispatchError::Failed(format!("{}: {message}", place.url)))
        }
        StatusCode::SERVICE_UNAVAILABLE => {
            place.mark_down("it takes nothing at present");
            SidecarAnswer::Elsewhere("it takes nothing at present".to_owned())
        }
        status => {
            let why = format!("it answers {status}, which no executor does");
            place.mark_down(&why);
            SidecarAnswer::Elsewhere(why)
        }
    }
}

/// The sentence of an error's body.
async fn read_error_message(response: Response) -> String {
    let body: Option<serde_json::Value> =
        serde_json::from_slice(&read_bounded(response).await).ok();
    let message = body.as_ref().and_then(|body| body.get("message")?.as_str());
    message.unwrap_or("it gave no reason").chars().take(1000).collect()
}

/// The body of a short answer; of a longer one, the beginning.
async fn read_bounded(mut response: Response) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        bytes.extend_from_slice(&chunk);
        if bytes.len() > MAX_SHORT_BODY {
            break;
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_http_and_holds_no_secret() {
        assert_eq!(
            parse_base_url("http://a:9099").unwrap().join("execute").unwrap().path(),
            "/execute"
        );
        assert_eq!(
            parse_base_url(" https://a/x ").unwrap().join("execute").unwrap().path(),
            "/x/execute"
        );
        for wrong in ["", "a:9099", "ftp://a", "unix:/x", "http://", "http://a?b=c"] {
            assert!(parse_base_url(wrong).is_err(), "{wrong:?}");
        }
        let error = parse_base_url("http://user:hunter2@a:9099").unwrap_err().to_string();
        assert!(!error.contains("hunter2"), "{error}");
    }
}
