//! Runs in: server (no capabilities), mount server (no capabilities). Opens the concrete store of a
//! connection.
//!
//! The concrete types are kept, because listing by pages and uploading by parts are traits of
//! theirs. Credentials are always set: without them the builders would ask the metadata service of
//! this host.

use std::{sync::Arc, time::Duration};

use cloche_model::{ObjectConnection, ObjectCredentials, ObjectStoreKind};
use object_store::{
    BackoffConfig, ObjectStore, RetryConfig, StaticCredentialProvider,
    aws::{AmazonS3, AmazonS3Builder},
    azure::{MicrosoftAzure, MicrosoftAzureBuilder},
    gcp::{GcpCredential, GoogleCloudStorage, GoogleCloudStorageBuilder},
    list::PaginatedListStore,
    multipart::MultipartStore,
};
use url::{Host, Url};

use super::{EndpointAccess, endpoint_access::is_allowed, http_client::GuardedConnector};
use crate::StorageError;

/// The region if a connection names none.
const DEFAULT_REGION: &str = "us-east-1";
/// The endpoint of Google Cloud Storage if a connection names none.
const GCS_ENDPOINT: &str = "https://storage.googleapis.com";

/// The store of a connection.
#[derive(Clone)]
pub(super) enum Backend {
    S3(Arc<AmazonS3>),
    Gcs(Arc<GoogleCloudStorage>),
    Azure(Arc<MicrosoftAzure>),
}

impl Backend {
    pub(super) fn open(
        connection: &ObjectConnection,
        connector: GuardedConnector,
    ) -> Result<Self, StorageError> {
        check_endpoint(connection)?;
        if connection.bucket.is_empty() || connection.bucket.contains(['/', '?', '#', '%']) {
            return Err(StorageError::Invalid("the bucket has no plain name".to_owned()));
        }
        match connection.kind {
            ObjectStoreKind::S3 => open_s3(connection, connector),
            ObjectStoreKind::Gcs => open_gcs(connection, connector),
            ObjectStoreKind::Azure => open_azure(connection, connector),
        }
    }

    pub(super) fn objects(&self) -> &dyn ObjectStore {
        match self {
            Self::S3(store) => &**store,
            Self::Gcs(store) => &**store,
            Self::Azure(store) => &**store,
        }
    }

    pub(super) fn parts(&self) -> &dyn MultipartStore {
        match self {
            Self::S3(store) => &**store,
            Self::Gcs(store) => &**store,
            Self::Azure(store) => &**store,
        }
    }

    /// Whether writes are conditional on the generation of an object instead of its tag.
    pub(super) fn has_generations(&self) -> bool {
        matches!(self, Self::Gcs(_))
    }

    /// Whether the signature of a request covers the headers of conditions, so that none can be
    /// added to a request that the library has signed.
    pub(super) fn signs_conditions(&self) -> bool {
        matches!(self, Self::Azure(_))
    }

    /// Listing by pages.
    pub(super) fn pages(&self) -> &dyn PaginatedListStore {
        match self {
            Self::S3(store) => &**store,
            Self::Gcs(store) => &**store,
            Self::Azure(store) => &**store,
        }
    }
}

/// Few attempts within a short time: a guest waits, and its operation has a deadline.
fn retries() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(1),
            base: 2.,
        },
        max_retries: 3,
        retry_timeout: Duration::from_secs(8),
    }
}

fn wrong_credentials(kind: &str) -> StorageError {
    StorageError::Invalid(format!("these credentials are not those of {kind}"))
}

fn open_s3(
    connection: &ObjectConnection,
    connector: GuardedConnector,
) -> Result<Backend, StorageError> {
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(&connection.bucket)
        .with_region(connection.region.as_deref().unwrap_or(DEFAULT_REGION))
        .with_allow_http(connection.allows_private_endpoint)
        .with_retry(retries())
        .with_http_connector(connector);
    if let Some(endpoint) = &connection.endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    let builder = match &connection.credentials {
        ObjectCredentials::Anonymous => builder.with_skip_signature(true),
        ObjectCredentials::AccessKey { id, secret, session_token } => {
            let builder = builder.with_access_key_id(id).with_secret_access_key(secret.reveal());
            match session_token {
                Some(token) => builder.with_token(token.reveal()),
                None => builder,
            }
        }
        _ => return Err(wrong_credentials("s3")),
    };
    Ok(Backend::S3(Arc::new(builder.build()?)))
}

