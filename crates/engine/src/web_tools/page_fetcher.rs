//! Runs in: server (no capabilities).
//!
//! Reads public pages. Each hop of a redirect is checked like the first URL: its form, its port,
//! every address of its name, robots.txt and the rate of its host. The connection goes to an
//! address that was checked, so a name that changes its answer gains nothing.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use cloche_model::error_chain;
use parking_lot::Mutex;
use reqwest::{
    Client, Response,
    header::{ACCEPT, CONTENT_ENCODING, CONTENT_TYPE, LOCATION, USER_AGENT},
};
use rustls::ClientConfig;
use tokio::sync::Semaphore;
use url::{Host, Url};

use super::{
    call::FetchedPage,
    config::FetchConfig,
    host_rates::HostRates,
    page_text::{ContentKind, PageText, read_page},
    robots::RobotRules,
};
use crate::{
    outgoing_http::{self, OutgoingHttpError},
    webhooks::AddressGuard,
};

/// The most bytes of a robots.txt that are read.
const ROBOTS_BYTES: usize = 256 << 10;
/// How long the rules of a host are remembered, and of how many hosts.
const ROBOTS_AGE: Duration = Duration::from_secs(600);
const ROBOTS_HOSTS: usize = 512;
/// Pages that are converted at once: each takes a thread and memory.
const CONVERSIONS: usize = 2;
/// Content that is asked for.
const ACCEPTED: &str = "text/html, application/xhtml+xml, text/*;q=0.9, application/json;q=0.9";

/// Reads pages.
pub(super) struct PageFetcher {
    config: FetchConfig,
    tls: ClientConfig,
    guard: AddressGuard,
    rates: HostRates,
    robots: Mutex<HashMap<String, (Instant, Arc<RobotRules>)>>,
    conversions: Arc<Semaphore>,
}

/// What a page answered with, before it is converted.
struct ReadPage {
    url: Url,
    content_type: String,
    bytes: Vec<u8>,
    is_cut: bool,
}

/// The answer of one hop.
enum Hop {
    Page(ReadPage),
    Redirect(Url),
}

impl PageFetcher {
    pub(super) fn new(config: FetchConfig) -> Result<Self, OutgoingHttpError> {
        Ok(Self {
            tls: outgoing_http::tls_settings(None)?,
            guard: AddressGuard::new(config.allow.clone()),
            rates: HostRates::new(config.per_host_per_minute),
            robots: Mutex::default(),
            conversions: Arc::new(Semaphore::new(CONVERSIONS)),
            config,
        })
    }

    pub(super) fn price(&self) -> u64 {
        self.config.micro_dollars
    }

    /// Reads one page. A page that cannot be read has a sentence as its error.
    pub(super) async fn fetch_page(&self, url: &str) -> FetchedPage {
        let read = tokio::time::timeout(self.config.timeout, self.read_and_convert(url)).await;
        let seconds = self.config.timeout.as_secs();
        let read = read.unwrap_or_else(|_| Err(format!("the page took longer than {seconds} s")));
        let url = url.to_owned();
        match read {
            Ok(page) => FetchedPage { url, ..page },
            Err(error) => FetchedPage { url, error: Some(error), ..FetchedPage::default() },
        }
    }

    async fn read_and_convert(&self, url: &str) -> Result<FetchedPage, String> {
        let ReadPage { url, content_type, bytes, is_cut } = self.follow_redirects(url).await?;
        let kind = ContentKind::of_type(&content_type).ok_or_else(|| {
            let shown: String = content_type.chars().take(64).collect();
            format!("the page has no text: its content type is {shown:?}")
        })?;
        let turn = Arc::clone(&self.conversions).acquire_owned().await;
        let turn = turn.map_err(|error| error.to_string())?;
        let most = self.config.max_text;
        let read = move || {
            // The turn ends with the conversion, also where its caller has stopped waiting.
            let _turn = turn;
            read_page(kind, &content_type, &bytes, most)
        };
        let read = tokio::task::spawn_blocking(read).await;
        let page: PageText = read.map_err(|_| "the page cannot be read".to_owned())??;
        Ok(FetchedPage {
            url: String::new(),
            final_url: url.into(),
            title: page.title,
            text: page.text,
            truncated: page.is_cut || is_cut,
            error: None,
        })
    }

    async fn follow_redirects(&self, url: &str) -> Result<ReadPage, String> {
        let mut url = self.check_url(url)?;
        for _ in 0..=self.config.redirects {
            if self.config.robots {
                let rules = self.rules_of(&url).await?;
                if !rules.allow(&path_and_query(&url)) {
                    return Err("the host's robots.txt does not allow this page".to_owned());
                }
            }
            let answer = self.request(&url).await?;
            match self.read_hop(&url, answer).await? {
                Hop::Page(page) => return Ok(page),
                Hop::Redirect(to) => url = self.check_url(to.as_str())?,
            }
        }
        Err(format!("the page redirects more than {} times", self.config.redirects))
    }

