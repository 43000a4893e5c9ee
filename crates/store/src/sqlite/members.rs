//! Runs in: server (no capabilities).
//!
//! Members and their sign-ins in SQLite.

use async_trait::async_trait;
use cloche_model::{
    ConsoleSession, ConsoleSessionId, Member, MemberId, Moment, TeamId, TotpFactor,
};
use sqlx::{Row, sqlite::SqliteRow};

use super::{
    SqliteStore,
    row_reader::{read_moment, read_moment_or_null, read_parsed, read_parsed_or_null},
    sealed::{open_totp_secret, seal_totp_secret},
};
use crate::{MemberStore, Result, StoreError, sealing::SecretSealer};

fn member_from_row(row: &SqliteRow, sealer: &SecretSealer) -> Result<Member> {
    let id: MemberId = read_parsed(row, "id")?;
    let secret = open_totp_secret(sealer, id.as_str(), row)?;
    let confirmed = row.try_get("totp_confirmed")?;
    let last_step = row.try_get("totp_step")?;
    Ok(Member {
        id,
        team: read_parsed_or_null(row, "team_id")?,
        name: row.try_get("name")?,
        email: row.try_get("email")?,
        role: read_parsed(row, "role")?,
        password_hash: row.try_get("password_hash")?,
        totp: secret.map(|secret| TotpFactor { secret, confirmed, last_step }),
        disabled: row.try_get("disabled")?,
        subject: row.try_get("oidc_subject")?,
        by_rule: row.try_get("by_rule")?,
        created_at: read_moment(row, "created_at")?,
        last_sign_in_at: read_moment_or_null(row, "last_sign_in_at")?,
    })
}

fn session_from_row(row: &SqliteRow) -> Result<ConsoleSession> {
    Ok(ConsoleSession {
        id: read_parsed(row, "id")?,
        member: read_parsed_or_null(row, "member_id")?,
        admin_digest: row.try_get("admin_digest")?,
        address: row.try_get("address")?,
        user_agent: row.try_get("user_agent")?,
        created_at: read_moment(row, "created_at")?,
        last_seen_at: read_moment(row, "last_seen_at")?,
        expires_at: read_moment(row, "expires_at")?,
    })
}

/// A name or an email that another member has is a conflict.
fn taken_error(error: sqlx::Error) -> StoreError {
    let taken = error.as_database_error().filter(|error| error.is_unique_violation());
    match taken.map(|error| error.message().contains("members.email")) {
        Some(true) => StoreError::Conflict("another member has this email".to_owned()),
        Some(false) => StoreError::Conflict("another member has this name".to_owned()),
        None => error.into(),
    }
}

impl SqliteStore {
    async fn member_where(&self, condition: &'static str, value: &str) -> Result<Option<Member>> {
        let row = sqlx::query(condition).bind(value).fetch_optional(&self.readers).await?;
        row.map(|row| member_from_row(&row, &self.sealer)).transpose()
    }

    fn sealed_totp(&self, member: &Member) -> Result<Option<Vec<u8>>> {
        let seal =
            |totp: &TotpFactor| seal_totp_secret(&self.sealer, member.id.as_str(), &totp.secret);
        member.totp.as_ref().map(seal).transpose()
    }
}

