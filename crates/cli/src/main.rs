//! The `cloche` binary: the composition root, and the only place that names concrete types.
//!
//! Each subcommand is a file of its own; this one only says which there are.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod admin;
mod doctor;
mod executor;
mod identity;
mod local_dispatcher;
mod mcp;
mod run;
mod serve;
mod verify;

/// Runs code nobody has read yet, in a box that holds.
#[derive(Parser)]
#[command(name = "cloche", version)]
struct CliArguments {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Subcommand)]
enum CliCommand {
    /// Run a program in a fresh sandbox, without a server.
    Run(Box<run::RunArguments>),
    /// Start the server.
    Serve(serve::ServeArguments),
    /// Start an executor sidecar: runs code for other servers, keeps nothing.
    Executor(Box<executor::ExecutorArguments>),
    /// Serve an MCP client on standard input and output.
    Mcp(mcp::McpArguments),
    /// Keys of a running server: make, list, change and revoke them.
    Key(Box<admin::KeyArguments>),
    /// Calls of agents that wait for a person, and what was decided.
    Approval(admin::ApprovalArguments),
    /// Teams of a running server, their plans and their gates.
    Team(admin::TeamArguments),
    /// Sandbox configurations of a running server.
    Sandbox(Box<admin::SandboxArguments>),
    /// Threads of a running server: their history, forks, ways back, export and import.
    Thread(Box<admin::ThreadArguments>),
    /// Say which walls this host can build, and how to get those it cannot.
    Doctor(doctor::DoctorArguments),
    /// Attack the sandbox on this very host and print what held.
    Verify(verify::VerifyArguments),
    /// The privileged half; started by cloche itself.
    #[command(name = "__spawner", hide = true)]
    Spawner,
    /// Confines itself as a server does and tries something; started by `cloche doctor`.
    #[command(name = "__confined", hide = true)]
    Confined(identity::trial::TrialArguments),
}

fn main() -> ExitCode {
    match CliArguments::parse().command {
        CliCommand::Run(arguments) => run::main(*arguments),
        CliCommand::Serve(arguments) => serve::main(arguments),
        CliCommand::Executor(arguments) => executor::main(*arguments),
        CliCommand::Mcp(arguments) => mcp::main(arguments),
        CliCommand::Key(arguments) => admin::run_key_command(*arguments),
        CliCommand::Approval(arguments) => admin::run_approval_command(arguments),
        CliCommand::Team(arguments) => admin::run_team_command(arguments),
        CliCommand::Sandbox(arguments) => admin::run_sandbox_command(*arguments),
        CliCommand::Thread(arguments) => admin::run_thread_command(*arguments),
        CliCommand::Doctor(arguments) => doctor::main(&arguments),
        CliCommand::Verify(arguments) => verify::main(&arguments),
        CliCommand::Spawner => run_spawner(),
        CliCommand::Confined(arguments) => identity::trial::main(&arguments),
    }
}

fn run_spawner() -> ExitCode {
    cloche_executor::spawner::run_spawner().unwrap_or_else(|error| {
        print_error(&error);
        ExitCode::from(2)
    })
}

/// Says what went wrong, with every cause, on one line of standard error.
#[expect(clippy::print_stderr, reason = "this is the terminal's edge")]
fn print_error(error: &dyn std::error::Error) {
    eprintln!("cloche: {}", cloche_model::error_chain(error));
}
