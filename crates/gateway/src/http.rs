//! The HTTP handlers, one file for each resource. A handler converts a request, calls the engine,
//! and converts the result. It makes no decisions.

pub(crate) mod admin_token;
pub(crate) mod approvals;
pub(crate) mod audit_log;
pub(crate) mod backups;
pub(crate) mod credentials;
pub(crate) mod docs;
pub(crate) mod execute;
mod execute_json;
pub(crate) mod execution_files;
pub(crate) mod executions;
pub(crate) mod files;
pub(crate) mod gates;
pub(crate) mod health;
pub(crate) mod images;
pub(crate) mod keys;
pub(crate) mod members;
pub(crate) mod responses;
pub(crate) mod sandboxes;
pub(crate) mod signed_files;
pub(crate) mod storage;
pub(crate) mod teams;
mod text_meter;
pub(crate) mod thread_archive;
pub(crate) mod thread_files;
pub(crate) mod threads;
pub(crate) mod usage;
pub(crate) mod usage_rows;
pub(crate) mod volumes;
