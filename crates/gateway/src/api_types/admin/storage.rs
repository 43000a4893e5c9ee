//! The wire format of storage connections, volumes and bindings.

use std::collections::BTreeMap;

use cloche_engine::{
    BindingTarget, ConnectionChange, ConnectionCheck, ConnectionDraft, NamedBinding, VolumeState,
    format_rfc3339,
};
use cloche_model::{BindingUser, ByteSize, Invalid, KeyPrefix, Secret, StorageSource};
use serde::{Deserialize, Serialize};
use utoipa::{
    ToSchema,
    openapi::schema::{ObjectBuilder, Schema, SchemaType, Type},
};

use super::{super::number::whole_number, present};

/// The schema of a path below the root of a bucket or volume.
fn prefix_schema() -> Schema {
    const NAME: &str = "[A-Za-z0-9_-][A-Za-z0-9_-]{0,60}";
    ObjectBuilder::new()
        .schema_type(SchemaType::from_iter([Type::String, Type::Null]))
        .pattern(Some(format!("^({NAME}(/{NAME}){{0,9}}/?)?$")))
        .examples(["tenants/acme"])
        .into()
}

fn parse_prefix(field: &str, text: &str) -> Result<KeyPrefix, Invalid> {
    text.parse().map_err(|error: Invalid| Invalid::new(format!("{field}: {error}")))
}

/// A request to create a storage connection.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateConnection {
    /// The id or name of its team.
    team: String,
    /// Its name; it is mounted at `/data/{name}`.
    #[schema(min_length = 1, max_length = 63, pattern = "^[a-z0-9][a-z0-9-]*$")]
    name: String,
    /// `s3`, `gcs` or `azure`.
    #[schema(example = "s3", pattern = "^(s3|gcs|azure)$")]
    kind: String,
    /// The bucket, or the container of Azure.
    #[schema(min_length = 1, max_length = 255, pattern = "^[A-Za-z0-9][A-Za-z0-9-]*$")]
    bucket: String,
    /// The URL of the service; that of the provider if absent.
    endpoint: Option<String>,
    /// The region of S3; `us-east-1` if absent.
    region: Option<String>,
    /// The storage account of Azure.
    account: Option<String>,
    /// The path in the bucket that every use is bounded to.
    #[schema(schema_with = prefix_schema)]
    prefix: Option<String>,
    /// Whether no use may write.
    read_only: Option<bool>,
    /// Whether the endpoint may be a private address and speak plain HTTP.
    allow_private_endpoint: Option<bool>,
    /// The secret parts. s3: `access_key_id`, `secret_access_key`, `session_token`; gcs:
    /// `service_account_key`; azure: `account_key`. Without any, requests are anonymous.
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    credentials: Option<BTreeMap<String, Secret>>,
    /// Whether the connection is tried before it is saved; true if absent.
    check: Option<bool>,
}

impl CreateConnection {
    pub(crate) fn into_draft(self) -> Result<ConnectionDraft, Invalid> {
        let prefix = self.prefix.as_deref().map(|text| parse_prefix("prefix", text));
        Ok(ConnectionDraft {
            team: self.team,
            name: self.name,
            kind: self.kind.parse()?,
            bucket: self.bucket,
            settings: ConnectionChange {
                bucket: None,
                endpoint: Some(self.endpoint),
                region: Some(self.region),
                account: Some(self.account),
                prefix: prefix.transpose()?,
                read_only: self.read_only,
                allows_private_endpoint: self.allow_private_endpoint,
                credentials: self.credentials,
                skips_check: self.check == Some(false),
            },
        })
    }
}

/// Changes to a storage connection; null clears a field.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UpdateConnection {
    bucket: Option<String>,
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<String>)]
    endpoint: Option<Option<String>>,
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<String>)]
    region: Option<Option<String>>,
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<String>)]
    account: Option<Option<String>>,
    #[schema(schema_with = prefix_schema)]
    prefix: Option<String>,
    read_only: Option<bool>,
    allow_private_endpoint: Option<bool>,
    /// The secret parts, all of them; they replace what was stored.
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    credentials: Option<BTreeMap<String, Secret>>,
    /// Whether the connection is tried before it is saved; true if absent.
    check: Option<bool>,
}

impl UpdateConnection {
    pub(crate) fn into_change(self) -> Result<ConnectionChange, Invalid> {
        let prefix = self.prefix.as_deref().map(|text| parse_prefix("prefix", text));
        Ok(ConnectionChange {
            bucket: self.bucket,
            endpoint: self.endpoint,
            region: self.region,
            account: self.account,
            prefix: prefix.transpose()?,
            read_only: self.read_only,
            allows_private_endpoint: self.allow_private_endpoint,
            credentials: self.credentials,
            skips_check: self.check == Some(false),
        })
    }
}

/// A storage connection, without its secrets.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ConnectionRecord {
    id: String,
    team_id: String,
    name: String,
    kind: &'static str,
    bucket: String,
    endpoint: Option<String>,
    region: Option<String>,
    account: Option<String>,
    prefix: String,
    read_only: bool,
    allow_private_endpoint: bool,
    /// The names of the secret parts that are stored.
    credentials: Vec<String>,
    /// What may use it; not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    bindings: Option<Vec<BindingRecord>>,
    #[schema(format = DateTime)]
    created_at: String,
}

impl ConnectionRecord {
    /// The record of a connection; `None` for a volume.
    pub(crate) fn new(source: StorageSource) -> Option<Self> {
        let connection = source.connection()?.clone();
        Some(Self {
            id: source.id.into(),
            team_id: source.team.into(),
            name: source.name,
            kind: connection.kind.name(),
            bucket: connection.bucket,
            endpoint: connection.endpoint,
            region: connection.region,
            account: connection.account,
            prefix: connection.prefix.into(),
            read_only: connection.read_only,
            allow_private_endpoint: connection.allows_private_endpoint,
            credentials: connection.credentials.into_keys().collect(),
            bindings: None,
            created_at: format_rfc3339(source.created_at),
        })
    }

