//! Runs in: server (no capabilities).
//!
//! The web tools: `[tools]` of the file. Secrets are named by an environment variable or a file, so
//! the file has none.

use std::{fs, path::PathBuf, time::Duration};

use cloche_engine::{FetchConfig, SearchConfig, SearchPointers, WebToolsConfig};
use cloche_model::{ByteSize, Secret};
use serde::Deserialize;
use url::Url;

/// A setting of the web tools that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("tools.{name} in the configuration: {why}")]
pub(crate) struct ToolSettingsError {
    name: String,
    why: String,
}

/// The highest price of a call, in dollars.
const MAX_PRICE: f64 = 1_000.0;
/// The longest time that a call may take, in seconds.
const MAX_SECONDS: f64 = 600.0;

/// The section as written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ToolsFile {
    search: Option<SearchFile>,
    people_search: Option<SearchFile>,
    fetch: Option<FetchFile>,
    /// Calls that the code of one execution may make.
    calls_per_execution: Option<u32>,
    /// How long a call may take.
    call_seconds: Option<f64>,
}

/// The protocol of a search service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum SearchKind {
    /// SearXNG with its JSON format.
    Searxng,
    /// Brave's web search, and services that copy it.
    Brave,
    /// Any service that answers with JSON.
    Http,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SearchFile {
    kind: SearchKind,
    /// The address of the service; for `http`, the whole URL with `{query}` in it.
    url: String,
    #[serde(default)]
    price: f64,
    timeout_seconds: Option<f64>,
    secret_env: Option<String>,
    secret_file: Option<PathBuf>,
    /// The header of the secret.
    header: Option<String>,
    /// What stands before the secret in that header.
    header_prefix: Option<String>,
    results: Option<String>,
    title: Option<String>,
    link: Option<String>,
    snippet: Option<String>,
    date: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct FetchFile {
    price: f64,
    timeout_seconds: Option<f64>,
    max_bytes: Option<String>,
    max_text: Option<usize>,
    redirects: Option<usize>,
    ports: Option<Vec<u16>>,
    allow: Vec<String>,
    robots: bool,
    per_host_per_minute: Option<u32>,
    user_agent: Option<String>,
}

impl Default for FetchFile {
    fn default() -> Self {
        Self {
            price: 0.0,
            timeout_seconds: None,
            max_bytes: None,
            max_text: None,
            redirects: None,
            ports: None,
            allow: Vec::new(),
            robots: true,
            per_host_per_minute: None,
            user_agent: None,
        }
    }
}

impl ToolsFile {
    /// Checks the section. `env` looks up an environment variable.
    pub(super) fn to_config(
        &self,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<WebToolsConfig, ToolSettingsError> {
        let usual = WebToolsConfig::default();
        let wrong = |name: &str| {
            let name = name.to_owned();
            move |why: String| ToolSettingsError { name, why }
        };
        let search = |name: &str, file: &Option<SearchFile>| {
            file.as_ref().map(|file| file.to_config(&env)).transpose().map_err(wrong(name))
        };
        let fetch = self.fetch.as_ref().map(FetchFile::to_config).transpose();
        let timeout = self.call_seconds.map(check_seconds).transpose();
        Ok(WebToolsConfig {
            search: search("search", &self.search)?,
            people_search: search("people_search", &self.people_search)?,
            fetch: fetch.map_err(wrong("fetch"))?,
            calls_per_execution: self.calls_per_execution.unwrap_or(usual.calls_per_execution),
            call_timeout: timeout.map_err(wrong("call_seconds"))?.unwrap_or(usual.call_timeout),
        })
    }
}

impl SearchFile {
    fn to_config(&self, env: impl Fn(&str) -> Option<String>) -> Result<SearchConfig, String> {
        let (url, pointers, header) = self.preset()?;
        let parsed = Url::parse(&url.replace("{query}", "q").replace("{count}", "1"));
        if !parsed.is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host()) {
            return Err("url must be an http or https URL".to_owned());
        }
        let mut config = SearchConfig::new(url, pointers);
        config.secret_header = header;
        if let Some(header) = &self.header {
            config.secret_header = (header.clone(), String::new());
        }
        if let Some(prefix) = &self.header_prefix {
            config.secret_header.1.clone_from(prefix);
        }
        config.secret = self.read_secret(env)?;
        config.micro_dollars = check_price(self.price)?;
        let timeout = self.timeout_seconds.map(check_seconds).transpose()?;
        config.timeout = timeout.unwrap_or(config.timeout);
        Ok(config)
    }

    /// The URL, the pointers and the header of a kind. Settings of the file replace pointers.
    fn preset(&self) -> Result<(String, SearchPointers, (String, String)), String> {
        let base = self.url.trim_end_matches('/');
        let bearer = ("authorization".to_owned(), "Bearer ".to_owned());
        let (url, usual, header) = match self.kind {
            SearchKind::Searxng => (
                format!("{base}/search?q={{query}}&format=json"),
                ["/results", "/title", "/url", "/content", "/publishedDate"],
                bearer,
            ),
            SearchKind::Brave => (
                format!("{base}/res/v1/web/search?q={{query}}&count={{count}}"),
                ["/web/results", "/title", "/url", "/description", "/page_age"],
                ("x-subscription-token".to_owned(), String::new()),
            ),
            SearchKind::Http if !self.url.contains("{query}") => {
                return Err("url of the kind http must contain {query}".to_owned());
            }
            SearchKind::Http => {
                (self.url.clone(), ["/results", "/title", "/url", "/snippet", "/date"], bearer)
            }
        };
        let given = [&self.results, &self.title, &self.link, &self.snippet, &self.date];
        let mut pointers = Vec::new();
        for (given, usual) in given.into_iter().zip(usual) {
            let pointer = given.as_deref().unwrap_or(usual);
            if !pointer.is_empty() && !pointer.starts_with('/') {
                return Err(format!("{pointer:?} is not a JSON pointer: it must begin with /"));
            }
            pointers.push(pointer.to_owned());
        }
        let mut pointers = pointers.into_iter();
        let mut next = || pointers.next().unwrap_or_default();
        let pointers = SearchPointers {
            results: next(),
            title: next(),
            url: next(),
            snippet: next(),
            date: Some(next()),
        };
        Ok((url, pointers, header))
    }

    fn read_secret(&self, env: impl Fn(&str) -> Option<String>) -> Result<Option<Secret>, String> {
        let secret = match (&self.secret_env, &self.secret_file) {
            (None, None) => return Ok(None),
            (Some(_), Some(_)) => return Err("set secret_env or secret_file, not both".to_owned()),
            (Some(name), None) => {
                env(name).ok_or_else(|| format!("the environment has no variable {name}"))?
            }
            (None, Some(path)) => fs::read_to_string(path)
                .map_err(|error| format!("cannot read secret_file {}: {error}", path.display()))?,
        };
        let secret = secret.trim();
        let is_plain = |c: char| c.is_ascii_graphic() || c == ' ';
        if secret.is_empty() || !secret.chars().all(is_plain) {
            return Err("the secret must be one line of printable ASCII".to_owned());
        }
        Ok(Some(Secret::new(secret)))
    }
}

impl FetchFile {
    fn to_config(&self) -> Result<FetchConfig, String> {
        let usual = FetchConfig::default();
        let network = |text: &String| {
            text.parse()
                .map_err(|_| format!("allow: {text:?} is not a network such as 10.1.0.0/16"))
        };
        let max_bytes = self.max_bytes.as_ref().map(|text| text.parse::<ByteSize>()).transpose();
        let max_bytes = max_bytes.map_err(|error| format!("max_bytes: {error}"))?;
        let timeout = self.timeout_seconds.map(check_seconds).transpose()?;
        let user_agent = self.user_agent.clone().unwrap_or(usual.user_agent);
        if user_agent.is_empty() || !user_agent.chars().all(|c| c.is_ascii_graphic() || c == ' ') {
            return Err("user_agent must be printable ASCII".to_owned());
        }
        Ok(FetchConfig {
            micro_dollars: check_price(self.price)?,
            timeout: timeout.unwrap_or(usual.timeout),
            max_bytes: max_bytes.unwrap_or(usual.max_bytes),
            max_text: self.max_text.unwrap_or(usual.max_text),
            redirects: self.redirects.unwrap_or(usual.redirects).min(20),
            ports: self.ports.clone().unwrap_or(usual.ports),
            allow: self.allow.iter().map(network).collect::<Result<_, _>>()?,
            robots: self.robots,
            per_host_per_minute: self.per_host_per_minute.unwrap_or(usual.per_host_per_minute),
            user_agent,
        })
    }
}

/// A price in dollars as millionths of a dollar.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the range is checked before"
)]
fn check_price(dollars: f64) -> Result<u64, String> {
    if !(0.0..=MAX_PRICE).contains(&dollars) {
        return Err(format!("price must be between 0 and {MAX_PRICE} dollars, got {dollars}"));
    }
    Ok((dollars * 1e6).round() as u64)
}

