//! Finding a running server, and asking it: one request, one connection, one answer.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use cloche_model::Secret;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Method, Request, StatusCode, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use url::Url;

use super::connection::connect;

/// The environment variable with the token of a server that is not found by its data directory.
const TOKEN: &str = "CLOCHE_ADMIN_TOKEN";
/// How long the server may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest answer that is read.
const ANSWER: usize = 64 << 20;

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub(super) enum AdminError {
    #[error(
        "{} is not there: start a server with this data directory, name another with --data-dir, \
         or give --url and {TOKEN}",
        .0.display()
    )]
    NoBootstrap(PathBuf),
    #[error("cannot read {}", path.display())]
    Bootstrap { path: PathBuf, source: io::Error },
    #[error("{} does not say where the server is and what its admin token is", .0.display())]
    Incomplete(PathBuf),
    #[error("--url needs the server's admin token in {TOKEN}")]
    NoToken,
    #[error("{0:?} is not an address such as http://127.0.0.1:8080")]
    Url(String),
    #[error("cannot reach the server at {url}: is it running?")]
    Unreachable { url: String, source: io::Error },
    #[error("no answer from the server at {0} within {seconds} s", seconds = PATIENCE.as_secs())]
    Slow(String),
    #[error("the exchange with the server at {url} broke off")]
    Exchange { url: String, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("the server at {url} gave an answer that is not cloche's: {status}")]
    Foreign { url: String, status: StatusCode },
    #[error("the server does not accept this admin token: {0}")]
    Unauthorized(String),
    #[error("{0}")]
    Refused(String),
    #[error(
        "`default` with gate settings means every team that has none of its own, and plans are not \
         set for those: give the two in two commands"
    )]
    Mixed,
    #[error("there is no sandbox {name:?} in the team {team:?}")]
    NoSuchSandbox { team: String, name: String },
    #[error("cannot read the webhook secret in {}", path.display())]
    Secret { path: PathBuf, source: io::Error },
    #[error("cannot write the answer")]
    Print(#[from] io::Error),
}

/// A server, and the right to ask it.
pub(super) struct Server {
    url: Url,
    token: Secret,
}

impl Server {
    /// The server at `url` with the environment's token, else the one with this data directory.
    pub(super) fn find(data_dir: &Path, url: Option<&str>) -> Result<Self, AdminError> {
        let Some(url) = url else { return Self::in_directory(data_dir) };
        let token = std::env::var(TOKEN).ok().filter(|token| !token.is_empty());
        Ok(Self { url: parse(url)?, token: Secret::new(token.ok_or(AdminError::NoToken)?) })
    }

    fn in_directory(directory: &Path) -> Result<Self, AdminError> {
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
        Ok(Self { url: parse(url)?, token: Secret::new(token) })
    }

    pub(super) fn get(&self, path: &str) -> Result<Value, AdminError> {
        self.ask(Method::GET, path, None)
    }

    pub(super) fn post(&self, path: &str, body: &Value) -> Result<Value, AdminError> {
        self.ask(Method::POST, path, Some(body))
    }

    pub(super) fn patch(&self, path: &str, body: &Value) -> Result<Value, AdminError> {
        self.ask(Method::PATCH, path, Some(body))
    }

    pub(super) fn delete(&self, path: &str) -> Result<Value, AdminError> {
        self.ask(Method::DELETE, path, None)
    }

    fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, AdminError> {
        let broken = |error| self.broken(error);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let request = self.request(method, path, body).map_err(|error| broken(error.into()))?;
        let (status, answer) = runtime
            .map_err(|error| broken(error.into()))?
            .block_on(async { tokio::time::timeout(PATIENCE, self.exchange(request)).await })
            .map_err(|_| AdminError::Slow(self.url.to_string()))??;
        self.judge(status, &answer)
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Request<Full<Bytes>>, hyper::http::Error> {
        let prefix = self.url.path().trim_end_matches('/');
        Request::builder()
            .method(method)
            .uri(format!("{prefix}/v1/admin/{path}"))
            .header(header::HOST, self.url.authority())
            .header(header::AUTHORIZATION, format!("Bearer {}", self.token.reveal()))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::from(body.map(Value::to_string).unwrap_or_default()))
    }

    async fn exchange(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<(StatusCode, Bytes), AdminError> {
        let unreachable = |source| AdminError::Unreachable { url: self.url.to_string(), source };
        let stream = connect(&self.url).await.map_err(unreachable)?;
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| self.broken(error.into()))?;
        // It ends when the sender is dropped; what breaks it, breaks the answer too.
        tokio::spawn(connection);
        let answer = sender.send_request(request).await;
        let answer = answer.map_err(|error| self.broken(error.into()))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER).collect().await;
        Ok((status, body.map_err(|error| self.broken(error))?.to_bytes()))
    }

    /// The record, or what the server says about why there is none.
    fn judge(&self, status: StatusCode, answer: &[u8]) -> Result<Value, AdminError> {
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

    fn broken(&self, source: Box<dyn std::error::Error + Send + Sync>) -> AdminError {
        AdminError::Exchange { url: self.url.to_string(), source }
    }
}

fn parse(text: &str) -> Result<Url, AdminError> {
    let url = Url::parse(text).ok();
    let url = url.filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    url.ok_or_else(|| AdminError::Url(text.to_owned()))
}

/// An id or name as one segment of a path, whatever is in it.
pub(super) fn segment(text: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let escaped = text.bytes().map(|byte| match plain(&byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    });
    escaped.collect()
}

/// A list, perhaps of one team's only.
pub(super) fn query(path: &str, team: Option<&str>) -> String {
    team.map_or_else(|| path.to_owned(), |team| format!("{path}?team={}", segment(team)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_stays_one_whatever_is_typed() {
        assert_eq!(segment("key_a-1"), "key_a-1");
        assert_eq!(segment("../a?b"), "%2E%2E%2Fa%3Fb");
    }

    #[test]
    fn an_address_has_a_scheme_and_a_host() {
        assert!(parse("http://127.0.0.1:8080").is_ok() && parse("https://host/path").is_ok());
        for text in ["127.0.0.1:8080", "ftp://h", "", "http://"] {
            assert!(matches!(parse(text), Err(AdminError::Url(_))), "{text}");
        }
    }
}
