//! Runs in: server, broker, broker supervisor, stack worker.
//!
//! The network of cells.
//!
//! A cell with a network has a tun device in its own network namespace, and nothing of the host's
//! network. These processes carry its traffic:
//!
//! | folder | process and privilege |
//! |---|---|
//! | [`client`] | the server, without capabilities: opens sessions, gets reports |
//! | [`broker`] | the broker, without capabilities: policy, DNS, dialling, checks of names |
//! | [`supervisor`] | without capabilities: starts the broker, and the next one when it has ended |
//! | [`stack`] | a stack worker, one for each cell: terminates TCP and UDP of the cell; it can open no socket |
//! | `protocol`, [`addresses`], [`settings`] | several of these |
//!
//! The worker parses packets of the guest and asks the broker for each connection. The broker
//! answers with a connected socket or a refusal, so bulk bytes do not cross it. Everything fails
//! closed: without a worker or without a broker there is no way out of the cell.
//!
//! The crate must not know what a tenant or an execution is, nor how a cell is made.

pub mod addresses;
pub mod broker;
pub mod client;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod protocol;
mod session_credential;
pub mod settings;
pub mod stack;
pub mod supervisor;

pub use client::{BrokerClient, NetworkSession, SessionError, SessionSpec};
use session_credential::SessionCredential;
pub use settings::EgressSettings;
