//! What operators do: teams, sandboxes and keys. Everything is checked here, whoever asks.

mod keys;
mod sandboxes;
mod teams;

pub use keys::{KeyChange, KeyDraft, NewKey};
pub use sandboxes::{SandboxChange, SandboxDraft};
pub use teams::{TeamChange, TeamDraft};
