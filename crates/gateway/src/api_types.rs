//! The types of the wire format, with their OpenAPI descriptions. Everything that comes in is
//! untrusted. Everything that goes out is converted from the engine's types here.

mod admin;
mod approvals;
mod console;
mod errors;
mod execute;
mod execution;
mod files;
mod home_changes;
mod network;
pub(crate) mod number;
mod overview;
mod responses;
mod threads;
mod usage;
mod usage_rows;

pub(crate) use admin::{AuditList, CreateMember, MemberList, MemberRecord, UpdateMember};
pub(crate) use admin::{
    BackupRecord, BindStorage, BindingList, CheckRecord, ConnectionList, ConnectionRecord,
    CreateConnection, CreateCredential, CreateKey, CreateSandbox, CreateTeam, CreateVolume,
    CreatedKey, CredentialList, CredentialRecord, CredentialTarget, GateRecord, ImageDetail,
    ImageEvent, ImageList, ImageRemovalRecord, ImageSummary, KeyList, KeyRecord, NewAdminToken,
    PullImage, SandboxList, SandboxRecord, StorageList, TeamList, TeamRecord, UpdateConnection,
    UpdateCredential, UpdateDefaults, UpdateKey, UpdateSandbox, UpdateTeam, UpdateVolume,
    VolumeList, VolumeRecord,
};
pub(crate) use approvals::{
    ApprovalList, ApprovalRecord, ApprovalStateName, ApproveBody, DecisionList, DecisionRecord,
    DenyBody, ReasonBody,
};
pub(crate) use console::{
    ChangePassword, OneTimeCode, ProviderRecord, SessionList, SessionListItem, SessionRecord,
    SignInBody, SignInWays, TotpRecord,
};
pub(crate) use errors::{ErrorBody, ErrorResponses};
pub(crate) use execute::{
    Accepted, ExecuteBody, ExecuteResult, LanguageName, StatusName, TimedOut, push_event,
};
pub(crate) use execution::{ExecutionPage, ExecutionRecord, Health};
pub(crate) use files::{
    DownloadUrl, FileList, ListFiles, OutputFiles, SignedUrl, SourceName, UploadUrl, Uploaded,
};
pub(crate) use number::whole;
pub(crate) use overview::{
    ApprovalsEvent, ExecutionActivity, OverviewHistory, OverviewNow, SessionEnd,
};
pub(crate) use responses::{
    Cancelling, CreateResponse, ResponseFiles, ResponseList, ResponseRecord, encode_sse,
};
pub(crate) use threads::{
    DiffRecord, ForkBody, HistoryPage, PruneBody, PruneRecord, RollbackBody, ThreadPageRecord,
    ThreadRecord,
};
pub(crate) use usage::UsageReply;
pub(crate) use usage_rows::{UsageRow, UsageRows};
