//! Runs in: server (no capabilities).
//!
//! The settings of the web tools. A tool without settings is not offered.

use std::time::Duration;

use cloche_model::{ByteSize, Secret, WebTool};
use ipnet::IpNet;

/// Settings of the web tools.
#[derive(Clone, Debug)]
pub struct WebToolsConfig {
    /// What answers `web_search`.
    pub search: Option<SearchConfig>,
    /// What answers `people_search`.
    pub people_search: Option<SearchConfig>,
    /// How `fetch_url` reads pages.
    pub fetch: Option<FetchConfig>,
    /// Calls that the code of one execution may make.
    pub calls_per_execution: u32,
    /// How long a call may take, without the time that a person is waited for.
    pub call_timeout: Duration,
}

impl Default for WebToolsConfig {
    fn default() -> Self {
        Self {
            search: None,
            people_search: None,
            fetch: None,
            calls_per_execution: 50,
            call_timeout: Duration::from_secs(30),
        }
    }
}

impl WebToolsConfig {
    /// Whether this server offers any web tool.
    #[must_use]
    pub fn offers_any(&self) -> bool {
        WebTool::ALL.iter().any(|tool| self.offers(*tool))
    }

    /// Whether this server offers a web tool.
    #[must_use]
    pub fn offers(&self, tool: WebTool) -> bool {
        match tool {
            WebTool::WebSearch => self.search.is_some(),
            WebTool::FetchUrl => self.fetch.is_some(),
            WebTool::PeopleSearch => self.people_search.is_some(),
        }
    }
}

/// A service that answers searches with JSON over HTTP.
#[derive(Clone, Debug)]
pub struct SearchConfig {
    /// Its URL. `{query}` stands for the query, `{count}` for the number of results.
    pub url: String,
    /// The name of the header with the secret, and what stands before the secret in it.
    pub secret_header: (String, String),
    /// The secret.
    pub secret: Option<Secret>,
    /// Where its answer has what.
    pub pointers: SearchPointers,
    /// The price of a call in millionths of a dollar.
    pub micro_dollars: u64,
    /// How long it may take to answer.
    pub timeout: Duration,
}

impl SearchConfig {
    /// A service with this URL and these pointers, without a secret and a price.
    #[must_use]
    pub fn new(url: String, pointers: SearchPointers) -> Self {
        Self {
            url,
            secret_header: ("authorization".to_owned(), "Bearer ".to_owned()),
            secret: None,
            pointers,
            micro_dollars: 0,
            timeout: Duration::from_secs(15),
        }
    }
}

/// JSON pointers into the answer of a search. All but the first begin at one result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchPointers {
    /// The list of results.
    pub results: String,
    /// The title.
    pub title: String,
    /// The URL.
    pub url: String,
    /// A few sentences of the page.
    pub snippet: String,
    /// The date, if the service gives one.
    pub date: Option<String>,
}

/// How pages are read.
#[derive(Clone, Debug)]
pub struct FetchConfig {
    /// The price of a call in millionths of a dollar.
    pub micro_dollars: u64,
    /// How long one page may take, with all redirects.
    pub timeout: Duration,
    /// Bytes of a page that are read.
    pub max_bytes: ByteSize,
    /// Characters of its text that are returned.
    pub max_text: usize,
    /// Redirects that are followed.
    pub redirects: usize,
    /// Ports that pages are read from; any if empty.
    pub ports: Vec<u16>,
    /// Networks that pages may be read from although they are not public.
    pub allow: Vec<IpNet>,
    /// Whether robots.txt is respected.
    pub robots: bool,
    /// Requests to one host in any minute.
    pub per_host_per_minute: u32,
    /// What the requests say about who makes them.
    pub user_agent: String,
}

impl Default for FetchConfig {
    fn default() -> Self {
        Self {
            micro_dollars: 0,
            timeout: Duration::from_secs(20),
            max_bytes: ByteSize::mib(4),
            max_text: 200_000,
            redirects: 5,
            ports: vec![80, 443],
            allow: Vec::new(),
            robots: true,
            per_host_per_minute: 60,
            user_agent: "Cloche/1.0".to_owned(),
        }
    }
}
