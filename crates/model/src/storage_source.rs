//! Connections and volumes of teams, and what may use them, as rows.

use serde::{Deserialize, Serialize};

use crate::{
    ByteSize, Invalid, KeyId, KeyPrefix, Moment, ObjectConnection, ObjectCredentials,
    ObjectStoreKind, SandboxId, SecretVars, StorageId, SubPath, TeamId, VolumeId,
};

/// A connection or a volume of a team, mounted at `/data/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageSource {
    /// Its id.
    pub id: StorageId,
    /// The team that owns it.
    pub team: TeamId,
    /// Its name, unique among the connections and volumes of the team.
    pub name: String,
    /// Where the bytes are.
    pub backing: StorageBacking,
    /// When it was created.
    pub created_at: Moment,
}

impl StorageSource {
    /// The connection, unless it is a volume.
    #[must_use]
    pub const fn connection(&self) -> Option<&StorageConnection> {
        match &self.backing {
            StorageBacking::Connection(connection) => Some(connection),
            StorageBacking::Volume(_) => None,
        }
    }

    /// The settings of a volume, unless it is a connection.
    #[must_use]
    pub const fn volume(&self) -> Option<&VolumeSettings> {
        match &self.backing {
            StorageBacking::Connection(_) => None,
            StorageBacking::Volume(volume) => Some(volume),
        }
    }
}

/// Where the bytes of a mount are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StorageBacking {
    /// In a bucket of the team.
    Connection(StorageConnection),
    /// With this server.
    Volume(VolumeSettings),
}

/// The settings of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeSettings {
    /// The name of its files at this server.
    pub id: VolumeId,
    /// The most bytes of its files.
    pub quota: ByteSize,
}

/// A bucket and how to reach it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageConnection {
    /// The protocol.
    pub kind: ObjectStoreKind,
    /// The address of the service. Without one: the address of the provider.
    pub endpoint: Option<String>,
    /// The bucket, or the container of Azure.
    pub bucket: String,
    /// The region of S3.
    pub region: Option<String>,
    /// The storage account of Azure.
    pub account: Option<String>,
    /// What every use of the connection is bounded to.
    pub prefix: KeyPrefix,
    /// Whether no use of it may write.
    pub read_only: bool,
    /// Whether the operator allows an endpoint that is not public, also without TLS.
    pub allows_private_endpoint: bool,
    /// The secret parts by name, see [`credential_names`]. Without any, requests
    /// are anonymous. Sealed in the store.
    #[serde(skip)]
    pub credentials: SecretVars,
}

impl StorageConnection {
    /// The connection as a mount uses it.
    ///
    /// # Errors
    /// When its secret parts are not those of its kind.
    pub fn to_object_connection(&self) -> Result<ObjectConnection, Invalid> {
        Ok(ObjectConnection {
            kind: self.kind,
            endpoint: self.endpoint.clone(),
            bucket: self.bucket.clone(),
            region: self.region.clone(),
            credentials: self.object_credentials()?,
            allows_private_endpoint: self.allows_private_endpoint,
        })
    }

    fn object_credentials(&self) -> Result<ObjectCredentials, Invalid> {
        let names = credential_names(self.kind);
        if let Some(other) = self.credentials.keys().find(|name| !names.contains(&name.as_str())) {
            let kind = self.kind.name();
            return Err(Invalid::new(format!(
                "credentials: a {kind} connection has no part {other:?}; it has {}",
                names.join(", ")
            )));
        }
        let part = |name: &str| self.credentials.get(name).cloned();
        let account = self.account.clone().unwrap_or_default();
        match self.kind {
            ObjectStoreKind::S3 | ObjectStoreKind::Gcs if self.credentials.is_empty() => {
                Ok(ObjectCredentials::Anonymous)
            }
            ObjectStoreKind::S3 => match (part("access_key_id"), part("secret_access_key")) {
                (Some(id), Some(secret)) => Ok(ObjectCredentials::AccessKey {
                    id: id.reveal().to_owned(),
                    secret,
                    session_token: part("session_token"),
                }),
                _ => Err(Invalid::new(
                    "credentials: access_key_id and secret_access_key belong together",
                )),
            },
            ObjectStoreKind::Gcs => {
                let document = part("service_account_key");
                let missing = || Invalid::new("credentials: service_account_key is missing");
                Ok(ObjectCredentials::ServiceAccount(document.ok_or_else(missing)?))
            }
            ObjectStoreKind::Azure => {
                let missing = || Invalid::new("credentials: account_key is missing");
                let key = part("account_key").ok_or_else(missing)?;
                Ok(ObjectCredentials::AccountKey { account, key })
            }
        }
    }
}

/// The names of the secret parts of a connection.
#[must_use]
pub const fn credential_names(kind: ObjectStoreKind) -> &'static [&'static str] {
    match kind {
        ObjectStoreKind::S3 => &["access_key_id", "secret_access_key", "session_token"],
        ObjectStoreKind::Gcs => &["service_account_key"],
        ObjectStoreKind::Azure => &["account_key"],
    }
}

/// What a binding is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BindingUser {
    /// Every execution in a sandbox.
    Sandbox(SandboxId),
    /// Every execution of a key.
    Key(KeyId),
}

impl BindingUser {
    /// The id as text.
    #[must_use]
    pub fn id(&self) -> &str {
        match self {
            Self::Sandbox(id) => id.as_str(),
            Self::Key(id) => id.as_str(),
        }
    }
}

