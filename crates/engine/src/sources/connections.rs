//! Runs in: server (no capabilities).
//!
//! Connections: a bucket of a team and its credentials, checked when they are saved.

use cloche_model::{
    ErrorCode, Invalid, KeyPrefix, ObjectStoreKind, SecretVars, StorageBacking, StorageConnection,
    StorageId, StorageSource, check_name,
};
use url::Url;

use super::{ConnectionCheck, StorageSources, connection_check::check_bucket, in_use_refusal};
use crate::{Refusal, clock, secrets};

/// The most bytes of one secret part: a service account is a document of some kilobytes.
const MAX_SECRET_BYTES: usize = 16 << 10;
const MAX_ENDPOINT_CHARS: usize = 2048;

/// A connection to be made.
#[derive(Clone, Debug)]
pub struct ConnectionDraft {
    /// The id or name of its team.
    pub team: String,
    /// Its name, which is the mount point below `/data`.
    pub name: String,
    /// The protocol.
    pub kind: ObjectStoreKind,
    /// The bucket.
    pub bucket: String,
    /// The rest.
    pub settings: ConnectionChange,
}

/// What to change of a connection; `None` leaves it, `Some(None)` clears it.
#[derive(Clone, Debug, Default)]
pub struct ConnectionChange {
    /// The bucket.
    pub bucket: Option<String>,
    /// The address of the service.
    pub endpoint: Option<Option<String>>,
    /// The region of S3.
    pub region: Option<Option<String>>,
    /// The storage account of Azure.
    pub account: Option<Option<String>>,
    /// What every use of it is bounded to.
    pub prefix: Option<KeyPrefix>,
    /// Whether no use of it may write.
    pub read_only: Option<bool>,
    /// Whether the endpoint may be private.
    pub allows_private_endpoint: Option<bool>,
    /// The secret parts, all of them.
    pub credentials: Option<SecretVars>,
    /// Whether it is saved although it was not checked.
    pub skips_check: bool,
}

impl ConnectionChange {
    fn apply(self, connection: &mut StorageConnection) -> Result<(), Invalid> {
        connection.bucket = self.bucket.unwrap_or_else(|| connection.bucket.clone());
        connection.endpoint = self.endpoint.unwrap_or_else(|| connection.endpoint.clone());
        connection.region = self.region.unwrap_or_else(|| connection.region.clone());
        connection.account = self.account.unwrap_or_else(|| connection.account.clone());
        connection.prefix = self.prefix.unwrap_or_else(|| connection.prefix.clone());
        connection.read_only = self.read_only.unwrap_or(connection.read_only);
        connection.allows_private_endpoint =
            self.allows_private_endpoint.unwrap_or(connection.allows_private_endpoint);
        if let Some(credentials) = self.credentials {
            connection.credentials = credentials;
        }
        check_connection(connection)
    }
}

fn check_connection(connection: &StorageConnection) -> Result<(), Invalid> {
    let kind = connection.kind;
    check_word("bucket", &connection.bucket, "._-", 255)?;
    if let Some(endpoint) = &connection.endpoint {
        check_endpoint(endpoint, connection.allows_private_endpoint)?;
    }
    match (&connection.region, kind) {
        (Some(region), ObjectStoreKind::S3) => check_word("region", region, "-", 64)?,
        (Some(_), _) => return Err(Invalid::new("region is for connections of the kind s3")),
        (None, _) => {}
    }
    match (&connection.account, kind) {
        (Some(account), ObjectStoreKind::Azure) => check_word("account", account, "", 24)?,
        (Some(_), _) => return Err(Invalid::new("account is for connections of the kind azure")),
        (None, ObjectStoreKind::Azure) => {
            return Err(Invalid::new("account: a connection of the kind azure needs its account"));
        }
        (None, _) => {}
    }
    let bad = |secret: &str| secret.is_empty() || secret.len() > MAX_SECRET_BYTES;
    if let Some((name, _)) = connection.credentials.iter().find(|(_, part)| bad(part.reveal())) {
        return Err(Invalid::new(format!(
            "credentials: {name} must be 1 to {MAX_SECRET_BYTES} bytes"
        )));
    }
    if let Some(document) = connection.credentials.get("service_account_key") {
        check_service_account(document.reveal())?;
    }
    connection.to_object_connection().map(drop)
}

