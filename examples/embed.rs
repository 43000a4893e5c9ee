//! Cloche as a library: the ten lines between a program and its output.
//!
//! The same binary serves as the spawner: `ExecutorConfig` says how it is started as one. Run it by
//! `cargo run -p cloche-executor --example embed`.

use std::{error::Error, process::ExitCode};

use cloche_executor::{Executor, ExecutorConfig, RunIo, spawner};
use cloche_model::{Language, RunSpec};

#[tokio::main]
#[expect(clippy::print_stdout, reason = "this is the terminal's edge")]
async fn run() -> Result<(), Box<dyn Error>> {
    let executor = Executor::start(ExecutorConfig::with_program(std::env::current_exe()?)).await?;
    let spec = RunSpec::new(Language::Python, "print(6 * 7)");
    let outcome = executor.run(spec, RunIo::default()).await?;
    print!("{}", outcome.stdout.to_text_lossy());
    executor.stop().await;
    Ok(())
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    if std::env::args().nth(1).as_deref() == Some("__spawner") {
        return Ok(spawner::run_spawner()?);
    }
    run().map(|()| ExitCode::SUCCESS)
}
