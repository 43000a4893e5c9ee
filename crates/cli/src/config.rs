//! `cloche config`: checks a configuration file, shows the effective settings, and prints the
//! reference page and a sample file.
//!
//! The settings structs of `cloche serve` are the only definition. `reference` reads their schema,
//! `show` finds where each value comes from, `page` prints.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{ArgMatches, Args, Subcommand};

use crate::{
    print_error,
    serve::{Failure, ServeArguments, check_settings},
};

mod page;
mod reference;
mod show;

/// The arguments of `cloche config`.
#[derive(Args)]
pub(crate) struct ConfigArguments {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Subcommand)]
enum ConfigCommand {
    /// Check a configuration file without starting anything.
    Check {
        /// The file.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Show the effective settings of `cloche serve` with the same options, and their origins.
    Show(Box<ShowArguments>),
    /// Print a configuration file with every setting, commented out, at its default.
    Sample,
    /// Print the reference of all settings in Markdown.
    Reference,
}

/// The arguments of `cloche config show`.
#[derive(Args)]
struct ShowArguments {
    #[command(flatten)]
    serve: ServeArguments,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// Runs the command. `matches` tells where each argument of `show` comes from.
pub(crate) fn main(arguments: ConfigArguments, matches: Option<&ArgMatches>) -> ExitCode {
    let matches = matches.and_then(|matches| matches.subcommand_matches("show"));
    let done = match arguments.command {
        ConfigCommand::Check { file } => check_file(file),
        ConfigCommand::Show(show) => show_settings(*show, matches),
        ConfigCommand::Sample => print_text(&page::sample_file(&reference::setting_entries())),
        ConfigCommand::Reference => {
            print_text(&page::reference_page(&reference::setting_entries()))
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&*error);
            ExitCode::FAILURE
        }
    }
}

fn check_file(file: PathBuf) -> Result<(), Failure> {
    let shown = file.display().to_string();
    check_settings(ServeArguments::with_file(file))?;
    print_text(&format!("{shown}: valid\n"))
}

fn show_settings(arguments: ShowArguments, matches: Option<&ArgMatches>) -> Result<(), Failure> {
    let file = arguments.serve.file().map(Path::to_owned);
    check_settings(arguments.serve)?;
    let shown = show::effective_settings(&reference::setting_entries(), file.as_deref(), matches)?;
    let text = if arguments.json { show::to_json(&shown)? } else { show::to_table(&shown) };
    print_text(&text)
}

fn print_text(text: &str) -> Result<(), Failure> {
    use std::io::Write;
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}
