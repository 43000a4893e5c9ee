//! Runs in: server (no capabilities).
//!
//! Calls of web tools in SQLite.

use async_trait::async_trait;
use cloche_model::{TraceId, WebToolRecord, WebToolUsage};

use super::{
    SqliteStore,
    row_reader::{read_number, read_parsed, to_sql_integer},
};
use crate::{Result, StoreError, ToolCallStore};

#[async_trait]
impl ToolCallStore for SqliteStore {
    async fn record_tool_call(&self, call: WebToolRecord) -> Result<()> {
        self.writer
            .run_statement(move |connection| {
                Box::pin(async move {
                    let written = sqlx::query(
                        "INSERT INTO tool_calls (decision_id, team_id, key_id, tool, trace_id, \
                         response_id, micro_dollars, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?) \
                         ON CONFLICT (decision_id) DO NOTHING",
                    )
                    .bind(String::from(call.decision))
                    .bind(String::from(call.team))
                    .bind(String::from(call.key))
                    .bind(call.tool.name())
                    .bind(call.execution.map(String::from))
                    .bind(call.response.map(String::from))
                    .bind(to_sql_integer(call.micro_dollars))
                    .bind(call.at.0)
                    .execute(connection)
                    .await?;
                    match written.rows_affected() {
                        0 => Err(StoreError::Conflict("this call is recorded already".to_owned())),
                        _ => Ok(()),
                    }
                })
            })
            .await
    }

    async fn tool_usage(&self, execution: &TraceId) -> Result<Vec<WebToolUsage>> {
        let rows = sqlx::query(
            "SELECT tool, count(*) AS calls, sum(micro_dollars) AS micro_dollars FROM tool_calls \
             WHERE trace_id = ? GROUP BY tool ORDER BY tool",
        )
        .bind(execution.as_str())
        .fetch_all(&self.readers)
        .await?;
        let usage = |row| {
            Ok(WebToolUsage {
                tool: read_parsed(row, "tool")?,
                calls: read_number(row, "calls")?,
                micro_dollars: read_number(row, "micro_dollars")?,
            })
        };
        rows.iter().map(usage).collect()
    }
}
