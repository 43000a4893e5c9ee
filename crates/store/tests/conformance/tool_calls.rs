//! Runs in: test.
//!
//! Requirements for every store: calls of web tools are recorded once, and summed by execution.

use cloche_model::{DecisionId, Moment, TraceId, WebTool, WebToolRecord, WebToolUsage};
use cloche_store::{Store, StoreError};

use crate::suite::{key, team, trace};

fn call(number: u8, tool: WebTool, execution: Option<TraceId>) -> WebToolRecord {
    WebToolRecord {
        decision: DecisionId::from_random([number; 20]),
        team: team(1).id,
        key: key(1).id,
        tool,
        execution,
        response: None,
        micro_dollars: 500,
        at: Moment(i64::from(number)),
    }
}

fn used(tool: WebTool, calls: u64) -> WebToolUsage {
    WebToolUsage { tool, calls, micro_dollars: 500 * calls }
}

pub(crate) async fn calls_of_web_tools_are_summed_by_execution(store: &dyn Store) {
    for (number, tool, execution) in [
        (1, WebTool::WebSearch, Some(trace(1))),
        (2, WebTool::WebSearch, Some(trace(1))),
        (3, WebTool::FetchUrl, Some(trace(1))),
        (4, WebTool::FetchUrl, Some(trace(2))),
        (5, WebTool::PeopleSearch, None),
    ] {
        store.record_tool_call(call(number, tool, execution)).await.unwrap();
    }
    let of_first = [used(WebTool::FetchUrl, 1), used(WebTool::WebSearch, 2)];
    assert_eq!(store.tool_usage(&trace(1)).await.unwrap(), of_first);
    assert_eq!(store.tool_usage(&trace(2)).await.unwrap(), [used(WebTool::FetchUrl, 1)]);
    assert_eq!(store.tool_usage(&trace(3)).await.unwrap(), []);
}

pub(crate) async fn a_decision_allows_one_call_of_a_web_tool(store: &dyn Store) {
    let once = call(1, WebTool::WebSearch, Some(trace(1)));
    store.record_tool_call(once.clone()).await.unwrap();
    let again = store.record_tool_call(once).await;
    assert!(matches!(again, Err(StoreError::Conflict(_))), "{again:?}");
    assert_eq!(store.tool_usage(&trace(1)).await.unwrap(), [used(WebTool::WebSearch, 1)]);
}

pub(crate) async fn old_calls_of_web_tools_are_pruned_with_decisions(store: &dyn Store) {
    for number in [1, 9] {
        store.record_tool_call(call(number, WebTool::WebSearch, Some(trace(1)))).await.unwrap();
    }
    store.prune_gates(Moment(5)).await.unwrap();
    assert_eq!(store.tool_usage(&trace(1)).await.unwrap(), [used(WebTool::WebSearch, 1)]);
}
