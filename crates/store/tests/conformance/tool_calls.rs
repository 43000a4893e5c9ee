//! Runs in: test.
//!
//! Requirements for every store: calls of web tools are recorded once, and summed by execution.

use cloche_model::{DecisionId, Moment, TraceId, WebTool, WebToolRecord, WebToolUsage};
use cloche_store::{Store, StoreError, UsageFilter, UsageTotals};

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

pub(crate) async fn calls_of_web_tools_are_usage_of_their_key_and_day(store: &dyn Store) {
    const DAY: i64 = 86_400_000_000;
    let on_day = |number: u8, day: i64| WebToolRecord {
        at: Moment(day * DAY + 5),
        ..call(number, WebTool::WebSearch, None)
    };
    for (number, day) in [(1, 3), (2, 3), (3, 4)] {
        store.record_tool_call(on_day(number, day)).await.unwrap();
    }
    let twice = store.record_tool_call(on_day(3, 4)).await;
    assert!(matches!(twice, Err(StoreError::Conflict(_))), "{twice:?}");
    let other = WebToolRecord { key: key(2).id, ..on_day(4, 4) };
    store.record_tool_call(other).await.unwrap();
    let all = UsageFilter { team: None, key: None, first_day: 0, last_day: i64::MAX };
    let counted = |calls: u64| UsageTotals {
        tool_calls: calls,
        tool_micro_dollars: 500 * calls,
        ..UsageTotals::default()
    };
    assert_eq!(store.sum_usage(&all).await.unwrap(), counted(4));
    assert_eq!(store.usage_by_day(&all).await.unwrap(), [(3, counted(2)), (4, counted(2))]);
    let of_key = UsageFilter { key: Some(key(2).id), ..all.clone() };
    assert_eq!(store.sum_usage(&of_key).await.unwrap(), counted(1));
    // What was counted stays so.
    store.prune_gates(Moment(i64::MAX)).await.unwrap();
    assert_eq!(store.sum_usage(&all).await.unwrap(), counted(4));
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
