//! What operators do: teams, sandboxes, keys, gates and approvals. Everything is checked here, whoever asks.

mod approvals;
mod env;
mod gates;
mod keys;
mod sandboxes;
mod teams;

pub use approvals::Approver;
pub use env::EnvDraft;
pub use gates::GateChange;
pub use keys::{KeyChange, KeyDraft, NewKey};
pub use sandboxes::{ResourcesChange, RetentionChange, SandboxChange, SandboxDraft};
pub use teams::{TeamChange, TeamDraft};
