//! One request to a provider and its reply as server-sent events, with limits on time and size.
//! Knows no protocol.

use std::time::Duration;

use cloche_engine::outgoing_http::{self, OutgoingHttpError};
use reqwest::{
    Client, RequestBuilder, Response, StatusCode, Url,
    header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER},
};
use serde_json::Value;

use super::{ProviderError, ProviderErrorKind};
use crate::ProviderConfig;

/// The limit on bytes of a reply.
const MAX_ANSWER: usize = 32 << 20;
/// The limit on bytes of one event.
const MAX_EVENT: usize = 8 << 20;
/// How many bytes of an error reply are read.
const MAX_ERROR: usize = 64 << 10;
/// How many characters of a provider's error message are passed on.
const MAX_QUOTE: usize = 300;

/// An HTTP client for one provider.
pub(super) struct ProviderClient {
    client: Client,
    url: Url,
    silence: Duration,
    secret: Option<String>,
}

impl ProviderClient {
    /// A client for the resource `path` below the provider's base URL.
    pub(super) fn new(config: &ProviderConfig, path: &str) -> Result<Self, OutgoingHttpError> {
        let client = outgoing_http::client_builder()?.connect_timeout(config.timeout).build()?;
        let mut url = config.base_url.clone();
        url.set_path(&format!("{}/{path}", config.base_url.path().trim_end_matches('/')));
        let secret = config.api_key.as_ref().map(|key| key.reveal().to_owned());
        Ok(Self { client, url, silence: config.timeout, secret })
    }

    /// Builds a request without sending it.
    pub(super) fn post(&self, body: &Value) -> RequestBuilder {
        self.client.post(self.url.clone()).json(body)
    }

    pub(super) fn secret(&self) -> Option<&str> {
        self.secret.as_deref()
    }

    /// Sends a request; returns the events of a successful reply.
    pub(super) async fn send(
        &self,
        request: RequestBuilder,
    ) -> Result<ProviderEventStream, ProviderError> {
        let sent = tokio::time::timeout(self.silence, request.send());
        let answer = sent
            .await
            .map_err(|_| self.silence_error())?
            .map_err(|error| self.connection_error(&error))?;
        if !answer.status().is_success() {
            return Err(self.status_error(answer).await);
        }
        let kind = answer.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        if !kind.is_some_and(|kind| kind.trim_start().starts_with("text/event-stream")) {
            return Err(ProviderError::malformed("something that is not an event stream"));
        }
        Ok(ProviderEventStream {
            answer,
            silence: self.silence,
            buffer: Vec::new(),
            scanned: 0,
            read: 0,
        })
    }

    fn silence_error(&self) -> ProviderError {
        let seconds = self.silence.as_secs_f64();
        ProviderError::new(
            ProviderErrorKind::TimedOut,
            format!("the model provider sent nothing for {seconds}s"),
        )
    }

    fn connection_error(&self, error: &reqwest::Error) -> ProviderError {
        let host = self.url.host_str();
        tracing::warn!(host, error = %error.to_string(), "cannot reach a model provider");
        if error.is_timeout() {
            return self.silence_error();
        }
        ProviderError::new(ProviderErrorKind::Unreachable, "the model provider cannot be reached")
    }

    async fn status_error(&self, answer: Response) -> ProviderError {
        let (status, headers) = (answer.status(), answer.headers().clone());
        let quote = self.quote_error(answer).await;
        tracing::warn!(
            host = self.url.host_str(),
            status = status.as_u16(),
            "a model provider refused a request"
        );
        let trouble = match status {
            StatusCode::TOO_MANY_REQUESTS => ProviderErrorKind::RateLimited,
            StatusCode::REQUEST_TIMEOUT => ProviderErrorKind::Overloaded,
            status if status.is_server_error() => ProviderErrorKind::Overloaded,
            _ => ProviderErrorKind::Refused,
        };
        let message = match trouble {
            ProviderErrorKind::RateLimited => {
                "the model provider's rate limit was reached".to_owned()
            }
            ProviderErrorKind::Overloaded => {
                format!("the model provider failed with HTTP {}", status.as_u16())
            }
            // A message about a key can contain parts of the key, so it is not passed on.
            _ if matches!(status.as_u16(), 401 | 403) => format!(
                "the model provider does not accept the server's credentials (HTTP {}); the \
                 operator must check them",
                status.as_u16()
            ),
            _ => {
                format!("the model provider refused the request (HTTP {}){quote}", status.as_u16())
            }
        };
        ProviderError { retry_after: retry_after(&headers), ..ProviderError::new(trouble, message) }
    }