fn check_seconds(seconds: f64) -> Result<Duration, String> {
    if !(0.1..=MAX_SECONDS).contains(&seconds) {
        return Err(format!("a time must be between 0.1 and {MAX_SECONDS} s, got {seconds}"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<WebToolsConfig, String> {
        let file: ToolsFile = toml::from_str(text).map_err(|error| error.to_string())?;
        let env = |name: &str| (name == "KEY").then(|| "s3cret".to_owned());
        file.to_config(env).map_err(|error| error.to_string())
    }

    #[test]
    fn each_kind_of_search_has_its_url_and_pointers() {
        let config = read(
            "[search]\nkind = \"searxng\"\nurl = \"http://127.0.0.1:8888/\"\nprice = 0.005\n\
             [people_search]\nkind = \"brave\"\nurl = \"https://s.example\"\nsecret_env = \"KEY\"\n",
        )
        .unwrap();
        let search = config.search.clone().unwrap();
        assert_eq!(search.url, "http://127.0.0.1:8888/search?q={query}&format=json");
        assert_eq!((search.micro_dollars, &search.pointers.snippet[..]), (5_000, "/content"));
        let people = config.people_search.clone().unwrap();
        assert_eq!(people.secret_header.0, "x-subscription-token");
        assert_eq!(people.secret.as_ref().unwrap().reveal(), "s3cret");
        assert!(!format!("{people:?}").contains("s3cret"), "a secret is in the debug text");
        assert!(config.fetch.is_none() && !format!("{config:?}").contains("s3cret"));
    }

    #[test]
    fn a_template_names_its_pointers() {
        let config = read(
            "[search]\nkind = \"http\"\nurl = \"https://s.example/?q={query}\"\n\
             results = \"/data\"\nlink = \"/href\"\nheader = \"x-key\"\nsecret_env = \"KEY\"\n",
        );
        let search = config.unwrap().search.unwrap();
        assert_eq!((&search.pointers.results[..], &search.pointers.url[..]), ("/data", "/href"));
        assert_eq!(search.secret_header, ("x-key".to_owned(), String::new()));
    }

    #[test]
    fn settings_that_cannot_be_used_are_named() {
        let search = "[search]\nkind = \"http\"\nurl = \"https://s.example/?q={query}\"\n";
        for (text, error) in [
            ("[search]\nkind = \"http\"\nurl = \"https://s.example\"".to_owned(), "{query}"),
            ("[search]\nkind = \"searxng\"\nurl = \"ftp://x\"".to_owned(), "http or https"),
            (format!("{search}price = -1"), "tools.search"),
            (format!("{search}secret_env = \"NONE\""), "no variable NONE"),
            (format!("{search}secret_env = \"KEY\"\nsecret_file = \"x\""), "not both"),
            (format!("{search}results = \"data\""), "JSON pointer"),
            (format!("{search}colour = 1"), "unknown field"),
            ("[fetch]\nallow = [\"x\"]".to_owned(), "tools.fetch"),
            ("[fetch]\ntimeout_seconds = 0".to_owned(), "between 0.1"),
        ] {
            let refused = read(&text).unwrap_err();
            assert!(refused.contains(error), "{refused}");
        }
        let fetch = read("[fetch]\nrobots = false\nmax_bytes = \"1M\"").unwrap().fetch.unwrap();
        assert_eq!((fetch.robots, fetch.max_bytes), (false, ByteSize::mib(1)));
    }
}
