//! Runs in: server (no capabilities), mount server (no capabilities). The HTTP client of an object
//! store: it follows no redirect, uses no proxy, connects to checked addresses only, and reads no
//! list answer without an end.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use object_store::{
    ClientOptions,
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
        HttpResponseBody, HttpService,
    },
};
use reqwest::{
    dns::{Name, Resolve, Resolving},
    header::{HeaderName, HeaderValue},
    redirect::Policy,
};
use rustls::ClientConfig;

use super::{EndpointAccess, listing::filter_listing};
use crate::StorageError;

/// How long it may take to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long no byte may arrive. There is no limit for a whole answer: a large object takes long.
pub(crate) const STALL_TIMEOUT: Duration = Duration::from_secs(10);
/// The most bytes of a list answer. A page has at most 1000 keys of 1024 bytes.
const MAX_LISTING: usize = 8 << 20;

tokio::task_local! {
    /// The header with the condition under which an upload in parts may be completed. The library
    /// has no argument for it; the header needs no signature.
    pub(super) static COMPLETION: (HeaderName, HeaderValue);
}

/// Makes the client of one connection.
#[derive(Clone)]
pub(super) struct GuardedConnector {
    access: Arc<dyn EndpointAccess>,
    allows_private: bool,
    hidden: Arc<AtomicU64>,
}

impl GuardedConnector {
    pub(super) fn new(access: Arc<dyn EndpointAccess>, allows_private: bool) -> Self {
        Self { access, allows_private, hidden: Arc::default() }
    }

    /// Counts the keys that have no name in a file system.
    pub(super) fn hidden_counter(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.hidden)
    }

    fn build_client(&self) -> Result<reqwest::Client, StorageError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| StorageError::Invalid(error.to_string()))?
            .with_root_certificates(self.access.roots())
            .with_no_client_auth();
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .redirect(Policy::none())
            .no_proxy()
            .dns_resolver(Arc::new(GuardedResolver(self.clone())))
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(STALL_TIMEOUT)
            .user_agent(concat!("cloche/", env!("CARGO_PKG_VERSION")))
            .build();
        client.map_err(|error| StorageError::Invalid(error.to_string()))
    }
}

impl std::fmt::Debug for GuardedConnector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GuardedConnector").finish_non_exhaustive()
    }
}

impl HttpConnector for GuardedConnector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = self.build_client().map_err(|error| object_store::Error::Generic {
            store: "storage",
            source: Box::new(error),
        })?;
        Ok(HttpClient::new(GuardedClient { client, hidden: self.hidden_counter() }))
    }
}

/// Resolves names by the connection's access to the network.
struct GuardedResolver(GuardedConnector);

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let found = self.0.access.lookup(name.as_str(), self.0.allows_private);
        Box::pin(async move {
            let addresses = found.await?;
            let each = addresses.into_iter().map(|address| SocketAddr::new(address, 0));
            Ok(Box::new(each) as Box<dyn Iterator<Item = SocketAddr> + Send>)
        })
    }
}

#[derive(Debug)]
struct GuardedClient {
    client: reqwest::Client,
    hidden: Arc<AtomicU64>,
}

#[async_trait]
impl HttpService for GuardedClient {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let lists = is_listing(&request);
        if is_completion(&request)
            && let Ok((name, value)) = COMPLETION.try_with(Clone::clone)
        {
            request.headers_mut().insert(name, value);
        }
        let response = HttpService::call(&self.client, request).await?;
        if !lists || !response.status().is_success() {
            return Ok(response);
        }
        let (mut parts, body) = response.into_parts();
        let body = read_bounded(body).await?;
        let (kept, hidden) = filter_listing(&body).map_err(|why| {
            HttpError::new(HttpErrorKind::Decode, io::Error::other(format!("bad listing: {why}")))
        })?;
        self.hidden.fetch_add(hidden, Ordering::Relaxed);
        parts.headers.remove(reqwest::header::CONTENT_LENGTH);
        let whole = Full::new(Bytes::from(kept));
        Ok(HttpResponse::from_parts(
            parts,
            HttpResponseBody::new(whole.map_err(|never| match never {})),
        ))
    }
}

fn is_listing(request: &HttpRequest) -> bool {
    let query = request.uri().query().unwrap_or_default();
    let has = |pair: &str| query.split('&').any(|part| part == pair);
    request.method() == "GET" && (has("list-type=2") || has("comp=list"))
}

/// Whether a request completes an upload in parts: S3 and GCS post to an upload, Azure puts a list of
/// blocks.
fn is_completion(request: &HttpRequest) -> bool {
    let query = request.uri().query().unwrap_or_default();
    let has = |name: &str| query.split('&').any(|part| part.starts_with(name));
    match request.method().as_str() {
        "POST" => has("uploadId="),
        "PUT" => has("comp=blocklist"),
        _ => false,
    }
}

async fn read_bounded(body: HttpResponseBody) -> Result<Vec<u8>, HttpError> {
    use futures::StreamExt as _;
    let mut stream = body.bytes_stream();
    let mut whole = Vec::new();
    while let Some(chunk) = stream.next().await {
        let chunk = chunk?;
        if whole.len() + chunk.len() > MAX_LISTING {
            let error = io::Error::other("a list answer is too long");
            return Err(HttpError::new(HttpErrorKind::Decode, error));
        }
        whole.extend_from_slice(&chunk);
    }
    Ok(whole)
}