    /// The provider's error message, if it has the usual form.
    async fn quote_error(&self, mut answer: Response) -> String {
        let mut body = Vec::new();
        while let Ok(Ok(Some(chunk))) = tokio::time::timeout(self.silence, answer.chunk()).await {
            let room = MAX_ERROR - body.len();
            body.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if body.len() == MAX_ERROR {
                break;
            }
        }
        let parsed: Value = serde_json::from_slice(&body).unwrap_or_default();
        match parsed["error"]["message"].as_str() {
            Some(quote) => format!(": {}", self.sanitize_quote(quote)),
            None => String::new(),
        }
    }

    /// Shortens a provider's message to one line and removes our key.
    pub(super) fn sanitize_quote(&self, quote: &str) -> String {
        let quote = match &self.secret {
            Some(secret) if !secret.is_empty() => quote.replace(secret.as_str(), "***"),
            _ => quote.to_owned(),
        };
        quote.chars().filter(|c| !c.is_control()).take(MAX_QUOTE).collect()
    }
}

/// The `retry-after` header in seconds, or `retry-after-ms` in milliseconds.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<f64>().ok();
    let milliseconds = number("retry-after-ms").map(|ms| ms / 1000.0);
    let seconds = milliseconds.or_else(|| number(RETRY_AFTER.as_str()))?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// The events of a reply.
pub(super) struct ProviderEventStream {
    answer: Response,
    silence: Duration,
    buffer: Vec<u8>,
    /// How much of the buffer contains no line end.
    scanned: usize,
    read: usize,
}

impl ProviderEventStream {
    /// The data of the next event; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<String>, ProviderError> {
        let mut data = String::new();
        loop {
            let Some(line) = self.next_line().await? else {
                return Ok((!data.is_empty()).then_some(data));
            };
            if line.is_empty() {
                if !data.is_empty() {
                    return Ok(Some(data));
                }
            } else if let Some(rest) = line.strip_prefix("data:") {
                if !data.is_empty() {
                    data.push('\n');
                }
                data.push_str(rest.strip_prefix(' ').unwrap_or(rest));
                if data.len() > MAX_EVENT {
                    return Err(ProviderError::malformed("an event that is too large"));
                }
            }
        }
    }

    /// The next line without its line end; `None` at the end.
    async fn next_line(&mut self) -> Result<Option<String>, ProviderError> {
        loop {
            let found = self.buffer[self.scanned..].iter().position(|&byte| byte == b'\n');
            if let Some(at) = found.map(|at| at + self.scanned) {
                let rest = self.buffer.split_off(at + 1);
                let line = std::mem::replace(&mut self.buffer, rest);
                self.scanned = 0;
                return decode_line(&line[..at]).map(Some);
            }
            self.scanned = self.buffer.len();
            if self.buffer.len() > MAX_EVENT {
                return Err(ProviderError::malformed("a line that is too long"));
            }
            let Some(chunk) = self.next_chunk().await? else {
                let last = std::mem::take(&mut self.buffer);
                self.scanned = 0;
                return if last.is_empty() { Ok(None) } else { decode_line(&last).map(Some) };
            };
            self.buffer.extend_from_slice(&chunk);
        }
    }

    async fn next_chunk(&mut self) -> Result<Option<Vec<u8>>, ProviderError> {
        let chunk =
            tokio::time::timeout(self.silence, self.answer.chunk()).await.map_err(|_| {
                let seconds = self.silence.as_secs_f64();
                let message = format!("the model provider sent nothing for {seconds}s");
                ProviderError::new(ProviderErrorKind::TimedOut, message)
            })?;
        let chunk = chunk.map_err(|_| {
            ProviderError::new(
                ProviderErrorKind::Unreachable,
                "the model provider closed the connection before the end of its reply",
            )
        })?;
        let Some(chunk) = chunk else { return Ok(None) };
        self.read += chunk.len();
        if self.read > MAX_ANSWER {
            return Err(ProviderError::malformed("an answer that is too large"));
        }
        Ok(Some(chunk.to_vec()))
    }
}

fn decode_line(line: &[u8]) -> Result<String, ProviderError> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let text = std::str::from_utf8(line);
    text.map(str::to_owned).map_err(|_| ProviderError::malformed("text that is not UTF-8"))
}