/// Lets a sandbox or a key use a connection or a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageBinding {
    /// The connection or volume.
    pub storage: StorageId,
    /// What may use it.
    pub user: BindingUser,
    /// What the use is bounded to.
    pub path: KeyPrefix,
    /// Whether the use may not write.
    pub read_only: bool,
}

/// A connection or a volume as the executions of a key see it: all levels but the request's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundStorage {
    /// The connection or volume.
    pub source: StorageSource,
    /// What they are bounded to; `None` if the levels have nothing in common.
    pub scope: Option<KeyPrefix>,
    /// Whether they may not write.
    pub read_only: bool,
}

impl BoundStorage {
    /// Applies the bindings of one key and its sandbox, each of which only narrows.
    #[must_use]
    pub fn new(source: StorageSource, bindings: &[StorageBinding]) -> Self {
        let connection = source.connection();
        let first = connection.map_or_else(KeyPrefix::default, |found| found.prefix.clone());
        let scope = bindings.iter().try_fold(first, |scope, next| scope.narrower_of(&next.path));
        let read_only = connection.is_some_and(|found| found.read_only)
            || bindings.iter().any(|binding| binding.read_only);
        Self { source, scope, read_only }
    }

    /// The scope of one execution: that of the levels above, or a path of the request within it.
    ///
    /// # Errors
    /// When the levels exclude each other, or the path is wider than they are or beside them.
    pub fn narrow_for_request(&self, sub_path: Option<&SubPath>) -> Result<KeyPrefix, Invalid> {
        let name = &self.source.name;
        let scope = self.scope.as_ref().ok_or_else(|| {
            Invalid::new(format!(
                "storage {name:?}: the paths of the connection, the sandbox and the key have \
                 nothing in common; ask your administrator"
            ))
        })?;
        match sub_path {
            None => Ok(scope.clone()),
            Some(path) if scope.contains(path.scope()) => Ok(path.scope().clone()),
            Some(path) => Err(Invalid::new(format!(
                "sub_paths: \"/data/{name}/{}\" is not within what this key may use of \
                 /data/{name}",
                path.path()
            ))),
        }
    }
}

/// A mount of one execution, and the bytes that it read and wrote there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountUse {
    /// The name of the connection or volume.
    pub name: String,
    /// Whether it could not write.
    pub read_only: bool,
    /// The path of the request, if it narrowed the mount.
    pub sub_path: Option<KeyPrefix>,
    /// Bytes that were read.
    pub bytes_read: u64,
    /// Bytes that were written.
    pub bytes_written: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(prefix: &str, read_only: bool) -> StorageSource {
        StorageSource {
            id: "sto_1".parse().unwrap(),
            team: "team_1".parse().unwrap(),
            name: "data".to_owned(),
            backing: StorageBacking::Connection(StorageConnection {
                kind: ObjectStoreKind::S3,
                endpoint: None,
                bucket: "b".to_owned(),
                region: None,
                account: None,
                prefix: prefix.parse().unwrap(),
                read_only,
                allows_private_endpoint: false,
                credentials: SecretVars::new(),
            }),
            created_at: Moment(0),
        }
    }

    fn binding(path: &str, read_only: bool) -> StorageBinding {
        StorageBinding {
            storage: "sto_1".parse().unwrap(),
            user: BindingUser::Key("key_1".parse().unwrap()),
            path: path.parse().unwrap(),
            read_only,
        }
    }

    fn narrowed(bound: &BoundStorage, path: &str) -> Result<String, Invalid> {
        let paths = SubPath::parse_all(&[format!("/data/data/{path}")])?;
        bound.narrow_for_request(paths.first()).map(String::from)
    }

    #[test]
    fn each_level_only_narrows() {
        let levels = [binding("t/acme", false), binding("t/acme/a", false)];
        let bound = BoundStorage::new(connection("t", false), &levels);
        assert_eq!(bound.scope.as_ref().map(KeyPrefix::as_str), Some("t/acme/a/"));
        assert!(!bound.read_only);
        assert_eq!(narrowed(&bound, "t/acme/a/x").unwrap(), "t/acme/a/x/");
        for wider in ["t/acme", "t", "t/acme/ab", "t/acme/b", "x", "T/acme/a"] {
            let error = narrowed(&bound, wider).unwrap_err().to_string();
            assert!(error.contains("is not within what this key may use"), "{error}");
        }
        // A wider level below a narrow one changes nothing.
        let bound = BoundStorage::new(connection("t/acme", false), &[binding("t", false)]);
        assert_eq!(bound.scope.as_ref().map(KeyPrefix::as_str), Some("t/acme/"));
    }

    #[test]
    fn levels_without_a_common_path_mount_nothing() {
        let bound = BoundStorage::new(connection("a", false), &[binding("b", false)]);
        assert_eq!(bound.scope, None);
        assert!(bound.narrow_for_request(None).is_err());
    }

    #[test]
    fn any_level_can_forbid_writes() {
        for (connection_ro, levels) in [
            (true, vec![binding("", false)]),
            (false, vec![binding("", true), binding("", false)]),
            (false, vec![binding("", false), binding("", true)]),
        ] {
            assert!(BoundStorage::new(connection("", connection_ro), &levels).read_only);
        }
        assert!(!BoundStorage::new(connection("", false), &[binding("", false)]).read_only);
    }
}
