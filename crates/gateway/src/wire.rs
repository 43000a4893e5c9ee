//! What goes over the wire: names, types and their description. Everything that comes in is
//! untrusted; everything that goes out is made here from the engine's words.

mod admin;
mod errors;
mod execute;
mod execution;
pub(crate) mod number;

pub(crate) use admin::{
    CreateKey, CreateSandbox, CreateTeam, CreatedKey, KeyList, KeyRecord, SandboxList,
    SandboxRecord, TeamList, TeamRecord, UpdateKey, UpdateSandbox, UpdateTeam,
};
pub(crate) use errors::{ErrorBody, Errors};
pub(crate) use execute::{
    Accepted, ExecuteBody, ExecuteResult, LanguageName, StatusName, TimedOut, ndjson,
};
pub(crate) use execution::{ExecutionPage, ExecutionRecord, Health};
