//! Runs in: server (no capabilities).
//!
//! Requests to a registry: redirects, retries, and replies of bounded size.

use std::time::Duration;

use reqwest::{
    Method, Response, StatusCode,
    header::{ACCEPT, AUTHORIZATION, LOCATION, RANGE, RETRY_AFTER},
};
use url::Url;

use super::RegistryClient;
use crate::{
    ImageError,
    documents::{DOCKER_INDEX, DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST},
};

/// How many redirects are followed.
const REDIRECTS: usize = 5;
/// How often a request is tried.
pub(super) const TRIES: u32 = 5;
/// The longest pause before a retry.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// What is asked for.
#[derive(Clone, Copy)]
pub(super) struct RegistryRequest<'a> {
    pub(super) method: &'a Method,
    /// The path below `/v2/`.
    pub(super) path: &'a str,
    pub(super) accept: &'a str,
    /// The first byte that is wanted.
    pub(super) offset: u64,
}

/// Why one attempt failed.
enum AttemptError {
    /// Another attempt may help.
    Transient(String, Option<Duration>),
    Final(ImageError),
}

impl From<ImageError> for AttemptError {
    fn from(error: ImageError) -> Self {
        Self::Final(error)
    }
}

impl RegistryClient {
    /// The digest of a tag, if the registry says it without sending the manifest.
    pub(crate) async fn find_tag_digest(&self, tag: &str) -> Result<Option<String>, ImageError> {
        let path = format!("{}/manifests/{tag}", self.repository);
        let accept = manifest_types();
        let request =
            RegistryRequest { method: &Method::HEAD, path: &path, accept: &accept, offset: 0 };
        let answer = match self.request(request).await {
            Ok(answer) => answer,
            // Some registries know only GET.
            Err(ImageError::Registry(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let digest = answer.headers().get("docker-content-digest");
        Ok(digest.and_then(|digest| digest.to_str().ok()).map(str::to_owned))
    }

    /// A manifest or an index, by tag or digest.
    pub(crate) async fn fetch_manifest(
        &self,
        reference: &str,
        most: u64,
    ) -> Result<Vec<u8>, ImageError> {
        let path = format!("{}/manifests/{reference}", self.repository);
        let accept = manifest_types();
        self.fetch_document(&path, &accept, (most, "the manifest")).await
    }

    /// A small blob.
    pub(crate) async fn fetch_config(
        &self,
        digest: &str,
        most: u64,
    ) -> Result<Vec<u8>, ImageError> {
        let path = format!("{}/blobs/{digest}", self.repository);
        self.fetch_document(&path, "*/*", (most, "the configuration")).await
    }

    /// Fetches a document; a connection that breaks is tried again.
    async fn fetch_document(
        &self,
        path: &str,
        accept: &str,
        (most, what): (u64, &str),
    ) -> Result<Vec<u8>, ImageError> {
        let request = RegistryRequest { method: &Method::GET, path, accept, offset: 0 };
        let mut tries = 0;
        loop {
            let answer = self.request(request).await?;
            match read_bounded(answer, most, what).await {
                Err(ImageError::Registry(_)) if tries < TRIES => {
                    self.pause_before_retry(tries, None).await;
                    tries += 1;
                }
                read => return read,
            }
        }
    }

    /// Sends a request until it succeeds, or another attempt would not help.
    pub(super) async fn request(
        &self,
        request: RegistryRequest<'_>,
    ) -> Result<Response, ImageError> {
        let (mut tries, mut renewed) = (0, false);
        loop {
            let (why, after) = match self.send_once(request).await {
                Ok(answer) => match answer.status().as_u16() {
                    200 | 206 => return Ok(answer),
                    // An expired token gives 403 at some registries.
                    401 | 403 if !renewed => {
                        renewed = true;
                        self.authorize(&answer).await?;
                        continue;
                    }
                    401 | 403 => return Err(self.denied()),
                    404 => return Err(self.not_found(request.path)),
                    416 => return Ok(answer),
                    429 => ("it answered 429: too many requests".to_owned(), retry_after(&answer)),
                    status @ 500.. => (format!("it answered {status}"), retry_after(&answer)),
                    status => {
                        let what = format!("the registry {} answered {status}", self.host());
                        return Err(ImageError::Registry(what));
                    }
                },
                Err(AttemptError::Transient(why, after)) => (why, after),
                Err(AttemptError::Final(error)) => return Err(error),
            };
            tries += 1;
            if tries >= TRIES {
                let what = format!("the registry {} cannot be used: {why}", self.host());
                return Err(ImageError::Registry(what));
            }
            tracing::debug!(registry = self.host(), why, tries, "a request is tried again");
            self.pause_before_retry(tries - 1, after).await;
        }
    }

    /// Waits before a retry, longer each time.
    pub(super) async fn pause_before_retry(&self, tries: u32, after: Option<Duration>) {
        let pause = self.access.retry_pause.saturating_mul(1 << tries.min(10));
        tokio::time::sleep(after.unwrap_or(pause).min(LONGEST_PAUSE)).await;
    }

    /// Sends a request once and follows its redirects. The account's header goes to the registry
    /// only.
    async fn send_once(&self, request: RegistryRequest<'_>) -> Result<Response, AttemptError> {
        let malformed = |_| ImageError::invalid("the reference cannot be a URL");
        let mut url = self.base.join(request.path).map_err(malformed)?;
        for _ in 0..=REDIRECTS {
            let client = self.client_for(&url).await?;
            let mut building =
                client.request(request.method.clone(), url.clone()).header(ACCEPT, request.accept);
            if url.origin() == self.base.origin()
                && let Some(value) = self.authorization.lock().clone()
            {
                building = building.header(AUTHORIZATION, value);
            }
            if request.offset > 0 {
                building = building.header(RANGE, format!("bytes={}-", request.offset));
            }
            // The time until the headers; the body has its own limits.
            let sent = tokio::time::timeout(self.access.stall, building.send()).await;
            let sent = sent.map_err(|_| {
                AttemptError::Transient("it did not answer in time".to_owned(), None)
            })?;
            let answer = sent.map_err(|error| self.judge_failure(error))?;
            match redirect_target(&answer, &url)? {
                Some(next) => url = next,
                None => return Ok(answer),
            }
        }
        Err(ImageError::Registry(format!("the registry {} redirects for ever", self.host())).into())
    }

    /// Whether another attempt may help. It does not if the answer is no TLS.
    fn judge_failure(&self, error: reqwest::Error) -> AttemptError {
        let why = describe(error);
        if why.contains("InvalidContentType") {
            let what = format!(
                "the registry {} does not speak TLS; one on the server's own host may be used \
                 without it (--plain-http)",
                self.host()
            );
            return ImageError::Registry(what).into();
        }
        AttemptError::Transient(why, None)
    }

    fn not_found(&self, path: &str) -> ImageError {
        let what = path.strip_prefix(&self.repository[..]).unwrap_or(path);
        let what = what.trim_start_matches('/').replace("manifests/", "").replace("blobs/", "");
        ImageError::NotFound(format!(
            "the registry {} has no {what} in {}",
            self.host(),
            self.repository
        ))
    }
}

fn redirect_target(answer: &Response, url: &Url) -> Result<Option<Url>, AttemptError> {
    let redirects = [
        StatusCode::MOVED_PERMANENTLY,
        StatusCode::FOUND,
        StatusCode::SEE_OTHER,
        StatusCode::TEMPORARY_REDIRECT,
        StatusCode::PERMANENT_REDIRECT,
    ];
    if !redirects.contains(&answer.status()) {
        return Ok(None);
    }
    let location = answer.headers().get(LOCATION).and_then(|value| value.to_str().ok());
    let next = location.and_then(|location| url.join(location).ok());
    let nowhere = || ImageError::Registry("the registry redirects to no URL".to_owned());
    Ok(Some(next.ok_or_else(nowhere)?))
}

fn manifest_types() -> String {
    [OCI_INDEX, OCI_MANIFEST, DOCKER_INDEX, DOCKER_MANIFEST].join(", ")
}

fn retry_after(answer: &Response) -> Option<Duration> {
    let seconds = answer.headers().get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// An error of the connection as a sentence, without the URL, which may contain a signature.
pub(super) fn describe(error: reqwest::Error) -> String {
    cloche_model::error_chain(&error.without_url()).to_string()
}

/// Reads a reply that may not be larger than `most`.
pub(super) async fn read_bounded(
    mut answer: Response,
    most: u64,
    what: &str,
) -> Result<Vec<u8>, ImageError> {
    let too_large = || ImageError::invalid(format!("{what} is larger than {most} bytes"));
    if answer.content_length().is_some_and(|length| length > most) {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    loop {
        match answer.chunk().await {
            Ok(None) => return Ok(bytes),
            Ok(Some(piece)) if (bytes.len() + piece.len()) as u64 > most => return Err(too_large()),
            Ok(Some(piece)) => bytes.extend_from_slice(&piece),
            Err(error) => {
                return Err(ImageError::Registry(format!("{what} broke off: {}", describe(error))));
            }
        }
    }
}
