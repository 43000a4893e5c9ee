//! `cloche verify`: attacks the sandbox on this very host and prints what held.
//!
//! Exit codes: 0 when every probe held, 1 when one broke, 2 when it could not be tried.

use std::{
    error::Error,
    io::{self, Write},
    process::ExitCode,
};

use clap::Args;
use cloche_egress::EgressSettings;
use cloche_verify::{choose_probes, run_probes, to_inert_text};

use crate::network::BrokerProcess;

/// What `cloche verify` takes.
#[derive(Args)]
pub(crate) struct VerifyArguments {
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Only the probes with these names.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
}

/// Runs the probes.
#[expect(clippy::print_stderr, reason = "this is the terminal's edge")]
pub(crate) fn main(arguments: &VerifyArguments) -> ExitCode {
    match run_verify(arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!(
                "cloche verify: {}",
                to_inert_text(&cloche_model::error_chain(error.as_ref()))
            );
            ExitCode::from(2)
        }
    }
}

fn run_verify(arguments: &VerifyArguments) -> Result<bool, Box<dyn Error>> {
    let chosen = choose_probes(&arguments.only)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(async {
        let broker = BrokerProcess::start("/proc/self/exe".as_ref(), EgressSettings::default())?;
        // Without a broker the probes of networks are not tried, and say so.
        run_probes(&chosen, broker.connect().await.ok()).await
    })?;
    let mut out = io::stdout().lock();
    match arguments.json {
        true => report.write_json(&mut out)?,
        false => report.write_table(&mut out)?,
    }
    out.flush()?;
    Ok(report.broke == 0)
}