    /// Checks the form of a URL. Odd spellings of an address are the address by then.
    fn check_url(&self, url: &str) -> Result<Url, String> {
        let mut parsed = Url::parse(url).map_err(|_| "this is not a URL".to_owned())?;
        if !matches!(parsed.scheme(), "http" | "https") {
            return Err("only http and https URLs can be read".to_owned());
        }
        if !parsed.username().is_empty() || parsed.password().is_some() {
            return Err("a URL must not contain a user name or password".to_owned());
        }
        let port = parsed.port_or_known_default().unwrap_or_default();
        let ports = &self.config.ports;
        if !ports.is_empty() && !ports.contains(&port) {
            return Err(format!("pages are not read from port {port}"));
        }
        parsed.set_fragment(None);
        Ok(parsed)
    }

    /// One request, to a checked address.
    async fn request(&self, url: &Url) -> Result<Response, String> {
        let host = url.host_str().unwrap_or_default();
        self.rates.take(host, Instant::now()).map_err(|wait| {
            let seconds = wait.as_secs() + 1;
            format!("this host is asked too often; try again in {seconds} s")
        })?;
        let addresses = self.guard.resolve_allowed(url).await.map_err(|error| error.to_string())?;
        let client = self.pin_client(url, &addresses).map_err(to_sentence)?;
        let request = client
            .get(url.clone())
            .header(USER_AGENT, &self.config.user_agent)
            .header(ACCEPT, ACCEPTED);
        request.send().await.map_err(to_sentence)
    }

    /// A client that connects to these addresses and no other.
    fn pin_client(&self, url: &Url, addresses: &[SocketAddr]) -> reqwest::Result<Client> {
        let builder = outgoing_http::builder_with_tls(self.tls.clone());
        let builder = builder.http1_only().pool_max_idle_per_host(0);
        match url.host() {
            Some(Host::Domain(name)) => builder.resolve_to_addrs(name, addresses),
            _ => builder,
        }
        .build()
    }

    async fn read_hop(&self, url: &Url, answer: Response) -> Result<Hop, String> {
        let status = answer.status();
        if status.is_redirection() {
            let to = answer.headers().get(LOCATION).and_then(|to| to.to_str().ok());
            let to = to.and_then(|to| url.join(to).ok());
            return to.map(Hop::Redirect).ok_or_else(|| format!("the page answered {status}"));
        }
        if !status.is_success() {
            return Err(format!("the page answered {status}"));
        }
        let header = |name| answer.headers().get(name).and_then(|value| value.to_str().ok());
        if header(CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
            return Err("the page is compressed although that was not asked for".to_owned());
        }
        let content_type = header(CONTENT_TYPE).unwrap_or("text/plain").to_owned();
        let most = usize::try_from(self.config.max_bytes.bytes()).unwrap_or(usize::MAX);
        let (bytes, is_cut) = read_body(answer, most).await?;
        Ok(Hop::Page(ReadPage { url: url.clone(), content_type, bytes, is_cut }))
    }

    /// The rules of a URL's host. A host without a file allows everything; one that fails to send
    /// its file allows nothing. A host that cannot be reached at all is an error.
    async fn rules_of(&self, url: &Url) -> Result<Arc<RobotRules>, String> {
        let origin = url.origin().ascii_serialization();
        let known = self.robots.lock().get(&origin).cloned();
        if let Some((_, rules)) = known.filter(|(at, _)| at.elapsed() < ROBOTS_AGE) {
            return Ok(rules);
        }
        let rules = Arc::new(self.read_rules(url).await?);
        let mut robots = self.robots.lock();
        if robots.len() >= ROBOTS_HOSTS {
            robots.clear();
        }
        robots.insert(origin, (Instant::now(), Arc::clone(&rules)));
        Ok(rules)
    }

    async fn read_rules(&self, page: &Url) -> Result<RobotRules, String> {
        let mut url = page.clone();
        url.set_path("/robots.txt");
        url.set_query(None);
        for _ in 0..=self.config.redirects {
            let answer = self.request(&url).await?;
            let status = answer.status();
            if status.is_redirection() {
                let to = answer.headers().get(LOCATION).and_then(|to| to.to_str().ok());
                let to = to.and_then(|to| url.join(to).ok());
                match to.and_then(|to| self.check_url(to.as_str()).ok()) {
                    Some(to) => url = to,
                    None => return Ok(RobotRules::default()),
                }
                continue;
            }
            if status.is_client_error() {
                return Ok(RobotRules::default());
            }
            if !status.is_success() {
                return Ok(RobotRules::deny_all());
            }
            let (bytes, _) = read_body(answer, ROBOTS_BYTES).await?;
            let text = String::from_utf8_lossy(&bytes);
            return Ok(RobotRules::parse(&text, &self.config.user_agent));
        }
        Ok(RobotRules::default())
    }
}

/// Reads at most so many bytes; says whether there were more.
async fn read_body(mut answer: Response, most: usize) -> Result<(Vec<u8>, bool), String> {
    let mut bytes = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(to_sentence)? {
        let left = most - bytes.len();
        bytes.extend_from_slice(&chunk[..chunk.len().min(left)]);
        if chunk.len() > left {
            return Ok((bytes, true));
        }
    }
    Ok((bytes, false))
}

fn path_and_query(url: &Url) -> String {
    match url.query() {
        Some(query) => format!("{}?{query}", url.path()),
        None => url.path().to_owned(),
    }
}

fn to_sentence(error: reqwest::Error) -> String {
    format!("the page cannot be read: {}", error_chain(&error.without_url()))
}
