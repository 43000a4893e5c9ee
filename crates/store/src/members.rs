//! Runs in: server (no capabilities).
//!
//! Members, their sign-ins, and the audit log, as rows.

use async_trait::async_trait;
use cloche_model::{
    AuditEntry, ConsoleSession, ConsoleSessionId, Member, MemberId, Moment, TeamId,
};

use crate::Result;

/// Which entries of the audit log to list, newest first.
#[derive(Clone, Debug, Default)]
pub struct AuditFilter {
    /// Only those about this team.
    pub team: Option<TeamId>,
    /// Only those of the member, key or name.
    pub actor: Option<String>,
    /// Only those at or after.
    pub since: Option<Moment>,
    /// Only those before.
    pub until: Option<Moment>,
    /// Only those with a smaller number.
    pub before: Option<i64>,
    /// The maximum number of rows.
    pub limit: u32,
}

/// Members and their sign-ins.
#[async_trait]
pub trait MemberStore: Send + Sync {
    /// Adds a member. A conflict if the name or the email is taken.
    async fn create_member(&self, member: &Member) -> Result<()>;
    /// The members of a team, or of all teams with the operators, oldest first.
    async fn list_members(&self, team: Option<&TeamId>) -> Result<Vec<Member>>;
    /// One member.
    async fn find_member(&self, id: &MemberId) -> Result<Option<Member>>;
    /// The member with this name.
    async fn find_member_by_name(&self, name: &str) -> Result<Option<Member>>;
    /// The member with this email, which is compared as it is.
    async fn find_member_by_email(&self, email: &str) -> Result<Option<Member>>;
    /// The member that is linked to this issuer and subject.
    async fn find_member_by_subject(&self, subject: &str) -> Result<Option<Member>>;
    /// Replaces everything but the id, the name and the time of its making. Returns false if there is
    /// none. The last time step of a second factor never goes back.
    async fn update_member(&self, member: &Member) -> Result<bool>;
    /// Removes a member with all sign-ins; false if there is none.
    async fn delete_member(&self, id: &MemberId) -> Result<bool>;
    /// Records that the code of a time step is used. Returns false if it was used before.
    async fn use_totp_step(&self, id: &MemberId, step: i64) -> Result<bool>;

    /// Adds a sign-in. It is found by the digest of its token.
    async fn create_console_session(&self, session: &ConsoleSession, digest: &str) -> Result<()>;
    /// The sign-in with this digest and its member, unless it has expired.
    async fn find_console_session(
        &self,
        digest: &str,
        now: Moment,
    ) -> Result<Option<(ConsoleSession, Option<Member>)>>;
    /// Records the last request.
    async fn touch_console_session(&self, id: &ConsoleSessionId, at: Moment) -> Result<()>;
    /// The sign-ins that have not expired, newest first.
    async fn list_console_sessions(&self, now: Moment) -> Result<Vec<ConsoleSession>>;
    /// Ends a sign-in; false if there is none.
    async fn delete_console_session(&self, id: &ConsoleSessionId) -> Result<bool>;
    /// Ends the sign-ins of a member, except for one.
    async fn delete_member_sessions(
        &self,
        member: &MemberId,
        except: Option<&ConsoleSessionId>,
    ) -> Result<()>;
    /// Deletes sign-ins that have expired.
    async fn prune_console_sessions(&self, now: Moment) -> Result<()>;
}

/// The audit log.
#[async_trait]
pub trait AuditLog: Send + Sync {
    /// Adds an entry.
    async fn record_audit(&self, entry: AuditEntry) -> Result<()>;
    /// Entries, newest first.
    async fn list_audit(&self, filter: &AuditFilter) -> Result<Vec<AuditEntry>>;
    /// Deletes entries that are older.
    async fn prune_audit(&self, before: Moment) -> Result<()>;
}
