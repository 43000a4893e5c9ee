//! The gates in front of the sandbox tool: the one place where it is decided whether a model's code
//! may run.

use cloche_engine::{Caller, Engine, Refusal};

/// Whether the tool can be had at all.
#[expect(clippy::unused_async, reason = "the settings of a team are looked up here")]
pub(crate) async fn check_offered(_engine: &Engine, _caller: &Caller) -> Result<(), Refusal> {
    Ok(())
}
