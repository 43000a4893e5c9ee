//! Compare-and-set updates of teams, sandboxes and keys in SQLite.

use cloche_model::{ApiKey, Decision, PendingApproval, Sandbox, Team, ToolPolicy};
use sqlx::{
    Row, Sqlite, SqliteConnection,
    query::Query,
    sqlite::{SqliteArguments, SqliteRow},
};

use super::{
    gates::insert_decision,
    images::check_sandbox_image,
    row_reader::{to_json, to_sql_integer},
    tenancy::{SealedValue, name_taken_error, to_sql_seconds},
};
use crate::{Result, Revisioned, UpdateOutcome};

/// The row that `read` makes of a row, with its revision.
pub(super) fn with_revision<T>(
    row: &SqliteRow,
    read: impl FnOnce(&SqliteRow) -> Result<T>,
) -> Result<Revisioned<T>> {
    Ok(Revisioned { row: read(row)?, revision: row.try_get("revision")? })
}

/// Writes a team with its gates, and the decision about the gates if there is one.
pub(super) async fn update_team(
    connection: &mut SqliteConnection,
    team: Revisioned<Team>,
    gate_decision: Option<Decision>,
) -> Result<UpdateOutcome> {
    let Revisioned { row: team, revision } = team;
    let update = sqlx::query(
        "UPDATE teams SET name = ?, plan = ?, max_concurrency = ?, max_timeout_s = ?, \
         storage_bytes = ?, monthly_micro_credits = ?, agent_sandbox = ?, execute_code = ?, \
         elicitation = ?, pending_approval = ?, web_search = ?, fetch_url = ?, \
         people_search = ?, revision = revision + 1 \
         WHERE id = ? AND revision = ?",
    )
    .bind(team.name.clone())
    .bind(team.plan.name())
    .bind(team.max_concurrency)
    .bind(team.max_timeout.map(to_sql_seconds))
    .bind(team.storage.map(|limit| to_sql_integer(limit.bytes())))
    .bind(team.monthly_micro_credits.map(to_sql_integer))
    .bind(team.gates.agent_sandbox)
    .bind(team.gates.execute_code.map(ToolPolicy::name))
    .bind(team.gates.elicitation)
    .bind(team.gates.pending_approval.map(PendingApproval::name))
    .bind(team.gates.web_search.map(ToolPolicy::name))
    .bind(team.gates.fetch_url.map(ToolPolicy::name))
    .bind(team.gates.people_search.map(ToolPolicy::name))
    .bind(team.id.to_string())
    .bind(revision);
    let outcome = run_update(connection, update, ("teams", team.id.as_str())).await;
    let outcome = outcome.map_err(|error| name_taken_error(error, "team", &team.name))?;
    if let Some(decision) = gate_decision.filter(|_| outcome == UpdateOutcome::Done) {
        insert_decision(connection, decision).await?;
    }
    Ok(outcome)
}

/// Writes all of a sandbox but its id and team.
pub(super) async fn update_sandbox(
    connection: &mut SqliteConnection,
    sandbox: Revisioned<Sandbox>,
    sealed_env: SealedValue,
) -> Result<UpdateOutcome> {
    let Revisioned { row: sandbox, revision } = sandbox;
    check_sandbox_image(connection, &sandbox.shape.image).await?;
    let update = sqlx::query(
        "UPDATE sandboxes SET name = ?, shape = ?, resources = ?, env = ?, sealed_env = ?, \
         retain_code = ?, retention_days = ?, revision = revision + 1 \
         WHERE id = ? AND revision = ?",
    )
    .bind(sandbox.name.clone())
    .bind(to_json("shape", &sandbox.shape)?)
    .bind(to_json("resources", &sandbox.resources)?)
    .bind(to_json("env", &sandbox.env)?)
    .bind(sealed_env)
    .bind(sandbox.retention.code)
    .bind(sandbox.retention.days)
    .bind(sandbox.id.to_string())
    .bind(revision);
    let outcome = run_update(connection, update, ("sandboxes", sandbox.id.as_str())).await;
    outcome.map_err(|error| name_taken_error(error, "sandbox", &sandbox.name))
}

/// Writes name, sandbox, environment, webhook and the right to approve of a key.
pub(super) async fn update_key(
    connection: &mut SqliteConnection,
    key: Revisioned<ApiKey>,
    (sealed_env, sealed_webhook_secret): (SealedValue, SealedValue),
) -> Result<UpdateOutcome> {
    let Revisioned { row: key, revision } = key;
    let update = sqlx::query(
        "UPDATE keys SET name = ?, sandbox_id = ?, env = ?, sealed_env = ?, webhook_url = ?, \
         sealed_webhook_secret = ?, may_approve = ?, revision = revision + 1 \
         WHERE id = ? AND revision = ?",
    )
    .bind(key.name)
    .bind(String::from(key.sandbox))
    .bind(to_json("env", &key.env)?)
    .bind(sealed_env)
    .bind(key.webhook_url)
    .bind(sealed_webhook_secret)
    .bind(key.may_approve)
    .bind(key.id.to_string())
    .bind(revision);
    Ok(run_update(connection, update, ("keys", key.id.as_str())).await?)
}

/// Runs an update of one row; tells a row of another revision from one that is not there.
async fn run_update(
    connection: &mut SqliteConnection,
    update: Query<'_, Sqlite, SqliteArguments>,
    (table, id): (&'static str, &str),
) -> std::result::Result<UpdateOutcome, sqlx::Error> {
    if update.execute(&mut *connection).await?.rows_affected() == 1 {
        return Ok(UpdateOutcome::Done);
    }
    let count = match table {
        "teams" => "SELECT count(*) AS n FROM teams WHERE id = ?",
        "sandboxes" => "SELECT count(*) AS n FROM sandboxes WHERE id = ?",
        _ => "SELECT count(*) AS n FROM keys WHERE id = ?",
    };
    let row = sqlx::query(count).bind(id.to_owned()).fetch_one(connection).await?;
    Ok(match row.try_get::<i64, _>("n")? {
        0 => UpdateOutcome::Missing,
        _ => UpdateOutcome::Stale,
    })
}
