//! Pages that the binary prints: what is committed is what it prints today.

use std::{env, error::Error, process::Command};

use crate::tree::{TreeFile, Violation};

/// Each page, and the arguments of `cloche` that print it.
const PAGES: [(&str, [&str; 2]); 2] = [
    ("docs/CONFIGURATION.md", ["config", "reference"]),
    ("docs/cloche.sample.toml", ["config", "sample"]),
];

/// Finds pages that differ from what the binary prints. Builds the binary if it is not built yet.
pub(crate) fn check_generated(files: &[TreeFile]) -> Result<Vec<Violation>, Box<dyn Error>> {
    let mut found = Vec::new();
    for (path, arguments) in PAGES {
        let printed = run_cloche(&arguments)?;
        let file = files.iter().find(|file| file.path == path);
        let Some(file) = file else { return Err(format!("{path} is missing").into()) };
        found.extend(compare_page(file, &printed, &arguments.join(" ")));
    }
    Ok(found)
}

/// The first line at which a page differs from what is printed.
fn compare_page(file: &TreeFile, printed: &str, command: &str) -> Option<Violation> {
    let text = file.text.as_deref().unwrap_or_default();
    if text == printed {
        return None;
    }
    let same = text.lines().zip(printed.lines()).take_while(|(old, new)| old == new).count();
    let message = format!("differs from what `cloche {command}` prints; write its output here");
    Some(file.violation_at(same + 1, message))
}

fn run_cloche(arguments: &[&str]) -> Result<String, Box<dyn Error>> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["run", "--quiet", "--bin", "cloche", "--"]).args(arguments);
    // Build scripts run again if what describes this crate in the environment describes another one.
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(describes_this_crate) {
            command.env_remove(name);
        }
    }
    let output = command.output()?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cloche {}: {}", arguments.join(" "), reason.trim()).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

fn describes_this_crate(variable: &str) -> bool {
    variable.starts_with("CARGO_PKG_") || variable.starts_with("CARGO_MANIFEST_")
}

#[cfg(test)]
mod tests {
    use super::compare_page;
    use crate::tree::samples::sample_file;

    #[test]
    fn a_page_that_differs_is_named_with_the_line() {
        let file = sample_file("docs/PAGE.md", "one\ntwo\n");
        assert_eq!(compare_page(&file, "one\ntwo\n", "page"), None);
        let found = compare_page(&file, "one\n2\n", "page").unwrap().to_string();
        assert!(found.starts_with("docs/PAGE.md:2: differs from what `cloche page`"), "{found}");
    }
}