/// A service account document names a key. It must not lead to another address or turn signing off,
/// which the client library would obey.
fn check_service_account(document: &str) -> Result<(), Invalid> {
    let fields: serde_json::Map<String, serde_json::Value> = serde_json::from_str(document)
        .map_err(|_| Invalid::new("credentials: service_account_key is not a JSON document"))?;
    match ["gcs_base_url", "disable_oauth"].iter().find(|name| fields.contains_key(**name)) {
        Some(name) => Err(Invalid::new(format!(
            "credentials: service_account_key must not have {name}; use endpoint instead"
        ))),
        None => Ok(()),
    }
}

/// Letters, digits and some further characters, beginning with a letter or digit.
fn check_word(field: &str, word: &str, further: &str, most: usize) -> Result<(), Invalid> {
    let plain = |c: char| c.is_ascii_alphanumeric() || further.contains(c);
    let begins = word.starts_with(|c: char| c.is_ascii_alphanumeric());
    if !begins || word.len() > most || !word.chars().all(plain) || word.contains("..") {
        return Err(Invalid::new(format!(
            "{field} must be 1 to {most} letters, digits{}, beginning with a letter or digit",
            if further.is_empty() { "" } else { ", dots or hyphens" }
        )));
    }
    Ok(())
}

/// The form of an endpoint. Whether its address may be used is found out when it is.
fn check_endpoint(endpoint: &str, is_private_allowed: bool) -> Result<(), Invalid> {
    let invalid =
        || Invalid::new("endpoint must be a URL such as https://storage.example, without a path");
    let url = Url::parse(endpoint).map_err(|_| invalid())?;
    let plain = url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none()
        && url.path().split('/').filter(|part| !part.is_empty()).count() <= 1
        && url.host().is_some();
    if endpoint.chars().count() > MAX_ENDPOINT_CHARS || !plain {
        return Err(invalid());
    }
    match url.scheme() {
        "https" => Ok(()),
        "http" if is_private_allowed => Ok(()),
        "http" => {
            Err(Invalid::new("endpoint must use https; plain http needs allow_private_endpoint"))
        }
        _ => Err(invalid()),
    }
}

impl StorageSources {
    /// Makes a connection. It is checked first.
    ///
    /// # Errors
    /// When a field breaks a rule, the name is taken, or the check fails.
    pub async fn create_connection(
        &self,
        draft: ConnectionDraft,
    ) -> Result<StorageSource, Refusal> {
        let team = self.find_team(&draft.team).await?;
        check_name("name", &draft.name)?;
        let mut connection = StorageConnection {
            kind: draft.kind,
            endpoint: None,
            bucket: draft.bucket,
            region: None,
            account: None,
            prefix: KeyPrefix::default(),
            read_only: false,
            allows_private_endpoint: false,
            credentials: SecretVars::new(),
        };
        let skips_check = draft.settings.skips_check;
        draft.settings.apply(&mut connection)?;
        if !skips_check {
            check_bucket(&connection).await?.into_refusal()?;
        }
        let source = StorageSource {
            id: StorageId::from_random(secrets::random_bytes()?),
            team: team.id,
            name: draft.name,
            backing: StorageBacking::Connection(connection),
            created_at: clock::now(),
        };
        self.store.create_source(&source).await?;
        Ok(source)
    }

    /// Changes a connection; the next execution uses it so. It is checked first.
    ///
    /// # Errors
    /// As for a new one, or when there is none.
    pub async fn update_connection(
        &self,
        source: StorageSource,
        change: ConnectionChange,
    ) -> Result<StorageSource, Refusal> {
        let _turn = self.updating.lock().await;
        let missing = || Refusal::not_found("storage connection");
        let source = self.store.find_source(&source.id).await?.ok_or_else(missing)?;
        let mut connection = source.connection().cloned().ok_or_else(missing)?;
        let skips_check = change.skips_check;
        change.apply(&mut connection)?;
        if !skips_check {
            check_bucket(&connection).await?.into_refusal()?;
        }
        let source = StorageSource { backing: StorageBacking::Connection(connection), ..source };
        if !self.store.update_source(&source).await? {
            return Err(missing());
        }
        self.key_cache.forget_all();
        Ok(source)
    }

