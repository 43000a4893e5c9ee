//! Finds a running server and sends requests: one connection per request.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use cloche_engine::outgoing_http::{self, OutgoingHttpError};
use cloche_model::Secret;
use reqwest::{Body, Method, RequestBuilder, Response, StatusCode, header};
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio_util::io::ReaderStream;
use url::Url;

/// The environment variable with the admin token, for a server that is not found by its data
/// directory.
const TOKEN: &str = "CLOCHE_ADMIN_TOKEN";
/// The environment variable with an API key, for requests that a key may make too.
const KEY: &str = "CLOCHE_API_KEY";
/// How much of a file is in memory at once.
const PIECE: usize = 256 << 10;
/// How long a response may take.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// The format of events: one JSON object per line.
const EVENTS: &str = "application/x-ndjson";
/// The longest response that is read.
const ANSWER: usize = 64 << 20;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AdminError {
    #[error(
        "{} does not exist: start a server with this data directory, name another with --data-dir, \
         or give --url and {TOKEN}",
        .0.display()
    )]
    NoBootstrap(PathBuf),
    #[error("cannot read {}", path.display())]
    Bootstrap { path: PathBuf, source: io::Error },
    #[error("{} lacks the server's address or admin token", .0.display())]
    Incomplete(PathBuf),
    #[error("--url needs the server's admin token in {TOKEN}")]
    NoToken,
    #[error("{0:?} is not an address such as http://127.0.0.1:8080")]
    Url(String),
    #[error("cannot reach the server at {url}: is it running?")]
    Unreachable { url: String, source: reqwest::Error },
    #[error(
        "no response from the server at {0} within {seconds} s",
        seconds = RESPONSE_TIMEOUT.as_secs()
    )]
    Slow(String),
    #[error("the connection to the server at {url} failed")]
    Exchange { url: String, source: Box<dyn std::error::Error + Send + Sync> },
    #[error(transparent)]
    Client(#[from] OutgoingHttpError),
    #[error("the response of {url} is not from a cloche server: {status}")]
    Foreign { url: String, status: StatusCode },
    #[error("the server does not accept this admin token: {0}")]
    Unauthorized(String),
    #[error("{0}")]
    Refused(String),
    #[error(
        "`default` with gate settings means every team without settings of its own, which has no \
         plan or name: use two commands"
    )]
    Mixed,
    #[error("the variable {0} is not set")]
    NoVariable(String),
    #[error("the connection {name:?} does not work: {failed}")]
    CheckFailed { name: String, failed: String },
    #[error("--username needs --password-file")]
    NoPassword,
    #[error("the server ended its answer too early")]
    CutShort,
    #[error("team {team:?} has no sandbox {name:?}")]
    NoSuchSandbox { team: String, name: String },
    #[error("team {team:?} has no credential {name:?}")]
    NoSuchCredential { team: String, name: String },
    #[error("cannot read the secret in {}", path.display())]
    Secret { path: PathBuf, source: io::Error },
    #[error("cannot use {}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("cannot write the response")]
    Print(#[from] io::Error),
}

/// The part of the API that a request uses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ApiRoot {
    /// Below `/v1/admin`, with the admin token.
    Admin,
    /// Below `/v1`, with an API key or the admin token.
    Public,
}

/// A server, and a token for it.
pub(crate) struct AdminClient {
    url: Url,
    token: Secret,
    root: ApiRoot,
    /// A PEM file with authorities to trust besides those of this host.
    extra_ca: Option<PathBuf>,
}

impl AdminClient {
    /// The server at `url` with the token of the environment, else the one with this data
    /// directory.
    pub(super) fn find(
        data_dir: &Path,
        url: Option<&str>,
        root: ApiRoot,
    ) -> Result<Self, AdminError> {
        let variable = |name| std::env::var(name).ok().filter(|token| !token.is_empty());
        let key = if root == ApiRoot::Public { variable(KEY) } else { None };
        let found = match url {
            None => Self::from_data_dir(data_dir, root)?,
            Some(url) => {
                let token = key.clone().or_else(|| variable(TOKEN));
                let token = Secret::new(token.ok_or(AdminError::NoToken)?);
                Self { url: parse_url(url)?, token, root, extra_ca: None }
            }
        };
        Ok(match key {
            Some(key) => Self { token: Secret::new(key), ..found },
            None => found,
        })
    }

    /// Trusts the authorities in a PEM file, too.
    pub(super) fn trusting(self, extra_ca: Option<PathBuf>) -> Self {
        Self { extra_ca, ..self }
    }

