//! Runs in: server (no capabilities).
//!
//! Storage counters in SQLite. The triggers of migration 8 update them. Here they are read,
//! compared with a budget inside the transaction that appends, and recounted.

use std::collections::{HashMap, HashSet};

use async_trait::async_trait;
use cloche_model::{Layer, LayerDigest, Moment, TeamId, Thread, ThreadId, TraceId};
use sqlx::{Row, SqliteConnection, sqlite::SqliteRow};

use super::{
    SqliteStore, heads,
    row_reader::{read_number, read_parsed, to_json, to_sql_integer},
};
use crate::{
    HistoryPruneOutcome, HistoryRule, PrunedRows, Result, StorageAccounting, StorageUsage,
    ThreadKey,
};

/// How many records are deleted in one transaction. Other writes wait meanwhile.
const BATCH: i64 = 1000;

/// Whether storing these layers would exceed the team's budget. A team that has used up its budget
/// may store nothing, however small.
pub(super) async fn exceeds_budget(
    connection: &mut SqliteConnection,
    team: &TeamId,
    layers: &[&Layer],
    budget: Option<u64>,
) -> Result<bool> {
    let Some(budget) = budget else { return Ok(false) };
    let mut total = used_bytes(connection, team).await?;
    let mut seen = HashSet::new();
    for layer in layers {
        let known = sqlx::query("SELECT 1 FROM team_layers WHERE team_id = ? AND layer = ?")
            .bind(team.as_str())
            .bind(layer.digest.as_str())
            .fetch_optional(&mut *connection)
            .await?;
        if known.is_none() && seen.insert(&layer.digest) {
            total = total.saturating_add(layer.disk_bytes());
        }
    }
    Ok(if seen.is_empty() { total >= budget } else { total > budget })
}

/// Whether storing the layer of an execution would exceed its team's budget.
pub(super) async fn execution_exceeds_budget(
    connection: &mut SqliteConnection,
    trace: &TraceId,
    layer: &Layer,
    budget: Option<u64>,
) -> Result<bool> {
    if budget.is_none() {
        return Ok(false);
    }
    let row = sqlx::query("SELECT team_id FROM executions WHERE trace_id = ?")
        .bind(trace.as_str())
        .fetch_optional(&mut *connection)
        .await?;
    let Some(row) = row else { return Ok(false) };
    exceeds_budget(connection, &read_parsed(&row, "team_id")?, &[layer], budget).await
}

async fn used_bytes(connection: &mut SqliteConnection, team: &TeamId) -> Result<u64> {
    let row = sqlx::query("SELECT layer_bytes, row_bytes FROM team_storage WHERE team_id = ?")
        .bind(team.as_str())
        .fetch_optional(connection)
        .await?;
    Ok(row.as_ref().map(storage_usage_from_row).transpose()?.unwrap_or_default().total())
}

fn storage_usage_from_row(row: &SqliteRow) -> Result<StorageUsage> {
    Ok(StorageUsage {
        layer_bytes: read_number(row, "layer_bytes")?,
        row_bytes: read_number(row, "row_bytes")?,
    })
}