    pub(crate) fn with_bindings(self, bindings: Vec<NamedBinding>) -> Self {
        Self { bindings: Some(bindings.into_iter().map(Into::into).collect()), ..self }
    }
}

/// A list of storage connections.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ConnectionList {
    pub(crate) storage: Vec<ConnectionRecord>,
}

/// What trying a connection found out.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CheckRecord {
    /// Whether every step succeeded.
    ok: bool,
    /// The steps that were tried, in their order.
    steps: Vec<CheckStepRecord>,
}

/// One step of a check.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CheckStepRecord {
    /// `list`, `write`, `read` or `delete`.
    step: &'static str,
    ok: bool,
    /// What went wrong.
    message: Option<String>,
}

impl From<ConnectionCheck> for CheckRecord {
    fn from(check: ConnectionCheck) -> Self {
        Self {
            ok: check.failure().is_none(),
            steps: check
                .steps
                .into_iter()
                .map(|step| CheckStepRecord {
                    step: step.name,
                    ok: step.error.is_none(),
                    message: step.error,
                })
                .collect(),
        }
    }
}

/// Who may use a connection or volume, how far, and whether it may write.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BindStorage {
    /// The id or name of a sandbox of the team. Either this or `key`.
    sandbox: Option<String>,
    /// The id of a key of the team.
    key: Option<String>,
    /// The path, from the root of the bucket or volume, that the use is bounded to.
    #[schema(schema_with = prefix_schema)]
    path: Option<String>,
    /// Whether the use may write; false if absent.
    read_write: Option<bool>,
}

/// A parsed request for a binding: who, the path, and whether it may not write.
pub(crate) type ParsedBinding = (BindingTarget, KeyPrefix, bool);

impl BindStorage {
    pub(crate) fn parse(self) -> Result<ParsedBinding, Invalid> {
        let target = match (self.sandbox, self.key) {
            (Some(sandbox), None) => BindingTarget::Sandbox(sandbox),
            (None, Some(key)) => BindingTarget::Key(key),
            _ => return Err(Invalid::new("exactly one of sandbox and key must be given")),
        };
        let path = parse_prefix("path", self.path.as_deref().unwrap_or_default())?;
        Ok((target, path, self.read_write != Some(true)))
    }
}

/// A binding.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BindingRecord {
    /// `sandbox NAME` or `key NAME`.
    user: String,
    sandbox_id: Option<String>,
    key_id: Option<String>,
    path: String,
    read_only: bool,
}

impl From<NamedBinding> for BindingRecord {
    fn from(named: NamedBinding) -> Self {
        let NamedBinding { binding, user } = named;
        let (sandbox_id, key_id) = match binding.user {
            BindingUser::Sandbox(id) => (Some(id.into()), None),
            BindingUser::Key(id) => (None, Some(id.into())),
        };
        let (path, read_only) = (binding.path.into(), binding.read_only);
        Self { user, sandbox_id, key_id, path, read_only }
    }
}

/// The bindings of a connection or volume.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BindingList {
    bindings: Vec<BindingRecord>,
}

impl From<Vec<NamedBinding>> for BindingList {
    fn from(bindings: Vec<NamedBinding>) -> Self {
        Self { bindings: bindings.into_iter().map(Into::into).collect() }
    }
}

/// A request to create a volume.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateVolume {
    /// The id or name of its team.
    pub(crate) team: String,
    /// Its name; it is mounted at `/data/{name}`.
    #[schema(min_length = 1, max_length = 63, pattern = "^[a-z0-9][a-z0-9-]*$")]
    pub(crate) name: String,
    /// The most bytes of its files.
    #[serde(deserialize_with = "whole_number")]
    #[schema(minimum = 1_048_576, maximum = 1_125_899_906_842_624_u64)]
    quota_bytes: u64,
}

impl CreateVolume {
    pub(crate) const fn quota(&self) -> ByteSize {
        ByteSize(self.quota_bytes)
    }
}

/// Changes to a volume.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UpdateVolume {
    /// The most bytes of its files. Files that are there stay, also beyond it.
    #[serde(deserialize_with = "whole_number")]
    #[schema(minimum = 1_048_576, maximum = 1_125_899_906_842_624_u64)]
    quota_bytes: u64,
}

impl UpdateVolume {
    pub(crate) const fn quota(&self) -> ByteSize {
        ByteSize(self.quota_bytes)
    }
}

/// A volume.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct VolumeRecord {
    id: String,
    team_id: String,
    name: String,
    quota_bytes: u64,
    /// The bytes of its files now.
    used_bytes: u64,
    /// Its files and directories now.
    entries: u64,
    /// What may use it; not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    bindings: Option<Vec<BindingRecord>>,
    #[schema(format = DateTime)]
    created_at: String,
}

impl From<VolumeState> for VolumeRecord {
    fn from(volume: VolumeState) -> Self {
        let VolumeState { source, quota, used, entries } = volume;
        Self {
            id: source.id.into(),
            team_id: source.team.into(),
            name: source.name,
            quota_bytes: quota.bytes(),
            used_bytes: used.bytes(),
            entries,
            bindings: None,
            created_at: format_rfc3339(source.created_at),
        }
    }
}

impl VolumeRecord {
    pub(crate) fn with_bindings(self, bindings: Vec<NamedBinding>) -> Self {
        Self { bindings: Some(bindings.into_iter().map(Into::into).collect()), ..self }
    }
}

/// A list of volumes.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct VolumeList {
    pub(crate) volumes: Vec<VolumeRecord>,
}
