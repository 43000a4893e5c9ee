//! `cloche verify`: attacks the sandbox on this very host and prints what held.

use std::process::ExitCode;

use clap::Args;

/// What `cloche verify` takes.
#[derive(Args)]
pub(crate) struct VerifyArguments {
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// Runs the probes.
pub(crate) fn main(arguments: &VerifyArguments) -> ExitCode {
    let _ = arguments.json;
    ExitCode::FAILURE
}