/// Records which layers the head has now and which it had until `thread.head`. Does nothing if they
/// are the same.
pub(super) async fn track_layers(
    connection: &mut SqliteConnection,
    thread: &Thread,
    before: &[LayerDigest],
    sizes: &[&Layer],
) -> Result<()> {
    if before == thread.layers {
        return Ok(());
    }
    let now: HashSet<_> = thread.layers.iter().collect();
    let then: HashSet<_> = before.iter().collect();
    let left: Vec<_> = then.difference(&now).collect();
    if !left.is_empty() {
        sqlx::query(
            "UPDATE thread_layers SET gone_at = ? WHERE team_id = ? AND thread_id = ? AND layer IN \
             (SELECT value FROM json_each(?))",
        )
        .bind(to_sql_integer(thread.head))
        .bind(thread.team.as_str())
        .bind(thread.id.as_str())
        .bind(to_json("layers", &left)?)
        .execute(&mut *connection)
        .await?;
    }
    for layer in now.difference(&then) {
        let charge = sizes.iter().find(|size| size.digest == **layer).map(|size| size.disk_bytes());
        sqlx::query(
            "INSERT INTO thread_layers (team_id, thread_id, layer, bytes) VALUES (?1, ?2, ?3, \
             coalesce((SELECT bytes FROM team_layers WHERE team_id = ?1 AND layer = ?3), ?4, 0)) \
             ON CONFLICT (team_id, thread_id, layer) DO UPDATE SET gone_at = NULL",
        )
        .bind(thread.team.as_str())
        .bind(thread.id.as_str())
        .bind(layer.as_str())
        .bind(charge.map(to_sql_integer))
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}

/// The number of the oldest snapshot that is kept. `None` if all are kept.
async fn oldest_kept(
    connection: &mut SqliteConnection,
    key: &ThreadKey,
    rule: HistoryRule,
    head: u64,
) -> Result<Option<u64>> {
    let mut oldest: Option<u64> = None;
    if let Some(keep) = rule.keep {
        let row = sqlx::query(
            "SELECT seq FROM points WHERE team_id = ? AND thread_id = ? ORDER BY seq DESC LIMIT 1 \
             OFFSET ?",
        )
        .bind(key.team.as_str())
        .bind(key.id.as_str())
        .bind(to_sql_integer(keep.max(1) - 1))
        .fetch_optional(&mut *connection)
        .await?;
        let Some(row) = row else { return Ok(None) };
        oldest = Some(read_number(&row, "seq")?);
    }
    if let Some(before) = rule.before {
        let row = sqlx::query(
            "SELECT min(seq) AS seq FROM points WHERE team_id = ? AND thread_id = ? AND at >= ?",
        )
        .bind(key.team.as_str())
        .bind(key.id.as_str())
        .bind(before.0)
        .fetch_one(connection)
        .await?;
        let young = row.try_get::<Option<i64>, _>("seq")?.and_then(|seq| u64::try_from(seq).ok());
        let young = young.unwrap_or(head);
        oldest = Some(oldest.map_or(young, |oldest| oldest.min(young)));
    }
    Ok(oldest.map(|oldest| oldest.min(head)))
}

async fn prune_thread(
    connection: &mut SqliteConnection,
    key: &ThreadKey,
    rule: HistoryRule,
    now: Moment,
) -> Result<HistoryPruneOutcome> {
    let Some(thread) = heads::find_thread(connection, key).await? else {
        return Ok(HistoryPruneOutcome::Missing);
    };
    // The layers with which a run started may have left the head since, by a squash.
    if heads::is_held(connection, key, now).await? {
        return Ok(HistoryPruneOutcome::Busy);
    }
    let Some(oldest) = oldest_kept(connection, key, rule, thread.head).await? else {
        return Ok(HistoryPruneOutcome::Done(PrunedRows::default()));
    };
    let oldest = to_sql_integer(oldest);
    let (team, id) = (key.team.as_str(), key.id.as_str());
    let rows = sqlx::query(
        "SELECT layer FROM thread_layers WHERE team_id = ?1 AND thread_id = ?2 AND gone_at <= ?3 \
         UNION SELECT layer FROM points WHERE team_id = ?1 AND thread_id = ?2 AND seq < ?3 AND \
         layer IS NOT NULL",
    );
    let rows = rows.bind(team).bind(id).bind(oldest).fetch_all(&mut *connection).await?;
    let layers = rows.iter().map(|row| read_parsed(row, "layer")).collect::<Result<_>>()?;
    let mut pruned = 0;
    for statement in [
        "DELETE FROM thread_layers WHERE team_id = ?1 AND thread_id = ?2 AND gone_at <= ?3",
        // Also those of snapshots that were pruned earlier, while a later snapshot still had the
        // layer.
        "UPDATE executions SET layer = NULL WHERE layer IS NOT NULL AND team_id = ?1 AND thread_id = \
         ?2 AND status != 'running' AND ?3 > 0 AND layer NOT IN (SELECT layer FROM thread_layers \
         WHERE team_id = ?1)",
        "DELETE FROM points WHERE team_id = ?1 AND thread_id = ?2 AND seq < ?3",
    ] {
        let done = sqlx::query(statement).bind(team).bind(id).bind(oldest);
        pruned = done.execute(&mut *connection).await?.rows_affected();
    }
    Ok(HistoryPruneOutcome::Done(PrunedRows { rows: pruned, layers }))
}

/// Files of executions that are in no history any more.
const STRAY_FILES: &str = "team_id = ?1 AND layer IS NOT NULL AND thread_id IS NOT NULL AND \
    status != 'running' AND layer NOT IN (SELECT layer FROM thread_layers WHERE team_id = ?1)";
/// Records beyond the newest, except those with a pending webhook.
const OLD_RECORDS: &str = "rowid IN (SELECT rowid FROM executions WHERE team_id = ?1 AND \
    status != 'running' AND trace_id NOT IN (SELECT trace_id FROM deliveries WHERE status = \
    'pending') ORDER BY created_at DESC, trace_id DESC LIMIT ?3 OFFSET ?2)";

async fn prune_records(
    connection: &mut SqliteConnection,
    team: &TeamId,
    keep: u64,
) -> Result<PrunedRows> {
    let mut pruned = PrunedRows::default();
    for (condition, change) in [
        (STRAY_FILES, "UPDATE executions SET layer = NULL WHERE "),
        (OLD_RECORDS, "DELETE FROM executions WHERE "),
    ] {
        let list = format!(
            "SELECT DISTINCT layer FROM executions WHERE layer IS NOT NULL AND {condition}"
        );
        let bound = |text: String| {
            sqlx::query(sqlx::AssertSqlSafe(text))
                .bind(team.to_string())
                .bind(to_sql_integer(keep))
                .bind(BATCH)
        };
        let rows = bound(list).fetch_all(&mut *connection).await?;
        for row in &rows {
            pruned.layers.push(read_parsed(row, "layer")?);
        }
        let changed = bound(format!("{change}{condition}")).execute(&mut *connection).await?;
        pruned.rows = changed.rows_affected();
    }
    sqlx::query("DELETE FROM deliveries WHERE trace_id NOT IN (SELECT trace_id FROM executions)")
        .execute(connection)
        .await?;
    Ok(pruned)
}

/// Rebuilds every counter from the rows, with the same sums as in the triggers.
const RECOUNT: [&str; 8] = [
    "DELETE FROM team_layers",
    "DELETE FROM thread_layers",
    "DELETE FROM team_storage",
    "INSERT INTO thread_layers SELECT p.team_id, p.thread_id, j.value, coalesce((SELECT bytes FROM \
     temp.layer_sizes s WHERE s.layer = j.value), 0), max(p.seq) + 1 FROM points p, \
     json_each(p.stack) j GROUP BY 1, 2, 3",
    "INSERT INTO thread_layers SELECT DISTINCT t.team_id, t.thread_id, j.value, 0, NULL FROM threads t, \
     json_each(t.stack) j WHERE true ON CONFLICT (team_id, thread_id, layer) DO UPDATE SET \
     gone_at = NULL",
    "UPDATE executions SET layer_bytes = coalesce((SELECT bytes FROM temp.layer_sizes s WHERE \
     s.layer = executions.layer), 0) WHERE layer IS NOT NULL",
    "INSERT INTO team_layers SELECT team_id, layer, count(*), max(layer_bytes) FROM executions WHERE \
     layer IS NOT NULL GROUP BY 1, 2 ON CONFLICT (team_id, layer) DO UPDATE SET refs = refs + \
     excluded.refs",
    "INSERT INTO team_storage SELECT team_id, 0, sum(bytes) FROM (\
     SELECT team_id, 512 + octet_length(metadata) + coalesce(octet_length(webhook_url), 0) + \
     coalesce(octet_length(code), 0) + coalesce(octet_length(error), 0) + \
     coalesce(octet_length(score), 0) + coalesce(octet_length(stdout), 0) + \
     coalesce(octet_length(stderr), 0) + coalesce(octet_length(written), 0) + \
     coalesce(octet_length(network), 0) AS bytes FROM executions \
     UNION ALL SELECT team_id, 256 + octet_length(stack) FROM points \
     UNION ALL SELECT team_id, 256 + octet_length(record) + octet_length(conversation) + \
     octet_length(events) FROM responses) WHERE true GROUP BY team_id \
     ON CONFLICT (team_id) DO UPDATE SET row_bytes = excluded.row_bytes",
];

async fn recount_team_storage(connection: &mut SqliteConnection, sizes: String) -> Result<()> {
    for statement in [
        "CREATE TEMP TABLE IF NOT EXISTS layer_sizes (layer TEXT PRIMARY KEY, bytes INTEGER) WITHOUT \
         ROWID",
        "DELETE FROM temp.layer_sizes",
    ] {
        sqlx::query(statement).execute(&mut *connection).await?;
    }
    sqlx::query("INSERT INTO temp.layer_sizes SELECT key, value FROM json_each(?)")
        .bind(sizes)
        .execute(&mut *connection)
        .await?;
    // A layer that was stored after `sizes` was listed keeps the size that it came with.
    sqlx::query(
        "INSERT OR IGNORE INTO temp.layer_sizes SELECT layer, max(bytes) FROM team_layers GROUP BY 1",
    )
    .execute(&mut *connection)
    .await?;
    for statement in RECOUNT {
        sqlx::query(statement).execute(&mut *connection).await?;
    }
    sqlx::query("DELETE FROM temp.layer_sizes").execute(connection).await?;
    Ok(())
}

#[async_trait]
impl StorageAccounting for SqliteStore {
    async fn storage_usage(&self, team: &TeamId) -> Result<StorageUsage> {
        let row = sqlx::query("SELECT layer_bytes, row_bytes FROM team_storage WHERE team_id = ?")
            .bind(team.as_str())
            .fetch_optional(&self.readers)
            .await?;
        Ok(row.as_ref().map(storage_usage_from_row).transpose()?.unwrap_or_default())
    }

    async fn storage_usages(&self) -> Result<Vec<(TeamId, StorageUsage)>> {
        let rows = sqlx::query("SELECT * FROM team_storage ORDER BY team_id")
            .fetch_all(&self.readers)
            .await?;
        rows.iter()
            .map(|row| Ok((read_parsed(row, "team_id")?, storage_usage_from_row(row)?)))
            .collect()
    }

    async fn threads_to_prune(&self, team: &TeamId, rule: HistoryRule) -> Result<Vec<ThreadId>> {
        if rule == HistoryRule::default() {
            return Ok(Vec::new());
        }
        let rows = sqlx::query(
            "SELECT thread_id FROM points WHERE team_id = ? GROUP BY thread_id HAVING count(*) > ? \
             AND min(at) < ? ORDER BY count(*) DESC",
        )
        .bind(team.as_str())
        .bind(rule.keep.map_or(1, |keep| to_sql_integer(keep.max(1))))
        .bind(rule.before.map_or(i64::MAX, |before| before.0))
        .fetch_all(&self.readers)
        .await?;
        rows.iter().map(|row| read_parsed(row, "thread_id")).collect()
    }

    async fn prune_thread(
        &self,
        key: &ThreadKey,
        rule: HistoryRule,
        now: Moment,
    ) -> Result<HistoryPruneOutcome> {
        let key = key.clone();
        // Durable before a layer is deleted: a power cut must not restore a snapshot without its
        // layer.
        self.writer
            .run_durable(move |connection| {
                Box::pin(async move { prune_thread(connection, &key, rule, now).await })
            })
            .await
    }

    async fn prune_records(&self, team: &TeamId, keep: u64) -> Result<PrunedRows> {
        let team = team.clone();
        self.writer
            .run_durable(move |connection| {
                Box::pin(async move { prune_records(connection, &team, keep).await })
            })
            .await
    }

    async fn thread_layers(&self, key: &ThreadKey) -> Result<Vec<LayerDigest>> {
        let rows =
            sqlx::query("SELECT layer FROM thread_layers WHERE team_id = ? AND thread_id = ?")
                .bind(key.team.as_str())
                .bind(key.id.as_str())
                .fetch_all(&self.readers)
                .await?;
        rows.iter().map(|row| read_parsed(row, "layer")).collect()
    }

    async fn is_layer_needed(&self, layer: &LayerDigest) -> Result<bool> {
        let row = sqlx::query(
            "SELECT 1 FROM team_layers WHERE layer = ?1 UNION ALL \
             SELECT 1 FROM image_layers WHERE layer = ?1",
        )
        .bind(layer.as_str())
        .fetch_optional(&self.readers)
        .await?;
        Ok(row.is_some())
    }

    async fn recount_storage(&self, sizes: &HashMap<LayerDigest, u64>) -> Result<()> {
        let charges: HashMap<&str, u64> = sizes
            .iter()
            .map(|(layer, size)| (layer.as_str(), Layer::disk_bytes_for(*size)))
            .collect();
        let charges = to_json("sizes", &charges)?;
        self.writer
            .run_durable(move |connection| {
                Box::pin(async move { recount_team_storage(connection, charges).await })
            })
            .await
    }
}
