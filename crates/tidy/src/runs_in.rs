//! Each file of a crate whose code runs in several processes says in which ones.

use crate::{
    rules::TidyRules,
    tree::{TreeFile, Violation},
};

const OPENING: &str = "//! Runs in: ";

/// Finds files of the listed crates whose first line does not name their processes.
pub(crate) fn check_runs_in(rules: &TidyRules, files: &[TreeFile]) -> Vec<Violation> {
    let is_listed = |path: &str| {
        let mut parts = path.split('/');
        let (top, name, folder) = (parts.next(), parts.next(), parts.next());
        top == Some("crates")
            && folder == Some("src")
            && name.is_some_and(|name| rules.code.runs_in.iter().any(|listed| listed == name))
    };
    let listed = files.iter().filter(|file| is_listed(&file.path));
    let missing = listed.filter(|file| file.rust_text().is_some_and(|text| !names_process(text)));
    let message = "begin the file with `//! Runs in: ` and the processes that run it";
    missing.map(|file| file.violation_at(1, message)).collect()
}

fn names_process(text: &str) -> bool {
    let first = text.lines().next().unwrap_or_default();
    first.strip_prefix(OPENING).is_some_and(|processes| !processes.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::check_runs_in;
    use crate::tree::samples::{list_complaints, sample_file};

    fn complaints(path: &str, text: &str) -> Vec<String> {
        list_complaints(check_runs_in, &[sample_file(path, text)])
    }

    #[test]
    fn a_file_that_names_its_processes_passes() {
        let text = "//! Runs in: pid 1 of a cell, guest.\n//!\n//! Applies the steps.\n";
        assert!(complaints("crates/jail/src/setup/apply.rs", text).is_empty());
    }

    #[test]
    fn a_file_that_does_not_begin_with_its_processes_is_found() {
        let found = complaints("crates/jail/src/setup/apply.rs", "//! Applies the steps.\n");
        let says = "begin the file with `//! Runs in: ` and the processes that run it";
        assert_eq!(found, [format!("crates/jail/src/setup/apply.rs:1: {says}")]);
        for text in ["", "//! Runs in: \n", "//! Steps.\n//! Runs in: guest.\n", "// Runs in: x\n"]
        {
            assert_eq!(complaints("crates/jail/src/lib.rs", text).len(), 1, "{text:?}");
        }
    }

    #[test]
    fn other_crates_and_other_files_need_not_name_processes() {
        for path in ["crates/model/src/lib.rs", "crates/jail/build.rs", "crates/jail/src/notes.md"]
        {
            assert!(complaints(path, "//! Words.\n").is_empty(), "{path}");
        }
    }
}
