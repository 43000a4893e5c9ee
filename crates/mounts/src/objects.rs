//! Runs in: server (no capabilities), mount server (no capabilities). A bucket, as this project
//! uses one: explicit credentials, guarded addresses, no redirect, and no surprise by a key.

mod backend;
mod endpoint_access;
mod http_client;
mod listing;
mod object_path;
mod storage;

pub(crate) use endpoint_access::parse_roots;
pub use endpoint_access::{EndpointAccess, LookupFuture, SystemAccess, trusted_roots};
pub(crate) use http_client::STALL_TIMEOUT;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use listing::filter_listing;
pub use object_path::ObjectPath;
pub use storage::{ListPage, ListedObject, ObjectBody, ObjectInfo, ObjectStorage, PutCondition};