fn open_gcs(
    connection: &ObjectConnection,
    connector: GuardedConnector,
) -> Result<Backend, StorageError> {
    let mut builder = GoogleCloudStorageBuilder::new()
        .with_bucket_name(&connection.bucket)
        .with_retry(retries())
        .with_http_connector(connector);
    // Always set: the document of a service account could name another one, which was not checked.
    builder = builder.with_base_url(connection.endpoint.as_deref().unwrap_or(GCS_ENDPOINT));
    let builder = match &connection.credentials {
        // With empty credentials, so that the library does not look for some on this host.
        ObjectCredentials::Anonymous => {
            let none = GcpCredential { bearer: String::new() };
            let none = Arc::new(StaticCredentialProvider::new(none));
            builder.with_skip_signature(true).with_credentials(none)
        }
        ObjectCredentials::ServiceAccount(document) => {
            builder.with_service_account_key(document.reveal())
        }
        _ => return Err(wrong_credentials("gcs")),
    };
    Ok(Backend::Gcs(Arc::new(builder.build()?)))
}

fn open_azure(
    connection: &ObjectConnection,
    connector: GuardedConnector,
) -> Result<Backend, StorageError> {
    let mut builder = MicrosoftAzureBuilder::new()
        .with_container_name(&connection.bucket)
        .with_allow_http(connection.allows_private_endpoint)
        .with_retry(retries())
        .with_http_connector(connector);
    if let Some(endpoint) = &connection.endpoint {
        builder = builder.with_endpoint(endpoint.clone());
    }
    let builder = match &connection.credentials {
        ObjectCredentials::AccountKey { account, key } => {
            builder.with_account(account).with_access_key(key.reveal())
        }
        _ => return Err(wrong_credentials("azure")),
    };
    Ok(Backend::Azure(Arc::new(builder.build()?)))
}

/// Checks what the URL of an endpoint says already. Names are checked when they are resolved.
fn check_endpoint(connection: &ObjectConnection) -> Result<(), StorageError> {
    let Some(endpoint) = &connection.endpoint else { return Ok(()) };
    let invalid = |why: &str| Err(StorageError::Invalid(format!("the endpoint {why}")));
    let Ok(url) = Url::parse(endpoint) else { return invalid("is not a URL") };
    let allows_private = connection.allows_private_endpoint;
    match url.scheme() {
        "https" => {}
        "http" if allows_private => {}
        "http" => return invalid("must use https unless the operator allows private endpoints"),
        _ => return invalid("must be an https URL"),
    }
    if !url.username().is_empty() || url.password().is_some() {
        return invalid("must not contain a user name or password");
    }
    if url.query().is_some() || url.fragment().is_some() {
        return invalid("must have no query");
    }
    let address = match url.host() {
        Some(Host::Ipv4(ip)) => ip.into(),
        Some(Host::Ipv6(ip)) => ip.into(),
        Some(Host::Domain(_)) => return Ok(()),
        None => return invalid("has no host"),
    };
    match is_allowed(address, allows_private) {
        true => Ok(()),
        false => invalid("has an address that storage may not be at"),
    }
}

/// A backend with its client.
pub(super) fn open_backend(
    connection: &ObjectConnection,
    access: Arc<dyn EndpointAccess>,
) -> Result<(Backend, Arc<std::sync::atomic::AtomicU64>), StorageError> {
    let connector = GuardedConnector::new(access, connection.allows_private_endpoint);
    let hidden = connector.hidden_counter();
    Ok((Backend::open(connection, connector)?, hidden))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(endpoint: &str, private: bool) -> ObjectConnection {
        ObjectConnection {
            kind: ObjectStoreKind::S3,
            endpoint: Some(endpoint.to_owned()),
            bucket: "b".to_owned(),
            region: None,
            credentials: ObjectCredentials::Anonymous,
            allows_private_endpoint: private,
        }
    }

    #[test]
    fn an_endpoint_that_leads_inside_is_refused() {
        for endpoint in [
            "http://example.com",
            "https://127.0.0.1",
            "https://169.254.169.254/latest",
            "https://[::1]:9000",
            "https://user:pw@example.com",
            "file:///etc/passwd",
            "https://10.1.2.3",
            "nonsense",
        ] {
            assert!(check_endpoint(&connection(endpoint, false)).is_err(), "{endpoint}");
        }
        assert!(check_endpoint(&connection("https://example.com", false)).is_ok());
        assert!(check_endpoint(&connection("http://127.0.0.1:5000", true)).is_ok());
        assert!(check_endpoint(&connection("http://169.254.169.254", true)).is_err());
    }
}
