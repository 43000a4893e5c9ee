//! `cloche completions`, and the manual pages of a package. Both are generated from the definition
//! of the command line, so they never differ from what the parser accepts.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::{CliArguments, print_error};

/// The arguments of `cloche completions`.
#[derive(Args)]
pub(crate) struct CompletionsArguments {
    /// The shell.
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// The arguments of `cloche __manual`.
#[derive(Args)]
pub(crate) struct ManualArguments {
    /// The directory, which must exist.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Prints completions for a shell on standard output.
pub(crate) fn print_completions(arguments: &CompletionsArguments) -> ExitCode {
    let mut command = visible_part(CliArguments::command());
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "cloche", &mut script);
    finish(io::Write::write_all(&mut io::stdout(), &script))
}

/// Writes a page for the program and one for each command: `cloche.1`, `cloche-run.1`.
pub(crate) fn write_pages(arguments: &ManualArguments) -> ExitCode {
    let mut command = visible_part(CliArguments::command()).disable_help_subcommand(true);
    command.build();
    finish(write_page(&command, &arguments.directory))
}

fn write_page(command: &Command, directory: &Path) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let source = concat!("cloche ", env!("CARGO_PKG_VERSION"));
    let page = Man::new(command.clone()).title(name.clone()).source(source).manual("Cloche");
    let mut text = Vec::new();
    page.render(&mut text)?;
    fs::write(directory.join(format!("{name}.1")), text)?;
    let mut below = command.get_subcommands().filter(|below| !below.is_hide_set());
    below.try_for_each(|below| write_page(below, directory))
}

/// The command without its hidden subcommands, which cloche starts by itself.
fn visible_part(command: Command) -> Command {
    let mut visible = Command::new("cloche").version(env!("CARGO_PKG_VERSION"));
    if let Some(about) = command.get_about() {
        visible = visible.about(about.clone());
    }
    visible.subcommands(command.get_subcommands().filter(|below| !below.is_hide_set()).cloned())
}

fn finish(done: io::Result<()>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&error);
            ExitCode::FAILURE
        }
    }
}
