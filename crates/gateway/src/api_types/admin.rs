//! The admin API's types of teams, sandboxes, keys, credentials, images, storage and backups.

mod audit;
mod backups;
mod credentials;
mod env;
mod gates;
mod images;
mod keys;
mod members;
mod sandboxes;
mod storage;
mod teams;

use serde::{Deserialize, Deserializer};

pub(crate) use audit::AuditList;
pub(crate) use backups::BackupRecord;
pub(crate) use credentials::{
    CreateCredential, CredentialList, CredentialRecord, CredentialTarget, UpdateCredential,
};
pub(crate) use gates::{GateRecord, UpdateDefaults};
pub(crate) use images::{
    ImageDetail, ImageEvent, ImageList, ImageRemovalRecord, ImageSummary, PullImage,
};
pub(crate) use keys::{CreateKey, CreatedKey, KeyList, KeyRecord, NewAdminToken, UpdateKey};
pub(crate) use members::{CreateMember, MemberList, MemberRecord, RoleName, UpdateMember};
pub(crate) use sandboxes::{CreateSandbox, SandboxList, SandboxRecord, UpdateSandbox};
pub(crate) use storage::{
    BindStorage, BindingList, CheckRecord, ConnectionList, ConnectionRecord, CreateConnection,
    CreateVolume, UpdateConnection, UpdateVolume, VolumeList, VolumeRecord,
};
pub(crate) use teams::{CreateTeam, StorageList, TeamList, TeamRecord, UpdateTeam};

/// A field that is present, even if it is null; an absent field is `None`.
#[expect(clippy::option_option, reason = "absent, null and a value have three different meanings")]
fn present<'de, T, D>(deserializer: D) -> Result<Option<Option<T>>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    Option::deserialize(deserializer).map(Some)
}