    fn from_data_dir(directory: &Path, root: ApiRoot) -> Result<Self, AdminError> {
        let path = directory.join("bootstrap.json");
        let text = fs::read(&path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => AdminError::NoBootstrap(path.clone()),
            _ => AdminError::Bootstrap { path: path.clone(), source },
        })?;
        let value: Value = serde_json::from_slice(&text).unwrap_or_default();
        let (Some(url), Some(token)) = (value["url"].as_str(), value["admin_token"].as_str())
        else {
            return Err(AdminError::Incomplete(path));
        };
        Ok(Self { url: parse_url(url)?, token: Secret::new(token), root, extra_ca: None })
    }

    pub(super) fn get(&self, path: &str) -> Result<Value, AdminError> {
        self.request_json(Method::GET, path, None)
    }

    pub(super) fn post(&self, path: &str, body: &Value) -> Result<Value, AdminError> {
        self.request_json(Method::POST, path, Some(body))
    }

    pub(super) fn patch(&self, path: &str, body: &Value) -> Result<Value, AdminError> {
        self.request_json(Method::PATCH, path, Some(body))
    }

    pub(super) fn delete(&self, path: &str) -> Result<Value, AdminError> {
        self.request_json(Method::DELETE, path, None)
    }

    /// Downloads to a file, in constant memory.
    pub(super) fn download(&self, path: &str, file: File) -> Result<(), AdminError> {
        let request = self.build_request(Method::GET, path)?;
        self.block_on(async {
            let mut answer = self.send_request(request).await?;
            if !answer.status().is_success() {
                return self.read_answer(answer).await.map(drop);
            }
            let mut file = tokio::fs::File::from_std(file);
            while let Some(piece) = self.next_piece(&mut answer).await? {
                file.write_all(&piece).await?;
            }
            Ok(file.sync_all().await?)
        })
    }

    /// Uploads a file in constant memory, and returns the response.
    pub(super) fn upload(&self, path: &str, file: File) -> Result<Value, AdminError> {
        let length = file.metadata()?.len();
        self.block_on(async {
            let pieces = ReaderStream::with_capacity(tokio::fs::File::from_std(file), PIECE);
            let request = self
                .build_request(Method::POST, path)?
                .header(header::CONTENT_LENGTH, length)
                .header(header::CONTENT_TYPE, "application/x-tar")
                .body(Body::wrap_stream(pieces));
            let answer = self.send_request(request).await?;
            self.read_answer(answer).await
        })
    }

    /// Sends a body, and passes the events of the response to `show`. Returns the image of the last.
    pub(super) fn post_for_events(
        &self,
        path: &str,
        body: &Value,
        show: impl FnMut(&Value),
    ) -> Result<Value, AdminError> {
        let request = self.build_request(Method::POST, path)?;
        let request = request.header(header::CONTENT_TYPE, "application/json");
        let request = request.body(body.to_string());
        self.block_on(self.read_events(request, show))
    }

    /// Like [`Self::post_for_events`], with a file as the body, in constant memory.
    pub(super) fn upload_for_events(
        &self,
        path: &str,
        file: File,
        show: impl FnMut(&Value),
    ) -> Result<Value, AdminError> {
        self.block_on(async {
            let pieces = ReaderStream::with_capacity(tokio::fs::File::from_std(file), PIECE);
            let request = self
                .build_request(Method::POST, path)?
                .header(header::CONTENT_TYPE, "application/x-tar")
                .body(Body::wrap_stream(pieces));
            self.read_events(request, show).await
        })
    }

    async fn read_events(
        &self,
        request: RequestBuilder,
        mut show: impl FnMut(&Value),
    ) -> Result<Value, AdminError> {
        let request = request.header(header::ACCEPT, EVENTS);
        let mut answer = self.send_request(request).await?;
        if !answer.status().is_success() {
            return self.read_answer(answer).await;
        }
        let mut waiting = Vec::new();
        loop {
            let piece = tokio::time::timeout(RESPONSE_TIMEOUT, self.next_piece(&mut answer)).await;
            let piece = piece.map_err(|_| AdminError::Slow(self.url.to_string()))??;
            waiting.extend_from_slice(&piece.ok_or(AdminError::CutShort)?);
            if waiting.len() > ANSWER {
                return Err(self.exchange_error("the response is too long".into()));
            }
            while let Some(end) = waiting.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = waiting.drain(..=end).collect();
                let mut event: Value = serde_json::from_slice(&line).unwrap_or_default();
                match event["event"].as_str() {
                    Some("image") => return Ok(event["image"].take()),
                    Some("error") => {
                        let message = event["message"].as_str().unwrap_or("it failed");
                        return Err(AdminError::Refused(message.to_owned()));
                    }
                    _ => show(&event),
                }
            }
        }
    }

    fn request_json(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, AdminError> {
        let request = self.build_request(method, path)?;
        let request = request.header(header::CONTENT_TYPE, "application/json");
        let request = request.body(body.map(Value::to_string).unwrap_or_default());
        self.block_on(async {
            let answer = async { self.read_answer(self.send_request(request).await?).await };
            let answer = tokio::time::timeout(RESPONSE_TIMEOUT, answer).await;
            answer.map_err(|_| AdminError::Slow(self.url.to_string()))?
        })
    }

    fn block_on<T>(
        &self,
        work: impl Future<Output = Result<T, AdminError>>,
    ) -> Result<T, AdminError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(|error| self.exchange_error(error.into()))?.block_on(work)
    }

    fn build_request(&self, method: Method, path: &str) -> Result<RequestBuilder, AdminError> {
        Ok(self.request_with(&self.build_client()?, method, path))
    }

    /// A client for several requests of one runtime.
    pub(crate) fn build_client(&self) -> Result<reqwest::Client, AdminError> {
        let builder = outgoing_http::client_builder_trusting(self.extra_ca.as_deref())?;
        Ok(builder.http1_only().build().map_err(OutgoingHttpError::from)?)
    }

    fn request_with(&self, client: &reqwest::Client, method: Method, path: &str) -> RequestBuilder {
        let base = self.url.as_str().trim_end_matches('/');
        let root = match self.root {
            ApiRoot::Admin => "/v1/admin",
            ApiRoot::Public => "/v1",
        };
        let request = client.request(method, format!("{base}{root}/{path}"));
        request.bearer_auth(self.token.reveal())
    }

    /// Sends a request, however long the answer takes, and returns the answer before its body. A
    /// refusal is an error.
    pub(crate) async fn open_answer(
        &self,
        client: &reqwest::Client,
        method: Method,
        path: &str,
    ) -> Result<Response, AdminError> {
        let answer = self.send_request(self.request_with(client, method, path)).await?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let status = answer.status();
        match self.read_answer(answer).await {
            Err(error) => Err(error),
            Ok(_) => Err(AdminError::Foreign { url: self.url.to_string(), status }),
        }
    }

    /// Reads the record of an answer.
    pub(crate) async fn read_record(&self, answer: Response) -> Result<Value, AdminError> {
        self.read_answer(answer).await
    }

    async fn send_request(&self, request: RequestBuilder) -> Result<Response, AdminError> {
        request.send().await.map_err(|error| match error.is_connect() {
            true => {
                let (url, source) = (self.url.to_string(), error.without_url());
                AdminError::Unreachable { url, source }
            }
            false => self.exchange_error(error.without_url().into()),
        })
    }

    async fn next_piece(&self, answer: &mut Response) -> Result<Option<Bytes>, AdminError> {
        let piece = answer.chunk().await;
        piece.map_err(|error| self.exchange_error(error.without_url().into()))
    }

    async fn read_answer(&self, mut answer: Response) -> Result<Value, AdminError> {
        let mut body = Vec::new();
        while let Some(piece) = self.next_piece(&mut answer).await? {
            body.extend_from_slice(&piece);
            if body.len() > ANSWER {
                return Err(self.exchange_error("the response is too long".into()));
            }
        }
        self.parse_answer(answer.status(), &body)
    }

    /// Returns the record, or the server's error message.
    fn parse_answer(&self, status: StatusCode, answer: &[u8]) -> Result<Value, AdminError> {
        if status == StatusCode::NO_CONTENT {
            return Ok(Value::Null);
        }
        let foreign = || AdminError::Foreign { url: self.url.to_string(), status };
        let value: Value = serde_json::from_slice(answer).map_err(|_| foreign())?;
        if status.is_success() {
            return Ok(value);
        }
        let message = value["message"].as_str().ok_or_else(foreign)?.to_owned();
        Err(match status {
            StatusCode::UNAUTHORIZED => AdminError::Unauthorized(message),
            _ => AdminError::Refused(message),
        })
    }

    fn exchange_error(&self, source: Box<dyn std::error::Error + Send + Sync>) -> AdminError {
        AdminError::Exchange { url: self.url.to_string(), source }
    }
}

fn parse_url(text: &str) -> Result<Url, AdminError> {
    let url = Url::parse(text).ok();
    let url = url.filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    url.ok_or_else(|| AdminError::Url(text.to_owned()))
}

/// Escapes an id or name as one segment of a path.
pub(super) fn path_segment(text: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let escaped = text.bytes().map(|byte| match plain(&byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    });
    escaped.collect()
}

/// The path of a list, optionally of one team.
pub(super) fn list_path(path: &str, team: Option<&str>) -> String {
    team.map_or_else(|| path.to_owned(), |team| format!("{path}?team={}", path_segment(team)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_becomes_one_path_segment() {
        assert_eq!(path_segment("key_a-1"), "key_a-1");
        assert_eq!(path_segment("../a?b"), "%2E%2E%2Fa%3Fb");
    }

    #[test]
    fn an_address_has_a_scheme_and_a_host() {
        assert!(
            parse_url("http://127.0.0.1:8080").is_ok() && parse_url("https://host/path").is_ok()
        );
        for text in ["127.0.0.1:8080", "ftp://h", "", "http://"] {
            assert!(matches!(parse_url(text), Err(AdminError::Url(_))), "{text}");
        }
    }
}
