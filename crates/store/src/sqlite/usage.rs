//! Runs in: server (no capabilities).
//!
//! Usage by day in SQLite. Triggers of the migrations count executions and calls of web tools. Here transferred bytes
//! are added, and days are summed up.

use async_trait::async_trait;
use cloche_model::{KeyId, TeamId};
use sqlx::{QueryBuilder, Row, Sqlite as Database, sqlite::SqliteRow};

use super::{
    SqliteStore,
    row_reader::{read_number, read_parsed, to_sql_integer},
};
use crate::{Result, Transfer, UsageAccounting, UsageFilter, UsageTotals};

/// The sums of all columns; 0 without a row.
const SUMS: &str = "coalesce(sum(executions), 0) AS executions, \
    coalesce(sum(micro_credits), 0) AS micro_credits, coalesce(sum(wall_ms), 0) AS wall_ms, \
    coalesce(sum(cpu_ms), 0) AS cpu_ms, coalesce(sum(received_bytes), 0) AS received_bytes, \
    coalesce(sum(sent_bytes), 0) AS sent_bytes, \
    coalesce(sum(network_in_bytes), 0) AS network_in_bytes, \
    coalesce(sum(network_out_bytes), 0) AS network_out_bytes, \
    coalesce(sum(tool_calls), 0) AS tool_calls, \
    coalesce(sum(tool_micro_dollars), 0) AS tool_micro_dollars FROM usage_days";

fn totals_from_row(row: &SqliteRow) -> Result<UsageTotals> {
    Ok(UsageTotals {
        executions: read_number(row, "executions")?,
        micro_credits: read_number(row, "micro_credits")?,
        wall_ms: read_number(row, "wall_ms")?,
        cpu_ms: read_number(row, "cpu_ms")?,
        received_bytes: read_number(row, "received_bytes")?,
        sent_bytes: read_number(row, "sent_bytes")?,
        network_in_bytes: read_number(row, "network_in_bytes")?,
        network_out_bytes: read_number(row, "network_out_bytes")?,
        tool_calls: read_number(row, "tool_calls")?,
        tool_micro_dollars: read_number(row, "tool_micro_dollars")?,
    })
}

fn select_days(columns: &str, filter: &UsageFilter) -> QueryBuilder<Database> {
    let mut query = QueryBuilder::new("SELECT ");
    query.push(columns).push(SUMS).push(" WHERE day >= ").push_bind(filter.first_day);
    query.push(" AND day <= ").push_bind(filter.last_day);
    if let Some(team) = &filter.team {
        query.push(" AND team_id = ").push_bind(team.to_string());
    }
    if let Some(key) = &filter.key {
        query.push(" AND key_id = ").push_bind(key.to_string());
    }
    query
}

#[async_trait]
impl UsageAccounting for SqliteStore {
    async fn add_transfers(&self, transfers: Vec<Transfer>) -> Result<()> {
        self.writer
            .run_transaction(move |connection| {
                Box::pin(async move {
                    for transfer in transfers {
                        sqlx::query(
                            "INSERT INTO usage_days (team_id, day, key_id, executions, \
                             micro_credits, wall_ms, cpu_ms, received_bytes, sent_bytes) \
                             VALUES (?1, ?2, ?3, 0, 0, 0, 0, \
                             min(?4, 1000000000000000), min(?5, 1000000000000000)) \
                             ON CONFLICT (team_id, day, key_id) DO UPDATE SET \
                             received_bytes = min(received_bytes + excluded.received_bytes, \
                             1000000000000000), sent_bytes = min(sent_bytes + \
                             excluded.sent_bytes, 1000000000000000)",
                        )
                        .bind(String::from(transfer.team))
                        .bind(transfer.day)
                        .bind(transfer.key.map(String::from).unwrap_or_default())
                        .bind(to_sql_integer(transfer.received_bytes))
                        .bind(to_sql_integer(transfer.sent_bytes))
                        .execute(&mut *connection)
                        .await?;
                    }
                    Ok(())
                })
            })
            .await
    }

    async fn sum_usage(&self, filter: &UsageFilter) -> Result<UsageTotals> {
        totals_from_row(&select_days("", filter).build().fetch_one(&self.readers).await?)
    }

    async fn usage_by_day(&self, filter: &UsageFilter) -> Result<Vec<(i64, UsageTotals)>> {
        let mut query = select_days("day, ", filter);
        query.push(" GROUP BY day ORDER BY day");
        let rows = query.build().fetch_all(&self.readers).await?;
        rows.iter().map(|row| Ok((row.try_get("day")?, totals_from_row(row)?))).collect()
    }

    async fn usage_by_day_and_key(
        &self,
        filter: &UsageFilter,
    ) -> Result<Vec<(i64, Option<KeyId>, UsageTotals)>> {
        let mut query = select_days("day, key_id, ", filter);
        query.push(" GROUP BY day, key_id ORDER BY day, key_id");
        let rows = query.build().fetch_all(&self.readers).await?;
        let day_from_row = |row: &SqliteRow| {
            let key: String = row.try_get("key_id")?;
            let key = if key.is_empty() { None } else { Some(read_parsed(row, "key_id")?) };
            Ok((row.try_get("day")?, key, totals_from_row(row)?))
        };
        rows.iter().map(day_from_row).collect()
    }

    async fn usage_by_team(&self, first_day: i64) -> Result<Vec<(TeamId, UsageTotals)>> {
        let all = UsageFilter { team: None, key: None, first_day, last_day: i64::MAX };
        let mut query = select_days("team_id, ", &all);
        query.push(" GROUP BY team_id ORDER BY team_id");
        let rows = query.build().fetch_all(&self.readers).await?;
        rows.iter().map(|row| Ok((read_parsed(row, "team_id")?, totals_from_row(row)?))).collect()
    }
}
