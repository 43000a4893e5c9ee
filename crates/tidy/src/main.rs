//! `tidy`: checks the habits of the project that neither the compiler nor clippy does.
//!
//! Prints one line for each violation and exits with 1 if there was any. This file reads the tree;
//! the checks are pure functions of what it read and must not touch the disk, except for
//! `generated`, which runs the binary.

mod arrows;
mod docs;
mod generated;
mod lexer;
mod rules;
mod runs_in;
mod shape;
mod tree;
mod type_names;
mod unsafety;
mod white_space;

use std::{
    error::Error,
    fs,
    io::{self, Write},
    path::Path,
    process::{Command, ExitCode},
};

use rules::TidyRules;
use tree::{TreeFile, Violation};

/// A check looks at the whole tree and says what is wrong with it.
type TreeCheck = fn(&TidyRules, &[TreeFile]) -> Vec<Violation>;

const CHECKS: [TreeCheck; 7] = [
    arrows::check_arrows,
    unsafety::check_unsafe,
    shape::check_shape,
    runs_in::check_runs_in,
    type_names::check_type_names,
    docs::check_docs,
    white_space::check_white_space,
];

fn main() -> ExitCode {
    match check_tree() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            let _ = writeln!(io::stderr(), "tidy: {error}");
            ExitCode::from(2)
        }
    }
}

fn check_tree() -> Result<bool, Box<dyn Error>> {
    let rules = TidyRules::load()?;
    let files = read_tree()?;
    let mut found: Vec<Violation> = CHECKS.iter().flat_map(|check| check(&rules, &files)).collect();
    found.extend(generated::check_generated(&files)?);
    found.sort();
    let mut out = io::stdout().lock();
    for violation in &found {
        writeln!(out, "{violation}")?;
    }
    Ok(found.is_empty())
}

/// Everything in the tree that git tracks or would track, as text where it is text.
fn read_tree() -> Result<Vec<TreeFile>, Box<dyn Error>> {
    let root = run_git(&["rev-parse", "--show-toplevel"])?;
    let root = root.trim_end();
    let listed = ["-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let listed = run_git(&listed)?;
    let paths = listed.split('\0').filter(|path| !path.is_empty());
    // What cannot be read was deleted but not yet committed, or is a link to a directory.
    let read = paths.filter_map(|path| Some((path, fs::read(Path::new(root).join(path)).ok()?)));
    let files = read.map(|(path, bytes)| TreeFile {
        path: path.to_owned(),
        text: String::from_utf8(bytes).ok(),
    });
    Ok(files.collect())
}

fn run_git(args: &[&str]) -> Result<String, Box<dyn Error>> {
    // A checkout made by another user, as in many CI containers, is fine for reading.
    let output = Command::new("git").args(["-c", "safe.directory=*"]).args(args).output()?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        return Err(format!("git could not list the files: {}", reason.trim()).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}
