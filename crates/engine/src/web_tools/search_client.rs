//! Runs in: server (no capabilities).
//!
//! Asks a search service. SearXNG, Brave and others differ only in their URL, the header of their
//! secret and where their JSON has what, so one client serves all.

use cloche_model::{WebTool, error_chain};
use reqwest::{
    Client,
    header::{ACCEPT, HeaderName, HeaderValue},
};
use serde_json::Value;
use url::{Url, form_urlencoded};

use super::{
    call::{SearchHit, WebToolError, cut_text},
    config::{SearchConfig, SearchPointers},
};
use crate::outgoing_http::{self, OutgoingHttpError};

/// The most bytes of an answer.
const MAX_ANSWER: usize = 2 << 20;
/// The most bytes of a title, a URL, a snippet and a date of one result.
const MAX_FIELDS: [usize; 4] = [500, 2_048, 4_096, 64];

/// A client of one search service.
pub(super) struct SearchClient {
    client: Client,
    config: SearchConfig,
    secret: Option<(HeaderName, HeaderValue)>,
}

impl SearchClient {
    pub(super) fn new(config: SearchConfig) -> Result<Self, OutgoingHttpError> {
        let client = outgoing_http::client_builder()?.timeout(config.timeout).build()?;
        let (name, before) = &config.secret_header;
        let secret = config.secret.as_ref().and_then(|secret| {
            let mut value = HeaderValue::from_str(&format!("{before}{}", secret.reveal())).ok()?;
            value.set_sensitive(true);
            Some((HeaderName::from_bytes(name.as_bytes()).ok()?, value))
        });
        Ok(Self { client, config, secret })
    }

    pub(super) fn price(&self) -> u64 {
        self.config.micro_dollars
    }

    /// Asks once. An error names neither the URL nor the secret.
    pub(super) async fn search(
        &self,
        tool: WebTool,
        query: &str,
        count: usize,
    ) -> Result<Vec<SearchHit>, WebToolError> {
        let failed = |why: String| {
            tracing::warn!(%tool, why, "a search service did not answer");
            WebToolError::unavailable(format!("the service behind {tool} did not answer: {why}"))
        };
        let url = fill_template(&self.config.url, query, count);
        let url = Url::parse(&url).map_err(|error| failed(error.to_string()))?;
        let mut request = self.client.get(url).header(ACCEPT, "application/json");
        if let Some((name, value)) = &self.secret {
            request = request.header(name, value);
        }
        let sent = request.send().await;
        let mut answer = sent.map_err(|error| failed(error_chain(&error.without_url())))?;
        let status = answer.status();
        if !status.is_success() {
            return Err(failed(format!("it answered {status}")));
        }
        let mut body = Vec::new();
        loop {
            let chunk = answer.chunk().await;
            match chunk.map_err(|error| failed(error_chain(&error.without_url())))? {
                Some(chunk) if body.len() + chunk.len() > MAX_ANSWER => {
                    return Err(failed("its answer is too large".to_owned()));
                }
                Some(chunk) => body.extend_from_slice(&chunk),
                None => break,
            }
        }
        let body: Value =
            serde_json::from_slice(&body).map_err(|_| failed("it sent no JSON".to_owned()))?;
        read_hits(&body, &self.config.pointers, count)
            .ok_or_else(|| failed("its answer has no list of results".to_owned()))
    }
}

/// The URL of one search. What stands in for a placeholder cannot end the part that it is in.
fn fill_template(template: &str, query: &str, count: usize) -> String {
    let query: String = form_urlencoded::byte_serialize(query.as_bytes()).collect();
    template.replace("{count}", &count.to_string()).replace("{query}", &query)
}

/// The results of an answer; those without an HTTP URL are left out.
fn read_hits(body: &Value, pointers: &SearchPointers, count: usize) -> Option<Vec<SearchHit>> {
    let results = body.pointer(&pointers.results)?.as_array()?;
    let hit = |result: &Value| {
        let text = |pointer: &str, most: usize| {
            let text = result.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
            cut_text(text.to_owned(), most)
        };
        let url = text(&pointers.url, MAX_FIELDS[1]);
        let parsed = Url::parse(&url).ok()?;
        let date = pointers.date.as_ref().map(|pointer| text(pointer, MAX_FIELDS[3]));
        matches!(parsed.scheme(), "http" | "https").then(|| SearchHit {
            title: text(&pointers.title, MAX_FIELDS[0]),
            url,
            snippet: text(&pointers.snippet, MAX_FIELDS[2]),
            date: date.filter(|date| !date.is_empty()),
        })
    };
    Some(results.iter().filter_map(hit).take(count).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_query_cannot_leave_its_place_in_the_url() {
        let url = fill_template("http://s/search?q={query}&n={count}", "a&b=c #{count}/é", 3);
        assert_eq!(url, "http://s/search?q=a%26b%3Dc+%23%7Bcount%7D%2F%C3%A9&n=3");
    }

    #[test]
    fn results_are_read_by_pointers_and_odd_ones_are_left_out() {
        let pointers = SearchPointers {
            results: "/web/results".to_owned(),
            title: "/title".to_owned(),
            url: "/link/href".to_owned(),
            snippet: "/text".to_owned(),
            date: Some("/age".to_owned()),
        };
        let body = json!({"web": {"results": [
            {"title": "A", "link": {"href": "https://a.example/"}, "text": "é".repeat(4000)},
            {"title": "B", "link": {"href": "javascript:alert(1)"}},
            {"title": "C"}, 5, null,
            {"link": {"href": "http://d.example"}, "age": "2026-01-02"},
        ]}});
        let hits = read_hits(&body, &pointers, 9).unwrap();
        assert_eq!(hits.len(), 2);
        assert_eq!((hits[0].snippet.len(), &hits[0].date), (4096, &None));
        assert_eq!(
            (&hits[1].url[..], hits[1].date.as_deref()),
            ("http://d.example", Some("2026-01-02"))
        );
        assert_eq!(read_hits(&json!({"web": 1}), &pointers, 9), None);
    }
}
