//! `tidy`: checks the habits of the project that neither the compiler nor clippy does.
//!
//! Prints one line for each violation and exits with 1 if there was any. This file reads the tree;
//! the checks are pure functions of what it read and must not touch the disk.

mod arrows;
mod docs;
mod lexer;
mod rules;
mod shape;
mod text;
mod tree;
mod unsafety;

use std::{
    error::Error,
    fs,
    io::{self, Write},
    path::Path,
    process::{Command, ExitCode},
};

use rules::Rules;
use tree::{File, Violation};

/// A check looks at the whole tree and says what is wrong with it.
type Check = fn(&Rules, &[File]) -> Vec<Violation>;

const CHECKS: [Check; 5] = [arrows::check, unsafety::check, shape::check, docs::check, text::check];

fn main() -> ExitCode {
    match tidy() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            let _ = writeln!(io::stderr(), "tidy: {error}");
            ExitCode::from(2)
        }
    }
}

fn tidy() -> Result<bool, Box<dyn Error>> {
    let rules = Rules::load()?;
    let files = read_tree()?;
    let mut found: Vec<Violation> = CHECKS.iter().flat_map(|check| check(&rules, &files)).collect();
    found.sort();
    let mut out = io::stdout().lock();
    for violation in &found {
        writeln!(out, "{violation}")?;
    }
    Ok(found.is_empty())
}

/// Everything in the tree that git tracks or would track, as text where it is text.
fn read_tree() -> Result<Vec<File>, Box<dyn Error>> {
    let root = git(&["rev-parse", "--show-toplevel"])?;
    let root = root.trim_end();
    let listed = ["-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let listed = git(&listed)?;
    let paths = listed.split('\0').filter(|path| !path.is_empty());
    // What cannot be read was deleted but not yet committed, or is a link to a directory.
    let read = paths.filter_map(|path| Some((path, fs::read(Path::new(root).join(path)).ok()?)));
    let files = read
        .map(|(path, bytes)| File { path: path.to_owned(), text: String::from_utf8(bytes).ok() });
    Ok(files.collect())
}

fn git(args: &[&str]) -> Result<String, Box<dyn Error>> {
    // A checkout made by another user, as in many CI containers, is fine for reading.
    let output = Command::new("git").args(["-c", "safe.directory=*"]).args(args).output()?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        return Err(format!("git could not list the files: {}", reason.trim()).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}
