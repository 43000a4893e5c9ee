//! The events of a response as server-sent events.

use cloche_agent::{Response, ResponseEvent, ResponseEventKind, ResponseFailure, ResponseItem};
use cloche_model::ResponseStatus;
use serde_json::{Value, json};

use super::{ErrorInfo, OutputItem, ResponseRecord, fetched_contents, search_records};

/// Encodes events as server-sent events.
pub(crate) fn encode_sse(events: &[ResponseEvent]) -> String {
    let mut text = String::new();
    for event in events {
        let (name, mut data) = describe_event(&event.kind);
        data["type"] = name.into();
        data["sequence_number"] = event.seq.into();
        text.push_str(&format!("event: {name}\ndata: {data}\n\n"));
    }
    text
}

fn describe_event(kind: &ResponseEventKind) -> (&'static str, Value) {
    let whole = |response: &Response| json!({"response": ResponseRecord::from(response)});
    let item = |index: &usize, item: &ResponseItem| {
        let item = OutputItem::from_item(item, ResponseStatus::InProgress);
        json!({"output_index": index, "item": item})
    };
    match kind {
        ResponseEventKind::Created(response) => ("response.created", whole(response)),
        ResponseEventKind::InProgress(response) => ("response.in_progress", whole(response)),
        ResponseEventKind::Completed(response) => ("response.completed", whole(response)),
        ResponseEventKind::Failed(response) => {
            let mut data = whole(response);
            let stopped = ResponseFailure {
                code: response.status.name().to_owned(),
                message: "the response was cancelled".to_owned(),
            };
            let error = ErrorInfo::from(response.error.as_ref().unwrap_or(&stopped));
            data["error"] = json!(error);
            ("response.failed", data)
        }
        ResponseEventKind::ItemAdded { index, item: added } => {
            ("response.output_item.added", item(index, added))
        }
        ResponseEventKind::ItemDone { index, item: done } => {
            ("response.output_item.done", item(index, done))
        }
        ResponseEventKind::ReasoningStarted => ("response.reasoning.started", json!({})),
        ResponseEventKind::ReasoningStopped => ("response.reasoning.stopped", json!({})),
        ResponseEventKind::SearchQueries { queries } => {
            ("response.reasoning.search_queries", json!({"queries": queries}))
        }
        ResponseEventKind::SearchResults { results } => {
            ("response.reasoning.search_results", json!({"results": search_records(results)}))
        }
        ResponseEventKind::FetchQueries { urls } => {
            ("response.reasoning.fetch_url_queries", json!({"urls": urls}))
        }
        ResponseEventKind::FetchResults { pages } => {
            ("response.reasoning.fetch_url_results", json!({"contents": fetched_contents(pages)}))
        }
        ResponseEventKind::TextDelta { index, item_id, delta } => (
            "response.output_text.delta",
            json!({"item_id": item_id, "output_index": index, "content_index": 0, "delta": delta}),
        ),
        ResponseEventKind::TextDone { index, item_id, text } => (
            "response.output_text.done",
            json!({"item_id": item_id, "output_index": index, "content_index": 0, "text": text}),
        ),
    }
}