#[async_trait]
impl MemberStore for SqliteStore {
    async fn create_member(&self, member: &Member) -> Result<()> {
        let (sealed, member) = (self.sealed_totp(member)?, member.clone());
        self.writer
            .run_statement(move |connection| {
                Box::pin(async move {
                    sqlx::query(
                        "INSERT INTO members (id, team_id, name, email, role, password_hash, \
                         sealed_totp, totp_confirmed, totp_step, disabled, oidc_subject, by_rule, \
                         created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    )
                    .bind(String::from(member.id))
                    .bind(member.team.map(String::from))
                    .bind(member.name)
                    .bind(member.email)
                    .bind(member.role.name())
                    .bind(member.password_hash)
                    .bind(sealed)
                    .bind(member.totp.as_ref().is_some_and(|totp| totp.confirmed))
                    .bind(member.totp.map_or(0, |totp| totp.last_step))
                    .bind(member.disabled)
                    .bind(member.subject)
                    .bind(member.by_rule)
                    .bind(member.created_at.0)
                    .execute(connection)
                    .await
                    .map_err(taken_error)?;
                    Ok(())
                })
            })
            .await
    }

    async fn list_members(&self, team: Option<&TeamId>) -> Result<Vec<Member>> {
        let rows = sqlx::query(
            "SELECT * FROM members WHERE ?1 IS NULL OR team_id = ?1 ORDER BY created_at, id",
        )
        .bind(team.map(ToString::to_string))
        .fetch_all(&self.readers)
        .await?;
        rows.iter().map(|row| member_from_row(row, &self.sealer)).collect()
    }

    async fn find_member(&self, id: &MemberId) -> Result<Option<Member>> {
        self.member_where("SELECT * FROM members WHERE id = ?", id.as_str()).await
    }

    async fn find_member_by_name(&self, name: &str) -> Result<Option<Member>> {
        self.member_where("SELECT * FROM members WHERE name = ?", name).await
    }

    async fn find_member_by_email(&self, email: &str) -> Result<Option<Member>> {
        self.member_where("SELECT * FROM members WHERE email = ?", email).await
    }

    async fn find_member_by_subject(&self, subject: &str) -> Result<Option<Member>> {
        self.member_where("SELECT * FROM members WHERE oidc_subject = ?", subject).await
    }

    async fn update_member(&self, member: &Member) -> Result<bool> {
        let (sealed, member) = (self.sealed_totp(member)?, member.clone());
        self.writer
            .run_statement(move |connection| {
                Box::pin(async move {
                    let updated = sqlx::query(
                        "UPDATE members SET team_id = ?, email = ?, role = ?, password_hash = ?, \
                         oidc_subject = ?, by_rule = ?, sealed_totp = ?, totp_confirmed = ?, totp_step = max(totp_step, ?), \
                         disabled = ?, last_sign_in_at = ? WHERE id = ?",
                    )
                    .bind(member.team.map(String::from))
                    .bind(member.email)
                    .bind(member.role.name())
                    .bind(member.password_hash)
                    .bind(member.subject)
                    .bind(member.by_rule)
                    .bind(sealed)
                    .bind(member.totp.as_ref().is_some_and(|totp| totp.confirmed))
                    .bind(member.totp.map_or(0, |totp| totp.last_step))
                    .bind(member.disabled)
                    .bind(member.last_sign_in_at.map(|at| at.0))
                    .bind(String::from(member.id))
                    .execute(connection)
                    .await
                    .map_err(taken_error)?;
                    Ok(updated.rows_affected() == 1)
                })
            })
            .await
    }

    async fn delete_member(&self, id: &MemberId) -> Result<bool> {
        self.write_one("DELETE FROM members WHERE id = ?", vec![id.to_string()]).await
    }

    async fn use_totp_step(&self, id: &MemberId, step: i64) -> Result<bool> {
        let id = id.to_string();
        self.writer
            .run_statement(move |connection| {
                Box::pin(async move {
                    let used = sqlx::query(
                        "UPDATE members SET totp_step = ?1 WHERE id = ?2 AND totp_step < ?1",
                    )
                    .bind(step)
                    .bind(id)
                    .execute(connection)
                    .await?;
                    Ok(used.rows_affected() == 1)
                })
            })
            .await
    }

    async fn create_console_session(&self, session: &ConsoleSession, digest: &str) -> Result<()> {
        let (session, digest) = (session.clone(), digest.to_owned());
        self.writer
            .run_statement(move |connection| {
                Box::pin(async move {
                    sqlx::query(
                        "INSERT INTO console_sessions (id, digest, member_id, admin_digest, \
                         address, user_agent, created_at, last_seen_at, expires_at) \
                         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    )
                    .bind(String::from(session.id))
                    .bind(digest)
                    .bind(session.member.map(String::from))
                    .bind(session.admin_digest)
                    .bind(session.address)
                    .bind(session.user_agent)
                    .bind(session.created_at.0)
                    .bind(session.last_seen_at.0)
                    .bind(session.expires_at.0)
                    .execute(connection)
                    .await?;
                    Ok(())
                })
            })
            .await
    }

    async fn find_console_session(
        &self,
        digest: &str,
        now: Moment,
    ) -> Result<Option<(ConsoleSession, Option<Member>)>> {
        let row = sqlx::query("SELECT * FROM console_sessions WHERE digest = ? AND expires_at > ?")
            .bind(digest)
            .bind(now.0)
            .fetch_optional(&self.readers)
            .await?;
        let Some(row) = row else { return Ok(None) };
        let session = session_from_row(&row)?;
        let member = match &session.member {
            Some(id) => match self.find_member(id).await? {
                Some(member) => Some(member),
                // Removed since the row was read.
                None => return Ok(None),
            },
            None => None,
        };
        Ok(Some((session, member)))
    }

    async fn touch_console_session(&self, id: &ConsoleSessionId, at: Moment) -> Result<()> {
        let id = id.to_string();
        self.writer
            .run_statement(move |connection| {
                Box::pin(async move {
                    sqlx::query("UPDATE console_sessions SET last_seen_at = ? WHERE id = ?")
                        .bind(at.0)
                        .bind(id)
                        .execute(connection)
                        .await?;
                    Ok(())
                })
            })
            .await
    }

    async fn list_console_sessions(&self, now: Moment) -> Result<Vec<ConsoleSession>> {
        let rows = sqlx::query(
            "SELECT * FROM console_sessions WHERE expires_at > ? ORDER BY created_at DESC, id",
        )
        .bind(now.0)
        .fetch_all(&self.readers)
        .await?;
        rows.iter().map(session_from_row).collect()
    }

    async fn delete_console_session(&self, id: &ConsoleSessionId) -> Result<bool> {
        self.write_one("DELETE FROM console_sessions WHERE id = ?", vec![id.to_string()]).await
    }

    async fn delete_member_sessions(
        &self,
        member: &MemberId,
        except: Option<&ConsoleSessionId>,
    ) -> Result<()> {
        const STATEMENT: &str = "DELETE FROM console_sessions WHERE member_id = ? AND id != ?";
        let except = except.map(ToString::to_string).unwrap_or_default();
        self.write_one(STATEMENT, vec![member.to_string(), except]).await?;
        Ok(())
    }

    async fn prune_console_sessions(&self, now: Moment) -> Result<()> {
        self.writer
            .run_statement(move |connection| {
                Box::pin(async move {
                    sqlx::query("DELETE FROM console_sessions WHERE expires_at <= ?")
                        .bind(now.0)
                        .execute(connection)
                        .await?;
                    Ok(())
                })
            })
            .await
    }
}

impl SqliteStore {
    /// Runs one statement with texts. Returns whether it changed anything.
    async fn write_one(&self, statement: &'static str, texts: Vec<String>) -> Result<bool> {
        self.writer
            .run_statement(move |connection| {
                Box::pin(async move {
                    let mut query = sqlx::query(statement);
                    for text in texts {
                        query = query.bind(text);
                    }
                    Ok(query.execute(connection).await?.rows_affected() > 0)
                })
            })
            .await
    }
}
