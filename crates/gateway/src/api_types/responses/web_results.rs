//! The results of web tools in the wire format of the Agent API.

use cloche_engine::{FetchedPage, SearchHit};
use serde::Serialize;
use utoipa::ToSchema;

/// One result of a search.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SearchResultRecord {
    /// Its number in the list, from 1.
    id: usize,
    title: String,
    url: String,
    snippet: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    date: Option<String>,
    /// Always `web`.
    source: &'static str,
}

/// A page that was read.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct FetchedContent {
    title: String,
    url: String,
    /// The beginning of its text.
    snippet: String,
}

pub(super) fn search_records(results: &[SearchHit]) -> Vec<SearchResultRecord> {
    let record = |(at, hit): (usize, &SearchHit)| SearchResultRecord {
        id: at + 1,
        title: hit.title.clone(),
        url: hit.url.clone(),
        snippet: hit.snippet.clone(),
        date: hit.date.clone(),
        source: "web",
    };
    results.iter().enumerate().map(record).collect()
}

pub(super) fn fetched_contents(pages: &[FetchedPage]) -> Vec<FetchedContent> {
    let content = |page: &FetchedPage| FetchedContent {
        title: page.title.clone(),
        url: page.url.clone(),
        snippet: page.text.clone(),
    };
    pages.iter().map(content).collect()
}
