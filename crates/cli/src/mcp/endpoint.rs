//! The server to which everything is forwarded: its address, its key, and one request.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

use cloche_engine::outgoing_http::{self, OutgoingHttpError};
use cloche_model::Secret;
use reqwest::{Client, Method, RequestBuilder, header};
use serde_json::Value;
use url::Url;

const KEY: &str = "CLOCHE_API_KEY";
const BOTH: &str = "application/json, text/event-stream";

/// Why the server cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum McpEndpointError {
    #[error("--url needs an API key in {KEY}, or --data-dir with the server's bootstrap.json")]
    NoKey,
    #[error("cannot read the key in {}", .0.display())]
    Bootstrap(PathBuf, #[source] io::Error),
    #[error("{} has no api_key", .0.display())]
    Incomplete(PathBuf),
    #[error("{0:?} is not an address such as http://127.0.0.1:8080")]
    Url(String),
    #[error(transparent)]
    Client(#[from] OutgoingHttpError),
}

/// A server, and a key for it.
pub(super) struct McpEndpoint {
    url: Url,
    key: Secret,
    client: Client,
}

impl McpEndpoint {
    /// The server at `url` with the key of the environment, else the one in this directory. The
    /// authorities in the file `extra_ca` are trusted besides those of this host.
    pub(super) fn find(
        url: &str,
        directory: Option<&Path>,
        extra_ca: Option<&Path>,
    ) -> Result<Self, McpEndpointError> {
        let parsed = Url::parse(url).ok();
        let parsed =
            parsed.filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        let url = parsed.ok_or_else(|| McpEndpointError::Url(url.to_owned()))?;
        let set = env::var(KEY).ok().filter(|key| !key.is_empty());
        let key = match (set, directory) {
            (Some(key), _) => key,
            (None, Some(directory)) => read_key(&directory.join("bootstrap.json"))?,
            (None, None) => return Err(McpEndpointError::NoKey),
        };
        let client = outgoing_http::client_builder_trusting(extra_ca)?.http1_only().build();
        let client = client.map_err(OutgoingHttpError::from)?;
        Ok(Self { url, key: Secret::new(key), client })
    }

    pub(super) fn address(&self) -> &str {
        self.url.as_str()
    }

    /// A request to the server's MCP endpoint, without a body.
    pub(super) fn build_request(&self, method: Method) -> RequestBuilder {
        let base = self.url.as_str().trim_end_matches('/');
        // Both the server's address and that of its MCP endpoint are accepted.
        let base = base.strip_suffix("/mcp").unwrap_or(base);
        self.client
            .request(method, format!("{base}/mcp"))
            .bearer_auth(self.key.reveal())
            .header(header::ACCEPT, BOTH)
            .header(header::CONTENT_TYPE, "application/json")
    }
}

fn read_key(path: &Path) -> Result<String, McpEndpointError> {
    let text =
        fs::read(path).map_err(|error| McpEndpointError::Bootstrap(path.to_owned(), error))?;
    let value: Value = serde_json::from_slice(&text).unwrap_or_default();
    let key = value["api_key"].as_str().map(ToOwned::to_owned);
    key.ok_or_else(|| McpEndpointError::Incomplete(path.to_owned()))
}
