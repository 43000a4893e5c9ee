//! `cloche run`: one program in a fresh sandbox, live, with the guest's exit code as ours.

use std::process::ExitCode;

use clap::Args;
use cloche_executor::{Config, Executor, RunIo};
use cloche_model::{Language, RunSpec};

/// What `cloche run` takes.
#[derive(Args)]
pub(crate) struct RunArguments {
    /// The program itself.
    #[arg(short = 'c')]
    code: String,
    /// The language it is written in.
    #[arg(long)]
    language: Language,
}

/// Runs the program.
pub(crate) fn main(arguments: RunArguments) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let executor = Executor::start(Config::with_program("/proc/self/exe")).await.unwrap();
        let spec = RunSpec::new(arguments.language, arguments.code);
        let outcome = executor.run(spec, RunIo::default()).await;
        println!("{outcome:?}");
        executor.stop().await;
    });
    ExitCode::SUCCESS
}
