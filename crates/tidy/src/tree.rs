//! A file of the tree and a complaint about it. Knows no rule.

use std::fmt;

/// A file, by its path from the root. Binary files have no text.
#[derive(Debug)]
pub(crate) struct TreeFile {
    pub(crate) path: String,
    pub(crate) text: Option<String>,
}

/// One thing that is wrong, and where.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Violation {
    path: String,
    line: usize,
    message: String,
}

impl TreeFile {
    /// The file's text if it is Rust.
    pub(crate) fn rust_text(&self) -> Option<&str> {
        self.text.as_deref().filter(|_| self.path.ends_with(".rs"))
    }

    /// A violation at a line, counted from 1.
    pub(crate) fn violation_at(&self, line: usize, message: impl Into<String>) -> Violation {
        Violation { path: self.path.clone(), line, message: message.into() }
    }

    /// Whether the whole file is test code.
    pub(crate) fn is_test(&self) -> bool {
        self.path.ends_with("/tests.rs") || self.path.split('/').any(|part| part == "tests")
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}: {}", self.path, self.line, self.message)
    }
}

#[cfg(test)]
pub(crate) mod samples {
    use super::{TreeFile, Violation};
    use crate::{TreeCheck, rules::TidyRules};

    pub(crate) fn sample_file(path: &str, text: &str) -> TreeFile {
        TreeFile { path: path.into(), text: Some(text.into()) }
    }

    /// What a check says about these files.
    pub(crate) fn list_complaints(check: TreeCheck, files: &[TreeFile]) -> Vec<String> {
        check(&TidyRules::load().unwrap(), files).iter().map(Violation::to_string).collect()
    }
}
