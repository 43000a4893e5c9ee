//! Runs in: server (no capabilities).
//!
//! The request of a guest for a web tool: one JSON object. The bytes are of a guest, so their size,
//! depth and fields are bounded.

use cloche_model::WebTool;
use serde::Deserialize;

use super::call::{MAX_URLS, WebToolCall, WebToolError};

/// The most bytes of a request.
pub const MAX_REQUEST: usize = 16 << 10;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CellToolRequest {
    tool: String,
    query: Option<String>,
    count: Option<u16>,
    url: Option<String>,
    urls: Option<Vec<String>>,
}

/// Reads a request. The error is for the guest.
///
/// # Errors
/// If it is not a JSON object with the fields of one call.
pub fn parse_cell_request(bytes: &[u8]) -> Result<WebToolCall, WebToolError> {
    if bytes.len() > MAX_REQUEST {
        return Err(WebToolError::invalid(format!(
            "a request must have at most {MAX_REQUEST} bytes"
        )));
    }
    let read: CellToolRequest = serde_json::from_slice(bytes)
        .map_err(|error| WebToolError::invalid(format!("the request is malformed: {error}")))?;
    let tool: WebTool = read.tool.parse().map_err(|_| {
        let names = WebTool::ALL.iter().map(|tool| tool.name()).collect::<Vec<_>>().join(", ");
        WebToolError::invalid(format!("tool must be one of: {names}"))
    })?;
    let has_urls = read.url.is_some() || read.urls.is_some();
    match tool {
        WebTool::WebSearch | WebTool::PeopleSearch => match read.query {
            Some(query) if !has_urls => {
                WebToolCall::search(tool, &query, read.count.map(usize::from))
            }
            _ => Err(WebToolError::invalid(format!("{tool} needs a query and no URL"))),
        },
        WebTool::FetchUrl if read.query.is_some() || read.count.is_some() => {
            Err(WebToolError::invalid("fetch_url needs a URL and no query"))
        }
        WebTool::FetchUrl => {
            let urls = read.urls.unwrap_or_default().into_iter().chain(read.url);
            WebToolCall::fetch(urls.collect(), MAX_URLS)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(request: &str) -> &'static str {
        parse_cell_request(request.as_bytes()).map_or_else(|error| error.code, |_| "ok")
    }

    #[test]
    fn requests_are_read() {
        let read = parse_cell_request(br#"{"tool":"web_search","query":" a b ","count":900}"#);
        let (tool, query) = (WebTool::WebSearch, "a b".to_owned());
        assert_eq!(read, Ok(WebToolCall::Search { tool, query, count: 20 }));
        let read = parse_cell_request(br#"{"tool":"fetch_url","url":"https://a.example"}"#);
        assert_eq!(read, Ok(WebToolCall::Fetch { urls: vec!["https://a.example".to_owned()] }));
    }

    #[test]
    fn anything_else_is_refused() {
        for wrong in [
            "",
            "{}",
            "[]",
            "null",
            "{\"tool\":1}",
            "{\"tool\":\"execute_code\",\"query\":\"a\"}",
            "{\"tool\":\"web_search\"}",
            "{\"tool\":\"web_search\",\"query\":\"\"}",
            "{\"tool\":\"web_search\",\"query\":\"a\",\"url\":\"b\"}",
            "{\"tool\":\"fetch_url\"}",
            "{\"tool\":\"fetch_url\",\"urls\":[]}",
            "{\"tool\":\"fetch_url\",\"url\":\"a\",\"query\":\"b\"}",
            "{\"tool\":\"web_search\",\"query\":\"a\",\"team\":\"other\"}",
            "{\"tool\":\"web_search\",\"query\":\"a\",\"query\":\"b\"}",
        ] {
            assert_eq!(code(wrong), "invalid_request", "{wrong}");
        }
        let nested = format!("{{\"tool\":{}", "[".repeat(8_000));
        assert_eq!(code(&nested), "invalid_request");
        let long = format!("{{\"tool\":\"web_search\",\"query\":\"{}\"}}", "a".repeat(MAX_REQUEST));
        assert_eq!(code(&long), "invalid_request");
        let many = ["\"https://a.example\""; 11].join(",");
        assert_eq!(
            code(&format!("{{\"tool\":\"fetch_url\",\"urls\":[{many}]}}")),
            "invalid_request"
        );
    }
}