    /// Tries a connection: lists, writes, reads and deletes.
    ///
    /// # Errors
    /// When there is none.
    pub async fn check_connection(
        &self,
        source: &StorageSource,
    ) -> Result<ConnectionCheck, Refusal> {
        let missing = || Refusal::not_found("storage connection");
        check_bucket(source.connection().ok_or_else(missing)?).await
    }

    /// Removes a connection. Its bucket is left as it is.
    ///
    /// # Errors
    /// When there is none, or something uses it.
    pub async fn remove_connection(&self, source: &StorageSource) -> Result<(), Refusal> {
        let removal = self.store.remove_source(&source.id).await?;
        self.key_cache.forget_all();
        in_use_refusal(removal, "storage connection", &source.name)
    }
}

/// The refusal of a check that failed.
impl ConnectionCheck {
    fn into_refusal(self) -> Result<(), Refusal> {
        match self.failure() {
            None => Ok(()),
            Some(sentence) => {
                let message = format!("the connection was not saved: {sentence}");
                Err(Refusal::new(ErrorCode::Validation, message))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use cloche_model::Secret;

    use super::*;

    fn connection() -> StorageConnection {
        StorageConnection {
            kind: ObjectStoreKind::S3,
            endpoint: None,
            bucket: "bucket".to_owned(),
            region: None,
            account: None,
            prefix: KeyPrefix::default(),
            read_only: false,
            allows_private_endpoint: false,
            credentials: SecretVars::new(),
        }
    }

    #[test]
    fn an_endpoint_is_https_unless_the_operator_allows_private_ones() {
        for endpoint in ["https://s3.example", "https://s3.example:9000/", "https://a.example/acc"]
        {
            assert!(check_endpoint(endpoint, false).is_ok(), "{endpoint}");
        }
        assert!(check_endpoint("http://127.0.0.1:9000", true).is_ok());
        for endpoint in [
            "http://s3.example",
            "ftp://s3.example",
            "s3.example",
            "https://",
            "https://user:pass@s3.example",
            "https://s3.example/?a=b",
            "https://s3.example/#x",
            "https://s3.example/a/b",
            "file:///etc/passwd",
        ] {
            assert!(check_endpoint(endpoint, false).is_err(), "{endpoint}");
        }
    }

    #[test]
    fn secret_parts_belong_to_their_kind() {
        let part = |name: &str| SecretVars::from([(name.to_owned(), Secret::new("x"))]);
        let with = |kind, credentials| StorageConnection { kind, credentials, ..connection() };
        assert!(check_connection(&connection()).is_ok());
        assert!(check_connection(&with(ObjectStoreKind::S3, part("access_key_id"))).is_err());
        assert!(check_connection(&with(ObjectStoreKind::S3, part("account_key"))).is_err());
        let document =
            |text: &str| SecretVars::from([("service_account_key".to_owned(), Secret::new(text))]);
        for (text, is_good) in [
            (r#"{"client_email": "a@b.example", "private_key": "k"}"#, true),
            (r#"{"gcs_base_url": "http://169.254.169.254", "disable_oauth": true}"#, false),
            ("not json", false),
        ] {
            let checked = check_connection(&with(ObjectStoreKind::Gcs, document(text)));
            assert_eq!(checked.is_ok(), is_good, "{text}");
        }
        let azure = with(ObjectStoreKind::Azure, part("account_key"));
        assert!(check_connection(&azure).is_err(), "it has no account");
        let azure = StorageConnection { account: Some("acc".to_owned()), ..azure };
        assert!(check_connection(&azure).is_ok());
    }

    #[test]
    fn a_bucket_is_one_plain_name() {
        for bucket in ["", "a/b", "..", "-a", "a b", "a?x", "a#", "a%2f"] {
            let connection = StorageConnection { bucket: bucket.to_owned(), ..connection() };
            assert!(check_connection(&connection).is_err(), "{bucket}");
        }
    }
}
