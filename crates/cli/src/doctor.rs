//! `cloche doctor`: each wall, present or missing, why, and how to get it.

use std::process::ExitCode;

use clap::Args;

/// What `cloche doctor` takes.
#[derive(Args)]
pub(crate) struct DoctorArguments {
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// Looks at this host.
pub(crate) fn main(arguments: &DoctorArguments) -> ExitCode {
    let _ = arguments.json;
    ExitCode::FAILURE
}
