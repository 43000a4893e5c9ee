//! Runs in: server (no capabilities).
//!
//! A call of a web tool, its answer and its error. Calls come from models and from guests, so every
//! field has a limit.

use cloche_model::{AgentTool, WebTool};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::ToolCall;

/// The most bytes of a query.
pub(super) const MAX_QUERY: usize = 2_000;
/// The most bytes of a URL.
pub(super) const MAX_URL: usize = 4_096;
/// The most URLs of one call.
pub const MAX_URLS: usize = 10;
/// The most results of a search.
pub const MAX_RESULTS: usize = 20;
/// The results of a search that names no number.
const USUAL_RESULTS: usize = 10;

/// A call of a web tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WebToolCall {
    /// A search, for pages or for people.
    Search {
        /// `web_search` or `people_search`.
        tool: WebTool,
        /// The query.
        query: String,
        /// How many results at most.
        count: usize,
    },
    /// Pages to read.
    Fetch {
        /// Their URLs.
        urls: Vec<String>,
    },
}

impl WebToolCall {
    /// A search.
    ///
    /// # Errors
    /// If the query is empty or too long.
    pub fn search(tool: WebTool, query: &str, count: Option<usize>) -> Result<Self, WebToolError> {
        let query = query.trim();
        if query.is_empty() || query.len() > MAX_QUERY {
            let message = format!("query must have 1 to {MAX_QUERY} bytes, got {}", query.len());
            return Err(WebToolError::invalid(message));
        }
        let count = count.unwrap_or(USUAL_RESULTS).clamp(1, MAX_RESULTS);
        Ok(Self::Search { tool, query: query.to_owned(), count })
    }

    /// Pages to read.
    ///
    /// # Errors
    /// If there is no URL, there are too many, or one is too long.
    pub fn fetch(urls: Vec<String>, most: usize) -> Result<Self, WebToolError> {
        let most = most.clamp(1, MAX_URLS);
        if urls.is_empty() || urls.len() > most {
            let message = format!("a call must have 1 to {most} URLs, got {}", urls.len());
            return Err(WebToolError::invalid(message));
        }
        if urls.iter().any(|url| url.len() > MAX_URL) {
            return Err(WebToolError::invalid(format!("a URL must have at most {MAX_URL} bytes")));
        }
        Ok(Self::Fetch { urls })
    }

    /// The tool.
    #[must_use]
    pub const fn tool(&self) -> WebTool {
        match self {
            Self::Search { tool, .. } => *tool,
            Self::Fetch { .. } => WebTool::FetchUrl,
        }
    }

    /// The call in the form that a person approves.
    #[must_use]
    pub fn to_gate_call(&self) -> ToolCall {
        let arguments = match self {
            Self::Search { query, count, .. } => json!({"query": query, "count": count}),
            Self::Fetch { urls } => json!({"urls": urls}),
        };
        ToolCall::new(AgentTool::from(self.tool()), &arguments)
    }
}

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum WebToolAnswer {
    /// The results of a search.
    Search {
        /// In the order of the service.
        results: Vec<SearchHit>,
    },
    /// Pages that were read, and those that could not be.
    Pages {
        /// In the order of the URLs.
        pages: Vec<FetchedPage>,
    },
}

/// One result of a search.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SearchHit {
    /// Its title.
    pub title: String,
    /// Its URL.
    pub url: String,
    /// A few sentences of it.
    pub snippet: String,
    /// Its date, if the service gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub date: Option<String>,
}

/// A page that was read, or why it could not be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchedPage {
    /// The URL that was asked for.
    pub url: String,
    /// The URL that answered, after redirects.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub final_url: String,
    /// Its title.
    pub title: String,
    /// Its text, as Markdown where it was HTML.
    pub text: String,
    /// Whether there was more text.
    pub truncated: bool,
    /// Why it could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct WebToolError {
    /// What kind of error, for programs.
    pub code: &'static str,
    /// What is wrong and what to do, for people.
    pub message: String,
}

impl WebToolError {
    pub(super) fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new("invalid_request", message)
    }

    pub(super) fn not_allowed(message: impl Into<String>) -> Self {
        Self::new("not_allowed", message)
    }

    pub(super) fn unavailable(message: impl Into<String>) -> Self {
        Self::new("unavailable", message)
    }

    /// As the body that a guest reads. The client looks at its beginning, so `error` is first.
    pub(super) fn to_json(&self) -> String {
        let [code, message] = [self.code, &self.message[..]].map(Value::from);
        format!("{{\"error\":{code},\"message\":{message}}}")
    }
}

/// Cuts a text after this many bytes, at a character.
pub(super) fn cut_text(mut text: String, most: usize) -> String {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most));
    }
    text
}
