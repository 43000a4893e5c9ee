//! The `cloche` binary: the composition root. It chooses the concrete types of all parts.
//!
//! Each subcommand has a file of its own; this one lists them.

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

mod admin;
mod backup;
mod config;
mod container_profile;
mod doctor;
mod executor;
mod identity;
mod local_dispatcher;
mod manual;
mod mcp;
mod network;
mod run;
mod serve;
mod verify;

/// Run untrusted code in an isolated sandbox.
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
    /// Start an executor sidecar, which runs code for other servers.
    Executor(Box<executor::ExecutorArguments>),
    /// Serve an MCP client on standard input and output.
    Mcp(mcp::McpArguments),
    /// Manage keys of a running server: create, list, change and revoke them.
    Key(Box<admin::KeyArguments>),
    /// Manage credentials of a running server: values for sandboxes, brokered or injected.
    Credential(Box<admin::CredentialArguments>),
    /// Replace the admin token of a running server.
    AdminToken(admin::AdminTokenArguments),
    /// Answer approval requests of agents, and list decisions.
    Approval(admin::ApprovalArguments),
    /// Manage teams of a running server, their plans and their gates.
    Team(admin::TeamArguments),
    /// Manage people who can sign in to the console.
    Member(admin::MemberArguments),
    /// Manage sandbox configurations of a running server.
    Sandbox(Box<admin::SandboxArguments>),
    /// Manage the images of a running server: pull, import, list and remove them.
    Image(Box<admin::ImageArguments>),
    /// Manage threads of a running server: history, forks, rollback, export and import.
    Thread(Box<admin::ThreadArguments>),
    /// Manage connections to buckets, and which sandboxes and keys may use them.
    Storage(Box<admin::StorageArguments>),
    /// Manage volumes: storage of teams that this server keeps.
    Volume(Box<admin::VolumeArguments>),
    /// Show what teams and keys used: executions, credits, processor time, bytes.
    Usage(admin::UsageArguments),
    /// Copy everything that a running server keeps to a directory or a bucket.
    Backup(Box<backup::BackupArguments>),
    /// Make a data directory from a backup, check a backup, or list backups.
    Restore(Box<backup::RestoreArguments>),
    /// Check and show the configuration of the server.
    Config(Box<config::ConfigArguments>),
    /// Report which walls this host supports, and how to get the missing ones.
    Doctor(doctor::DoctorArguments),
    /// Attack the sandbox on this host and print which walls held.
    Verify(verify::VerifyArguments),
    /// Print completions for a shell.
    Completions(manual::CompletionsArguments),
    /// Write the manual pages to a directory; used to build packages.
    #[command(name = "__manual", hide = true)]
    Manual(manual::ManualArguments),
    /// The privileged process; started by cloche itself.
    #[command(name = "__spawner", hide = true)]
    Spawner,
    /// The process that reads the server's certificate; started by `cloche serve`.
    #[command(name = "__tls-files", hide = true)]
    TlsReader(serve::tls_reader::TlsReaderArguments),
    /// The process that dials for cells with a network; started by cloche itself.
    #[command(name = network::BROKER, hide = true)]
    NetworkBroker,
    /// The process that starts the one before, and again when it ends; started by `cloche serve`.
    #[command(name = network::SUPERVISOR, hide = true)]
    NetworkSupervisor,
    /// A process that confines itself like a server and runs a trial; started by `cloche doctor`.
    #[command(name = "__confined", hide = true)]
    Confined(identity::trial::TrialArguments),
}

fn main() -> ExitCode {
    let matches = CliArguments::command().get_matches();
    let arguments = CliArguments::from_arg_matches(&matches);
    // What clap matched is what clap generated.
    let command = arguments.unwrap_or_else(|error| error.exit()).command;
    let own_matches = matches.subcommand().map(|(_, own)| own);
    match command {
        CliCommand::Run(arguments) => run::main(*arguments),
        CliCommand::Serve(arguments) => serve::main(arguments),
        CliCommand::Executor(arguments) => executor::main(*arguments),
        CliCommand::Mcp(arguments) => mcp::main(arguments),
        CliCommand::Key(arguments) => admin::run_key_command(*arguments),
        CliCommand::Credential(arguments) => admin::run_credential_command(*arguments),
        CliCommand::AdminToken(arguments) => admin::run_admin_token_command(arguments),
        CliCommand::Approval(arguments) => admin::run_approval_command(arguments),
        CliCommand::Team(arguments) => admin::run_team_command(arguments),
        CliCommand::Member(arguments) => admin::run_member_command(arguments),
        CliCommand::Sandbox(arguments) => admin::run_sandbox_command(*arguments),
        CliCommand::Image(arguments) => admin::run_image_command(*arguments),
        CliCommand::Thread(arguments) => admin::run_thread_command(*arguments),
        CliCommand::Storage(arguments) => admin::run_storage_command(*arguments),
        CliCommand::Volume(arguments) => admin::run_volume_command(*arguments),
        CliCommand::Usage(arguments) => admin::run_usage_command(arguments),
        CliCommand::Backup(arguments) => backup::run_backup_command(*arguments),
        CliCommand::Restore(arguments) => backup::run_restore_command(*arguments),
        CliCommand::Config(arguments) => config::main(*arguments, own_matches),
        CliCommand::Doctor(arguments) => doctor::main(&arguments),
        CliCommand::Verify(arguments) => verify::main(&arguments),
        CliCommand::Completions(arguments) => manual::print_completions(&arguments),
        CliCommand::Manual(arguments) => manual::write_pages(&arguments),
        CliCommand::Spawner => run_spawner(),
        CliCommand::TlsReader(arguments) => serve::tls_reader::main(&arguments),
        CliCommand::NetworkBroker => network::broker::main(),
        CliCommand::NetworkSupervisor => network::supervisor::main(),
        CliCommand::Confined(arguments) => identity::trial::main(&arguments),
    }
}

fn run_spawner() -> ExitCode {
    cloche_executor::spawner::run_spawner().unwrap_or_else(|error| {
        print_error(&error);
        ExitCode::from(2)
    })
}

/// Prints an error with all its causes on one line of standard error.
#[expect(clippy::print_stderr, reason = "this is the terminal's edge")]
fn print_error(error: &dyn std::error::Error) {
    eprintln!("cloche: {}", cloche_model::error_chain(error));
}
